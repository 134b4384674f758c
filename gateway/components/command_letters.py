"""Writes dead letters of records that can never be commands, in the form of all dead letters."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from bridge.produce.dead_letter import SMALL_PART_BYTES, DeadLetterDraft, letter_parts
from bridge.topic_writer import TopicWriter
from bridge.waiting import end_tasks, report_failure

if TYPE_CHECKING:
    from bridge.commands.reading import BadCommandError
    from bridge.dead_letters.reading import LoggedRecord
    from bridge.errors import BridgeError, PoisonedError
    from bridge.ports import Headers, Producer
    from bridge.wire import DeadLetterReason
    from config.settings import Settings

    NoteDeadLetter = Callable[[str, DeadLetterReason, BaseException, str | None], None]

log = structlog.get_logger("commands")

LETTERS_PARTITION: Final = 0


@dataclass(frozen=True, slots=True)
class _Part:
    key: bytes | None
    value: bytes | None
    headers: Headers
    stored: Callable[[], None] | None  # of the last part
    reason: DeadLetterReason | None  # of the last part


class CommandDeadLetters:
    """``bridge.commands.ports.Graveyard`` over the producer of the routes. All dead letters of commands go to
    partition 0 of the dead-letter topic, in order.

    ``noted`` gets name, reason, error and Kafka topic of each, before Kafka has it. ``written`` gets offset and size of
    each record that Kafka has, and with a letter's last one the reason. ``broken`` gets a defect: the batch that was
    under way is not written.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        *,
        producer: Callable[[], Producer | None],
        renew: Callable[[str], None],
        noted: NoteDeadLetter,
        written: Callable[[int, int, DeadLetterReason | None], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._name, self._instance = name, settings.instance.encode()
        self._noted, self._written, self._broken = noted, written, broken
        self._queue: deque[_Part] = deque()
        self._task: asyncio.Task[None] | None = None
        self._topic = settings.dead_letter.topic
        self._writer: TopicWriter[_Part] = TopicWriter(
            self._topic,
            encode=lambda part: (part.key, part.value, part.headers),
            stored=self._stored,
            refused=self._refused,
            failed=self._failed,
            producer=producer,
            renew=renew,
        )

    def bury(self, record: LoggedRecord, error: BadCommandError, stored: Callable[[], None]) -> None:
        """Write a dead letter; ``stored`` is called once Kafka has it. Does not block."""
        self._noted(self._name, error.reason, error, record.place.topic)
        draft = DeadLetterDraft(
            self._name, 0, record.key, record.value, record.headers, error.reason, error,
            first_seen_ms=record.timestamp_ms, kafka_topic=record.place.topic,
        )  # fmt: skip
        parts = letter_parts(draft, self._instance, SMALL_PART_BYTES, time.time_ns() // 1_000_000)
        for number, part in enumerate(parts, 1):
            last = (stored, error.reason) if number == len(parts) else (None, None)
            self._queue.append(_Part(*part, *last))
        if self._task is None:
            self._task = asyncio.create_task(self._write(), name="command dead letters")
            self._task.add_done_callback(report_failure(self._broken))

    async def close(self) -> None:
        """End without what waits: its commands are read again."""
        await end_tasks(self._task)

    async def _write(self) -> None:
        """Write what is queued; ends once Kafka has it, and ``bury`` begins it again."""
        try:
            await self._writer.partitions()
            await self._writer.write(LETTERS_PARTITION, self._queue)
        finally:
            self._task = None

    def _stored(self, part: _Part, offset: int) -> None:
        self._written(offset, len(part.value or b""), part.reason)
        if part.stored is not None:
            part.stored()

    def _refused(self, part: _Part, error: PoisonedError) -> None:
        """Log a part that Kafka refuses, unlikely at this size, and count it as stored. Else its command would wait for
        ever."""
        log.error("command_dead_letter_refused", topic=self._topic, error=str(error))
        if part.stored is not None:
            part.stored()

    def _failed(self, error: BridgeError) -> None:
        log.warning("command_dead_letter_failed", topic=self._topic, error=str(error), repeat_key=self._topic)
