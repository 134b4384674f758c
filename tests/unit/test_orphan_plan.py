"""Which of the recorded MQTT sessions are ours still, which are to be ended, and which are nobody's."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from config.settings import MqttSettings, Settings
from gateway.data_dir.identity import Ending, Identity
from gateway.data_dir.session_registry import SessionRecord
from gateway.mqtt.orphans import Orphans, plan_sessions

HERE, THERE = ("mqtt://here:1883", "mqtt://also-here:1883"), ("mqtt://there:1883",)


def record(name: str, *filters: str, addresses: tuple[str, ...] = HERE) -> SessionRecord:
    return SessionRecord(name, name[-1], filters or ("a/#",), "5", addresses)


P0, P1, OLD = record("p-0"), record("p-1"), record("old-0")
BEFORE, AFTER = record("p-0", "a/#", "b/#"), record("p-0", "b/#", "c/#")
P2 = record("p-2", "b/#", "c/#")
AWAY, ONE_NODE_MORE = record("p-0", addresses=THERE), replace(P0, addresses=HERE[:1])
# What is recorded and wanted, and what is then recorded, forgotten, an orphan, and left behind.
PLANS = {
    "a first life records what it wants": ([], [P0, P1], [P0, P1], [], [], []),
    "what the settings no longer have is an orphan": ([P0, P1, OLD], [P0], [P0], [], [P1, OLD], []),
    # A crash between SUBSCRIBE and UNSUBSCRIBE must not make the next life forget what the broker still has.
    "filters of before stay until they are left": ([BEFORE], [AFTER], [record("p-0", "b/#", "c/#", "a/#")], [], [], []),
    "what another slot has is forgotten here": ([record("p-2")], [P0], [P0], ["p-2"], [], []),
    "but not before that slot knows its filters": ([P2], [P0], [P0, replace(P2, in_use=False)], [], [], []),
    "what another slot no longer uses is an orphan": (
        [record("p-3", "b/#")],
        [],
        [],
        [],
        [record("p-3", "b/#", "a/#")],
        [],
    ),
    "one that was another slot's has that slot's filters": ([], [P2], [record("p-2", "b/#", "c/#", "a/#")], [], [], []),
    "the same id at another broker is left behind": ([AWAY], [P0], [P0], [], [], [AWAY]),
    "one node more is the same broker": ([ONE_NODE_MORE], [P0], [P0], [], [], []),
    "a worker that retires has orphans alone": ([P0, P1], [], [], [], [P0, P1], []),
}


@pytest.mark.parametrize("case", PLANS)
def test_what_becomes_of_recorded_sessions(case: str) -> None:
    recorded, wanted, *expected = PLANS[case]
    elsewhere = {"p-2": record("p-2", "a/#", "b/#"), "p-3": replace(record("p-3", "a/#"), in_use=False)}
    plan = plan_sessions(recorded, wanted, persistent=True, elsewhere=elsewhere)
    records = [replace(record, established=()) for record in plan.record]
    assert [records, list(plan.forget), list(plan.orphans), list(plan.left_behind)] == expected


ALL, ALARMS = record("p-0", "#"), replace(record("p-a-0", "a/+", "b/+"), session="a-0")
KNOWN = replace(ALL, established=("#",))
# What is known of the alarms' session and of that of everything else, and which filters of the alarms are established.
ESTABLISHED = {
    "at first one group is subscribed before the other": ([], ()),
    "a new group has no copy of what is queued": ([KNOWN], ()),
    "nor has a new filter": ([KNOWN, replace(ALARMS, filters=("a/+",), established=("a/+",))], ("a/+",)),
    "a crash before it was established changes nothing": ([KNOWN, replace(ALARMS, established=("a/+",))], ("a/+",)),
    "at another broker nothing was": ([KNOWN, replace(ALARMS, addresses=THERE, established=("a/+", "b/+"))], ()),
}


@pytest.mark.parametrize("case", ESTABLISHED)
@pytest.mark.parametrize("is_here", [True, False])
def test_under_which_filters_other_groups_may_drop_copies(case: str, is_here: bool) -> None:
    known, expected = ESTABLISHED[case]
    elsewhere = {} if is_here else {one.client_id: one for one in known}
    plan = plan_sessions(known if is_here else (), [ALL, ALARMS], persistent=True, elsewhere=elsewhere)
    assert [one.established for one in plan.record if one.group == "a"] == [expected]


def test_without_another_group_all_filters_are_established() -> None:
    (new,) = plan_sessions([record("p-0", "a/+")], [ALL], persistent=True, elsewhere={}).record
    assert new.established == ("#",)


def test_in_an_older_record_every_filter_is_established() -> None:
    values = asdict(ALARMS)
    del values["established"]
    assert SessionRecord.parse(values).established == ALARMS.filters


def test_without_persistence_the_own_ones_end_by_themselves_and_the_others_are_fetched() -> None:
    plan = plan_sessions([P0, OLD], [P0], persistent=False, elsewhere={})
    assert (plan.record, plan.forget, plan.orphans) == ((), ("p-0",), (OLD,))


@pytest.mark.parametrize(("client_id", "ends"), [("plant", ["old-1"]), ("plant-${worker}", ["old-1", "plant-1"])])
async def test_a_slot_that_retires_leaves_the_session_of_slot_0_that_has_not_recorded_it_yet(
    client_id: str, ends: list[str], tmp_path: Path
) -> None:
    """One worker with a client id of its own, after several with numbered ones; both start at once."""
    identity, orphans = Identity(tmp_path, "plant", 1, lambda: Ending.CLEAN), Orphans()
    await identity.start()
    identity.record_sessions([record("old-1")], ())
    settings = Settings(worker=1, mqtt=MqttSettings(client_id=client_id))

    def make(one: SessionRecord, *_: object) -> Any:
        return one.client_id

    orphans.recall(identity, [record(client_id.replace("${worker}", "1"))], settings, make, retiring=True)
    await identity.stop(0)
    assert orphans.sessions == ends
