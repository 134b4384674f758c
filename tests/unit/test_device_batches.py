"""Devices: the same states and events in whatever batches the input comes."""

import copy
import os
from bisect import bisect
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming.devices.gateways import Beat
from streaming.devices.records import Presence, Reading, Rules
from streaming.devices.sequence import Sequence
from streaming.devices.shard import order
from tests.unit.device_rig import LOG, RULES, SHORT, T0, Log, Rig, inputs_of, reading


@pytest.fixture(autouse=True, scope="module")
def neighbours() -> Iterator[None]:
    """Devices share values of the state, as many do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streaming.devices.store._BUCKETS", 2)
        yield


EXAMPLES = settings(max_examples=int(os.environ.get("DEVICES_EXAMPLES", "300")), deadline=None)


@example(
    [(0, "reading", "a", "edge", 0), (600_000, "birth", "a", "edge", 0), (600_000, "reading", "a", "edge", 0)],
    {2},
    0,
    RULES,
)
@EXAMPLES
@given(LOG, st.sets(st.integers(0, 40)), st.sampled_from([0, 3_600_000]), st.sampled_from([RULES, SHORT]))
def test_batches_and_restarts_make_no_difference(log: Log, cuts: set[int], stopped: int, rules: Rules) -> None:
    """The same input in one batch, and in others, cut anywhere, with the job stopped between them or not."""
    inputs = inputs_of(log)
    whole, parts = Rig(rules), Rig(rules)
    whole(*inputs)
    within = sorted(cut for cut in cuts if 0 < cut < len(inputs))
    for begin, end in pairwise([0, *within, len(inputs)]):
        parts(*inputs[begin:end], later=stopped)
    assert (parts.events, parts.devices, parts.due) == (whole.events, whole.devices, whole.due)


@EXAMPLES
@given(LOG, st.lists(st.lists(st.integers(0, 90 * 60_000), max_size=3).map(sorted), min_size=3, max_size=3))
def test_what_readings_say_is_the_same_however_far_apart_the_sources_are(log: Log, cuts: list[list[int]]) -> None:
    """The ledger, and births and deaths, ahead of silver or behind it: that does make a difference for who was offline
    and when, but for nothing else."""
    inputs = inputs_of(log)
    whole, parts = Rig(), Rig()
    whole(*inputs)
    sources = dict(zip((Reading, Presence, Beat), cuts, strict=True))
    for batch in range(4):
        parts(*(one for one in inputs if bisect(sources[type(one)], order(one)[0] - T0) == batch))
    assert told_by_readings(parts) == told_by_readings(whole)


def told_by_readings(rig: Rig) -> dict[str, list[object]]:
    return {
        name: [
            device.type, device.site, device.gateway, device.seen_ms, device.event_ms, device.values,
            numbers(device.sequence),
            device.birth_ms, device.death_ms,
        ]
        for name, device in rig.devices.items()
    }  # fmt: skip


def numbers(sequence: Sequence) -> Sequence:
    """All gaps told: when they are depends on the ledger."""
    told = copy.deepcopy(sequence)
    told.tell(T0 * 2, 0)
    return told


@pytest.mark.parametrize(("first", "second"), [("edge", "other"), ("other", "edge")])
def test_a_restart_before_a_second_gateway_makes_no_difference(first: str, second: str) -> None:
    at = 630_000
    whole, parts = Rig(), Rig()
    log = [reading("a", 0, gateway=first), reading("a", at, gateway=first), reading("a", at + 1, gateway=second)]
    whole(*log)
    parts(*log[:2], later=3_600_000)
    parts(*log[2:], later=3_600_000)
    assert parts.devices == whole.devices


def test_a_stop_in_the_moment_of_a_beat_is_the_end_of_its_life() -> None:
    beat, stop = inputs_of([(0, "beat", "a", "edge", 2), (0, "beat", "a", "edge", 0)])
    for batch in ((beat, stop), (stop, beat)):
        rig = Rig()
        rig(*batch)
        assert rig.gateways["edge"].stopped


@EXAMPLES
@given(LOG, st.data())
def test_readings_of_a_batch_come_in_any_order(log: Log, data: st.DataObject) -> None:
    """From any number of partitions: each brings clocks of its own readings."""
    inputs = inputs_of(log)
    rules = data.draw(st.sampled_from([RULES, SHORT]))
    in_order, shuffled = Rig(rules), Rig(rules, partitions=data.draw(st.integers(1, 3)))
    in_order(*inputs)
    shuffled(*data.draw(st.permutations(inputs)))
    assert {name: it.kept for name, it in shuffled.state.items()} == {
        name: it.kept for name, it in in_order.state.items()
    }
    assert shuffled.events == in_order.events
