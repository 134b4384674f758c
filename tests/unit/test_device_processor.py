"""The shard of devices as a processor of Spark, without Spark."""

import gc
import json
import math
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from streaming.devices.gateways import Beat
from streaming.devices.packing import INPUT, pack_readings, unpack_changes
from streaming.devices.processor import ShardProcessor
from streaming.devices.records import Event, Presence, Reading, Rules
from streaming.devices.shard import Input
from tests.unit.device_rig import LOG, RULES, SHORT, T0, Kept, Log, Rig, inputs_of, reading

READINGS = pa.schema(
    [
        ("shard", pa.int32()), ("device", pa.string()), ("type", pa.string()), ("site", pa.string()),
        ("gateway", pa.string()), ("seq", pa.int64()), ("device_ms", pa.int64()), ("event_ms", pa.int64()),
        ("received_ms", pa.int64()), ("values", pa.map_(pa.string(), pa.float64())),
    ]
)  # fmt: skip


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

    def __call__(self, inputs: list[Input]) -> list[dict[str, Any]]:
        """A batch of the first of two shards."""
        self.now += 3_600_000
        rows = [row_of(one) for one in inputs if not isinstance(one, Reading)]
        readings = [{"shard": 0, **one._asdict()} for one in inputs if isinstance(one, Reading)]
        batches = [pa.RecordBatch.from_pylist(readings[at::2], READINGS) for at in range(2)]
        for batch in pack_readings(self.rules, 2)(batches):
            rows += [Row(**row) for row in batch.to_pylist() if row["shard"] == 0]
        packed = [row.packed for row in self._processor.handleInputRows((0,), iter(rows), cast("Any", self))]
        changes = unpack_changes([pa.record_batch({"packed": pa.array(packed, pa.binary())})])
        return [row for batch in changes for row in batch.to_pylist()]


def row_of(one: Input) -> Row:
    if isinstance(one, Presence):
        payload = json.dumps({"online": one.online}).encode()
        known = {**one._asdict(), "kind": "presence", "ms": one.received_ms, "payload": payload}
    else:
        assert isinstance(one, Beat)
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
    told = [tuple(row.values())[1:-1] for row in rows if row["kind"] == "event"]
    assert told == [tuple(getattr(event, name) for name in Event._fields) for event in records.events]
    last = {row["device"]: row["snapshot"] for row in rows if row["kind"] == "device"}
    kept = {name: snapshot for name, snapshot in last.items() if snapshot is not None}
    assert {
        name: (it["state"], it["since"], it["missing"], it["transitions"], dict(it["values"]), dict(it["value_times"]))
        for name, it in kept.items()
    } == {
        name: (
            device.state, device.since_ms, device.sequence.missing_count, device.transitions,
            {signal: value for signal, (value, _) in device.values.items()},
            {signal: at for signal, (_, at) in device.values.items()},
        )
        for name, device in records.devices.items()
    }  # fmt: skip
    assert (spark.due, spark.devices) == (records.due, records.devices)


def test_numbers_that_are_none_and_gaps_pass_through_bytes_and_state() -> None:
    spark = FakeSpark(RULES)
    values = {"t": math.nan, "h": math.inf, "": -0.0}
    odd = Reading("d", None, "ü", "", None, T0, T0, T0, values)
    spark([odd, Reading("d", None, None, "", (1 << 63) - 1, T0, T0, T0 - 1, {})])
    kept = spark.devices["d"]
    assert [str(value) for value, _ in kept.values.values()] == ["nan", "inf", "-0.0"]
    assert kept.sequence.last == (1 << 63) - 1
    lost = [Reading("e", "pump", None, "edge", seq, T0, T0, T0 + seq, {}) for seq in (1, 3, 900, 1000)]
    later = Reading("f", "pump", None, "edge", 0, T0, T0, T0 + 600_000, {})
    told = {row["device"]: row["snapshot"] for row in spark([*lost, later]) if row["kind"] == "device"}
    sequence = spark.devices["e"].sequence
    assert sequence.holes.bit_length() > 900
    assert told["e"]["missing_ranges"] == [{"low": gap.low, "high": gap.high} for gap in sequence.gaps]
    assert (told["e"]["gaps"], told["e"]["missing"]) == (3, 1 + 896 + 99)
    assert (told["e"]["values"], told["f"]["seq_last"]) == ([], 0)


def test_a_batch_leaves_nothing_to_the_garbage_collector() -> None:
    """Which is off while it runs."""
    spark = FakeSpark(RULES)
    readings = [reading(f"d{number % 50}", number * 1_000, seq=number, t=1.0) for number in range(0, 1_000, 2)]
    gc.collect()
    spark(readings)
    assert gc.isenabled()
    assert gc.collect() < 100, "objects in cycles"
