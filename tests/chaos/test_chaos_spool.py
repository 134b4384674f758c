"""Kafka is away for longer than a session's window lasts: the disk takes over, and gives everything back in order."""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.kafka_cluster import proxied_kafka
from tests.chaos.case import QUEUE, Case, data_of, in_order
from tests.chaos.fixtures import MakeCase
from tests.chaos.harness import FULL, account, in_full_form
from tests.chaos.soak_faults import faked_clock
from tests.programs import missing
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow

RATE = 1500
OUTAGE_S = 60.0 if FULL else 8.0


def spooled(case: Case) -> float:
    return case.gateway.metric("gateway_spool_messages")


def finish(case: Case, published: dict[str, int] | None = None, *, copies: float = math.inf) -> None:
    case.finish(published, copies=copies)
    assert spooled(case) == 0


@dataclass
class Away:
    """A Kafka, and how it goes away and comes back. ``bootstrap`` is where a witness asks, ``entry`` the gateway."""

    bootstrap: str
    entry: str
    leave: Callable[[], object]
    come_back: Callable[[], object]


@pytest.fixture(params=["frozen", "black hole"])
def away(request: pytest.FixtureRequest, make_kafka: Callable[..., KafkaCluster]) -> Iterator[Away]:
    if request.param == "frozen":
        kafka = make_kafka()
        yield Away(kafka.bootstrap, kafka.bootstrap, kafka.freeze, kafka.thaw)
        return
    with proxied_kafka() as (cluster, proxy):
        entry = f"127.0.0.1:{proxy.port}"
        # Connections that swallowed something stay broken, as behind a firewall that has forgotten them.
        yield Away(cluster.bootstrap, entry, proxy.swallow, lambda: proxy.swallow(False))


def test_a_kafka_that_answers_nothing_costs_nothing_but_time(away: Away, make_case: MakeCase) -> None:
    """The broker queues five seconds' messages, in the long form; the rest of the outage is on disk, for memory is set
    to hold a tenth of it. The backlog shrinks at three times the live rate or more."""
    flow = {"memory_bytes": 5 << 20, "expected_packet_bytes": 200}
    case = make_case(in_order(2 * QUEUE), rate=RATE, bootstrap=away.entry, flow=flow)
    case.bootstrap = away.bootstrap
    case.flows(RATE)
    with case.watch():
        away.leave()
        end = time.monotonic() + OUTAGE_S
        wait_until(lambda: spooled(case) > RATE, "the spool takes over")
        passes(end - time.monotonic())
        assert case.broker.unacknowledged() < RATE, "acknowledgements go on"
        held = spooled(case)
        away.come_back()
        wait_until(lambda: spooled(case) < held * 0.9, "the spool shrinks")
        moment, held, seconds = time.monotonic(), spooled(case), 0.0

        def is_empty() -> bool:
            nonlocal moment, seconds
            left, before, moment = spooled(case), moment, time.monotonic()
            seconds += min(moment - before, 0.2)  # while the machine stands still nobody answers
            return left < RATE / 10

        wait_until(is_empty, f"the spool is empty; {case.gateway.tail()}")
        print(f"{held:.0f} messages took {seconds:.1f} s")
        # It may have been empty at the first look.
        assert held < RATE or held / seconds > 2 * RATE, f"{held} messages took {seconds:.1f} s beside live traffic"
        finish(case, copies=RATE)


@in_full_form
def test_killed_again_and_again_while_the_spool_is_replayed(
    make_kafka: Callable[..., KafkaCluster], make_case: MakeCase
) -> None:
    kafka = make_kafka()
    # A slow replay (the least there is), so that each kill is in the middle of it.
    spool = {"replay_max_bytes_per_second": 64 * 1024}
    case = make_case(in_order(100_000), rate=RATE, bootstrap=kafka.bootstrap, spool=spool, kafka={"batch_bytes": 8192})
    gateway = case.gateway
    case.flows(RATE)
    kafka.freeze()
    wait_until(lambda: spooled(case) > 5 * RATE, "much is on disk")
    published = case.broker.stop_load()
    gateway.kill()
    kafka.thaw()
    for _ in range(3):
        gateway.start()
        assert gateway.status()["ledger"]["recovered"] > 0
        wait_until(lambda: gateway.status()["ledger"]["delivered"] > 100, "the replay goes on")
        assert spooled(case) > 100, "it is in the middle"
        gateway.kill()
    gateway.start()
    finish(case, published)


def test_store_and_forward_through_restarts_without_kafka(
    make_kafka: Callable[..., KafkaCluster], make_case: MakeCase
) -> None:
    """A site whose link is away for long: everything goes through the disk, also after a restart in the outage."""
    kafka = make_kafka()
    case = make_case(in_order(100_000), rate=RATE // 3, bootstrap=kafka.bootstrap, spool={"after": "0s"})
    gateway = case.gateway
    case.flows(RATE)
    kafka.kill()
    for restart in range(2):
        before = spooled(case)
        wait_until(lambda n=before: spooled(case) > n + RATE, f"the disk takes all; {gateway.tail()}")
        if restart:
            gateway.kill()
        else:
            assert gateway.stop() == -15, "a clean stop: everything was acknowledged"
        gateway.start(ready=False)
        wait_until(gateway.running, f"it takes messages without Kafka; {gateway.tail()}")
        assert any("Kafka" in reason for reason in gateway.reasons())
    wait_until(lambda: spooled(case) > 3 * RATE, "the outage goes on")
    kafka.restart()
    wait_until(gateway.ready, f"/readyz is green again; {gateway.tail()}", 60)
    finish(case)


def cut(log: Path) -> None:
    """The last third of a segment is gone."""
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size * 2 // 3)


def flip(log: Path) -> None:
    """A bit here and there has changed."""
    rng = random.Random(log.stat().st_size)
    with log.open("r+b") as file:
        for _ in range(12):
            at = rng.randrange(4096, log.stat().st_size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))


@pytest.mark.parametrize("damage", [pytest.param(cut, marks=in_full_form), flip])
def test_a_spool_that_was_damaged_delivers_the_rest_and_says_how_much_is_gone(
    damage: Callable[[Path], None], make_kafka: Callable[..., KafkaCluster], make_case: MakeCase
) -> None:
    """What is missing from Kafka is exactly what was reported as lost, and the rest is in order.

    Exactly, because nothing is under way when Kafka goes, and a Kafka that is gone takes in nothing. From a frozen one
    a request may still be written after the thaw: what is lost on the disk may be in Kafka then.
    """
    kafka = make_kafka()
    case = make_case(in_order(100_000), rate=RATE, bootstrap=kafka.bootstrap)
    broker, gateway = case.broker, case.gateway
    case.flows(RATE)
    before = case.drain()
    kafka.kill()
    broker.start_load(RATE, counts=before)
    wait_until(lambda: spooled(case) > 2 * RATE, f"much is on disk; {gateway.tail()}")
    published = broker.stop_load()
    wait_until(broker.drained, "all of it is acknowledged")
    gateway.kill()
    kafka.restart()
    (log,) = (data_of(gateway) / "worker-0" / "spool").glob("*.log")
    damage(log)
    gateway.start()
    wait_until(lambda: not gateway.status()["ledger"]["in_flight"], f"it drains; {gateway.tail()}")
    lost = gateway.status()["ledger"]["lost"]
    assert lost > 0
    assert gateway.imbalance() == 0
    assert gateway.events("spool_damaged") or gateway.events("spool_lost"), gateway.tail(30)
    found = account(case.bootstrap, case.topic, published, deadline_s=1)
    exact = all(event["exact"] for event in gateway.events("spool_damaged"))
    assert len(found.missing) == lost if exact else len(found.missing) >= lost, str(found)
    assert not found.strangers, str(found)
    assert not found.out_of_order, str(found)


@in_full_form
def test_clocks_that_step_bury_nothing(
    make_kafka: Callable[..., KafkaCluster], make_case: MakeCase, tmp_path: Path
) -> None:
    """Half an hour forward, an hour back, and right again, under load and during an outage: the wall clock stamps
    records and tells ages, and nothing else. Three hours ahead, Kafka refuses every record: what comes waits in the
    spool, the problem ``clock`` says why, and everything arrives once the clock is right, after a kill too."""
    clock = tmp_path / "clock"
    environment = faked_clock(clock)
    if not environment:
        missing("libfaketime is not installed (Debian: apt-get install libfaketime)")
    kafka = make_kafka()
    case = make_case(in_order(100_000), start=False, bootstrap=kafka.bootstrap)
    gateway = case.gateway
    gateway.environment = environment
    gateway.start()
    case.broker.start_load(RATE // 3)
    with case.watch():
        for step in ("+1800", "-1800", "+0"):
            clock.write_text(step)
            case.flows(RATE)
        kafka.freeze()
        wait_until(lambda: spooled(case) > RATE, "the spool takes over")
        clock.write_text("-1800")
        held = spooled(case)
        wait_until(lambda: spooled(case) > held + RATE, "and goes on")
        clock.write_text("+1800")
        kafka.thaw()
        wait_until(lambda: spooled(case) == 0, f"the spool is empty; {gateway.tail()}", 60)
        clock.write_text("+10800")
        wait_until(lambda: spooled(case) > RATE, "what Kafka refuses is spooled")
        wait_until(lambda: "clock" in {one["id"] for one in gateway.problems()}, "the problem")
    published = case.broker.stop_load()
    gateway.kill()
    clock.write_text("+0")
    gateway.start()
    wait_until(lambda: spooled(case) == 0, f"the spool is empty again; {gateway.tail()}", 60)
    finish(case, published)
    assert gateway.metric("gateway_dlq_records_total") == 0
    assert gateway.metric("gateway_timestamps_replaced_total") > 0
