"""A shard of devices as a stateful processor of Spark: its state variables, and rows in and out."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import DoubleType, MapType, StringType

from streaming.devices.gateways import Beat, Gateway, Worker
from streaming.devices.presence import parse_presence
from streaming.devices.records import Reading, Rules
from streaming.devices.sequence import MOST_RANGES, Missing, Sequence
from streaming.devices.shard import Clock, Input, Meta, Output, Shard, Slot
from streaming.devices.state import Device
from streaming.lake.columns import columns

STATE_VERSION: Final = 3
"""Raised with each change of the state's columns or of what they mean: a checkpoint of another version is refused."""

INPUT: Final = columns(
    "shard integer, kind string, ms long, device string, type string, site string, gateway string, seq long,"
    " device_ms long, event_ms long, values numbers, mqtt_topic string, payload binary, worker integer, life string,"
    " acknowledged long, from_ms long, state string",
    numbers=MapType(StringType(), DoubleType()),
)
"""What goes into a shard, in one schema: readings, clocks, beats of the ledger, births and deaths. ``ms`` is the time
that they are ordered by."""

_SNAPSHOT: Final = (
    "type string, site string, state string, reason string, since bigint, last_seen bigint, last_event_time bigint,"
    " values map<string, double>, value_times map<string, bigint>, seq_last bigint, gaps int, missing bigint,"
    " missing_ranges array<struct<low: bigint, high: bigint>>, too_late bigint, duplicates bigint, resets bigint,"
    " transitions bigint, flapping boolean"
)
OUTPUT: Final = (
    f"kind string, at bigint, event string, device string, gateway string, detail string, snapshot struct<{_SNAPSHOT}>"
)
"""Events (``kind`` is ``event``), and devices that changed (``device``): without a snapshot, one that is forgotten."""
_CHANGE: Final = Row("kind", "at", "event", "device", "gateway", "detail", "snapshot")

_DEVICE: Final = (
    "type string, site string, gateway string, state string, reason string, since_ms bigint, seen_ms bigint,"
    " event_ms bigint, values map<string, struct<value: double, at_ms: bigint>>,"
    " session_ms bigint, birth_ms bigint, death_ms bigint,"
    " transitions bigint, flips array<bigint>, flapping boolean,"
    " due_ms bigint, dues map<string, bigint>,"
    " life int, first bigint, first_ms bigint, last bigint, last_ms bigint, before_last bigint, before_ms bigint,"
    " missing array<struct<life: int, low: bigint, high: bigint, opened_ms: bigint, told: boolean>>, holes binary,"
    " given_up bigint, given_up_to bigint, too_late bigint, duplicates bigint, resets bigint"
)
_GATEWAY: Final = (
    "alive_ms bigint, data_ms bigint, beat_ms bigint,"
    " workers map<string, struct<life: string, acknowledged: bigint, quiet_ms: bigint, to_ms: bigint>>,"
    " outages array<struct<begin_ms: bigint, end_ms: bigint>>,"
    " lost boolean, stalled boolean, stopped boolean, heard_wall_ms bigint, data_wall_ms bigint, due_ms bigint"
)
# The columns of both are the fields of the classes in their order, but for the name; a device's sequence is the last.
_OWN, _NUMBERS = [it.name for it in fields(Device)][1:-1], [it.name for it in fields(Sequence)]
_MISSING, _HOLES = _NUMBERS.index("missing"), _NUMBERS.index("holes")
_own_of, _numbers_of = attrgetter(*_OWN), attrgetter(*_NUMBERS)
_from_gateway = attrgetter(*(it.name for it in fields(Gateway)[1:]))
_META: Final = "version int, ran_ms bigint, watched_ms bigint, due_ms bigint, timer_ms bigint"


class ShardProcessor(StatefulProcessor):
    """Runs a shard per key. Its state variables: ``devices``, ``due``, ``gateways``, ``meta``."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._devices = handle.getMapState("devices", "device string", _DEVICE)
        self._due = handle.getMapState("due", "gateway string, at_ms bigint", "devices array<string>")
        self._gateways = handle.getMapState("gateways", "gateway string", _GATEWAY)
        self._meta = handle.getValueState("meta", _META)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803 (Spark's names)
        return self._run_shard(key[0], [one for row in rows if (one := _input(row)) is not None], timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002 (Spark's names)
        return self._run_shard(key[0], [], timerValues)

    def _run_shard(self, shard: int, inputs: list[Input], timer_values: TimerValues) -> Iterator[Row]:
        wall_ms = timer_values.getCurrentProcessingTimeInMs()
        store = _SparkStore(self._devices, self._due, self._gateways, self._meta)
        output = Shard(store, self._rules, first=shard == 0).run(inputs, wall_ms)
        if store.meta.timer_ms <= wall_ms:  # it has fired, or none was set
            store.meta.timer_ms = wall_ms + self._rules.tick_ms
            self._handle.registerTimer(store.meta.timer_ms)
        store.flush()
        return _rows(output)


class _SparkStore:
    """A shard's store in Spark's state, for one call: what is read is kept, what changed is written at the end."""

    def __init__(self, devices: Any, due: Any, gateways: Any, meta: Any) -> None:
        self._devices, self._due, self._gateways, self._meta = devices, due, gateways, meta
        found = meta.get()
        self.meta = Meta(*found[1:]) if found else Meta()
        self._kept = {key[0]: value for key, value in gateways.iterator()}  # as Spark has them
        self.gateways = {name: _to_gateway(name, value) for name, value in self._kept.items()}
        self._cache: dict[str, Device | None] = {}  # None: there is none, or none any more
        self._dirty: set[str] = set()  # devices to be written
        self._added: dict[Slot, list[str]] = {}  # devices that this call has put there

    def load(self, name: str) -> Device | None:
        if name not in self._cache:
            found = self._devices.getValue((name,))
            self._cache[name] = None if found is None else _to_device(name, found)
        return self._cache[name]

    def save(self, device: Device) -> None:
        self._cache[device.name] = device
        self._dirty.add(device.name)

    def remove(self, name: str) -> None:
        self._cache[name] = None
        self._dirty.add(name)

    @cached_property
    def _slots(self) -> defaultdict[str | None, set[int]]:
        """All slots' moments by gateway; read when one has come to a slot, which it has not in each batch."""
        found: defaultdict[str | None, set[int]] = defaultdict(set)
        for gateway, ms in (*self._due.keys(), *self._added):
            found[gateway].add(ms)
        return found

    def slots(self, gateway: str | None) -> list[int]:
        return list(self._slots[gateway])

    def slot(self, slot: Slot) -> list[str]:
        found = self._due.getValue(tuple(slot))
        return [*(found[0] if found else ()), *self._added.get(slot, ())]

    def take_slot(self, slot: Slot) -> list[str]:  # its devices; the slot is removed
        names = self.slot(slot)
        self._added.pop(slot, None)
        if self._due.containsKey(tuple(slot)):
            self._due.removeKey(tuple(slot))
        self._slots[slot.gateway].discard(slot.ms)
        return names

    def add_to_slot(self, slot: Slot, name: str) -> None:
        self._added.setdefault(slot, []).append(name)
        if "_slots" in self.__dict__:  # else it is read with those that are added
            self._slots[slot.gateway].add(slot.ms)

    def flush(self) -> None:
        """Writes what this call has changed into Spark's state. The store is not used after that."""
        for name in self._dirty:
            device = self._cache[name]
            if device is not None:
                self._devices.updateValue((name,), _from_device(device))
            elif self._devices.containsKey((name,)):
                self._devices.removeKey((name,))
        for slot in self._added:
            self._due.updateValue(tuple(slot), (self.slot(slot),))
        for name, gateway in self.gateways.items():
            if (changed := _from_gateway(gateway)) != self._kept.get(name):
                self._gateways.updateValue((name,), changed)
        for name in self._kept.keys() - self.gateways.keys():
            self._gateways.removeKey((name,))
        self._meta.update((STATE_VERSION, *astuple(self.meta)))


def with_clocks(rules: Rules, shards: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: readings as they are, then rows "clock" for every shard: of each gateway and each
    step of ``grid_ms`` the earliest moment among these readings.

    Without them a shard, which gets the readings of its own devices alone, would take a gateway for silent whose
    devices in other shards still send.
    """

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first: dict[tuple[str, int], int] = {}
        schema = None
        for batch in batches:
            schema = batch.schema
            # Arrow makes them unique: Python gets a few rows, and not one for each reading.
            steps = pc.divide(batch.column("ms"), rules.grid_ms)
            taken = {"gateway": batch.column("gateway"), "step": steps, "ms": batch.column("ms")}
            for row in pa.table(taken).group_by(["gateway", "step"]).aggregate([("ms", "min")]).to_pylist():
                key = row["gateway"], row["step"]
                first[key] = min(row["ms_min"], first.get(key, row["ms_min"]))
            yield batch
        if schema is None or not first:
            return
        rows = [
            {"shard": shard, "kind": "clock", "ms": ms, "gateway": gateway}
            for (gateway, _), ms in sorted(first.items())
            for shard in range(shards)
        ]
        yield pa.RecordBatch.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)

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


def _rows(output: Output) -> Iterator[Row]:  # as OUTPUT
    for event in output.events:
        yield _CHANGE("event", *event, None)
    for name, device in output.changed.items():
        gateway, snapshot = (None, None) if device is None else (device.gateway or None, _snapshot(device))
        yield _CHANGE("device", None, None, name, gateway, None, snapshot)


def _snapshot(device: Device) -> Row:  # what the table has of it
    sequence = device.sequence
    gaps = sequence.gaps
    return Row(
        type=device.type,
        site=device.site,
        state=device.state,
        reason=device.reason,
        since=device.since_ms,
        last_seen=device.seen_ms,
        last_event_time=device.event_ms,
        values={name: value for name, (value, _) in device.values.items()},
        value_times={name: at for name, (_, at) in device.values.items()},
        seq_last=sequence.last,
        gaps=len(gaps),
        missing=sequence.missing_count,
        missing_ranges=[Row(low=gap.low, high=gap.high) for gap in gaps[-MOST_RANGES:]],
        too_late=sequence.too_late,
        duplicates=sequence.duplicates,
        resets=sequence.resets,
        transitions=device.transitions,
        flapping=device.flapping,
    )


def _from_device(device: Device) -> tuple[Any, ...]:
    numbers = list(_numbers_of(device.sequence))
    holes = device.sequence.holes
    numbers[_HOLES] = holes.to_bytes(-(-holes.bit_length() // 8), "little")
    return (*_own_of(device), *numbers)


def _to_device(name: str, kept: Any) -> Device:  # kept: a row of _DEVICE
    own, numbers = kept[: len(_OWN)], list(kept[len(_OWN) :])
    numbers[_MISSING] = [Missing(*gap) for gap in numbers[_MISSING]]
    numbers[_HOLES] = int.from_bytes(numbers[_HOLES], "little")
    device = Device(name, *own)
    device.sequence = Sequence(*numbers)
    device.values = {signal: (value, at_ms) for signal, (value, at_ms) in device.values.items()}
    device.flips, device.dues = list(device.flips), dict(device.dues)
    return device


def _to_gateway(name: str, kept: Any) -> Gateway:
    gateway = Gateway(name, *kept)
    gateway.workers = {key: Worker(*worker) for key, worker in gateway.workers.items()}
    gateway.outages = [(begin, end) for begin, end in gateway.outages]
    return gateway
