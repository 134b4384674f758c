"""Which of the recorded MQTT sessions are ours still, which are to be ended, and which are nobody's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.settings import MqttSettings, Settings
from gateway.data_dir.identity import Ending, Identity
from gateway.data_dir.session_registry import SessionRecord
from gateway.mqtt.orphans import Orphans, plan_sessions

HERE, THERE = ("mqtt://here:1883", "mqtt://also-here:1883"), ("mqtt://there:1883",)
NOBODY: frozenset[str] = frozenset()


def record(name: str, *filters: str, addresses: tuple[str, ...] = HERE) -> SessionRecord:
    return SessionRecord(name, name[-1], filters or ("a/#",), "5", addresses)


def test_a_first_life_records_what_it_wants() -> None:
    wanted = [record("p-0"), record("p-1")]
    plan = plan_sessions([], wanted, persistent=True, elsewhere=NOBODY)
    assert plan.record == tuple(wanted)
    assert (plan.forget, plan.orphans, plan.left_behind) == ((), (), ())


def test_what_the_settings_no_longer_have_is_an_orphan() -> None:
    recorded = [record("p-0"), record("p-1"), record("old-0")]
    plan = plan_sessions(recorded, [record("p-0")], persistent=True, elsewhere=NOBODY)
    assert plan.record == (record("p-0"),)
    assert plan.orphans == (record("p-1"), record("old-0"))


def test_filters_of_before_stay_on_record_until_they_are_left() -> None:
    """A crash between SUBSCRIBE and UNSUBSCRIBE must not make the next life forget what the broker still has."""
    plan = plan_sessions(
        [record("p-0", "a/#", "b/#")], [record("p-0", "b/#", "c/#")], persistent=True, elsewhere=NOBODY
    )
    assert plan.record == (record("p-0", "b/#", "c/#", "a/#"),)
    assert not plan.orphans


def test_what_another_slot_has_is_forgotten_here() -> None:
    plan = plan_sessions([record("p-1")], [record("p-0")], persistent=True, elsewhere={"p-1"})
    assert (plan.orphans, plan.forget) == ((), ("p-1",))


def test_the_same_id_at_another_broker_is_left_behind_and_said() -> None:
    old = record("p-0", addresses=THERE)
    plan = plan_sessions([old], [record("p-0")], persistent=True, elsewhere=NOBODY)
    assert plan.left_behind == (old,)
    assert plan.record == (record("p-0"),)
    one_node_more = replace(record("p-0"), addresses=HERE[:1])
    plan = plan_sessions([one_node_more], [record("p-0")], persistent=True, elsewhere=NOBODY)
    assert not plan.left_behind


def test_without_persistence_the_own_ones_end_by_themselves_and_the_others_are_fetched() -> None:
    recorded = [record("p-0"), record("old-0")]
    plan = plan_sessions(recorded, [record("p-0")], persistent=False, elsewhere=NOBODY)
    assert (plan.record, plan.forget, plan.orphans) == ((), ("p-0",), (record("old-0"),))


def test_a_worker_that_retires_has_orphans_alone() -> None:
    plan = plan_sessions([record("p-0"), record("p-1")], [], persistent=True, elsewhere=NOBODY)
    assert plan.orphans == (record("p-0"), record("p-1"))
    assert not plan.record


@pytest.mark.parametrize(("client_id", "ends"), [("plant", ["old-1"]), ("plant-${worker}", ["old-1", "plant-1"])])
async def test_a_slot_that_retires_leaves_the_session_of_slot_0_that_has_not_recorded_it_yet(
    client_id: str, ends: list[str], tmp_path: Path
) -> None:
    """One worker with a client id of its own, after several with numbered ones; both start at once."""
    identity, orphans = Identity(tmp_path, "plant", 1, lambda: Ending.CLEAN), Orphans()
    await identity.start()
    identity.recall([record("old-1")], ())
    settings = Settings(worker=1, mqtt=MqttSettings(client_id=client_id))

    def make(one: SessionRecord, *_: object) -> Any:
        return one.client_id

    orphans.recall(identity, [record(client_id.replace("${worker}", "1"))], settings, make, retiring=True)
    await identity.stop(0)
    assert orphans.sessions == ends
