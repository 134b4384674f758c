"""A shard of devices as a stateful processor of Spark: rows in and out."""

import gc
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from streaming.devices.gateways import Beat
from streaming.devices.packing import pack_changes, unpack_readings
from streaming.devices.presence import parse_presence
from streaming.devices.records import Rules
from streaming.devices.shard import Clock, Input, Shard
from streaming.devices.store import Store, variables

_ROW: Final = Row("packed")


class ShardProcessor(StatefulProcessor):
    """Runs a shard per key."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle, self._variables = handle, variables(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803 (Spark's names)
        # What a batch makes lives to its end, and in no cycles. To look for some took half of Python's CPU.
        gc.disable()
        try:
            return iter(self._take(key[0] == 0, chain.from_iterable(map(_inputs, rows)), timerValues))
        finally:
            gc.enable()

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002 (Spark's names)
        return self.handleInputRows(key, iter(()), timerValues)

    def _take(self, is_first: bool, inputs: Iterable[Input], timer_values: TimerValues) -> list[Row]:
        wall_ms, store = timer_values.getCurrentProcessingTimeInMs(), Store(*self._variables)
        share = Shard(store, self._rules, wall_ms, first=is_first)
        share.run(inputs)
        if store.meta.timer_ms <= wall_ms:  # it has fired, or none was set
            store.meta.timer_ms = wall_ms + self._rules.tick_ms
            self._handle.registerTimer(store.meta.timer_ms)
        store.flush()
        return [_ROW(one) for one in pack_changes(share.events, list(share.changed.items()))]


def _inputs(row: Any) -> Iterable[Input]:
    match row.kind:
        case "readings":
            return unpack_readings(row.payload)
        case "clock":
            return (Clock(row.gateway, row.ms),)
        case "beat":
            return (Beat(row.gateway, row.worker, row.life, row.acknowledged, row.from_ms, row.ms, row.state),)
        case _:
            one = parse_presence(row.device, row.gateway, row.mqtt_topic, row.payload, row.ms)
            return () if one is None else (one,)  # neither a birth nor a death
