"""A shard of devices as a stateful processor of Spark: rows in and out."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import ArrayType, DoubleType, MapType, StringType, StructType, TimestampType

from streaming.devices.gateways import Beat
from streaming.devices.presence import parse_presence
from streaming.devices.records import Reading, Rules
from streaming.devices.sequence import MOST_RANGES
from streaming.devices.shard import Clock, Input, Shard
from streaming.devices.state import Device
from streaming.devices.store import Store, variables
from streaming.lake.columns import columns

_NUMBERS: Final = MapType(StringType(), DoubleType())

INPUT: Final = columns(
    "shard integer, kind string, ms long, device string, type string, site string, gateway string, seq long,"
    " device_ms long, event_ms long, values numbers, mqtt_topic string, payload binary, worker integer, life string,"
    " acknowledged long, from_ms long, state string",
    numbers=_NUMBERS,
)
"""What goes into a shard, in one schema: readings, clocks, beats of the ledger, births and deaths. ``ms`` is the time
that they are ordered by."""

DEVICES: Final = columns(
    "device string required, type string, site string, gateway string, state string, reason string,"
    " since timestamp, last_seen timestamp, last_event_time timestamp, values numbers, value_times moments,"
    " seq_last long, gaps integer, missing long, missing_ranges ranges, too_late long, duplicates long,"
    " resets long, transitions long, flapping boolean, batch long",
    numbers=_NUMBERS,
    moments=MapType(StringType(), TimestampType()),
    ranges=ArrayType(columns("low long, high long")),
)
"""The table ``devices``: one row per device."""

_SNAPSHOT: Final = StructType([it for it in DEVICES if it.name not in ("device", "gateway", "batch")])
_OF_SNAPSHOT: Final = _SNAPSHOT.simpleString().replace("timestamp", "bigint")  # in milliseconds, as all times here
OUTPUT: Final = (
    f"kind string, at bigint, event string, device string, gateway string, detail string, snapshot {_OF_SNAPSHOT}"
)
"""Events (``kind`` is ``event``), and devices that changed (``device``): without a snapshot, one that is forgotten."""
_change, _snapshot_row = Row("kind", "at", "event", "device", "gateway", "detail", "snapshot"), Row(*_SNAPSHOT.names)


class ShardProcessor(StatefulProcessor):
    """Runs a shard per key."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle, self._variables = handle, variables(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803 (Spark's names)
        wall_ms, store = timerValues.getCurrentProcessingTimeInMs(), Store(*self._variables)
        share = Shard(store, self._rules, wall_ms, first=key[0] == 0)
        share.run(one for row in rows if (one := _input(row)) is not None)
        if store.meta.timer_ms <= wall_ms:  # it has fired, or none was set
            store.meta.timer_ms = wall_ms + self._rules.tick_ms
            self._handle.registerTimer(store.meta.timer_ms)
        store.flush()
        return _rows(share)

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002 (Spark's names)
        return self.handleInputRows(key, iter(()), timerValues)


def with_clocks(rules: Rules, shards: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: readings as they are, then rows "clock" for every shard: of each gateway and each
    step of ``grid_ms`` the earliest moment among these readings. Without them a shard, which gets the readings of its
    own devices alone, would take a gateway for silent whose devices in other shards still send."""

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = []
        for batch in batches:
            # Arrow makes them unique: Python gets a few rows, and not one for each reading.
            steps = pc.divide(batch.column("ms"), rules.grid_ms)
            taken = {"gateway": batch.column("gateway"), "step": steps, "ms": batch.column("ms")}
            found.append(pa.table(taken).group_by(["gateway", "step"]).aggregate([("ms", "min")]))
            schema = batch.schema
            yield batch
        if found:
            first = pa.concat_tables(found).group_by(["gateway", "step"]).aggregate([("ms_min", "min")])
            clocks = [(it["gateway"], it["ms_min_min"]) for it in first.to_pylist()]
            rows = [{"shard": n, "kind": "clock", "ms": ms, "gateway": of} for of, ms in clocks for n in range(shards)]
            yield pa.RecordBatch.from_pylist(rows, schema)

    return add


def _input(row: Any) -> Input | None:  # None: neither a birth nor a death
    match row.kind:
        case "reading":
            own = row.device, row.type, row.site, row.gateway, row.seq, row.device_ms, row.event_ms, row.ms
            return Reading(*own, dict(row["values"]))
        case "clock":
            return Clock(row.gateway, row.ms)
        case "beat":
            return Beat(row.gateway, row.worker, row.life, row.acknowledged, row.from_ms, row.ms, row.state)
        case _:
            return parse_presence(row.device, row.gateway, row.mqtt_topic, row.payload, row.ms)


def _rows(share: Shard) -> Iterator[Row]:  # as OUTPUT
    for event in share.events:
        yield _change("event", *event, None)
    for name, device in share.changed.items():
        gateway, snapshot = (None, None) if device is None else (device.gateway or None, _snapshot(device))
        yield _change("device", None, None, name, gateway, None, snapshot)


def _snapshot(device: Device) -> Row:  # what the table has of it
    values = {name: value for name, (value, _) in device.values.items()}
    value_times = {name: at for name, (_, at) in device.values.items()}
    sequence, gaps = device.sequence, device.sequence.gaps
    newest = [(gap.low, gap.high) for gap in gaps[-MOST_RANGES:]]
    return _snapshot_row(
        device.type, device.site, device.state, device.reason, device.since_ms, device.seen_ms, device.event_ms,
        values, value_times, sequence.last, len(gaps), sequence.missing_count, newest,
        sequence.too_late, sequence.duplicates, sequence.resets, device.transitions, device.flapping,
    )  # fmt: skip
