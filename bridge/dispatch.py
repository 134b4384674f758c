"""From an MQTT topic's bytes to the slot its records enter: what the hot path looks up, and the slow lane beside it.

The hot path asks ``caches[flag nibble][topic bytes]`` and finds everything settled: slot, key, headers. ``entry``
settles it at first sight. A message whose route needs more than the topic (properties or payload in a template, a
receive time in a header) goes through ``slow``, record by record, into the same slots.

A Kafka topic made from a template may be one whose partitions are not known yet: its messages are parked, in order,
until they are, each holding up its span."""

from __future__ import annotations

__all__ = ["Dispatcher", "TopicLocator"]

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from bridge import wire
from bridge.errors import BridgeError, RefusedError, RetriableError
from bridge.headers import property_headers
from bridge.holding import HeldMessage, Holding
from bridge.message import MessageView, Properties
from bridge.partitioner import partition_for
from bridge.routing import RouteError, TopicPlan
from bridge.wire import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.accumulator import Accumulator, Slot
    from bridge.batch import Span
    from bridge.dead_letter import DeadLetters
    from bridge.ports import Headers
    from bridge.routing import Resolved, Route, Router
    from bridge.wire import Header

log = structlog.get_logger("dispatch")

LOCATE_RETRY_S = 1.0
# Why a message is filtered.
STATUS = "status"  # a gateway's own status message
NO_ROUTE = "no_route"
OTHER_GROUP = "other_group"  # filters of two session groups overlap: the other's sessions get the message too


class Extras(dict[bytes, "list[Header]"]):
    """Headers by raw property bytes, for one route."""

    __slots__ = ("route",)

    def __init__(self, route: Route) -> None:
        super().__init__()
        self.route = route


Entry = tuple["Slot | None", bytes | None, "list[Header]", Extras | None]
_SLOW: Entry = (None, None, [], None)


class TopicLocator(Protocol):
    """Knows Kafka topics and their partitions."""

    def partition_count(self, topic: str) -> int | None:
        """Partitions by the last metadata, None for a topic not known (yet)."""

    async def locate(self, topic: str) -> int:
        """Find, or make, a topic. Raises RetriableError, RefusedError, TopicMissingError."""


class _Message(NamedTuple):
    """A parked message: everything needed to append it later."""

    route: Route
    qos: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    span: Span


class TopicNameError(BridgeError):
    """An MQTT topic name that the specification forbids [MQTT-3.3.2-1, -2]."""


class Dispatcher:
    """One per session group, shared by its sessions. Belongs to the event loop's thread. ``group`` None is for sessions
    of earlier settings: every route is theirs.

    Before a session feeds packets it sets ``delivery_prefix``; the ingest sets ``received_ms``.
    """

    def __init__(
        self,
        router: Router,
        accumulator: Accumulator,
        topics: TopicLocator,
        dead_letters: DeadLetters,
        *,
        group: str | None = "",
        parse_properties: Callable[[bytes], Properties],
        filtered: Callable[[str, str], None],
        max_record_bytes: int,
        cache_entries: int,
        property_entries: int,
        pump: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.caches: list[dict[bytes, Entry]] = [{} for _ in range(16)]
        self.received_ms = 0
        self.delivery_prefix = b""
        self._older: list[dict[bytes, Entry]] = [{} for _ in range(16)]
        self._entries = 0
        self._half = max(1, cache_entries // 2)
        self._router = router
        self._group = group
        self._accumulator = accumulator
        self._topics = topics
        self._dead_letters = dead_letters
        self._parse_properties = parse_properties
        self._filtered = filtered
        self._max_record_bytes = max_record_bytes
        self._property_entries = property_entries
        self._pump = pump
        self._failed = failed  # told of a defect while a topic is located: its messages would stay parked
        self._extras: dict[Route, Extras] = {}
        self._parked: dict[str, list[_Message]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._delivery = 0
        self.holding = Holding(accumulator, again=self._again, pump=pump, gone=self._settle_afresh, failed=failed)

    # --- the hot path's misses ---------------------------------------------------------------------

    def entry(self, flags: int, topic_bytes: bytes) -> Entry:
        """Settle a topic seen for the first time, or again after it left the cache. Raises TopicNameError."""
        found = self._older[flags].get(topic_bytes)
        if found is None:
            found = self._settle(flags, topic_bytes)
        if self._entries >= self._half:
            # Two generations: what is still in use comes back from the older one, the rest goes with it.
            for nibble in range(16):
                self._older[nibble] = self.caches[nibble]
                self.caches[nibble] = {}
            self._entries = 0
        self._entries += 1
        self.caches[flags][topic_bytes] = found
        return found

    def property_headers(self, extras: Extras, raw: bytes) -> list[Header]:
        """The headers of property bytes seen for the first time. Raises what ``parse_properties`` does."""
        headers = extras.route.for_properties(self._parse_properties(raw)) if raw else []
        if len(extras) >= self._property_entries:
            extras.clear()
        extras[raw] = headers
        return headers

    def note_copy(self) -> None:
        """A copy of a QoS 2 message that is held already was left out."""
        self._accumulator.current.filtered += 1

    def _settle(self, flags: int, topic_bytes: bytes) -> Entry:
        topic = _topic_name(topic_bytes)
        route = self._router.match(topic)
        if route is None or not route.fast or route.tombstones or self._is_others(route, topic):
            return _SLOW
        if route.name in self.holding:
            return _SLOW
        try:
            plan = route.for_topic(topic)
        except RouteError:
            return _SLOW  # said again, and buried, for each message
        assert plan.kafka_topic is not None
        partitions = self._topics.partition_count(plan.kafka_topic)
        if partitions is None or plan.kafka_topic in self._parked:
            return _SLOW
        extras = self._extras_of(route) if route.uses_properties else None
        slot = self._slot(route, flags >> 1 & 3, plan.kafka_topic, plan.key, partitions)
        # One copy of the topic's bytes for key, header and look-up: a third of what a remembered topic takes.
        key = topic_bytes if plan.key == topic_bytes else plan.key
        headers = [(name, topic_bytes if value == topic_bytes else value) for name, value in plan.headers(flags)]
        return slot, key, headers, extras

    def _extras_of(self, route: Route) -> Extras:
        extras = self._extras.get(route)
        if extras is None:
            extras = self._extras[route] = Extras(route)
        return extras

    def _slot(self, route: Route, qos: int, kafka_topic: str, key: bytes | None, partitions: int) -> Slot:
        if key is None:
            return self._accumulator.keyless_slot(route.name, qos, kafka_topic, partitions)
        return self._accumulator.slot(route.name, qos, kafka_topic, partition_for(key, partitions))

    def _is_others(self, route: Route, topic: str) -> bool:
        """Whether the sessions of the route's group bring this message as well. Not so when no filter of ours fetches
        it: then a session that the broker kept had queued it under earlier settings, and it comes this way alone."""
        group = self._group
        return group is not None and route.group != group and self._router.fetches(group, topic)

    # --- the slow lane -----------------------------------------------------------------------------

    def slow(self, flags: int, topic_bytes: bytes, raw_properties: bytes, payload: bytes) -> None:
        """Route one message by itself: into a slot, to the dead letters, parked, or filtered. Raises TopicNameError."""
        topic = _topic_name(topic_bytes)
        route = self._router.match(topic)
        if route is None:
            self._accumulator.current.filtered += 1
            self._filtered("", STATUS if topic.startswith("gateways/") else NO_ROUTE)
            return
        if self._is_others(route, topic):
            self._accumulator.current.filtered += 1
            self._filtered(route.name, OTHER_GROUP)
            return
        qos = flags >> 1 & 3
        properties = self._parse_properties(raw_properties) if raw_properties else Properties()
        if self.holding and self.holding.keeps(
            route.name,
            lambda span: HeldMessage(
                flags, topic_bytes, raw_properties, payload, self.received_ms, self.delivery_prefix, span
            ),
        ):
            return
        self._delivery += 1
        view = MessageView(
            topic, flags, properties, payload, self.received_ms, b"%s%d" % (self.delivery_prefix, self._delivery)
        )
        plan: TopicPlan | None = None
        try:
            plan = route.for_topic(topic)
            resolved = route.for_message(plan, view)
        except RouteError as error:
            self._bury(route, view, plan.key if plan else None, error.reason, error, plan.kafka_topic if plan else None)
            return
        if len(payload) > self._max_record_bytes:
            error_too_large = BridgeError(
                f"The payload has {len(payload)} bytes; kafka.max_record_bytes allows {self._max_record_bytes}. "
                "Raise it together with the topic's max.message.bytes, or send less at once."
            )
            self._bury(route, view, resolved.key, DeadLetterReason.TOO_LARGE, error_too_large, resolved.kafka_topic)
            return
        self._place(route, qos, resolved, None if route.tombstones and not payload else payload)

    def _place(self, route: Route, qos: int, resolved: Resolved, value: bytes | None) -> None:
        kafka_topic = resolved.kafka_topic
        partitions = self._topics.partition_count(kafka_topic)
        parked = self._parked.get(kafka_topic)
        if partitions is None or parked is not None:
            span = self._accumulator.occupy()
            message = _Message(route, qos, self.received_ms, resolved.key, value, resolved.headers, span)
            self._park(kafka_topic, message, parked)
            return
        slot = self._slot(route, qos, kafka_topic, resolved.key, partitions)
        self._accumulator.append(
            slot, timestamp=self.received_ms, key=resolved.key, value=value, headers=resolved.headers
        )

    def _bury(
        self,
        route: Route,
        view: MessageView,
        key: bytes | None,
        reason: DeadLetterReason,
        error: Exception,
        kafka_topic: str | None,
    ) -> None:
        headers: list[Header] = [(wire.MQTT_TOPIC, view.topic.encode()), (wire.MQTT_QOS, b"%d" % (view.flags >> 1 & 3))]
        if view.flags & 1:
            headers.append((wire.MQTT_RETAIN, b"1"))
        headers += property_headers(view.properties)
        qos = view.flags >> 1 & 3
        self._dead_letters.bury(
            route.name,
            qos,
            self.received_ms,
            key or view.topic.encode(),
            view.payload,
            headers,
            reason,
            error,
            kafka_topic,
        )

    # --- stopped routes ----------------------------------------------------------------------------

    def stop(self, route: str) -> None:
        """Hold a route's messages from now on: none is acknowledged, none goes to Kafka."""
        self.holding.stop(route)
        self._settle_afresh()

    def admit(self, route: str, count: int) -> None:
        """Let some messages of a stopped route pass, the oldest first, to see what becomes of them."""
        self.holding.admit(route, count)

    def tried(self, route: str) -> bool:
        """Whether all that was admitted of a stopped route has got where it goes."""
        parked = any(message.route.name == route for messages in self._parked.values() for message in messages)
        return not parked and self.holding.tried(route)

    def returned(self, delivery_prefix: bytes) -> None:
        """A connection has ended, and what it left unacknowledged is the broker's again."""
        if self.holding:
            self.holding.give_back(delivery_prefix)

    def release(self, route: str) -> None:
        """Let a stopped route go on: first what is held of it, in order."""
        self.holding.release(route)

    def _again(self, message: HeldMessage) -> None:
        """Route a message that was held, as if it came now; it keeps its receive time."""
        before = self.received_ms, self.delivery_prefix
        self.received_ms, self.delivery_prefix = message.received_ms, message.delivery_prefix
        try:
            self.slow(message.flags, message.topic, message.properties, message.payload)
        finally:
            self.received_ms, self.delivery_prefix = before

    def _settle_afresh(self) -> None:
        """Forget every entry. The dictionaries stay the same: the hot path holds one of them."""
        for cache in (*self.caches, *self._older):
            cache.clear()
        self._entries = 0

    # --- parking -----------------------------------------------------------------------------------

    def _park(self, kafka_topic: str, message: _Message, parked: list[_Message] | None) -> None:
        accumulator = self._accumulator
        if parked is None:
            parked = self._parked[kafka_topic] = []
            task = asyncio.get_running_loop().create_task(self._unpark(kafka_topic))
            self._tasks.add(task)
            task.add_done_callback(self._unparked)
        parked.append(message)
        accumulator.parked_messages += 1
        accumulator.buffered_bytes += _bytes(message)

    async def _unpark(self, kafka_topic: str) -> None:
        """Wait until the topic's partitions are known, then let its messages go, in order; or bury them."""
        failure: BridgeError | None = None
        partitions = 0
        while True:
            try:
                partitions = await self._topics.locate(kafka_topic)
            except (RetriableError, RefusedError) as error:
                log.warning("topic_not_located", topic=kafka_topic, error=str(error))
                await asyncio.sleep(LOCATE_RETRY_S)
            except BridgeError as error:
                log.error("topic_not_located", topic=kafka_topic, error=str(error))  # noqa: TRY400 - a sentence
                failure = error
                break
            else:
                break
        accumulator = self._accumulator
        slots: dict[Slot, None] = {}
        for message in self._parked.pop(kafka_topic):
            if failure is not None:
                slot = self._dead_letters.bury(
                    message.route.name, message.qos, message.timestamp, message.key, message.value, message.headers,
                    DeadLetterReason.INVALID_TOPIC, failure, kafka_topic, message.span,
                )  # fmt: skip
            else:
                slot = self._slot(message.route, message.qos, kafka_topic, message.key, partitions)
                accumulator.append(
                    slot, timestamp=message.timestamp, key=message.key, value=message.value, headers=message.headers
                )
                accumulator.move([(message.span, 1)], slot)
            slots[slot] = None
            message.span.pending -= 1
            accumulator.parked_messages -= 1
            accumulator.buffered_bytes -= _bytes(message)
        self._settle_afresh()  # entries made while the topic was parked send its messages through the slow lane
        for slot in slots:
            accumulator.hurry(slot)
        self._pump()

    def _unparked(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def close(self) -> None:
        """Give up waiting for topics; what is parked stays unacknowledged."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _bytes(message: _Message) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in message.headers)
    return len(message.value or b"") + len(message.key or b"") + headers + 100


def _topic_name(topic: bytes) -> str:
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        raise TopicNameError(f"The broker sent a topic name that is no UTF-8: {topic[:80]!r}.") from None
    if not name or "\0" in name or "+" in name or "#" in name:
        raise TopicNameError(f"The broker sent a topic name that MQTT forbids: {name[:80]!r}.")
    return name
