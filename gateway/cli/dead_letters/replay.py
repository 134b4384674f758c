"""``gateway dlq replay``: claims, routes, awaits and marks dead letters, 200 at a time."""

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bridge.dead_letters.reading import DeadLetter, Place
from bridge.dead_letters.replay_marks import Mark, MarkKind
from bridge.errors import BridgeError
from config.settings import Settings
from gateway.base.moments import moment_ms
from gateway.cli.dead_letters import text as dlq_text
from gateway.cli.dead_letters.path import Destination, Fate, ReplayPath, commands_of
from gateway.cli.dead_letters.reader import DeadLetterReader
from gateway.cli.dead_letters.selection import Selection
from gateway.cli.table import shown

# Claimed at a time, with the payloads in memory. After a crash, at most these are undecided.
CHUNK = 200
CHUNK_BYTES = 8 << 20


class Outcome(StrEnum):
    REPLAYED = "replayed"
    WOULD_BE = "would be replayed"
    FILTERED = "filtered"  # by an interceptor, or since no route takes it
    REFUSED = "refused"  # it would be a dead letter again
    PARTLY = "written in part"  # Kafka has some of its records and refused others
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """One dead letter's outcome. ``detail`` says why, or where it went."""

    letter: DeadLetter
    outcome: Outcome
    detail: str
    destinations: tuple[Destination, ...] = ()

    def line(self, default_topic: str) -> str:
        return f"{dlq_text.short_place(self.letter, default_topic)}  {self.outcome.value}: {shown(self.detail)}"

    def as_json(self) -> dict[str, Any]:
        return {
            "place": str(self.letter.place),
            "outcome": self.outcome.value,
            "detail": self.detail,
            "destinations": [
                {"topic": d.topic, "partition": d.partition, "key": None if d.key is None else dlq_text.readable(d.key)}
                for d in self.destinations
            ],
        }


class ReplayRun:
    """One replay of some dead letters. ``again``: also of those that were replayed or begun before.

    After a crash, the claimed dead letters stay marked as begun. Whether Kafka has them is unknown, so only ``again``
    replays them.
    """

    def __init__(self, settings: Settings, reader: DeadLetterReader, selection: Selection, *, again: bool) -> None:
        self.id = secrets.token_hex(8)
        self._settings = settings
        self._reader = reader
        self._marks = selection.marks
        self._read_to = dict(selection.ends)  # all marks before these offsets are known
        self._again = again  # also what was replayed or begun before

    async def preview(self, letters: Sequence[DeadLetter]) -> AsyncIterator[Result]:
        """The result that each would have. Writes nothing and makes no topic."""
        async with ReplayPath(self._settings, dry=True, login=self._reader.login) as path:
            for chunk in _chunks(letters):
                whole = await self._reader.fetch(chunk)
                for light in chunk:
                    why = self._why_not(light)
                    letter = whole.get(light.place)
                    if why is not None:
                        yield Result(light, Outcome.SKIPPED, why)
                    elif letter is None:
                        yield Result(light, Outcome.SKIPPED, "it has just expired")
                    else:
                        yield await self._preview_one(path, letter)

    async def _preview_one(self, path: ReplayPath, letter: DeadLetter) -> Result:
        """The result that a dead letter would have."""
        unknown = set(path.unknown)
        fate = path.preview(letter)
        if new := path.unknown - unknown:
            await path.look_for(new)  # a template gave a topic that Kafka was not asked for
            path.unknown -= new
            fate = path.preview(letter)
        missing = next((one.topic for one in fate.destinations if one.topic in path.unknown), None)
        if missing is not None and not self._settings.kafka.topics.create:
            fate.refused = (
                f"Kafka has no topic {missing}, and kafka.topics.create is off: `gateway topics apply` makes it"
            )
        return _result(letter, fate, Outcome.WOULD_BE, path.unknown)

    async def replay(self, letters: Sequence[DeadLetter]) -> AsyncIterator[Result]:
        """Replay them, in this order. Raises UnreachableError when Kafka stops taking anything, RefusedError when it
        refuses the right to write."""
        async with ReplayPath(self._settings, dry=False, login=self._reader.login) as path:
            for chunk in _chunks(letters):
                results, failure = await self._replay_chunk(path, chunk)
                for result in results:
                    yield result
                if failure is not None:
                    raise failure

    async def _replay_chunk(
        self, path: ReplayPath, chunk: Sequence[DeadLetter]
    ) -> tuple[list[Result], BridgeError | None]:
        """Mark dead letters as begun, send those that are ours, mark the outcomes. Results are in the chunk's order;
        with a failure only those that are certain."""
        results = {one.place: Result(one, Outcome.SKIPPED, why) for one in chunk if (why := self._why_not(one))}
        claimed = [one for one in chunk if one.place not in results]
        await self._claim(path, claimed)
        whole = await self._reader.fetch(claimed)
        fates: dict[Place, Fate] = {}
        for light in claimed:
            letter = whole.get(light.place)
            if not self._is_ours(light.place):
                results[light.place] = Result(light, Outcome.SKIPPED, "another replay has just begun with it")
            elif letter is None:
                results[light.place] = Result(light, Outcome.SKIPPED, "it has just expired")
            else:
                fates[light.place] = path.send(letter)
        failure = None
        try:
            await path.settled([fate.span for fate in fates.values()])
        except BridgeError as error:
            failure = error  # perhaps of one partition: what others have is marked all the same
        results |= {
            at: _result(whole[at], fate, Outcome.REPLAYED, set()) for at, fate in fates.items() if not fate.span.pending
        }
        await self._mark(path, {at: results[at].outcome for at in results if self._is_ours(at)})
        path.forget()
        return [results[one.place] for one in chunk if one.place in results], failure

    def _why_not(self, letter: DeadLetter) -> str | None:
        """Why a dead letter is not replayed; None if it is."""
        replay = self._marks.of(*letter.place)
        if not letter.complete:
            return f"only {len(letter.places)} of its {letter.parts} parts are there"
        if not letter.route:
            return "no route took it: MQTT forbids its topic"
        if letter.mqtt_topic is None and commands_of(letter, self._settings) is None:
            return "its MQTT topic is unknown: its route's metadata_headers leave it out"
        if replay is not None and not self._again:
            at = moment_ms(replay.at_ms)
            if replay.done:
                return f"it was replayed at {at}; --again replays it"
            return f"a replay began with it at {at}, and its result is unknown; --again replays it"
        return None

    async def _claim(self, path: ReplayPath, letters: Sequence[DeadLetter]) -> None:
        """Mark these as begun, and read the marks back: the first mark in the log decides between two replays."""
        if not letters:
            return
        marks = []
        for letter in letters:
            before = self._marks.of(*letter.place)
            after = before.id if before is not None else ""
            marks.append((letter.place, Mark(MarkKind.BEGUN, letter.place.offset, self.id, after)))
        await path.settled([path.mark(marks)])
        ends = await self._reader.ends()
        async for record in self._reader.read(self._read_to, ends):
            self._marks.take(record)
        self._read_to = ends

    def _is_ours(self, place: Place) -> bool:
        replay = self._marks.of(*place)
        return replay is not None and replay.id == self.id

    async def _mark(self, path: ReplayPath, outcomes: dict[Place, Outcome]) -> None:
        """Mark the outcomes. A dead letter that is written in part stays marked as begun."""
        kinds = {at: MarkKind.DONE if what is Outcome.REPLAYED else MarkKind.UNDONE for at, what in outcomes.items()}
        marks = [
            (at, Mark(kind, at.offset, self.id)) for at, kind in kinds.items() if outcomes[at] is not Outcome.PARTLY
        ]
        if marks:
            await path.settled([path.mark(marks)])


def _result(letter: DeadLetter, fate: Fate, good: Outcome, unknown: set[str]) -> Result:
    """``good`` is the outcome of a message that became records. ``unknown``: topics that Kafka does not have."""
    if fate.refused is not None:
        outcome = Outcome.PARTLY if fate.written else Outcome.REFUSED
        return Result(letter, outcome, fate.refused)
    if not fate.destinations:
        return Result(letter, Outcome.FILTERED, fate.filtered or "it became no record")
    destinations = tuple(dict.fromkeys(fate.destinations))
    return Result(letter, good, ", ".join(_where(one, unknown) for one in destinations), destinations)


def _where(destination: Destination, unknown: set[str]) -> str:
    topic, partition, key = destination
    place = f"{topic}/any" if partition is None else f"{topic}/{partition}"
    new = " (a topic that Kafka does not have yet)" if topic in unknown else ""
    return f"{place}{new}" + ("" if key is None else f", key {dlq_text.readable(key)}")


def _chunks(letters: Sequence[DeadLetter]) -> Iterator[list[DeadLetter]]:
    chunk: list[DeadLetter] = []
    size = 0
    for letter in letters:
        if chunk and (len(chunk) == CHUNK or size + letter.size > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(letter)
        size += letter.size
    if chunk:
        yield chunk
