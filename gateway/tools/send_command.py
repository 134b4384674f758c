"""Writes commands to their Kafka topic and follows their statuses, for ``gateway command send`` and ``trial``."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from bridge.commands.plan import CommandPlan
from bridge.commands.reading import CONTENT_TYPE, read_request
from bridge.commands.status_reading import read_status
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.errors import LeaderMissingError, TopicMissingError, UnreachableError
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.reader import TopicReader
from bridge.produce.partitioner import partition_for

if TYPE_CHECKING:
    from bridge.commands.status_reading import StatusView
    from bridge.kafka.login import KafkaLogin
    from config.settings import KafkaSettings, Settings
    from config.tables.commands import CommandSettings

_MARGIN_S: Final = 15.0  # for the gateway to write the last status
_CLOSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Draft:
    """A command to write. ``expires_s`` is a length from now; None leaves it to the settings, as
    ``is_answer_asked`` None does."""

    device: str
    payload: bytes
    subject: str | None = None
    id: str | None = None
    expires_s: float | None = None
    is_answer_asked: bool | None = None
    content_type: str | None = None

    def record(self, commands: CommandSettings, now_ms: int) -> LoggedRecord:
        """The record, with the headers that the settings name. Its place has no partition and offset yet."""
        answer = None if self.is_answer_asked is None else str(self.is_answer_asked).lower()
        expires = None if self.expires_s is None else str(now_ms + round(self.expires_s * 1000))
        headers = {
            commands.subject_header: self.subject,
            commands.id_header: self.id,
            commands.response_header: answer,
            commands.expiry_header: expires,
            CONTENT_TYPE: self.content_type,
        }
        return LoggedRecord(
            Place(commands.topics[0], -1, -1),
            now_ms,
            _bytes(self.device),
            self.payload,
            [(name, _bytes(value)) for name, value in headers.items() if value is not None],
        )


def _bytes(argument: str) -> bytes:
    return argument.encode(errors="surrogateescape")  # the bytes of the shell; those that are no UTF-8 are refused


class CommandWriter:
    """Writes commands to the first topic of their entry; ``async with`` connects and closes it. Raises
    TopicMissingError, UnreachableError, RefusedError, or another of bridge.errors."""

    def __init__(self, settings: KafkaSettings, client_id: str, commands: CommandSettings, login: KafkaLogin) -> None:
        self._settings, self._commands = settings, commands
        self._producer = KafkaProducer(settings, client_id, commands.topics[:1], login=login)

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._producer.close(patience_s=_CLOSE_S)

    async def write(self, record: LoggedRecord) -> Place:
        """Write the record; its place, once Kafka has it. Raises TopicMissingError, or why it was not delivered."""
        topic = record.place.topic
        count = self._producer.partition_count(topic)
        if count is None:
            raise TopicMissingError(
                f"Kafka has no topic {topic} (commands {self._commands.name!r}). The gateway's start creates or "
                "checks it; or is this another Kafka?"
            )
        assert record.key is not None
        partition = partition_for(record.key, count)
        return Place(topic, partition, await self._deliver(record, partition))

    async def _deliver(self, record: LoggedRecord, partition: int) -> int:
        """Send the record and return its offset; waits for a leader and the answer up to kafka.delivery_timeout."""
        producer, loop = self._producer, asyncio.get_running_loop()
        patience_s = self._settings.delivery_timeout.total_seconds()
        until_s = loop.time() + patience_s
        while True:
            builder = producer.create_batch(compressed=False)
            builder.append(0, record.timestamp_ms, record.key, record.value, record.headers)
            builder.close(1)
            try:
                answer = producer.send(record.place.topic, partition, builder)
            except LeaderMissingError:
                if loop.time() > until_s:
                    raise
                await producer.refresh_metadata()
                await asyncio.sleep(0.1)
                continue
            await asyncio.wait([answer], timeout=until_s - loop.time())
            if not answer.done():
                raise UnreachableError(
                    f"Kafka did not acknowledge the command within {patience_s:g} s (kafka.delivery_timeout): it may "
                    "be there, or not. See: gateway command list."
                )
            if (error := producer.failure(answer)) is not None:
                raise error
            return answer.result()


class Sending:
    """Sends one command. Raises BadCommandError for one that would become a dead letter."""

    def __init__(self, settings: Settings, commands: CommandSettings, draft: Draft, login: KafkaLogin) -> None:
        self._settings, self._commands, self._login = settings, commands, login
        self.record = draft.record(commands, time.time_ns() // 1_000_000)
        plan = CommandPlan.from_settings(commands)
        self.request = read_request(self.record, plan, self.record.timestamp_ms)
        left_s = (self.request.deadline_ms - self.record.timestamp_ms) / 1000
        self.patience_s = left_s + commands.answer_timeout.total_seconds() + _MARGIN_S
        # A transactional name of its own is not needed, but a client id that no worker has.
        self._client_id = f"{settings.instance}-command-{secrets.token_hex(3)}"

    async def write(self) -> Place:
        """Write the record; returns its place. Raises as CommandWriter."""
        async with CommandWriter(self._settings.kafka, self._client_id, self._commands, self._login) as writer:
            return await writer.write(self.record)

    async def written_and_followed(self) -> AsyncIterator[Place | StatusView]:
        """Write the record, then follow its statuses to the terminal one: yields its place, then each status. Ends
        without a terminal one after ``patience_s``."""
        topics = [self._commands.status_topic]
        async with TopicReader(self._settings.kafka, self._client_id, topics, self._login) as reader:
            ends = await reader.ends()  # before the record: no status of it can be missed
            place = await self.write()
            yield place
            until_s = time.monotonic() + self.patience_s
            async for records in reader.follow(ends):
                for record in records:
                    status = read_status(record)
                    if status is None or status.place != place:
                        continue
                    yield status
                    if status.is_terminal:
                        return
                if time.monotonic() > until_s:
                    return
