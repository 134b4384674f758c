"""``gateway explain --command``: what would become of a command to a device, through the dispatcher itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bridge.commands.dispatcher import NOBODY, Dispatcher
from bridge.commands.plan import CommandPlan
from bridge.commands.reading import BadCommandError, read_request
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.produce.partitioner import partition_for
from bridge.routing.router import Router
from config.values.grammar import format_duration

if TYPE_CHECKING:
    from bridge.commands.model import StatusRecord
    from bridge.commands.ports import Outgoing, Partition, Published
    from config.settings import Settings
    from config.tables.commands import CommandSettings

TOKEN: Final = "${id}"  # noqa: S105 - its place
PLACE: Final = "TOPIC/PARTITION:OFFSET"
_DEVICE_REPORT: Final = "EMQX's report that the device acknowledged it"


@dataclass(slots=True)
class CommandExplanation:
    """The way of one command. ``sent`` is what the broker gets, None for a dead letter, whose reason and text are
    ``dead_letter``.

    In ``sent`` the token is written as TOKEN, and the record's place as PLACE: both are known when the record is in
    Kafka. ``after_sent`` and ``after_nobody`` are the statuses after the broker's two answers.
    """

    commands: str
    record: LoggedRecord
    partitions: int | None
    sent: Outgoing | None = None
    dead_letter: tuple[str, str] | None = None
    is_ordered: bool = True
    deadline_ms: int | None = None
    awaited: list[str] = field(default_factory=list)
    after_sent: list[StatusRecord] = field(default_factory=list)
    after_nobody: list[StatusRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Ports:
    """The dispatcher's ports, in memory. ``answer`` is the broker's to everything."""

    def __init__(self, answer: int | None) -> None:
        self.statuses: list[StatusRecord] = []
        self.sent: list[tuple[Outgoing, Published]] = []
        self._answer = answer  # a reason code of MQTT
        self._stored: list[Callable[[int], None]] = []
        self.room = 1  # for messages to publish
        self.waiting = 0  # statuses that Kafka does not have yet

    def now_ns(self) -> int:
        return 1_000_000_000_000

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def start(self) -> None: ...

    async def stop(self, deadline_ns: int) -> None: ...

    async def drained(self) -> None: ...

    def watch(self, changed: Callable[[], None]) -> None: ...

    def drop(self, partition: Partition) -> None: ...

    def bury(self, record: LoggedRecord, error: BadCommandError, stored: Callable[[], None]) -> None: ...

    def publish(self, message: Outgoing, published: Published) -> None:
        self.sent.append((message, published))

    def write(self, partition: int, record: StatusRecord, stored: Callable[[int], None]) -> None:
        del partition
        self.statuses.append(record)
        self._stored.append(stored)

    def settle(self) -> None:
        """Let the broker and Kafka answer, once."""
        for _, published in self.sent[:1]:
            published(self._answer)
        for offset, stored in enumerate(self._stored):
            stored(offset)


def explain_command(
    settings: Settings,
    commands: CommandSettings,
    device: str,
    payload: bytes,
    headers: Iterable[tuple[str, bytes]],
    partitions: Callable[[str], int | None],
) -> CommandExplanation:
    """Send one command through the dispatcher, as if the MQTT side stood. ``partitions`` returns the number of a
    topic's partitions, or None. Nothing is written or published."""
    topic = commands.topics[0]
    count = partitions(topic)
    key = device.encode(errors="surrogateescape")  # the bytes of the shell
    place = Place(topic, partition_for(key, count) if count else 0, 0)
    record = LoggedRecord(place, time.time_ns() // 1_000_000, key, payload, list(headers))
    told = CommandExplanation(commands.name, record, count)
    plan = CommandPlan.from_settings(commands)
    try:
        request = read_request(record, plan, record.timestamp_ms)
    except BadCommandError as error:
        told.dead_letter = (error.reason.value, str(error))
        return told
    told.is_ordered, told.deadline_ms = request.is_ordered, request.deadline_ms
    token = plan.signer.sign(place, request.own_id or str(place))
    sent, told.after_sent = _try_out(plan, record, 0)
    _, told.after_nobody = _try_out(plan, record, NOBODY)
    if sent is None:
        told.notes.append("It has expired already, so it is never sent.")
        return told
    told.sent = _without_places(sent, token, place, has_id=request.own_id is not None)
    router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.own_topics)
    told.awaited = list(_awaited(commands, router, request.device, is_answer_asked=request.is_answer_asked))
    told.notes += _notes(settings, commands, router, sent, request.device, is_answer_asked=request.is_answer_asked)
    return told


def _try_out(plan: CommandPlan, record: LoggedRecord, answer: int) -> tuple[Outgoing | None, list[StatusRecord]]:
    """What would be published, and the statuses written, if ``answer`` were the broker's reason code."""
    ports = _Ports(answer)
    dispatcher = Dispatcher(plan, ports, ports, ports, ports)
    dispatcher.assign(record.place[:2], None, ())  # nothing committed, no earlier statuses
    dispatcher.is_open = True
    dispatcher.take([record])
    ports.settle()
    return (ports.sent[0][0] if ports.sent else None), ports.statuses


def _without_places(sent: Outgoing, token: str, place: Place, *, has_id: bool) -> Outgoing:
    user = [(name, PLACE if not has_id and value == str(place) else value) for name, value in sent.user]
    return sent._replace(topic=sent.topic.replace(token, TOKEN), correlation_data=TOKEN.encode(), user=tuple(user))


def _awaited(commands: CommandSettings, router: Router, device: str, *, is_answer_asked: bool) -> Iterator[str]:
    """What the gateway waits for once the command is sent."""
    limit = format_duration(commands.answer_timeout)
    if commands.delivered_by is not None and (is_answer_asked or commands.confirm == "delivered"):
        ends = "" if is_answer_asked else f" within {limit}; then it is delivered, else timed_out"
        yield f"{_DEVICE_REPORT}, by {_way(router, commands.delivered_by)}{ends}"
    if is_answer_asked:
        yield f"an answer within {limit}, by {_way(router, commands.answers)}; without one: timed_out"
        if commands.response_topic:
            where = commands.response_topic.replace("${device}", device)
            yield (f"MQTT 5: to {where}, with its correlation data, and user property status (200 without it)")
        yield f"MQTT 3.1.1: to a topic that ends with /{TOKEN}/200, or another status"
    elif commands.confirm == "sent":
        yield "nothing: it ends as sent once the broker has it"


def _way(router: Router, name: str | None) -> str:
    route = next((route for route in router.routes if route.name == name), None)
    return f"route {name!r}" if route is None else f"route {name!r} ({', '.join(route.filters)})"


def _notes(
    settings: Settings,
    commands: CommandSettings,
    router: Router,
    sent: Outgoing,
    device: str,
    *,
    is_answer_asked: bool,
) -> Iterator[str]:
    if is_answer_asked and commands.response_topic:
        topic = commands.response_topic.replace("${device}", device)
        winner = router.match(topic)
        if winner is None or winner.name != commands.answers:
            taken = "no route takes" if winner is None else f"route {winner.name!r} takes"
            yield f"But {taken} a message on {topic!r}, so the answer is not recognised: see gateway explain {topic}."
    if (back := router.match(sent.topic)) is not None:
        yield f"Route {back.name!r} would bring the command itself back to Kafka: narrow its filters."
    if settings.mqtt.protocol == "3.1.1":
        yield "mqtt.protocol is 3.1.1: the device gets topic and payload, and none of the properties."
