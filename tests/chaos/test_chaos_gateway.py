"""The gateway itself fails or is restarted, under load, at a broker with EMQX's rules and defaults."""

import signal
import time
from typing import Any

import pytest

from tests.brokers.scripted_rules import Rules
from tests.chaos.case import Case, in_order
from tests.chaos.fixtures import MakeCase
from tests.chaos.gap import Gap
from tests.chaos.harness import FULL, in_full_form
from tests.waiting import passes

pytestmark = pytest.mark.slow

RATE = 1500
SECONDS = 10.0 if FULL else 1.0  # of load before, between and after failures


def load_for(case: Case, seconds: float, sessions: int = 4) -> None:
    """Let the load run, with all sessions subscribed."""
    passes(seconds)
    members = case.broker.call(lambda: sum(len(group) for group in case.broker.broker.groups.values()))
    assert members == sessions


@pytest.mark.parametrize(
    ("strategy", "sessions"),
    [
        ("hash_clientid", 4),
        pytest.param("round_robin", 4, marks=in_full_form),
        pytest.param("round_robin", 1, marks=in_full_form),
    ],
)
def test_killed_three_times_under_load(strategy: Any, sessions: int, make_case: MakeCase) -> None:
    """Missing 0; duplicates no more than what was unacknowledged at each kill; order where DESIGN promises it."""
    case = make_case(Rules(strategy=strategy, queue=1_000_000), rate=RATE, mqtt={"sessions": sessions})
    for _ in range(3):
        load_for(case, SECONDS, sessions)
        case.kill()
        case.gateway.start()
    load_for(case, SECONDS, sessions)
    case.finish(ordered=strategy == "hash_clientid" or sessions == 1)


@pytest.mark.parametrize(
    ("rules", "rate"), [(in_order(), RATE), (Rules(), 600)], ids=["large queues", "EMQX at its defaults"]
)
def test_restarted_under_load(rules: Rules, rate: int, make_case: MakeCase) -> None:
    """The only gateway, by SIGTERM: missing 0, and no duplicates, for an orderly stop acknowledges what it has sent.

    EMQX drops nothing: window 32, queue 1000 in each of four sessions are 4,000 messages, two seconds and more."""
    case = make_case(rules, rate=rate)
    gateway = case.gateway
    load_for(case, SECONDS)
    restarts_s: list[float] = []
    with Gap(case.bootstrap, case.topic) as gap:
        for _ in range(3 if FULL else 2):
            load_for(case, SECONDS)
            began = time.monotonic()
            assert gateway.stop() == -signal.SIGTERM, gateway.tail()
            assert time.monotonic() - began < 10
            (stopped,) = gateway.events("worker_stopped")
            assert stopped["clean"]
            assert "imbalance 0" in stopped["ledger"]
            gateway.start()
            restarts_s.append(time.monotonic() - began)
        load_for(case, SECONDS)
    assert gap.longest_s < max(restarts_s) + 2, "records flow as soon as it is up, however fast this machine starts it"
    case.finish(copies=0, ordered=rules.strategy == "hash_clientid")


@pytest.mark.parametrize("strategy", ["hash_clientid", "round_robin"])
def test_four_thousand_messages_a_second_from_an_emqx_at_its_defaults(strategy: Any, make_case: MakeCase) -> None:
    """The queue of 1000 is a quarter of a second at this rate: whoever dawdles makes EMQX drop messages."""
    case = make_case(Rules(strategy=strategy))
    case.broker.start_load(4000, devices=200, size=200)
    seconds = 20.0 if FULL else 5.0
    load_for(case, seconds)
    found = case.finish(copies=0, ordered=strategy == "hash_clientid")
    assert found.published > 0.8 * 4000 * seconds, "the load was what it should be"
