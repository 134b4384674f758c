"""Reads the status topics without a group, for ``gateway command list`` and ``show``."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bridge.commands.model import Answer
from bridge.commands.plan import CommandPlan
from bridge.commands.reading import BadCommandError, Request, read_answer, read_request
from bridge.commands.status_reading import StatusView, parse_place, read_status
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.errors import TopicMissingError
from bridge.kafka.login import KafkaLogin
from bridge.kafka.reader import Partition, TopicReader
from config.settings import Settings
from config.tables.commands import CommandSettings

MOST: Final = 100_000  # commands of a list that are kept in memory, about 1 kB each
_ANSWERS_FOR_MS: Final = 3_600_000  # after a command's last status its further answers are looked for
_CLOCKS_MS: Final = 60_000  # by which a producer's clock may be ahead of the broker's, or of the gateway's


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which commands are listed; an empty tuple is no condition."""

    devices: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    is_open: bool = False

    def takes(self, status: StatusView) -> bool:
        """Whether a command with this last status is wanted."""
        return (
            (not self.devices or status.device in self.devices)
            and (not self.statuses or status.status in self.statuses)
            and not (self.is_open and status.is_terminal)
        )


class Newest:
    """The last status of each wanted command; of twice ``most`` or more at least the newest ``most``. Statuses come in
    their order."""

    def __init__(self, wanted: Wanted, most: int = MOST) -> None:
        self._wanted, self._most = wanted, most
        self._found: dict[Place, StatusView] = {}
        self.has_all = True

    def take(self, status: StatusView) -> None:
        """Keep a command's new status, or drop the command if it is not wanted with this one."""
        if not self._wanted.takes(status):
            self._found.pop(status.place, None)
            return
        self._found[status.place] = status
        if len(self._found) >= 2 * self._most:
            self.has_all = False
            self._found = {one.place: one for one in self.sorted()[-self._most :]}

    def sorted(self) -> list[StatusView]:
        """The oldest first."""
        return sorted(self._found.values(), key=lambda one: (one.at_ms, one.record))


@dataclass(slots=True)
class Found:
    """A command: its statuses, its record, and the answers of its device. ``request`` is a sentence where the record
    is no command, None without the record."""

    statuses: list[StatusView] = field(default_factory=list)
    record: LoggedRecord | None = None
    request: Request | str | None = None
    answers: list[Answer] = field(default_factory=list)


class StatusTopics:
    """The status topics of some ``[[commands]]``; of all, also statuses under earlier names. Raises UnreachableError,
    RefusedError and TopicMissingError."""

    def __init__(self, settings: Settings, commands: Sequence[CommandSettings], login: KafkaLogin) -> None:
        self._settings, self._commands, self._login = settings, commands, login
        # Several [[commands]] may write to one topic.
        self._others = {one.name for one in settings.commands} - {one.name for one in commands}

    def _reader(self, topics: Iterable[str]) -> TopicReader:
        return TopicReader(self._settings.kafka, f"{self._settings.instance}-command", sorted(set(topics)), self._login)

    async def last(self, wanted: Wanted, since_ms: int | None) -> tuple[list[StatusView], bool]:
        """The last status of each wanted command, the oldest first, and whether these are all. Of twice
        MOST or more at least the newest MOST are kept. With ``since_ms``: of those with a status since then."""
        newest = Newest(wanted)
        await self._read(since_ms, newest.take)
        return newest.sorted(), newest.has_all

    async def _read(self, since_ms: int | None, take: Callable[[StatusView], object]) -> None:
        """Give ``take`` each status of these commands from ``since_ms`` on; None: from the topics' beginning."""
        async with self._reader(one.status_topic for one in self._commands) as reader:
            ends = await reader.ends()
            starts = await (reader.beginnings() if since_ms is None else reader.offsets_at(since_ms))
            async for record in reader.read(starts, ends):
                status = read_status(record)
                if status is not None and status.route not in self._others:
                    take(status)

    async def find(self, wanted: str) -> list[Found]:
        """The commands with an id, or the one at a place, the oldest first. Ids may be used again."""
        place = parse_place(wanted)
        by_place: dict[Place, Found] = {}

        def take(status: StatusView) -> None:
            if wanted == status.id or status.place == place:
                by_place.setdefault(status.place, Found()).statuses.append(status)

        await self._read(None, take)
        if place is not None and not by_place and self._owner(place) is not None:
            by_place[place] = Found()
        for at, found in by_place.items():
            await self._complete(at, found)
        # A place that was given, without a status and without a record, is no command.
        known = [found for found in by_place.values() if found.statuses or found.record is not None]
        return sorted(known, key=lambda one: one.statuses[0].at_ms if one.statuses else 0)

    def _owner(self, place: Place) -> CommandSettings | None:
        return next((one for one in self._commands if place.topic in one.topics), None)

    async def _complete(self, place: Place, found: Found) -> None:
        """Add the command's record and its device's answers."""
        commands = self._owner(place)
        if commands is None:
            return  # the settings have changed
        found.record = await self._record(place)
        if found.record is None:
            return
        plan = CommandPlan.from_settings(commands)
        try:
            found.request = read_request(found.record, plan, found.record.timestamp_ms)
        except BadCommandError as error:
            found.request = f"{error.reason}: {error}"
            return
        topic = next((route.topic for route in self._settings.routes if route.name == commands.answers), None)
        if topic is not None and found.request.is_answer_asked:
            last_ms = found.statuses[-1].at_ms if found.statuses else found.record.timestamp_ms
            until_ms = max(last_ms, found.request.deadline_ms) + _ANSWERS_FOR_MS
            found.answers = await self._answers(topic, plan, place, found.record.timestamp_ms - _CLOCKS_MS, until_ms)

    async def _record(self, place: Place) -> LoggedRecord | None:
        """The record at this place; None if Kafka has none there, or none any more."""
        at: Partition = (place.topic, place.partition)
        try:
            async with self._reader([place.topic]) as reader:
                first, end = (await reader.beginnings()).get(at), (await reader.ends()).get(at)
                if first is None or end is None or not first <= place.offset < end:
                    return None
                async for record in reader.read({at: place.offset}, {at: place.offset + 1}):
                    return record
        except TopicMissingError:
            pass
        return None

    async def _answers(self, topic: str, plan: CommandPlan, place: Place, since_ms: int, until_ms: int) -> list[Answer]:
        """The answers to the command at ``place`` in a topic of answers, the oldest first; none without the topic."""
        found = []
        try:
            async with self._reader([topic]) as reader:
                starts, ends = await reader.offsets_at(since_ms), await reader.offsets_at(until_ms)
                async for record in reader.read(starts, ends):
                    answer = read_answer(record)
                    if answer is None or (token := plan.signer.read(answer.token)) is None:
                        continue
                    if token[0] == place:
                        found.append(answer)
        except TopicMissingError:
            pass
        return sorted(found, key=lambda one: one.timestamp_ms)
