"""Reads the messages back: from Kafka with a consumer, from Parquet with Arrow; never by the gateway's headers."""

from __future__ import annotations

__all__ = ["ReadBackError", "count_kafka", "count_parquet", "read_identity"]

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from config.error_words import words
from config.errors import ExitStatus, GatewayError
from gateway.local.demo.account import Tally

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


async def count_kafka(
    bootstrap: str, topic: str, partitions: int, on_progress: Callable[[int, int], None]
) -> tuple[Tally, dict[int, int]]:
    """Reads a whole topic, up to where it ends now; also where each partition ends.

    ``on_progress`` gets the records read and the records there are. Raises ReadBackError if Kafka cannot be read or
    gives nothing for half a minute.
    """
    from aiokafka import AIOKafkaConsumer, TopicPartition  # a third of a second, while the brokers could be starting
    from aiokafka.errors import KafkaError

    tally = Tally()
    parts = [TopicPartition(topic, number) for number in range(partitions)]
    consumer: Any = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, enable_auto_commit=False)
    try:
        await consumer.start()
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        ends = cast("dict[Any, int]", await asyncio.wait_for(consumer.end_offsets(parts), _STALL_S))
        total, unread = sum(ends.values()), {part for part in parts if ends[part] > 0}
        while unread:
            async with asyncio.timeout(_STALL_S):
                batches = await consumer.getmany(*unread, timeout_ms=_POLL_MS, max_records=_RECORDS_PER_POLL)
                while not batches:
                    batches = await consumer.getmany(*unread, timeout_ms=_POLL_MS, max_records=_RECORDS_PER_POLL)
            for part, records in batches.items():
                for record in records:
                    if record.offset < ends[part]:
                        _add(tally, record.value)
                if records[-1].offset + 1 >= ends[part]:
                    unread.discard(part)
            on_progress(tally.records, total)
    except (KafkaError, TimeoutError) as error:
        raise ReadBackError(
            f"the topic {topic!r} could not be read back from Kafka at {bootstrap}: {words(error)}. "
            "Is the broker still up?"
        ) from error
    finally:
        await consumer.stop()
    return tally, {part.partition: end for part, end in ends.items()}


def _add(tally: Tally, value: bytes | None) -> None:
    identity = read_identity(value)
    if identity is None:
        tally.add_unreadable()
    else:
        tally.add(identity.device, identity.sequence)


def count_parquet(folder: Path) -> tuple[Tally, list[Path]]:
    """Reads device and sequence number of every row under ``folder``; also the files that are broken. Blocks.

    It reads what any reader of the folder would see, not only what Spark's own log of it lists.
    """
    import pyarrow as pa  # type: ignore[import-untyped]  # it has no types
    from pyarrow import parquet

    tally = Tally()
    broken: list[Path] = []
    for path in sorted(folder.rglob("*.parquet")):
        if any(part.startswith(("_", ".")) for part in path.relative_to(folder).parts):
            continue  # Spark's own, by the convention of all Parquet readers
        try:
            with parquet.ParquetFile(path) as file:
                columns = file.read(columns=["device", "seq"]).to_pydict()
        except pa.ArrowException:
            broken.append(path)  # cut off while it was written: Spark was killed
            continue
        for device, sequence in zip(columns["device"], columns["seq"], strict=True):
            if device is None or sequence is None:
                tally.add_unreadable()
            else:
                tally.add(device, sequence)
    return tally, broken
