"""The rows of the job as Arrow's bytes, thousands in one value: readings on their way into a shard, and its changes.

Spark gives a stateful processor its rows, and takes them from it, value by value, in Python: 25 µs for a reading. Out
of bytes they come column by column, in 3.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from streaming.devices.records import Event, Reading, Rules
from streaming.devices.sequence import MOST_RANGES
from streaming.devices.state import Device
from streaming.lake.columns import columns

_MOMENTS: Final = MapType(StringType(), TimestampType())

INPUT: Final = columns(
    "shard integer, kind string, ms long, device string, gateway string, mqtt_topic string, payload binary,"
    " worker integer, life string, acknowledged long, from_ms long, state string"
)
"""What goes into a shard, in one schema: packed readings, clocks, beats of the ledger, births and deaths. ``ms`` is the
time that all but readings are ordered by."""

DEVICES: Final = columns(
    "device string required, type string, site string, gateway string, state string, reason string,"
    " since timestamp, last_seen timestamp, last_event_time timestamp, values numbers, value_times moments,"
    " seq_last long, gaps integer, missing long, missing_ranges ranges, too_late long, duplicates long,"
    " resets long, transitions long, flapping boolean, batch long",
    numbers=MapType(StringType(), DoubleType()),
    moments=_MOMENTS,
    ranges=ArrayType(columns("low long, high long")),
)
"""The table ``devices``: one row per device."""

_IN_MS: Final = {TimestampType(): LongType(), _MOMENTS: MapType(StringType(), LongType())}
_SNAPSHOT: Final = StructType(
    [
        StructField(it.name, _IN_MS.get(it.dataType, it.dataType))
        for it in DEVICES
        if it.name not in ("device", "gateway", "batch")
    ]
)
"""Its other columns; moments in milliseconds, as all times here."""

OUTPUT: Final = columns(
    "kind string, at long, event string, device string, gateway string, detail string, snapshot snapshot",
    snapshot=_SNAPSHOT,
)
"""Events (``kind`` is ``event``), and devices that changed (``device``): without a snapshot, one that is forgotten."""

PACKED: Final = "packed binary"
"""Some of ``OUTPUT``'s rows."""

_MOST_ROWS: Final = 10_000  # in a value
_INPUT, _OUTPUT = to_arrow_schema(INPUT), to_arrow_schema(OUTPUT)
_OF_DEVICE: Final = _OUTPUT.field("snapshot").type


def pack_readings(rules: Rules, shards: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` that makes rows of ``INPUT`` from readings: their columns are ``shard`` and the
    fields of :class:`Reading`.

    At the end it adds rows "clock" for every shard: of each gateway and each step of ``grid_ms`` the earliest moment
    among these readings. Without them a shard, which gets the readings of its own devices alone, would take a gateway
    for silent whose devices in other shards still send.
    """

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = []
        for batch in batches:
            table, ms = pa.Table.from_batches([batch]), batch.column("received_ms")
            # Arrow makes them unique: Python gets a few rows, and not one for each reading.
            taken = {"gateway": batch.column("gateway"), "step": pc.divide(ms, rules.grid_ms), "ms": ms}
            found.append(pa.table(taken).group_by(["gateway", "step"]).aggregate([("ms", "min")]))
            rows = []
            for shard in pc.unique(batch.column("shard")).to_pylist():
                of_shard = table.filter(pc.equal(table["shard"], shard)).drop_columns("shard")
                rows.append({"shard": shard, "kind": "readings", "payload": _packed(of_shard)})
            yield pa.RecordBatch.from_pylist(rows, _INPUT)
        if found:
            first = pa.concat_tables(found).group_by(["gateway", "step"]).aggregate([("ms_min", "min")])
            clocks = [(it["gateway"], it["ms_min_min"]) for it in first.to_pylist()]
            rows = [{"shard": n, "kind": "clock", "ms": ms, "gateway": of} for of, ms in clocks for n in range(shards)]
            yield pa.RecordBatch.from_pylist(rows, _INPUT)

    return pack


def unpack_readings(payload: bytes) -> Iterator[Reading]:
    """What ``pack_readings`` packed."""
    for batch in pa.ipc.open_stream(payload):
        *numbers, values = batch.columns
        yield from map(Reading._make, zip(*(it.to_pylist() for it in numbers), _maps(values), strict=True))


def pack_changes(events: Sequence[Event], devices: Sequence[tuple[str, Device | None]]) -> Iterator[bytes]:
    """A shard's events and the devices that changed, None for one that is forgotten, as values of ``PACKED``."""
    for at in range(0, len(events), _MOST_ROWS):
        yield _packed(_rows("event", zip(*events[at : at + _MOST_ROWS], strict=True), None))
    for at in range(0, len(devices), _MOST_ROWS):
        names, changed = zip(*devices[at : at + _MOST_ROWS], strict=True)
        gateways = [None if device is None else device.gateway or None for device in changed]
        lacking = [None] * len(names)
        yield _packed(_rows("device", (lacking, lacking, names, gateways, lacking), _snapshots(changed)))


def unpack_changes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For ``mapInArrow``: rows of ``OUTPUT`` from values of ``PACKED``."""
    for batch in batches:
        for value in batch.column("packed"):
            yield from pa.ipc.open_stream(value.as_buffer())


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _maps(column: pa.MapArray) -> Iterator[dict[str, float]]:
    """Its maps. ``to_pylist`` takes ten times as long for them."""
    names, values, ends = column.keys.to_pylist(), column.items.to_pylist(), column.offsets.to_pylist()
    return (dict(zip(names[begin:end], values[begin:end], strict=True)) for begin, end in pairwise(ends))


def _rows(kind: str, columns: Iterable[Sequence[Any]], snapshots: pa.Array | None) -> pa.Table:
    """``columns``: those of ``OUTPUT`` between ``kind`` and ``snapshot``."""
    told = [pa.array(values, field.type) for field, values in zip(list(_OUTPUT)[1:-1], columns, strict=True)]
    count = len(told[0])
    last = pa.nulls(count, _OF_DEVICE) if snapshots is None else snapshots
    return pa.Table.from_arrays([pa.array([kind] * count), *told, last], schema=_OUTPUT)


def _snapshots(devices: Sequence[Device | None]) -> pa.Array:  # what the table has of them
    gone = pa.array([device is None for device in devices])
    rows = [_NOTHING if device is None else _snapshot(device) for device in devices]
    arrays = [pa.array(values, field.type) for field, values in zip(_OF_DEVICE, zip(*rows, strict=True), strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(_OF_DEVICE), mask=gone)


_NOTHING: Final = (None,) * len(_SNAPSHOT)


def _snapshot(device: Device) -> tuple[Any, ...]:
    values = [(name, value) for name, (value, _) in device.values.items()]
    value_times = [(name, at) for name, (_, at) in device.values.items()]
    sequence, gaps = device.sequence, device.sequence.gaps
    newest = [(gap.low, gap.high) for gap in gaps[-MOST_RANGES:]]
    return (
        device.type, device.site, device.state, device.reason, device.since_ms, device.seen_ms, device.event_ms,
        values, value_times, sequence.last, len(gaps), sequence.missing_count, newest,
        sequence.too_late, sequence.duplicates, sequence.resets, device.transitions, device.flapping,
    )  # fmt: skip
