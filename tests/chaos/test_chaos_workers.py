"""Several workers under a supervisor: one dies, they are rolled, reloaded, scaled, orphaned; nothing is lost."""

import math
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

from gateway.data_dir.directory import slots
from gateway.local.embedded.kafka import KafkaCluster
from gateway.supervisor.place import find_supervisor
from tests.brokers.scripted_rules import Rules
from tests.chaos.case import QUEUE, Case, data_of, in_order
from tests.chaos.fixtures import MakeCase
from tests.chaos.harness import FULL, Gateway, account, in_full_form, run_to_end
from tests.chaos.threaded import Absence
from tests.waiting import passes, wait_until

pytestmark = pytest.mark.slow

SECONDS = 10.0 if FULL else 1.0
ONE_SESSION = {"sessions": 1}


def kill_worker(gateway: Gateway, number: int) -> int:
    """SIGKILL for the worker of a slot: the process that it was."""
    pid = gateway.pids()[number]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def client_ids(workers: int, sessions: int) -> set[str]:
    return {f"gateway-{worker}-{session}" for worker in range(workers) for session in range(sessions)}


def test_one_of_four_is_killed_and_the_others_go_on(make_case: MakeCase) -> None:
    """Their sessions never disconnect, their counters go on; the killed one comes back by itself, in its slot."""
    case = make_case(workers=4, mqtt=ONE_SESSION)
    gateway = case.gateway
    absences = case.broker.watch_absences()
    case.broker.start_load(1500)
    passes(SECONDS)
    before = gateway.pids()
    victim = kill_worker(gateway, 2)
    series: list[str] = []

    def is_seen_down() -> bool:
        nonlocal series
        page = gateway.get("/metrics")[1]  # one look: it is soon up again
        series = re.findall(r'^gateway_mqtt_connected{.*worker="(\d)"', page, re.MULTILINE)
        is_down = 'gateway_worker_up{worker="2"} 0' in page and {*"013"} <= {*series}
        return is_down and any(reason.startswith("Worker 2 ") for reason in gateway.reasons())

    wait_until(is_seen_down, "it is seen to be down")
    assert "2" not in series, "absent, not stale"
    gateway.wait_ready()
    after = gateway.pids()
    assert [after[0], after[1], after[3]] == [before[0], before[1], before[3]]
    assert after[2] not in before
    restarts = gateway.samples("gateway_worker_restarts_total")
    assert restarts == {f'{{worker="{number}"}}': number == 2 for number in range(4)}
    passes(SECONDS)
    status = gateway.status()
    # How busy the machine is that the tests run on is not what this is about, nor how long messages take there.
    (problem,) = [one for one in status["problems"] if one["id"].startswith("worker-")]
    assert (problem["id"], problem["severity"], problem["subject"]) == ("worker-restarting", "warning", "worker 2")
    assert len(status["partitions"]) == status["partitions_total"] == 6, "the workers' partitions once each"
    assert status["rates"]["received_per_second"] > 100
    assert status["latency"]["end_to_end"]["p99"] > 0
    (node,) = status["kafka"]["brokers"]
    assert (node["leads"], node["health"]) == (6, "ok")
    case.finish(copies=math.inf)
    assert set(absences) == {"gateway-2-0"}, "nobody else was away"
    (ended,) = gateway.events("worker_ended")
    assert (ended["slot"], ended["pid"], ended["how"]) == (2, victim, "by SIGKILL")


def roll(case: Case, workers: int, sessions: int, is_short: Callable[[Absence], bool]) -> None:
    """Roll under 4,000 msg/s: each session is away once in each roll, and in one roll or another away shortly.

    One roll may meet a moment in which the machine does something else; a hand-over that takes long does so always.
    """
    broker, gateway = case.broker, case.gateway
    absences = broker.watch_absences()
    broker.start_load(500, devices=200)  # a Kafka that has just started is slow with its first batches
    passes(SECONDS)
    broker.start_load(4000, counts=broker.stop_load())
    passes(SECONDS)
    before = gateway.pids()
    for rolls in range(1, 4 if FULL else 7):
        assert f"All {workers} workers were replaced" in gateway.commanded("restart")
        passes(SECONDS)
        expected = dict.fromkeys(client_ids(workers, sessions), rolls)
        assert {name: len(lengths) for name, lengths in absences.items()} == expected
        are_short = all(any(map(is_short, lengths)) for lengths in absences.values())
        if are_short and not FULL:
            break
    assert not set(before) & set(gateway.pids())
    assert gateway.samples("gateway_worker_restarts_total") == {f'{{worker="{n}"}}': 0 for n in range(workers)}
    print(f"sessions were away: {absences}")
    assert are_short, absences


def test_rolled_under_load_at_an_emqx_with_its_defaults(make_case: MakeCase) -> None:
    """Window 32, queue 1000 (in the full form): two workers of two sessions. An orderly hand-over acknowledges what it
    has. A broker that stands still for half a second at one loses the last acknowledgements of that worker's sessions.
    """
    case = make_case(in_order(QUEUE), workers=2, mqtt={"sessions": 2})
    roll(case, 2, 2, lambda absence: absence.seconds <= 0.3)
    case.finish(copies=2 * 32)


def test_four_thousand_a_second_for_one_session_outlast_its_absence(make_case: MakeCase) -> None:
    """A queue of 1000 is a quarter of a second of that: a session that is away longer makes EMQX drop.

    Through a window of 32 that rate leaves no room for a machine that is busy with other things, so what such a one
    drops while the session is there is not the hand-over's: counted is what a queue would have to hold.
    """
    case = make_case(in_order(1000), workers=1, mqtt=ONE_SESSION)
    roll(case, 1, 1, lambda absence: absence.published < 1000)
    case.broker.stop_load()
    wait_until(case.broker.drained, "everything is acknowledged")


def test_a_new_worker_that_does_not_get_warm_leaves_the_old_one(make_case: MakeCase, unique: str) -> None:
    """The settings can be read, but Kafka has no such topic: that shows when a worker tries, before anybody let go."""
    case = make_case(workers=2, mqtt=ONE_SESSION)
    gateway = case.gateway
    absences = case.broker.watch_absences()
    case.broker.start_load(500)
    before = gateway.pids()
    route = {"name": "telemetry", "filters": ["devices/#"], "topic": f"{unique}-absent"}
    gateway.configure(routes=[route], kafka={"topics": {"create": False}})
    status, said = gateway.command("restart", "--reload")
    assert status == 1
    assert "The settings stay as they were: worker 0:" in said
    assert f"{unique}-absent" in said
    assert gateway.pids() == before
    assert gateway.samples("gateway_config_reload_success") == {"": 0}
    assert gateway.ready()
    assert not absences
    case.finish(copies=math.inf)


def test_a_new_worker_that_fails_with_the_slot_gives_way_to_the_old_settings(make_case: MakeCase) -> None:
    """A wrong MQTT password shows only when the old sessions have gone: the slot then gets the right one again."""
    mqtt = {**ONE_SESSION, "username": "gateway", "password": "right"}
    case = make_case(in_order(users={"gateway": b"right"}), rate=500, workers=2, mqtt=mqtt)
    gateway = case.gateway
    before = gateway.pids()
    gateway.configure(mqtt={"password": "wrong"})
    status, said = gateway.command("restart", "--reload")
    assert status == 1
    assert "refused client 'gateway-0-0'" in said
    assert "wrong" not in said
    gateway.wait_ready()
    assert gateway.pids()[1] == before[1], "the other slot was not touched"
    case.finish(copies=math.inf)


def test_rolled_with_other_settings(make_case: MakeCase) -> None:
    """Good settings are taken, bad ones refused with a sentence; what crashes afterwards starts with the good ones."""
    case = make_case(rate=500, workers=2, mqtt=ONE_SESSION)
    gateway = case.gateway
    gateway.configure(mqtt={"sessions": 2})
    gateway.commanded("restart", "--reload")
    assert case.client_ids == client_ids(2, 2)
    assert gateway.samples("gateway_config_reload_success") == {"": 1}
    before = gateway.pids()

    gateway.configure(mqtt={"sessions": 2, "keepalive": "1 fortnight"}, instance="another")
    gateway.process.signal(signal.SIGHUP)
    wait_until(lambda: gateway.events("reload_failed"), "refused")
    (failed,) = gateway.events("reload_failed")
    assert "mqtt.keepalive" in failed["error"]
    assert gateway.samples("gateway_config_reload_success") == {"": 0}
    gateway.configure(mqtt={"keepalive": "30s"})
    status, said = gateway.command("restart", "--reload")
    assert status == 1
    assert "instance was gateway and is another now" in said
    assert gateway.pids() == before

    victim = kill_worker(gateway, 0)
    wait_until(lambda: gateway.pids()[0] not in (victim, None), "another is started")
    gateway.wait_ready()
    assert case.client_ids == client_ids(2, 2), "with the settings that were good"
    # Another number of sessions is another membership of the group, across which nobody keeps an order.
    case.finish(copies=math.inf, ordered=False)


def test_scaled_in_and_out(make_case: MakeCase) -> None:
    """Four to two by reload, two to one at a start, and back: sessions nobody returns to are drained and ended."""
    case = make_case(Rules(queue=1_000_000), workers=4, mqtt=ONE_SESSION)
    gateway = case.gateway
    data = data_of(gateway)
    assert case.client_ids == client_ids(4, 1)
    case.broker.start_load(1000)
    passes(SECONDS)
    gateway.configure(workers=2)
    gateway.commanded("restart", "--reload")
    wait_until(lambda: case.client_ids == client_ids(2, 1), f"two sessions have ended; {gateway.tail()}")
    wait_until(lambda: slots(data) == {0, 1}, "and are forgotten")
    wait_until(lambda: gateway.metric("gateway_worker_slots_retiring") == 0, "nothing is being retired")
    assert len(gateway.pids()) == 2
    passes(SECONDS)
    assert gateway.stop() == -signal.SIGTERM
    gateway.configure(workers=1)
    gateway.start()
    wait_until(lambda: case.client_ids == client_ids(1, 1), f"the orphan's session has ended; {gateway.tail()}")
    wait_until(lambda: slots(data) == {0}, "and is forgotten")
    gateway.configure(workers=3)
    gateway.commanded("restart", "--reload")
    wait_until(lambda: case.client_ids == client_ids(3, 1), "two more are there")
    gateway.wait_ready()
    passes(SECONDS)
    case.finish(copies=math.inf, ordered=False)


def test_the_supervisor_is_killed(make_case: MakeCase) -> None:
    """Its workers stop in good order, and the next supervisor's take their slots without being told to wait."""
    case = make_case(rate=1000, workers=2, mqtt={"sessions": 2})
    for _ in range(3 if FULL else 1):
        passes(SECONDS)
        case.gateway.kill()
        case.gateway.start()
    passes(SECONDS)
    case.finish(copies=0)  # the orphans acknowledged what they had
    lines = case.gateway.log_file.read_text()
    assert "supervisor_gone" in lines
    assert '"clean": false' not in lines


def test_a_second_supervisor_on_the_same_data_is_refused(make_case: MakeCase, tmp_path: Any) -> None:
    case = make_case(workers=1)
    first = case.gateway
    tables = {
        "workers": 2, "data_dir": str(data_of(first)), "http": {"port": 0},
        "mqtt": {"addresses": [f"mqtt://127.0.0.1:{case.broker.port}"]},
        "routes": [{"name": "telemetry", "filters": ["devices/#"], "topic": case.topic}],
    }  # fmt: skip
    status, said = run_to_end(tmp_path / "second", tables)
    assert status == 78
    assert f"process {first.process.pid} supervises the workers" in said
    first.wait_ready()


def test_a_second_signal_does_not_wait_for_kafka(make_kafka: Callable[..., KafkaCluster], make_case: MakeCase) -> None:
    """Messages that nobody takes hold up a stop until its deadline; who cannot wait says so by a second signal. One to
    every process, as systemd sends it, is none."""
    cluster = make_kafka()
    case = make_case(
        rate=200, bootstrap=cluster.bootstrap, workers=2, mqtt=ONE_SESSION, spool={"enabled": False},
        shutdown_timeout="5m",
    )  # fmt: skip
    gateway = case.gateway
    cluster.freeze(1)
    wait_until(lambda: case.broker.unacknowledged() > 40, "messages wait for Kafka")
    for pid in filter(None, gateway.pids()):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: len(gateway.events("stop_signal_received")) == 2, "the workers know")
    gateway.terminate()
    wait_until(lambda: gateway.events("supervisor_stopping"), "the stop has begun")
    assert gateway.stop() == 75, gateway.tail()
    assert [line["worker"] for line in gateway.events("second_signal_received")] == ["supervisor"]
    (stopped,) = gateway.events("supervisor_stopped")
    assert not stopped["clean"]
    assert len(stopped["remained"]) == 2
    assert "messages unacknowledged" in stopped["remained"][0]
    assert find_supervisor(data_of(gateway)) is None


def test_a_stop_while_the_workers_wait_for_kafka(make_case: MakeCase, free_ports: Callable[[int], list[int]]) -> None:
    bootstrap = f"127.0.0.1:{free_ports(1)[0]}"
    gateway = make_case(start=False, bootstrap=bootstrap, workers=2, shutdown_timeout="5m").gateway
    gateway.start(ready=False)
    wait_until(lambda: len(gateway.events("kafka_not_ready")) >= 2, "both wait")
    assert "Worker 0: The worker is starting." in gateway.reasons()
    assert gateway.stop() == -signal.SIGTERM


def test_a_stop_while_the_workers_start(make_case: MakeCase) -> None:
    gateway = make_case(start=False, workers=2, shutdown_timeout="5m").gateway
    gateway.start(ready=False)
    wait_until(lambda: gateway.events("worker_started"), "a worker has its settings")
    assert gateway.stop() == -signal.SIGTERM
    (stopped,) = gateway.events("supervisor_stopped")
    assert stopped["clean"], stopped
    assert find_supervisor(data_of(gateway)) is None


def test_retired_as_a_whole(make_case: MakeCase) -> None:
    """`gateway retire` ends every worker's sessions, and says so."""
    case = make_case(Rules(queue=1_000_000), rate=500, workers=2, mqtt={"sessions": 2})
    gateway = case.gateway
    passes(SECONDS)
    published = case.broker.stop_load()
    assert "Instance gateway has retired" in gateway.commanded("retire")
    assert gateway.process.wait(60) == 0
    wait_until(lambda: not case.client_ids, "all sessions have ended")
    assert not slots(data_of(gateway))
    found = account(case.bootstrap, case.topic, published)
    assert not found.missing, str(found)


def test_a_frozen_worker_holds_nobody_up(make_case: MakeCase) -> None:
    """The port answers for the others meanwhile, and a stop kills what does not stop."""
    gateway = make_case(workers=2, mqtt=ONE_SESSION, shutdown_timeout="6s").gateway
    frozen, _ = gateway.pids()
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    up = {'{worker="0"}': 0, '{worker="1"}': 1}
    wait_until(lambda: gateway.samples("gateway_worker_up") == up, "the other one answers")
    assert gateway.get("/healthz")[0] == 200
    gateway.terminate()
    assert gateway.process.wait(60) == 75
    (killed,) = gateway.events("worker_killed")
    assert killed["pid"] == frozen


@in_full_form
def test_a_stop_in_the_middle_of_a_roll(make_case: MakeCase) -> None:
    """Whichever process has the slot, and however warm the other is: all end, in good order, and the next start finds
    everything."""
    case = make_case(rate=500, workers=2, mqtt=ONE_SESSION)
    gateway = case.gateway
    for milestone in ("operation_asked", "worker_replaced"):
        gateway.process.signal(signal.SIGUSR2)
        gateway.process.signal(signal.SIGHUP)
        wait_until(lambda: gateway.events(milestone), f"{milestone}; {gateway.tail()}")  # noqa: B023
        assert gateway.stop(20) == -signal.SIGTERM, gateway.tail()
        assert gateway.events("supervisor_stopped")[0]["clean"]
        gateway.start()
    case.finish(copies=0)
