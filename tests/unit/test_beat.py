"""Looks at the same moments: an idle worker wakes up as seldom as its most frequent look wants."""

import asyncio

import pytest

from bridge.waiting import until_beat_s
from gateway.base.instruments import EventLoopProbe, Histogram
from gateway.base.vitals import Vitals
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import ManualLoop, in_manual_time
from tests.unit.spool_path import SpoolPath

SECONDS = 20


async def test_looks_that_begin_at_odd_moments_share_their_wake_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ManualLoop)
    kafka, _topic = FakeKafka.with_topic()
    vitals, probe = Vitals(pytest.fail), EventLoopProbe(Histogram([1]))
    await asyncio.sleep(0.13)
    await vitals.start()
    await asyncio.sleep(0.2)
    await probe.start()
    await asyncio.sleep(0.31)
    async with SpoolPath(kafka):  # with the looks of the sender and of the spooler
        await asyncio.sleep(1)
        moments: set[float] = set()
        select = loop._manual.select

        def noting(timeout: float | None = None) -> list[object]:
            ready = select(timeout)
            moments.add(round(loop.time(), 6))
            return ready

        monkeypatch.setattr(loop._manual, "select", noting)
        await asyncio.sleep(SECONDS)
        monkeypatch.undo()
    await vitals.stop(0)
    await probe.stop(0)
    assert len(moments) <= 2 * SECONDS + 2, sorted(moments)[:10]


async def test_beats_are_an_interval_apart_and_one_that_is_too_near_is_left_out() -> None:
    loop, times = asyncio.get_running_loop(), list[float]()
    await asyncio.sleep(0.499)
    for _ in range(5):
        await asyncio.sleep(until_beat_s(0.5))
        times.append(loop.time() - 1000.0)
    assert times == pytest.approx([1.0, 1.5, 2.0, 2.5, 3.0])


in_manual_time(globals())
