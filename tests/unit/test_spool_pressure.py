"""What must not stand still, or grow, while the spool is at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.mqtt.flow import Flow
from tests.unit.data_path import value_of
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import manual_time
from tests.unit.spool_path import SpoolPath

if TYPE_CHECKING:
    from bridge.batch import Span


class FlowingPath(SpoolPath):
    """With the flow that pauses reading when memory is full."""

    flow: Flow

    def completed(self, span: Span) -> None:
        super().completed(span)
        delivered = self.ledger.delivered, self.ledger.dead_lettered, self.ledger.filtered
        owed, span.owed = span.owed, []
        self.flow.completed(span)
        span.owed = owed
        self.ledger.delivered, self.ledger.dead_lettered, self.ledger.filtered = delivered


@manual_time
async def test_reading_goes_on_when_what_filled_memory_was_on_disk_already() -> None:
    """The batches under way fill half of memory, the disk has them, so every span has completed: only Kafka's answers
    free the bytes, and no span completes with them."""
    kafka = FakeKafka()
    kafka.topic("t", 4)
    async with FlowingPath(kafka) as path:
        flow = path.flow = Flow(
            path.accumulator, path.sender, path.ledger, linger_ns=1, pacing_ns=1_000_000, memory_bytes=20_000
        )
        kafka.freeze()
        for partition in range(4):
            path.append(path.slot("t", partition), value_of(partition, 6_000))
        path.flush()
        flow.took(0, 0, pressed=False)
        assert flow.paused
        await path.until(lambda: len(path.owner.released) == 4, "by the disk", within_s=3)
        assert flow.paused
        kafka.thaw()
        await path.drained()
        assert not flow.paused, "nothing is held, and nothing is read"
        flow.close()
