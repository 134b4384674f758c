"""A shard of devices as a stateful processor of Spark: its state variables, and rows in and out."""

from __future__ import annotations

__all__ = ["INPUT", "OUTPUT", "STATE_VERSION", "ShardProcessor", "with_clocks"]

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from streaming.device_gateways import Beat, Gateway, Worker
from streaming.device_presence import parse_presence
from streaming.device_records import Reading
from streaming.device_sequence import Missing, Sequence
from streaming.device_shard import Clock, Meta, Output, Shard, Slot
from streaming.device_state import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

    from streaming.device_records import Rules
    from streaming.device_shard import Input

STATE_VERSION: Final = 2
"""Raised with each change of the state's columns or of what they mean: a checkpoint of another version is refused."""

INPUT: Final = {
    "shard": "int",
    "kind": "string",
    "ms": "bigint",
    "device": "string",
    "type": "string",
    "site": "string",
    "gateway": "string",
    "seq": "bigint",
    "device_ms": "bigint",
    "event_ms": "bigint",
    "values": "map<string, double>",
    "mqtt_topic": "string",
    "payload": "binary",
    "worker": "int",
    "life": "string",
    "acknowledged": "bigint",
    "from_ms": "bigint",
    "state": "string",
}
"""What goes into a shard, in one schema: readings, clocks, beats of the ledger, births and deaths. ``ms`` is the time
that they are ordered by."""

_SNAPSHOT: Final = (
    "type string, site string, state string, reason string, since bigint, last_seen bigint, last_event_time bigint,"
    " values map<string, double>, value_times map<string, bigint>, seq_last bigint, gaps int, missing bigint,"
    " missing_ranges array<struct<low: bigint, high: bigint>>, duplicates bigint, resets bigint, transitions bigint,"
    " flapping boolean"
)
OUTPUT: Final = (
    f"kind string, at bigint, event string, device string, gateway string, detail string, snapshot struct<{_SNAPSHOT}>"
)
"""Events (``kind`` is ``event``), and devices that changed (``device``): without a snapshot, one that is forgotten."""

_DEVICE: Final = (
    "type string, site string, gateway string, state string, reason string, since_ms bigint, seen_ms bigint,"
    " event_ms bigint, values map<string, struct<value: double, at_ms: bigint>>,"
    " session_ms bigint, birth_ms bigint, death_ms bigint,"
    " transitions bigint, flips array<bigint>, flapping boolean,"
    " due_ms bigint, dues map<string, bigint>,"
    " life int, first bigint, first_ms bigint, last bigint, last_ms bigint, before_last bigint, before_ms bigint,"
    " missing array<struct<life: int, low: bigint, high: bigint, opened_ms: bigint, told: boolean>>,"
    " given_up bigint, duplicates bigint, resets bigint"
)
_GATEWAY: Final = (
    "alive_ms bigint, data_ms bigint, beat_ms bigint,"
    " workers map<string, struct<life: string, acknowledged: bigint, quiet_ms: bigint, to_ms: bigint>>,"
    " outages array<struct<begin_ms: bigint, end_ms: bigint>>,"
    " lost boolean, stalled boolean, stopped boolean, heard_wall_ms bigint, data_wall_ms bigint, due_ms bigint"
)
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

    def handleInputRows(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        return self._run(key[0], [one for row in rows if (one := _input(row)) is not None], timerValues)

    def handleExpiredTimer(  # noqa: N802 (Spark's name)
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        return self._run(key[0], [], timerValues)

    def _run(self, shard: int, inputs: list[Input], timer_values: TimerValues) -> Iterator[Row]:
        wall_ms = timer_values.getCurrentProcessingTimeInMs()
        store = _SparkStore(self._devices, self._due, self._gateways, self._meta)
        output = Shard(store, self._rules, first=shard == 0).run(inputs, wall_ms)
        if store.meta.timer_ms <= wall_ms:
            store.meta.timer_ms = wall_ms + self._rules.tick_ms
            self._handle.registerTimer(store.meta.timer_ms)
        store.flush()
        return iter(_rows(output))


class _SparkStore:
    """A shard's store in Spark's state, for one call: what is read is kept, what changed is written at the end."""

    def __init__(self, devices: Any, due: Any, gateways: Any, meta: Any) -> None:
        self._devices, self._due, self._gateways, self._meta = devices, due, gateways, meta
        found = meta.get()
        self.meta = Meta(*found[1:]) if found else Meta()
        self.gateways = {key[0]: _to_gateway(key[0], value) for key, value in gateways.iterator()}
        self._known_gateways = set(self.gateways)
        self._cache: dict[str, Device | None] = {}
        self._dirty: set[str] = set()
        self._slots: dict[str | None, set[int]] | None = None
        self._added: dict[Slot, list[str]] = {}

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

    def names(self) -> list[str]:
        kept = {key[0] for key in self._devices.keys()}  # noqa: SIM118 (no dict)
        return sorted(kept | {name for name, device in self._cache.items() if device is not None})

    def slots(self, gateway: str | None) -> list[int]:
        if self._slots is None:
            self._slots = {}
            for slot in [*(Slot(*key) for key in self._due.keys()), *self._added]:  # noqa: SIM118 (no dict)
                self._slots.setdefault(slot.gateway, set()).add(slot.ms)
        return list(self._slots.get(gateway, ()))

    def take_slot(self, slot: Slot) -> list[str]:
        names = self._added.pop(slot, [])
        if (found := self._due.getValue(tuple(slot))) is not None:
            self._due.removeKey(tuple(slot))
            names = [*found[0], *names]
        if self._slots is not None:
            self._slots[slot.gateway].discard(slot.ms)
        return names

    def add_to_slot(self, slot: Slot, name: str) -> None:
        self._added.setdefault(slot, []).append(name)
        if self._slots is not None:
            self._slots.setdefault(slot.gateway, set()).add(slot.ms)

    def flush(self) -> None:
        for name in self._dirty:
            device = self._cache[name]
            if device is not None:
                self._devices.updateValue((name,), _from_device(device))
            elif self._devices.containsKey((name,)):
                self._devices.removeKey((name,))
        for slot, names in self._added.items():
            found = self._due.getValue(tuple(slot))
            self._due.updateValue(tuple(slot), ([*(found[0] if found else ()), *names],))
        for name, gateway in self.gateways.items():
            self._gateways.updateValue((name,), _from_gateway(gateway))
        for name in self._known_gateways - self.gateways.keys():
            self._gateways.removeKey((name,))
        meta = self.meta
        self._meta.update((STATE_VERSION, meta.ran_ms, meta.watched_ms, meta.due_ms, meta.timer_ms))


def with_clocks(rules: Rules, shards: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow``: readings as they are, then for each shard how far each gateway's readings are: the
    first of each step, among those that it is given.

    A shard sees its own devices only, and a gateway is silent when all of its devices are.
    """

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first: dict[tuple[str, int], int] = {}
        schema = None
        for batch in batches:
            schema = batch.schema
            # Small integers and a few names, so sets of Python objects would cost more than to have them unique first.
            steps = pc.divide(batch.column("ms"), rules.grid_ms)
            columns = {"gateway": batch.column("gateway"), "step": steps, "ms": batch.column("ms")}
            for row in pa.table(columns).group_by(["gateway", "step"]).aggregate([("ms", "min")]).to_pylist():
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


def _input(row: Any) -> Input | None:
    match row.kind:
        case "reading":
            return Reading(
                row.device,
                row.type,
                row.site,
                row.gateway,
                row.seq,
                row.device_ms,
                row.event_ms,
                row.ms,
                dict(row["values"]),
            )
        case "clock":
            return Clock(row.gateway, row.ms)
        case "beat":
            return Beat(row.gateway, row.worker, row.life, row.acknowledged, row.from_ms, row.ms, row.state)
        case _:
            return parse_presence(row.device, row.gateway, row.mqtt_topic, row.payload, row.ms)


def _rows(output: Output) -> list[Row]:
    rows = [_row(event.at_ms, event.event, event.device, event.gateway, event.detail, None) for event in output.events]
    for name, device in output.changed.items():
        snapshot = None if device is None else _snapshot(device)
        rows.append(_row(None, None, name, None if device is None else device.gateway or None, None, snapshot))
    return rows


def _row(
    at: int | None, event: str | None, device: str | None, gateway: str | None, detail: str | None, snapshot: Row | None
) -> Row:
    kind = "device" if event is None else "event"
    return Row(kind=kind, at=at, event=event, device=device, gateway=gateway, detail=detail, snapshot=snapshot)


def _snapshot(device: Device) -> Row:
    sequence = device.sequence
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
        gaps=len(sequence.missing),
        missing=sequence.missing_count,
        missing_ranges=[Row(low=gap.low, high=gap.high) for gap in sequence.missing],
        duplicates=sequence.duplicates,
        resets=sequence.resets,
        transitions=device.transitions,
        flapping=device.flapping,
    )


def _from_device(device: Device) -> tuple[Any, ...]:
    sequence = device.sequence
    return (
        device.type,
        device.site,
        device.gateway,
        device.state,
        device.reason,
        device.since_ms,
        device.seen_ms,
        device.event_ms,
        device.values,
        device.session_ms,
        device.birth_ms,
        device.death_ms,
        device.transitions,
        device.flips,
        device.flapping,
        device.due_ms,
        device.dues,
        sequence.life,
        sequence.first,
        sequence.first_ms,
        sequence.last,
        sequence.last_ms,
        sequence.before_last,
        sequence.before_ms,
        [tuple(gap) for gap in sequence.missing],
        sequence.given_up,
        sequence.duplicates,
        sequence.resets,
    )


def _to_device(name: str, kept: Any) -> Device:
    (*known, life, first, first_ms, last, last_ms, before_last, before_ms, missing, given_up, duplicates, resets) = kept
    gaps = [Missing(*gap) for gap in missing]
    sequence = Sequence(
        life, first, first_ms, last, last_ms, before_last, before_ms, gaps, given_up, duplicates, resets
    )
    kind, site, gateway, state, reason, since, seen, event, values, session, birth, death, *rest = known
    transitions, flips, flapping, due, dues = rest
    return Device(
        name, kind, site, gateway, state, reason, since, seen, event,
        {signal: (pair[0], pair[1]) for signal, pair in values.items()},
        sequence, session, birth, death, transitions, list(flips), flapping, due, dict(dues),
    )  # fmt: skip


def _from_gateway(gateway: Gateway) -> tuple[Any, ...]:
    return (
        gateway.alive_ms,
        gateway.data_ms,
        gateway.beat_ms,
        {key: tuple(worker) for key, worker in gateway.workers.items()},
        gateway.outages,
        gateway.lost,
        gateway.stalled,
        gateway.stopped,
        gateway.heard_wall_ms,
        gateway.data_wall_ms,
        gateway.due_ms,
    )


def _to_gateway(name: str, kept: Any) -> Gateway:
    alive, data, beat, workers, outages, *flags = kept
    return Gateway(
        name,
        alive,
        data,
        beat,
        {key: Worker(*worker) for key, worker in workers.items()},
        [(begin, end) for begin, end in outages],
        *flags,
    )
