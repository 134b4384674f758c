"""Reads the messages back: from Kafka with a consumer, from the lake without Spark; never by the gateway's headers."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from config.error_words import words
from config.errors import ExitStatus, GatewayError
from config.settings import KafkaSettings, Settings
from gateway.devices.account import Tally
from gateway.local.demo.background import in_thread
from gateway.local.demo.options import PARTITIONS
from gateway.local.demo.show.state import Window

_POLL_MS = 500
_RECORDS_PER_POLL = 5_000
_STALL_S = 30.0


class ReadBackError(GatewayError):
    """A stage could not be read back, so the account cannot be made."""

    exit_status = ExitStatus.UNAVAILABLE


class Identity(NamedTuple):
    """What a device wrote into a message about itself."""

    device: str
    sequence: int
    ts_ms: int


def read_identity(value: bytes | None) -> Identity | None:
    """The identity in a telemetry payload; None if it holds none."""
    try:
        body = json.loads(value or b"")
        identity = Identity(body["device"], body["seq"], body["ts"])
    except (ValueError, KeyError, TypeError):
        return None
    types = (type(identity.device), type(identity.sequence), type(identity.ts_ms))
    return identity if types == (str, int, int) else None


async def make_topics(bootstrap: str, partitions: Mapping[str, int]) -> None:
    """Make topics with so many partitions: who writes them does that, not the gateway. Raises AdminError."""
    from gateway.admin.changes import NewTopic
    from gateway.admin.kafka import KafkaAdmin

    def work() -> None:
        with KafkaAdmin(Settings(kafka=KafkaSettings(bootstrap_servers=tuple(bootstrap.split(","))))) as admin:
            for topic, count in partitions.items():
                admin.create_topic(NewTopic(topic, count, 1))

    await in_thread(work)


async def read_topic(bootstrap: str, topic: str) -> AsyncIterator[Any]:
    """The records of a topic of ``PARTITIONS`` partitions, up to where it ends now.

    Raises ReadBackError if Kafka cannot be read or gives nothing for half a minute.
    """
    from aiokafka import AIOKafkaConsumer, TopicPartition  # a third of a second, while the brokers could be starting
    from aiokafka.errors import KafkaError

    parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    try:
        await consumer.start()
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        async with asyncio.timeout(_STALL_S):
            ends = await consumer.end_offsets(parts)
        unread = {part for part in parts if ends[part]}
        while unread:
            batches: dict[Any, list[Any]] = {}
            async with asyncio.timeout(_STALL_S):
                while not batches:
                    batches = await consumer.getmany(*unread, timeout_ms=_POLL_MS, max_records=_RECORDS_PER_POLL)
            for part, records in batches.items():
                for record in records:
                    if record.offset < ends[part]:
                        yield record
                if records[-1].offset + 1 >= ends[part]:
                    unread.discard(part)
    except (KafkaError, TimeoutError) as error:
        raise ReadBackError(
            f"the topic {topic!r} could not be read back from Kafka at {bootstrap}: {words(error)}. "
            "Is the broker still up?"
        ) from error
    finally:
        await consumer.stop()


async def count_kafka(bootstrap: str, topic: str) -> tuple[Tally[str], dict[int, int]]:
    """The messages in a whole topic; also where each partition ends. Raises as :func:`read_topic`."""
    tally: Tally[str] = Tally()
    ends = dict.fromkeys(range(PARTITIONS), 0)
    async for record in read_topic(bootstrap, topic):
        ends[record.partition] = record.offset + 1
        identity = read_identity(record.value)
        if identity is None:
            tally.add_unreadable()
        else:
            tally.add(identity.device, identity.sequence)
    return tally, ends


def count_silver(lake: Path) -> Tally[str]:
    """Device and sequence number of every row of the table silver. Blocks."""
    tally: Tally[str] = Tally()
    for row in _rows(lake / "silver", ["device", "seq"]):
        if row["device"] is None or row["seq"] is None:
            tally.add_unreadable()
        else:
            tally.add(row["device"], row["seq"])
    return tally


def read_signal(lake: Path, device: str, signal: str, after_ms: int) -> tuple[float, ...]:
    """A device's readings of a signal in the table silver that were measured after a moment. Blocks."""
    rows = (row for row in _rows(lake / "silver", ["device", "event_time", signal]) if row["device"] == device)
    return tuple(row[signal] for row in rows if row["event_time"].timestamp() * 1000 > after_ms)


def read_windows(lake: Path, most: int = 2) -> tuple[Window, ...]:
    """The newest windows of the table gold, by device type; of equal ones by name. Blocks."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    columns = ["window_start", "window_end", "key", "signal", "readings", "mean"]
    for row in _rows(lake / "gold", columns, "level = 'type'"):
        found.setdefault((round(row["window_start"].timestamp() * 1000), row["key"]), {})[row["signal"]] = row
    newest = sorted({start for start, _ in found}, reverse=True)[:most]
    return tuple(
        Window(
            start,
            round(next(iter(signals.values()))["window_end"].timestamp() * 1000),
            kind,
            max(row["readings"] for row in signals.values()),
            {name: row["mean"] for name, row in signals.items()},
        )
        for (start, kind), signals in sorted(found.items(), key=lambda item: (-item[0][0], item[0][1]))
        if start in newest
    )


def _rows(table: Path, columns: list[str], where: str | None = None) -> list[dict[str, Any]]:
    """The rows of a Delta table; none while there is no table."""
    from streaming.lake.delta_files import read_rows  # late: Arrow is half a second, while the brokers could start

    found = read_rows(str(table), columns, where)
    return [] if found is None else cast("list[dict[str, Any]]", found.to_pylist())
