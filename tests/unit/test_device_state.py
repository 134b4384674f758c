"""Devices: silence, outages of gateways, births and deaths, flapping."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.devices.gateways import Gateway
from streaming.devices.presence import parse_presence
from streaming.devices.records import Event, Presence, Rules
from streaming.devices.store import bucket
from tests.unit.device_rig import MINUTE, RULES, SHORT, T0, Rig, beat, birth, reading


def test_a_device_is_offline_when_others_of_its_gateway_go_on_without_it() -> None:
    rig = Rig()
    rig(reading("a", 0), reading("b", 0))
    for minute in range(1, 11):
        rig(reading("b", minute * MINUTE))
    assert rig.told() == [("offline", "a")]
    assert rig.events[-1].at_ms == T0 + 10 * MINUTE, "the moment is the end of the silence, not of the batch"
    rig(reading("a", 11 * MINUTE))
    assert rig.told()[-1] == ("online", "a")
    assert rig.devices["a"].transitions == 2


def test_one_gateway_that_is_down_is_one_event_and_its_devices_are_unknown() -> None:
    rig = Rig()
    rig(reading("a", 0), reading("b", 1000), reading("c", 0, gateway="other"), beat(0, 9), beat(0, 9, gateway="other"))
    for minute in range(1, 15):
        rig(reading("c", minute * MINUTE, gateway="other"), beat(minute, 9 + minute, gateway="other"))
    assert rig.told() == [("gateway_lost", "edge")]
    assert [rig.state_of(name) for name in "abc"] == ["unknown", "unknown", "online"]
    rig(reading("a", 15 * MINUTE), beat(15, 1, life="b"))
    assert rig.told() == [("gateway_lost", "edge"), ("gateway_back", "edge")]
    assert [rig.state_of(name) for name in "ab"] == ["online", "unknown"]
    for minute in range(16, 26):
        rig(reading("a", minute * MINUTE), beat(minute, 1 + minute, life="b"), beat(minute, 9, gateway="other"))
        rig(reading("c", minute * MINUTE, gateway="other"))
    assert rig.told()[2:] == [("offline", "b")], "it had as long as any device, from the gateway's return"
    assert rig.devices["a"].transitions == 0


def test_a_gateway_that_goes_and_comes_loads_its_own_devices_alone() -> None:
    rig = Rig()
    rig(*(reading(f"edge-{number}", number) for number in range(5)), beat(0, 9))
    rig(*(reading(f"other-{number}", number, gateway="other") for number in range(50)))
    rig.state["devices"].read.clear()
    for minute in range(1, 9):
        rig(beat(minute, 9 + minute, gateway="other"))
    assert [rig.state_of(f"edge-{number}") for number in range(5)] == ["unknown"] * 5
    rig(beat(9, 9))
    assert rig.told() == [("gateway_lost", "edge"), ("gateway_back", "edge")]
    assert set(rig.state["devices"].read) == {(bucket(f"edge-{number}"),) for number in range(5)}


def test_a_step_of_many_gateways_compares_each_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, compared = Rig(), []
    compare = Gateway.compare

    def counted(self: Gateway, newest_ms: int, rules: Rules) -> list[Event]:
        compared.append(self.name)
        return compare(self, newest_ms, rules)

    monkeypatch.setattr(Gateway, "compare", counted)
    for step in range(2):
        compared.clear()
        rig(*(reading("a", step * MINUTE + number, gateway=f"edge-{number}") for number in range(100)))
    assert len(compared) < 300


def test_a_gateway_without_traffic_is_there_and_its_devices_are_silent() -> None:
    rig = Rig()
    rig(reading("a", 0), beat(0, 5))
    for minute in range(1, 13):
        rig(beat(minute, 6))  # the reading itself, then nothing
    assert rig.told() == [("offline", "a")]


def test_a_silver_that_is_behind_makes_nobody_offline() -> None:
    """The ledger goes on and counts records; they are just not in silver yet."""
    rig = Rig()
    rig(reading("a", 0), beat(0, 5))
    for minute in range(1, 60):
        rig(beat(minute, 5 + minute))
    assert rig.told() == []
    rig(*(reading("a", minute * MINUTE) for minute in range(1, 60)))
    assert rig.told() == []
    assert rig.state_of("a") == "online"


def test_a_silver_that_stands_still_is_told_and_makes_devices_unknown() -> None:
    rig = Rig()
    rig(reading("a", 0), beat(0, 5))
    for minute in range(1, 14):
        rig(beat(minute, 5 + minute), later=5_000)
        rig.wait(MINUTE - 5_000)
    assert rig.told() == [("gateway_stalled", "edge")]
    assert rig.state_of("a") == "unknown"
    rig(*(reading("a", minute * MINUTE) for minute in range(1, 14)))
    assert rig.told()[1:] == [("gateway_back", "edge")]
    assert rig.state_of("a") == "online"


def test_when_nothing_comes_at_all_time_counts_but_for_that_in_which_the_job_was_down() -> None:
    rig = Rig()
    rig(reading("a", 0), beat(0, 5))
    for _ in range(20):
        rig(later=RULES.gateway_after_ms)  # each call after a stop of its own
    rig.wait(RULES.gateway_after_ms - 10_000)
    assert rig.told() == []
    rig.wait(30_000)
    assert rig.told() == [("gateway_lost", "edge")]
    assert rig.state_of("a") == "unknown"


def test_a_backlog_is_taken_in_order_of_time_before_anybody_is_judged() -> None:
    """Three hours without Spark: one batch has it all, the newest readings of one device before the oldest of another,
    and in it an hour in which the gateway was down."""
    rig = Rig()
    rig(reading("a", 0), reading("b", 0), beat(0, 2))
    minutes = [minute for minute in range(1, 180) if not 60 <= minute < 120]
    backlog = [reading(name, minute * MINUTE) for name in "ab" for minute in minutes]
    rig(*backlog, *(beat(minute, 2 * minute) for minute in minutes), later=3 * 3_600_000)
    assert rig.told() == [("gateway_lost", "edge"), ("gateway_back", "edge")]
    assert [rig.state_of(name) for name in "ab"] == ["online", "online"]


def test_readings_without_a_gateway_are_judged_by_all_ledgers_together() -> None:
    rig = Rig()
    rig(reading("a", 0, gateway=""), beat(0, 5), beat(0, 5, gateway="other"))
    for minute in range(1, 20):
        rig(beat(minute, 5 + minute), beat(minute, 5, gateway="other"))
    assert rig.told() == []
    rig.wait(RULES.gateway_after_ms + 20_000)
    assert sorted(rig.told()) == [("gateway_lost", "edge"), ("gateway_lost", "other")]
    assert rig.state_of("a") == "unknown"


def test_a_death_is_offline_at_once_and_what_was_on_its_way_does_not_bring_it_back() -> None:
    rig = Rig()
    rig(reading("a", 0))
    rig(birth("a", 5_000, online=False), reading("a", 5_200))
    assert rig.told() == [("offline", "a")]
    rig(reading("a", 60_000))
    assert rig.told()[-1] == ("online", "a")


def test_births_and_deaths_of_an_older_connection_change_nothing() -> None:
    rig = Rig()
    rig(birth("a", 0, session=100), birth("a", 2000, session=200))
    rig(birth("a", 3000, online=False, session=100))  # the end of the connection that was taken over
    assert rig.state_of("a") == "online"
    rig(birth("a", 4000, online=False, session=200))
    assert rig.state_of("a") == "offline"


@pytest.mark.parametrize("session", [None, 100])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("death_first", [True, False])
def test_a_birth_and_a_death_of_one_moment_give_the_same_in_any_order(
    session: int | None, *, together: bool, death_first: bool
) -> None:
    rig = Rig()
    rig(birth("a", 0, session=session))
    both = [birth("a", 5000, online=online, session=session) for online in (not death_first, death_first)]
    for batch in [both] if together else [[one] for one in both]:
        rig(*batch)
    assert rig.state_of("a") == ("online" if session is None else "offline")


@pytest.mark.parametrize("cut", [["edge", "other"], ["other", "edge"]])
def test_of_two_gateways_at_one_moment_the_same_counts_in_any_order(cut: list[str]) -> None:
    rig = Rig()
    for gateway in cut:
        rig(reading("a", 0, gateway=gateway))
    rig(reading("b", 1000, gateway="edge"))
    rig(reading("b", 11 * MINUTE, gateway="edge"))
    device = rig.devices["a"]
    assert (device.gateway, device.state, device.since_ms) == ("other", "unknown", T0)


def test_a_birth_that_is_read_after_a_reading_of_its_moment_does_not_undo_a_silence() -> None:
    rig = Rig()
    rig(reading("a", 0))
    rig(*(reading("b", minute * MINUTE) for minute in range(11)))
    rig(birth("a", 0))
    assert rig.told() == [("offline", "a")]


def test_a_birth_after_a_death_brings_back_also_if_a_reading_was_on_its_way() -> None:
    rig = Rig()
    rig(birth("a", 0, online=False), reading("a", 2000))
    rig(birth("a", 1000))
    assert rig.state_of("a") == "online"


def test_births_and_deaths_that_are_read_after_newer_readings_change_nothing() -> None:
    """Kafka was read later than silver: what came of the readings since is not undone."""
    rig = Rig()
    rig(reading("a", 5 * MINUTE), reading("b", 5 * MINUTE, gateway="other"))
    rig(*(reading("c", minute * MINUTE) for minute in range(5, 17)))
    assert sorted(rig.told()) == [("gateway_lost", "other"), ("offline", "a")]
    rig(birth("a", 4 * MINUTE), birth("b", 4 * MINUTE, online=False), reading("c", 17 * MINUTE))
    assert len(rig.told()) == 2
    assert [rig.state_of(name) for name in "ab"] == ["offline", "unknown"]
    rig(birth("a", 18 * MINUTE))
    assert rig.told()[-1] == ("online", "a")


def test_flapping_of_a_device_that_sends_no_readings_ends_by_the_progress_of_others() -> None:
    rig = Rig(SHORT)
    rig(*(birth("a", turn * 1000, online=turn % 2 == 1) for turn in range(5)), reading("b", 0, gateway="other"))
    assert rig.devices["a"].flapping
    rig(*(reading("b", minute * MINUTE, gateway="other") for minute in range(17)))
    assert not rig.devices["a"].flapping
    assert rig.told()[-1] == ("flapping_ended", "a")


def test_flapping_begins_and_ends() -> None:
    rig = Rig()
    rig(reading("other", 0))
    for turn in range(RULES.flap_transitions + 1):
        rig(birth("a", turn * MINUTE, online=turn % 2 == 1), birth("b", 0))
    assert ("flapping", "a") not in rig.told()
    rig(birth("a", 10 * MINUTE, online=True))
    assert rig.devices["a"].flapping
    assert rig.told().count(("flapping", "a")) == 1
    rig(*(reading("other", minute * MINUTE) for minute in range(1, 90)))
    assert rig.told().count(("flapping_ended", "a")) == 1


def test_a_gap_is_told_when_it_stays_and_when_it_closes() -> None:
    rig = Rig()
    rig(reading("a", 0, seq=1), reading("a", 1000, seq=3), reading("a", 2000, seq=2))
    rig(reading("a", 2 * MINUTE, seq=4), reading("a", 2 * MINUTE + 1, seq=7))
    rig(reading("a", 4 * MINUTE, seq=8))
    assert rig.told() == [("gap", "a")]
    assert rig.events[-1].detail == "5 to 6 are missing (2)"
    late = reading("a", 5 * MINUTE, seq=5)._replace(device_ms=T0 + 2 * MINUTE)
    rig(late, late._replace(seq=6))
    assert rig.told()[1:] == [("gap_closed", "a")]
    rig(reading("a", 6 * MINUTE, seq=0))
    assert rig.told()[2:] == [("reset", "a")]


def test_a_device_that_is_gone_is_forgotten() -> None:
    rig = Rig()
    rig(reading("a", 0), reading("b", 0))
    assert rig(*(reading("b", nine * 9 * MINUTE) for nine in range(1, 170))).changed["a"] is None
    assert "a" not in rig.devices
    assert rig.told()[-1] == ("forgotten", "a")
    assert sum(names.count("a") for names in rig.due.values()) == 0


def test_the_last_value_is_the_newest_by_event_time() -> None:
    rig = Rig()
    rig(reading("a", 1000, t=1.0, h=5.0), reading("a", 2000, t=2.0))
    rig(reading("a", 3000, t=9.0)._replace(event_ms=T0 + 500))
    assert rig.devices["a"].values == {"t": (2.0, T0 + 2000), "h": (5.0, T0 + 1000)}


@pytest.mark.parametrize(("own", "ahead"), [("edge", "other"), ("other", "edge")])
def test_a_device_is_judged_in_the_step_in_which_its_own_gateway_comes_to_it(own: str, ahead: str) -> None:
    """Another gateway's readings are far ahead, and looks by theirs come to nothing."""
    rig = Rig()
    rig(reading("a", 0, gateway=own), reading("b", 1, gateway=own), beat(0, 9, gateway=own))
    for minute in range(1, 9):
        rig(reading("b", minute * MINUTE, gateway=own), reading("c", (100 + minute) * MINUTE, gateway=ahead))
    assert rig.told() == []
    rig(reading("b", 10 * MINUTE, gateway=own))
    assert rig.told() == [("offline", "a")]
    rig(reading("a", 10 * MINUTE + 1, gateway=own))
    assert rig.told() == [("offline", "a"), ("online", "a")]


def test_a_device_that_moves_between_gateways_is_judged_by_its_newest() -> None:
    rig = Rig()
    for second in range(600):
        rig(reading("a", second * 1000, gateway="other" if second % 2 else "edge"))
    assert sum(len(names) for names in rig.due.values()) == 3, "one look by each gateway, one by everybody"
    for minute in range(10, 20):
        rig(reading("b", minute * MINUTE, gateway="edge"), reading("c", (minute - 3) * MINUTE, gateway="other"))
    assert rig.told() == [], "edge is ten minutes further, but its newest reading came through the other"
    rig(reading("c", 20 * MINUTE, gateway="other"))
    assert rig.told() == [("offline", "a")]


@pytest.mark.parametrize("buckets", [1, 2])
def test_neighbours_in_the_state_stay_as_they_are(buckets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming.devices.store._BUCKETS", buckets)
    rig, names = Rig(SHORT), ["tab\t", "line\nend", '"', "\u2028", "ü\r", ""]
    rig(reading("gone", 0))
    for minute in range(25):
        rig(*(reading(name, minute * MINUTE, seq=minute, t=number) for number, name in enumerate(names)))
    assert ("forgotten", "gone") in rig.told()
    assert {name: (it.sequence.last, it.values["t"][0]) for name, it in rig.devices.items()} == {
        name: (24, number) for number, name in enumerate(names)
    }
    assert len(rig.state["devices"].kept) == buckets


def test_devices_of_a_gateway_that_is_forgotten_are_forgotten_in_time_or_wait_for_it() -> None:
    rig = Rig(SHORT)
    rig(reading("a", 0), reading("b", 0), birth("c", 0), reading("d", 0, gateway="other"))
    for minute in range(1, 60):
        rig(reading("d", minute * MINUTE, gateway="other"), birth("b", minute * MINUTE))
        assert ("a" in rig.devices) == (minute < 20), minute
    assert set(rig.gateways) == {"other"}
    assert [name for names in rig.due.values() for name in names if name not in "bd"] == []
    assert sorted(device for event, device in rig.told() if event == "forgotten") == ["a", "c"]
    for minute in range(60, 145):
        rig(reading("d", minute * MINUTE, gateway="other"), reading("e", minute * MINUTE), birth("b", 60 * MINUTE))
        if (left := rig.devices.get("b")) is None:
            break
    assert left is None
    assert rig.told(without=("first_seen", "forgotten"))[-1] == ("offline", "b")


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 40), st.data())
def test_a_reading_in_a_later_batch_gives_the_same_state(count: int, data: st.DataObject) -> None:
    """Overtaken by less than the silence that would matter: nothing is left of it but, perhaps, events of gaps."""
    inputs = [reading("a", number * 1000, seq=number, t=float(number)) for number in range(count)]
    order = data.draw(st.permutations(inputs))
    in_order, late = Rig(), Rig()
    for one in inputs:
        in_order(one)
    for one in order:
        late(one)
    kept = [rig.devices["a"] for rig in (in_order, late)]
    assert kept[0].values == kept[1].values
    assert [(one.sequence.missing_count, one.sequence.missing) for one in kept] == [(0, []), (0, [])]
    assert [(one.sequence.last, one.sequence.resets, one.sequence.duplicates) for one in kept] == [
        (count - 1, 0, 0)
    ] * 2
    assert [(one.state, one.seen_ms, one.transitions) for one in kept] == [("online", T0 + (count - 1) * 1000, 0)] * 2


@pytest.mark.parametrize(("topic", "payload", "online"), [
    ("$SYS/brokers/emqx@10.0.0.1/clients/pump/7/connected", b'{"clientid": "pump/7", "connected_at": 5}', True),
    ("$SYS/brokers/emqx@10.0.0.1/clients/pump/7/disconnected", b'{"clientid": "pump/7", "connected_at": 5}', False),
    ("$SYS/brokers/emqx@10.0.0.1/clients/pump/7/subscribed", b'{"clientid": "pump/7"}', None),
    (None, b'{"clientid": "p", "connected_at": 5, "ts": 6}', True),
    (None, b'{"clientid": "p", "connected_at": 5, "disconnected_at": 9, "reason": "normal"}', False),
    ("spBv1.0/plant/DBIRTH/node/pump", b"\x08\x01", True),
    ("spBv1.0/plant/NDEATH/node", b"\x08\x01", False),
    ("spBv1.0/plant/DDATA/node/pump", b"\x08\x01", None),
    ("devices/pump/status", b"offline", False),
    ("devices/pump/status", b'"Online"', True),
    ("devices/pump/status", b'{"status": "offline", "ts": 1}', False),
    ("devices/pump/status", b'{"state": "ONLINE"}', True),
    ("devices/pump/status", b'{"online": false}', False),
    ("devices/pump/status", b'{"status": "charging"}', None),
    ("devices/pump/status", b"\xff\xfe", None),
    ("devices/pump/status", None, None),
    ("devices/pump/status", b"[1]", None),
])  # fmt: skip
def test_births_and_deaths_are_known_in_the_forms_in_use(
    topic: str | None, payload: bytes | None, online: bool | None
) -> None:
    found = parse_presence("d", "edge", topic, payload, 7)
    assert (None if found is None else found.online) is online


def test_a_death_tells_its_reason_and_its_connection() -> None:
    found = parse_presence("d", "edge", None, b'{"status": "offline", "connected_at": 5, "reason": "keepalive"}', 7)
    assert found == Presence("d", "edge", online=False, session_ms=5, received_ms=7, detail="keepalive")
    half = parse_presence("d", "edge", None, b'{"status": "offline", "reason": "\\ud800"}', 7)
    assert half.detail.encode() == b"?", "Spark's rows are UTF-8"
    beyond = parse_presence("d", "edge", None, b'{"status": "offline", "connected_at": 9223372036854775808}', 7)
    assert beyond == Presence("d", "edge", online=False, session_ms=None, received_ms=7, detail="")
