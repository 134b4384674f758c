"""The shard of devices as a processor of Spark, without Spark."""

import json
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from streaming.devices.processor import INPUT, ShardProcessor, with_clocks
from streaming.devices.records import Presence, Reading, Rules
from streaming.devices.shard import Input
from tests.unit.device_rig import LOG, RULES, SHORT, T0, Kept, Log, Rig, inputs_of

BATCH = pa.schema([("shard", pa.int32()), ("kind", pa.string()), ("ms", pa.int64()), ("gateway", pa.string())])


class FakeSpark(Kept):
    """What a processor needs of Spark."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.now, self.rules = T0, rules
        self._processor = ShardProcessor(rules)
        self._processor.init(cast("Any", self))

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
def test_rows_of_spark_do_what_records_do(log: Log, cuts: set[int], rules: Rules) -> None:
    inputs = inputs_of(log)
    records, spark = Rig(rules), FakeSpark(rules)
    records(*inputs)
    rows = []
    within = sorted(cut for cut in cuts if 0 < cut < len(inputs))
    for begin, end in pairwise([0, *within, len(inputs)]):
        rows += spark(inputs[begin:end])
    told = [(row.at, row.event, row.device, row.gateway, row.detail) for row in rows if row.kind == "event"]
    assert told == [tuple(event) for event in records.events]
    last = {row.device: row.snapshot for row in rows if row.kind == "device"}
    kept = {name: snapshot for name, snapshot in last.items() if snapshot is not None}
    assert {name: (it.state, it.since, it.missing, it.transitions) for name, it in kept.items()} == {
        name: (device.state, device.since_ms, device.sequence.missing_count, device.transitions)
        for name, device in records.devices.items()
    }
    assert (spark.due, spark.devices) == (records.due, records.devices)
