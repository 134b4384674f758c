"""The ledger through every misfortune of the simulated world, kills and spool included: what it says can be verified.

The account is written through the same failures that the messages go through.
"""

import asyncio
import os
import time

import pytest

from bridge.ledger_topic.intervals import LedgerIntervals
from bridge.ledger_topic.records import Author, PartitionRecord, decode
from bridge.ledger_topic.writer import LedgerPlan, LedgerWriter
from bridge.produce.batch import Batch
from gateway.tools.verify.check import Span, Verdict, verify
from gateway.tools.verify.place import PlaceResult
from tests.unit.ledger_path import FakeLog
from tests.unit.manual_time import manual_time
from tests.unit.simulation import World

LEDGER = "ledger"
INTERVAL_MS = 5000
SEEDS = int(os.environ.get("GATEWAY_SIMULATIONS", "15"))


class AuditedWorld(World):
    """A world whose lives each write their account. ``stored`` counts records acknowledged over all of them."""

    beside = frozenset({LEDGER})
    crashing = False
    stored = 0

    def _begin_life(self) -> None:
        super()._begin_life()
        if LEDGER not in self.kafka.topics:
            self.kafka.topic(LEDGER, 2)
        self.intervals = LedgerIntervals()
        gateway = self.gateway
        told = gateway.observer.batch_stored

        def stored(batch: Batch, partition: int, offset: int, now_ns: int) -> None:
            self.intervals.stored(batch, partition, offset)
            self.stored += batch.count
            told(batch, partition, offset, now_ns)

        gateway.observer.batch_stored = stored  # type: ignore[method-assign]
        self.writer = LedgerWriter(
            LedgerPlan(LEDGER, INTERVAL_MS, frozenset()), Author("gw", 0, f"life {self.lives}", self.now_ms()),
            self.intervals, gateway.ledger,
            producer=lambda: gateway.sender.producer if gateway.sender.started else None,
            renew=gateway.sender.renew, now_ms=self.now_ms,
        )  # fmt: skip

    async def _start_life(self) -> None:
        await super()._start_life()
        self.writer.start()

    async def crash(self) -> None:
        self.crashing = True
        try:
            await super().crash()
        finally:
            self.crashing = False

    async def _end_life(self, patience_s: float = 0.0) -> None:
        if self.crashing:
            if (timer := self.writer._timer) is not None:
                timer.cancel()
            if (task := self.writer._task) is not None:
                task.cancel()
                await asyncio.wait([task])
        else:
            # Its limit is by the real clock, its waiting by the loop's.
            assert await self.writer.stop(time.monotonic_ns() + 3600 * 10**9), "the account is written to its end"
        await super()._end_life(patience_s)

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    async def audit(self, log: FakeLog) -> Verdict:
        return await verify(
            log, gateway="gw", ledger_topic=LEDGER, span=Span(), interval_ms=INTERVAL_MS, now_ms=self.now_ms()
        )

    def offsets(self, place: PlaceResult) -> list[int]:
        """The offsets of a partition that the ledger says were acknowledged."""
        found = [decode(record.value) for record in self.kafka.topics[LEDGER].records()]
        return [
            offset
            for record in found
            if isinstance(record, PartitionRecord)
            if (record.topic, record.partition) == (place.topic, place.partition)
            for first, count in record.runs or ()
            for offset in range(first, first + count)
        ]


@pytest.mark.parametrize("seed", range(SEEDS))
@manual_time
async def test_every_record_that_the_account_names_is_found_and_one_that_is_taken_out_is_missed(seed: int) -> None:
    world = AuditedWorld(seed)
    await world.run(400)
    log = FakeLog(world.kafka)
    verdict = await world.audit(log)
    assert not verdict.missing, verdict.missing
    assert not verdict.unjudged, verdict.unjudged
    acknowledged = sum(place.acknowledged for place in verdict.places)
    assert acknowledged <= world.stored
    assert acknowledged == world.stored or world.lives > 1, "only a kill leaves something unaccounted for"
    assert [life.ending(verdict.now_ms) for life in verdict.lives].count("stopped") == 1 + world.restarts
    if verdict.places:
        place = world.random.choice(verdict.places)
        log.deleted = {(place.topic, place.partition, world.random.choice(world.offsets(place)))}
        verdict = await world.audit(log)
        assert sum(place.missing for place in verdict.places) == 1


@pytest.mark.parametrize("seed", range(3))
@manual_time
async def test_where_nothing_goes_wrong_the_account_names_every_record(seed: int) -> None:
    world = AuditedWorld(seed, misfortune=False)
    await world.run(600)
    verdict = await world.audit(FakeLog(world.kafka))
    assert not verdict.missing + verdict.unjudged
    records = sum(len(topic.records()) for name, topic in world.kafka.topics.items() if name != LEDGER)
    assert sum(place.acknowledged for place in verdict.places) == records
    messages = sum(place.messages for place in verdict.places)
    assert messages == world.gateway.ledger.delivered + world.gateway.ledger.dead_lettered
    (life,) = verdict.lives
    assert life.last.terms == {
        term: getattr(world.gateway.ledger, term) for term in life.last.terms if term != "in_flight"
    } | {"in_flight": 0}
