"""The way of one message, sent through the data path's own parts with a recorder at each of them.

Nothing is connected. Routing, templates, interceptors, dead letters and the choice of the partition are the objects of
the running gateway (`bridge.produce.dispatch`, its slow lane), fed with one message. This module records their inputs
and outputs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from bridge.intercept.loading import load_chains
from bridge.interceptors import Chain, Chains, Drop, Stage
from bridge.kafka.producer import KafkaProducer
from bridge.message import NO_PROPERTIES, MessageView, Properties
from bridge.produce.dispatch import TopicNameError
from bridge.produce.partitions import Partitions
from bridge.produce.pipeline import Pipeline, PipelineHooks
from bridge.produce.sender import SenderObserver, SenderPolicy
from bridge.record import Record
from bridge.routing.filters import difference, matches
from bridge.routing.router import RESERVED_FILTER, Route, Router
from bridge.routing.topic_rule import RouteError
from config.settings import KafkaSettings
from gateway.base.group_plan import client_id, group_plans

if TYPE_CHECKING:
    from config.settings import Settings

_DELAYED: Final = "$delayed/"
_UNKNOWN: Final = 1  # assumed number of partitions if it is unknown
_ROOM: Final = 1 << 30  # bytes of a batch, so that each slot has one


@dataclass(frozen=True, slots=True)
class Message:
    """An MQTT message as a device publishes it."""

    topic: str
    payload: bytes = b""
    properties: Properties = NO_PROPERTIES
    qos: int = 1
    retain: bool = False


@dataclass(frozen=True, slots=True)
class RouteView:
    """A route. ``why`` has by filter the reason why it does not match; empty for the matching route."""

    name: str
    matched: str | None
    why: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Sessions to which the broker delivers a copy. ``sessions`` are client ids of one worker. With ``one_of`` one of
    them gets it (a shared subscription), else each."""

    group: str
    filter: str
    qos: int
    one_of: bool
    sessions: tuple[str, ...]
    taken: bool


@dataclass(frozen=True, slots=True)
class Step:
    """The result of an interceptor for a record: ``outcome``, and the changed parts."""

    interceptor: str
    outcome: Literal["pass", "change", "split", "drop", "error"]
    detail: str = ""
    changes: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A record that would be written. ``partitions`` is the topic's number, None if unknown; ``partition`` is then None
    too, as it is without a key."""

    topic: str
    partition: int | None
    partitions: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    dead_letter: bool


@dataclass(slots=True)
class Explanation:
    """All results in order of the message's way, with ``notes``."""

    message: Message
    received_ms: int = 0  # when the gateway is taken to have received it
    before: list[str] = field(default_factory=list)  # EMQX's steps before
    deliveries: list[Delivery] = field(default_factory=list)
    routes: list[RouteView] = field(default_factory=list)
    route: str | None = None
    device: bytes | None = None
    message_id: bytes | None = None
    message_id_kind: str | None = None
    steps: list[Step] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    filtered: str | None = None
    stopped: str | None = None
    notes: list[str] = field(default_factory=list)


class _Locator:
    """Numbers of partitions from ``count``; an assumed number if it is unknown."""

    def __init__(self, count: Callable[[str], int | None]) -> None:
        self._count = count
        self.known: dict[str, int | None] = {}

    def partition_count(self, topic: str) -> int | None:
        if topic not in self.known:
            self.known[topic] = self._count(topic)
        return self.known[topic] or _UNKNOWN

    async def locate(self, topic: str) -> int:
        return self.partition_count(topic) or _UNKNOWN


def explain(settings: Settings, message: Message, partitions: Callable[[str], int | None]) -> Explanation:
    """Send one message through the data path. ``partitions`` returns the number of a topic's partitions, or None.

    Raises ConfigError for routes or interceptors that a start would refuse. Not for use inside a running loop."""
    return asyncio.run(_explain(settings, message, partitions))


async def _explain(settings: Settings, message: Message, partitions: Callable[[str], int | None]) -> Explanation:
    """``partitions`` gives the number of a topic's partitions; None if unknown."""
    told = Explanation(message)
    router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
    chains = load_chains(settings)
    try:
        message = _at_broker(message, told)
        route = router.match(message.topic)
        told.route = None if route is None else route.name
        told.routes = list(_asked(router, message.topic, route))
        told.deliveries = list(_deliveries(settings, router, message, route))
        if told.deliveries:
            # A subscription's QoS is a limit. Of several copies the one that is not dropped counts.
            taken = next((one for one in told.deliveries if one.taken), told.deliveries[0])
            message = replace(message, qos=min(message.qos, taken.qos))
        _note_deliveries(told)
        if route is not None:
            _identify(route, message, told)
        await _dispatch(settings, router, chains, message, told, _Locator(partitions))
        if route is not None and route.keyed and any(one.key is None and not one.dead_letter for one in told.written):
            key = next(one.key for one in settings.routes if one.name == route.name)
            told.notes.append(f"The key {key!r} has no value for this message, so its record has no place in an order.")
    finally:
        chains.close()
    return told


def _note_deliveries(told: Explanation) -> None:
    if not told.deliveries:
        told.notes.append(
            "No subscription brings it, so the gateway never sees it."
            if told.route is None
            else "No subscription brings it: this is what would become of it if one did."
        )
    taken = sum(one.taken for one in told.deliveries)
    if taken > 1:
        told.notes.append(
            f"EMQX delivers it {taken} times, once for each of these filters, and each is written: see `gateway routes "
            "lint`."
        )


def _at_broker(message: Message, told: Explanation) -> Message:
    """The message as EMQX delivers it, with notes about EMQX's changes."""
    topic = message.topic
    if topic.startswith(_DELAYED):
        delay, slash, rest = topic.removeprefix(_DELAYED).partition("/")
        if slash and rest and delay.isdigit():
            told.before.append(f"EMQX keeps it for {delay} s and then publishes it to {rest!r}: that is what matches.")
            message = replace(message, topic=rest)
        else:
            told.before.append("EMQX discards it: $delayed wants $delayed/SECONDS/TOPIC.")
    elif topic.startswith("$SYS/"):
        told.before.append(
            "EMQX publishes below $SYS itself; its default rules let clients on its own machine alone subscribe there."
        )
    elif topic.startswith("$file/"):
        told.before.append("EMQX takes it for a part of a file transfer, and hands it to nobody.")
    elif topic.startswith("$"):
        told.before.append("A filter with a wildcard on its first level does not match it [MQTT-4.7.2-1].")
    if message.retain:
        told.before.append(
            "EMQX also keeps it (retained). A shared subscription gets it now, and not again when it subscribes later."
        )
    return message


def _asked(router: Router, topic: str, winner: Route | None) -> Iterator[RouteView]:
    """All routes up to the matching one."""
    if matches(RESERVED_FILTER, topic):
        yield RouteView("(the gateways' own messages)", RESERVED_FILTER)
        return
    for route in router.routes:
        matched = next((text for text in route.filters if matches(text, topic)), None)
        why = {} if matched is not None else {text: difference(text, topic) or "" for text in route.filters}
        yield RouteView(route.name, matched, why)
        if route is winner:
            return


def _deliveries(settings: Settings, router: Router, message: Message, route: Route | None) -> Iterator[Delivery]:
    """The subscriptions of one worker that receive the message."""
    for plan in group_plans(settings):
        mqtt = plan.settings.mqtt
        shared = mqtt.distribution == "shared"
        for subscription in router.covers[plan.name].subscriptions if plan.name in router.covers else ():
            if not matches(subscription.filter, message.topic):
                continue
            dealt = router.subscriptions(
                mqtt.distribution, mqtt.sessions, share_group=mqtt.share_group, group=plan.name
            )  # fmt: skip
            text = f"$share/{mqtt.share_group}/{subscription.filter}" if shared else subscription.filter
            holders = [n for n, wanted in enumerate(dealt) if any(one.filter == text for one in wanted)]
            worker = "N" if settings.workers != 0 else settings.worker  # unknown if there are several workers
            names = tuple(client_id(settings, worker, plan.session_name(number)) for number in holders)
            taken = route is None or route.group == plan.name  # the sessions of other groups drop the message
            yield Delivery(plan.name, text, subscription.qos, shared, names, taken)


def _identify(route: Route, message: Message, told: Explanation) -> None:
    """Add the device and the message id by the route's templates."""
    view = _view(message)
    told.device = route.device_of(view)
    try:
        resolved = route.for_message(route.for_topic(message.topic), view)
    except RouteError:
        return  # a dead letter, which has the reason
    told.message_id = resolved.message_id
    told.message_id_kind = None if resolved.message_id_kind is None else resolved.message_id_kind.value
    if resolved.message_id_kind is not None and resolved.message_id_kind.value == "delivery":
        told.message_id = None
        told.notes.append("Its message id is a delivery id, made anew for each delivery.")


def _view(message: Message) -> MessageView:
    return MessageView(
        message.topic, _flags(message), message.properties, message.payload, time.time_ns() // 1_000_000, b"delivery-id"
    )


def _flags(message: Message) -> int:
    return message.qos << 1 | message.retain


async def _dispatch(
    settings: Settings, router: Router, chains: Chains, message: Message, told: Explanation, locator: _Locator
) -> None:
    """Send the message through the slow lane into batches of a producer that is not connected."""
    producer = KafkaProducer(KafkaSettings(compression="none").model_copy(update={"batch_bytes": _ROOM}), "", ())

    def stop(error: BaseException) -> None:
        told.stopped = str(error)

    def filtered(_route: str, reason: str) -> None:
        told.filtered = reason

    hooks = PipelineHooks(
        topics=locator,
        parse_properties=lambda _raw: message.properties,
        filtered=filtered,
        failed=stop,
        observer=cast("SenderObserver", None),  # nothing is sent
    )
    pipeline = Pipeline(Partitions(), lambda: producer, SenderPolicy.from_settings(settings.kafka), hooks)
    path = pipeline.group(
        settings,
        router,
        lambda _span: None,
        group=None,  # takes the copy of any session
        chains=Chains({chain.route: _listening(chain, told.steps) for chain in chains}),
    )
    accumulator, dispatcher = path.accumulator, path.dispatcher
    dispatcher.received_ms = told.received_ms = time.time_ns() // 1_000_000
    accumulator.now_ns = time.monotonic_ns()
    dispatcher.delivery_prefix = b"delivery-id:"
    raw = b"\0" if message.properties != NO_PROPERTIES else b""
    try:
        dispatcher.slow(_flags(message), message.topic.encode(), raw, message.payload)
    except TopicNameError as error:
        told.stopped = f"{error} A broker does not let it pass."
    await dispatcher.close()
    for slot in accumulator.slots:
        if slot.batch is None:
            continue
        topic, count = slot.queue.topic, locator.known.get(slot.queue.topic)
        partition = None if slot.choose is not None or count is None else slot.queue.partition
        for one in producer.records(slot.batch.builder):
            headers, at_ms = tuple(one.headers), one.timestamp_ms
            told.written.append(Written(topic, partition, count, one.key, one.value, headers, at_ms, slot.dead_letter))


# --- interceptors ---


def _listening(chain: Chain, steps: list[Step]) -> Chain:
    """A chain of these interceptors whose stages record their inputs and outputs."""
    for stage in chain.stages:
        stage.on_send = _noting(stage, stage.on_send, steps)
    return Chain(chain.route, chain.stages)


def _noting(stage: Stage, on_send: Callable[[Record], object], steps: list[Step]) -> Callable[[Record], object]:
    """``on_send`` of an interceptor, which also adds its result to ``steps``."""

    def call(record: Record) -> object:
        try:
            answer = on_send(record)
        except Exception as error:
            went = {"pass": "the record goes on as it was", "drop": "it is dropped", "dead_letter": "a dead letter",
                    "stop": "the worker stops"}[stage.policy]  # fmt: skip
            steps.append(Step(stage.label, "error", f"{type(error).__name__}: {error}; on_error: {went}"))
            raise
        steps.append(_step(stage.label, record, answer))
        return answer

    return call


def _step(label: str, record: Record, answer: object) -> Step:
    """What the interceptor ``label`` did to a record, by what it returned."""
    if isinstance(answer, Drop):
        return Step(label, "drop", answer.reason)
    if isinstance(answer, list | tuple):
        return Step(label, "split", f"into {len(answer)} records")
    if not isinstance(answer, Record):
        return Step(label, "error", f"it answered {type(answer).__name__}, which no interceptor may")
    changed = tuple(_changes(record, answer))
    return Step(label, "change" if changed else "pass", changes=changed)


def _changes(before: Record, after: Record) -> Iterator[tuple[str, str, str]]:
    """Each part of a record that differs: its name, and both values as text. The order of headers is no part."""
    parts: list[tuple[str, Any, Any]] = [
        ("topic", before.topic, after.topic),
        ("key", before.key, after.key),
        ("value", before.value, after.value),
        ("timestamp", before.timestamp_ms, after.timestamp_ms),
    ]
    yield from ((name, shown(old), shown(new)) for name, old, new in parts if old != new)
    old_values, new_values = _by_name(before.headers), _by_name(after.headers)
    for name in {**old_values, **new_values}:
        had, has = old_values.get(name, []), new_values.get(name, [])
        if had != has:
            old, new = (", ".join(map(shown, values)) for values in (had, has))
            yield f"header {name}", old if had else "not there", new if has else "removed"


def _by_name(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, list[bytes | None]]:
    """The values of each name; a record may have several."""
    found: dict[str, list[bytes | None]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value)
    return found


def shown(value: object, limit: int = 200) -> str:
    """A value for people: printable text unchanged, else bytes in Python's notation."""
    if value is None:
        return "none"
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = repr(value)
    else:
        text = str(value)
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
