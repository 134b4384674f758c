"""The gateway itself fails or is restarted, under load, at a broker with EMQX's rules and defaults."""

import signal
import time

import pytest

from tests.chaos.case import QUEUE, Case, in_order
from tests.chaos.fixtures import MakeCase
from tests.chaos.gap import Gap
from tests.chaos.harness import FULL
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow

SECONDS = 10.0 if FULL else 1.0  # of load before, between and after failures


def load_for(case: Case, seconds: float) -> None:
    """Let the load run, with all sessions subscribed."""
    passes(seconds)
    assert case.broker.call(lambda: sum(len(group) for group in case.broker.broker.groups.values())) == 4


def test_restarted_under_load(make_case: MakeCase) -> None:
    """The only gateway, by SIGTERM: missing 0, and no duplicates, for an orderly stop acknowledges what it has sent.

    EMQX drops nothing: window 32, queue 1000 (in the full form) in each of four sessions are 4,000 messages, two
    seconds and more."""
    case = make_case(in_order(QUEUE), rate=600, shutdown_timeout="5m")
    gateway = case.gateway
    load_for(case, SECONDS)
    late_s: list[float] = []
    with Gap(case.bootstrap, case.topic) as gap:
        for _ in range(3 if FULL else 2):
            load_for(case, SECONDS)
            began = time.monotonic()
            assert gateway.stop() == -signal.SIGTERM, gateway.tail()  # and nothing waits for shutdown_timeout
            (stopped,) = gateway.events("worker_stopped")
            assert stopped["clean"]
            assert "imbalance 0" in stopped["ledger"]
            gateway.start()
            restart_s = time.monotonic() - began
            late_s.append(gap.restart() - restart_s)
        load_for(case, SECONDS)
    assert min(late_s) < 2, "records flow as soon as it is up, however fast this machine starts it"
    case.finish(copies=0)


def test_four_thousand_messages_a_second_from_an_emqx_at_its_defaults(make_case: MakeCase) -> None:
    """The queue of 1000 is a quarter of a second at this rate: whoever dawdles makes EMQX drop messages, in the full
    form."""
    case = make_case(in_order(QUEUE))
    case.broker.start_load(4000, devices=200, size=200)
    case.flows(64_000 if FULL else 16_000)

    def longest_queue() -> int:
        return case.broker.call(lambda: max(len(session.queue) for session in case.broker.broker.sessions.values()))

    wait_until(lambda: longest_queue() < 1000, "it keeps up")  # also where QUEUE is none
    load_for(case, 0)
    case.finish(copies=0)
