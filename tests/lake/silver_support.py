"""Kafka's records as a stream of files, a batch each, and a second opinion on what silver makes of them."""

import json
import queue
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from config.settings import Settings, StreamSettings
from config.tables.stream_jobs import LakeSettings, SilverSettings
from streaming import lake_tables
from streaming.job import JobContext
from streaming.progress import Event
from streaming.runtime.queries import run_queries
from streaming.silver import job as silver

DAY_MS = 86_400_000
NOON_MS = 1_795_176_000_000
"""20 November 2026, 12:00 UTC."""
KAFKA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>"
)
MAX_AHEAD_MS = 300_000


@dataclass(frozen=True, slots=True)
class Sent:
    """One record: a reading, or raw bytes."""

    offset: int
    received_ms: int
    device: str = "sensor-1"
    seq: int = 0
    ts: int = 0
    message_id: str | None = None
    kind: str = "device"
    values: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 21.5})
    raw: bytes | None = None
    type: str = "thermostat"

    @property
    def value(self) -> bytes:
        if self.raw is not None:
            return self.raw
        fields = {"device": self.device, "type": self.type, "seq": self.seq, "ts": self.ts, **self.values}
        return json.dumps(fields).encode()

    def record(self) -> tuple[Any, ...]:
        headers = [("mqtt.topic", f"devices/{self.device}".encode()), ("gateway.id", b"gw-1")]
        if self.message_id is not None:
            headers += [
                ("gateway.message_id", self.message_id.encode()),
                ("gateway.message_id_kind", self.kind.encode()),
            ]
        at = datetime.fromtimestamp(self.received_ms / 1000, UTC)
        return (self.device.encode(), self.value, "telemetry", self.offset % 2, self.offset, at, 0, headers)


def schema_folder(folder: Path, **fields: str) -> Path:
    """Schemas of one type, ``thermostat``, with these fields: the fewer, the sooner a plan is made."""
    every = {"device": "string", "type": "string", "seq": "integer", "ts": "integer", **fields}
    properties = {name: {"type": kind} for name, kind in every.items()}
    folder.mkdir(exist_ok=True)
    (folder / "schemas.toml").write_text('other_types = "quarantine"\n[types.thermostat]\n')
    (folder / "thermostat.json").write_text(
        json.dumps({"type": "object", "properties": properties, "required": ["device", "type", "seq", "ts"]})
    )
    return folder


def settings(folder: Path, **chosen: Any) -> Settings:
    if "schemas" not in chosen:
        chosen["schemas"] = schema_folder(folder / "schemas", temperature="number")
    return Settings(
        stream=StreamSettings(
            available_now=True,
            checkpoint=folder / "checkpoints",
            lake=LakeSettings(path=folder / "lake"),
            silver=SilverSettings(**chosen),
            group="",
        )
    )


def batch_of(spark: SparkSession, folder: Path, sent: Iterable[Sent]) -> None:
    """Records that the job takes as one batch."""
    frame = spark.createDataFrame([it.record() for it in sent], KAFKA)
    frame.coalesce(1).write.mode("append").parquet(str(folder / "records"))


def run(spark: SparkSession, folder: Path, chosen: Settings) -> list[Event]:
    """Reads what there is, a file a batch in the order they were written, and returns what was reported."""
    events: list[Event] = []

    def start(session: SparkSession, given: Settings, context: JobContext) -> StreamingQuery:
        records: DataFrame = (
            session.readStream.schema(KAFKA).option("maxFilesPerTrigger", 1).parquet(str(folder / "records"))
        )
        return silver.start_from(records, given, context)

    run_queries(spark, chosen, (start,), JobContext(events.append), queue.SimpleQueue())
    return events


def expected_rows(sent: Sequence[Sent], sites: Mapping[str, str | None] | None = None) -> list[tuple[Any, ...]]:
    """Silver by plain Python: what :func:`found_rows` should find."""
    seen: set[tuple[str, int, str]] = set()
    rows = []
    for it in sent:
        if it.raw is not None:
            continue
        own = it.message_id or None if it.kind == "device" else None
        if own is not None:
            if (it.device, it.ts, own) in seen:
                continue
            seen.add((it.device, it.ts, own))
        event_ms = min(it.ts, it.received_ms + MAX_AHEAD_MS)
        day = datetime.fromtimestamp(event_ms // 1000, UTC).date()
        site = (sites or {}).get(it.device)
        rows.append((it.device, it.seq, it.ts, event_ms, event_ms != it.ts, own, it.offset, str(day), site))
    return sorted(rows, key=repr)


def found_rows(spark: SparkSession, chosen: Settings) -> list[tuple[Any, ...]]:
    return silver_lines(lake_tables.silver(spark, chosen.stream))


def silver_lines(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Rows of silver as :func:`expected_rows` has them."""
    found = rows.selectExpr(
        "device", "seq", "unix_millis(device_time)", "unix_millis(event_time)", "clock_ahead", "message_id",
        "kafka_offset", "string(event_date)", "site",
    )  # fmt: skip
    return sorted((tuple(row) for row in found.collect()), key=repr)
