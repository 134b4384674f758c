"""The shard of devices in Spark's state, without Spark."""

import copy
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from streaming.devices.processor import INPUT, ShardProcessor, with_clocks
from streaming.devices.records import Presence, Reading, Rules
from streaming.devices.shard import Input, Slot
from tests.unit.device_rig import LOG, RULES, SHORT, T0, Log, Rig, inputs_of

BATCH = pa.schema([("shard", pa.int32()), ("kind", pa.string()), ("ms", pa.int64()), ("gateway", pa.string())])


class FakeState:
    """A map of Spark's state, in an order of its own, or a value, which is a map of one."""

    def __init__(self, key: str, value: str) -> None:
        self._lengths = width(key), width(value)
        self._kept: dict[Any, tuple[Any, ...]] = {}

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802 (Spark's name)
        return copy.deepcopy(self._kept.get(key))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802 (Spark's name)
        assert (len(key), len(value)) == self._lengths
        self._kept[key] = copy.deepcopy(value)

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802 (Spark's name)
        del self._kept[key]

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802 (Spark's name)
        return key in self._kept

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return reversed(list(self._kept))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return reversed(copy.deepcopy(list(self._kept.items())))

    def get(self) -> tuple[Any, ...] | None:
        return self.getValue(())

    def update(self, value: tuple[Any, ...]) -> None:
        self.updateValue((), value)


def width(columns: str) -> int:
    """How many columns a schema has, those within others not counted."""
    while (flat := re.sub(r"<[^<>]*>", "", columns)) != columns:
        columns = flat
    return len([name for name in columns.split(",") if name])


class FakeSpark:
    """What a processor needs of Spark."""

    def __init__(self, rules: Rules) -> None:
        self.now, self.rules = T0, rules
        self.state: dict[str, FakeState] = {}
        self._processor = ShardProcessor(rules)
        self._processor.init(cast("Any", self))

    def getMapState(self, name: str, key: str, value: str) -> FakeState:  # noqa: N802 (Spark's name)
        return self.state.setdefault(name, FakeState(key, value))

    def getValueState(self, name: str, value: str) -> FakeState:  # noqa: N802 (Spark's name)
        return self.state.setdefault(name, FakeState("", value))

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802 (Spark's name)
        assert at_ms > self.now

    def getCurrentProcessingTimeInMs(self) -> int:  # noqa: N802 (Spark's name)
        return self.now

    def __call__(self, inputs: list[Input]) -> list[Row]:
        """A batch of the first of two shards."""
        self.now += 3_600_000
        rows = [row_of(one) for one in inputs]
        readings = [{name: row[name] for name in BATCH.names} for row in rows if row.kind == "reading"]
        for batch in with_clocks(self.rules, 2)([pa.RecordBatch.from_pylist(readings, BATCH)]):
            clocks = [row for row in batch.to_pylist() if row["kind"] == "clock" and row["shard"] == 0]
            rows += [Row(**(dict.fromkeys(INPUT.names) | row)) for row in clocks]
        return list(self._processor.handleInputRows((0,), iter(rows), cast("Any", self)))


def row_of(one: Input) -> Row:
    match one:
        case Reading():
            known = {**one._asdict(), "kind": "reading", "ms": one.received_ms}
        case Presence():
            payload = json.dumps({"online": one.online}).encode()
            known = {**one._asdict(), "kind": "presence", "ms": one.received_ms, "payload": payload}
        case _:
            known = {**one._asdict(), "kind": "beat", "ms": one.to_ms}
    return Row(**{name: known.get(name) for name in INPUT.names})


@settings(max_examples=100, deadline=None)
@given(LOG, st.sets(st.integers(0, 40)), st.sampled_from([RULES, SHORT]))
def test_a_shard_in_the_state_of_spark_does_what_one_in_memory_does(log: Log, cuts: set[int], rules: Rules) -> None:
    """Each batch finds what the last has left, in the columns that are declared."""
    inputs = inputs_of(log)
    memory, spark = Rig(rules), FakeSpark(rules)
    memory(*inputs)
    rows = []
    within = sorted(cut for cut in cuts if 0 < cut < len(inputs))
    for begin, end in pairwise([0, *within, len(inputs)]):
        rows += spark(inputs[begin:end])
    told = [(row.at, row.event, row.device, row.gateway, row.detail) for row in rows if row.kind == "event"]
    assert told == [tuple(event) for event in memory.events]
    last = {row.device: row.snapshot for row in rows if row.kind == "device"}
    kept = {name: snapshot for name, snapshot in last.items() if snapshot is not None}
    assert {name: (it.state, it.since, it.missing, it.transitions) for name, it in kept.items()} == {
        name: (device.state, device.since_ms, device.sequence.missing_count, device.transitions)
        for name, device in memory.store.devices.items()
    }
    assert {Slot(*key): names for (key, (names,)) in spark.state["due"].iterator()} == memory.store.due
    assert {name for (name,) in spark.state["devices"].keys()} == set(memory.store.devices)  # noqa: SIM118 (no dict)
