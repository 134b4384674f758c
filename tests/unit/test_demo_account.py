"""The demo's account: what is lost, repeated, out of order or foreign is told apart, and the exit status follows."""

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from config.errors import ExitStatus
from gateway.devices.account import Tally
from gateway.devices.outbox import DeviceLedger
from gateway.local.demo.account import Account, Stage, examine, render

LEDGER = {"pump": DeviceLedger(4), "meter": DeviceLedger(3, frozenset({2}))}
EVERYTHING = [("pump", 0), ("pump", 1), ("pump", 2), ("pump", 3), ("meter", 0), ("meter", 1), ("meter", 2)]
NAMES = {"kafka": "Kafka", "silver": "silver"}


def tally_of(messages: Iterable[tuple[str, int]]) -> Tally[str]:
    tally: Tally[str] = Tally()
    for device, sequence in messages:
        tally.add(device, sequence)
    return tally


def stage_of(messages: Iterable[tuple[str, int]], name: str = "kafka") -> Stage:
    return examine(name, tally_of(messages), LEDGER, ordered=name == "kafka")


def account_of(*stages: Stage, received: int = 7) -> Account:
    return Account(devices=2, published=7, acknowledged=6, received=received, unheard=0, stages=stages)


def test_people_read_that_order_was_not_kept() -> None:
    assert "behind a later one of their device 5" in render(account_of(stage_of(reversed(EVERYTHING))), NAMES)


@given(st.lists(st.tuples(st.sampled_from(["pump", "meter", "x"]), st.integers(-1, 5)), max_size=60))
@example(EVERYTHING)
@example([*EVERYTHING[:-4], ("pump", 0)])  # as many records as messages: a count alone would balance
def test_every_record_is_accounted_for_once(messages: list[tuple[str, int]]) -> None:
    """Repetitions hide no loss; what these devices never sent is foreign; what nobody acknowledged is not missed."""
    tally = tally_of(messages)
    tally.add_unreadable()
    stage = examine("kafka", tally, LEDGER, ordered=True)
    sent = [message for message in messages if message in EVERYTHING]
    missing = {message for message in EVERYTHING if message != ("meter", 2)} - set(messages)
    assert (stage.records, stage.found) == (len(messages) + 1, len(set(sent)))
    assert (stage.duplicates, stage.foreign) == (len(sent) - len(set(sent)), len(messages) + 1 - len(sent))
    assert stage.missing == len(missing)
    assert len(stage.examples) == min(len(missing), 5)
    assert set(stage.examples) <= missing


def test_the_worst_stage_decides() -> None:
    account = account_of(stage_of([*EVERYTHING, *EVERYTHING]), stage_of(EVERYTHING[:-3], "silver"))
    assert (account.missing, account.duplicates) == (2, 7)
    assert account.exit_status is ExitStatus.MISSING_MESSAGES
    assert account.as_json() == {
        "published": 7, "acknowledged": 6, "received": 7, "kafka": 14, "silver": 4, "duplicates": 7, "missing": 2,
        "pending": 0,
    }  # fmt: skip


@pytest.mark.parametrize(("received", "missing"), [(5, 1), (6, 0), (9, 0)])
def test_the_gateway_must_have_received_as_many_as_were_acknowledged(received: int, missing: int) -> None:
    assert account_of(stage_of(EVERYTHING), received=received).missing == missing


def test_a_run_in_which_all_got_through_succeeds() -> None:
    account = account_of(stage_of(EVERYTHING), stage_of(EVERYTHING, "silver"))
    assert account.exit_status is ExitStatus.OK
    assert "Missing: 0." in render(account, NAMES)


def test_a_run_without_messages_proves_nothing_and_fails() -> None:
    account = Account(devices=2, published=3, acknowledged=0, received=0, unheard=0)
    assert account.exit_status is ExitStatus.FAILED
    assert "No message was acknowledged" in render(account, NAMES)


def test_people_read_where_and_what_is_missing() -> None:
    text = render(account_of(stage_of(EVERYTHING), stage_of(EVERYTHING[2:], "silver")), NAMES)
    assert "missing in silver, for example: pump number 0, pump number 1" in text
    assert "MISSING: 2 acknowledged messages did not get through." in text


def test_of_a_gateway_that_was_killed_only_what_kafka_has_counts() -> None:
    """What it received in the moment before died with its counter."""
    account = Account(2, 7, 6, received=3, unheard=0, stages=(stage_of(EVERYTHING),), killed=True)
    assert (account.missing, account.exit_status) == (0, ExitStatus.OK)
    assert "its own count; kills cut it short" in render(account, NAMES)
    assert "in the order it sent them" in render(account, NAMES)
    lost = Account(2, 7, 6, received=9, unheard=0, stages=(stage_of(reversed(EVERYTHING[1:])),), killed=True)
    assert (lost.missing, lost.exit_status) == (1, ExitStatus.MISSING_MESSAGES)
    assert "in the order it sent them" not in render(lost, NAMES)


def test_people_read_that_nobody_was_subscribed() -> None:
    account = Account(devices=1, published=3, acknowledged=3, received=1, unheard=2)
    assert "2 were acknowledged by the MQTT broker while nobody was subscribed" in render(account, NAMES)
