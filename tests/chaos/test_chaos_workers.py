"""Several workers under a supervisor: one dies, they are rolled, reloaded, scaled, orphaned; nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from gateway.data_dir.identity import slots
from gateway.supervisor.place import find_supervisor
from tests.brokers.scripted_rules import Rules
from tests.chaos.harness import FULL, Gateway, account, in_full_form, run_to_end, wait_until
from tests.chaos.publisher import Publishers
from tests.chaos.threaded import Absence, ThreadedBroker

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.local.embedded.kafka import KafkaCluster
    from tests.brokers.mosquitto import Mosquitto
    from tests.chaos.fixtures import MakeGateway

pytestmark = pytest.mark.slow

SECONDS = 10.0 if FULL else 1.0


def load_for(seconds: float) -> None:
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > end, "time passes")


def finish(broker: ThreadedBroker, gateway: Gateway, kafka: str, topic: str, *, order: bool = True) -> Any:
    """Everything published is acknowledged and in Kafka, and nothing was dropped on the way."""
    published = broker.stop_load()
    wait_until(broker.drained, f"everything is acknowledged; {gateway.tail()}")
    wait_until(gateway.settled, f"nothing is in flight; {gateway.status()['ledger']}")
    assert gateway.imbalance() == 0
    assert broker.dropped() == 0
    assert not broker.call(lambda: broker.broker.violations)
    found = account(kafka, topic, published)
    assert not found.missing, str(found)
    assert not found.strangers, str(found)
    if order:
        assert not found.out_of_order, str(found)
    return found


def members(broker: ThreadedBroker) -> set[str]:
    """Client ids of the sessions the broker has."""
    return broker.call(lambda: set(broker.broker.sessions))


def client_ids(workers: int, sessions: int) -> set[str]:
    return {f"gateway-{worker}-{session}" for worker in range(workers) for session in range(sessions)}


def test_one_of_four_is_killed_and_the_others_go_on(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """Their sessions never disconnect, their counters go on; the killed one comes back by itself, in its slot."""
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=4, mqtt={"sessions": 1})
        gateway.start()
        absences = broker.watch_absences()
        broker.start_load(1500)
        load_for(SECONDS)
        before = gateway.pids()
        victim = before[2]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: gateway.samples("gateway_worker_up")['{worker="2"}'] == 0, "it is seen to be down")
        series = gateway.samples("gateway_mqtt_connected")
        assert not [labels for labels in series if 'worker="2"' in labels], "absent, not stale"
        assert len([labels for labels in series if 'worker="1"' in labels]) == 1
        assert any(reason.startswith("Worker 2 ") for reason in gateway.reasons())
        gateway.wait_ready()
        after = gateway.pids()
        assert [after[0], after[1], after[3]] == [before[0], before[1], before[3]]
        assert after[2] not in before
        assert gateway.samples("gateway_worker_restarts_total")['{worker="2"}'] == 1
        assert sum(gateway.samples("gateway_worker_restarts_total").values()) == 1
        load_for(SECONDS)
        status = gateway.status()
        # How busy the machine is that the tests run on is not what this is about.
        (problem,) = [one for one in status["problems"] if one["id"] != "cpu-starved"]
        assert (problem["id"], problem["severity"], problem["subject"]) == ("worker-restarting", "warning", "worker 2")
        assert len(status["partitions"]) == status["partitions_total"] == 6, "the workers' partitions once each"
        assert status["rates"]["received_per_second"] > 100
        assert status["latency"]["end_to_end"]["p99"] > 0
        (node,) = status["kafka"]["brokers"]
        assert (node["leads"], node["health"]) == (6, "ok")
        finish(broker, gateway, kafka.bootstrap, unique)
        assert set(absences) == {"gateway-2-0"}, "nobody else was away"
        (ended,) = gateway.events("worker_ended")
        assert (ended["slot"], ended["pid"], ended["how"]) == (2, victim, "by SIGKILL")


def roll(
    broker: ThreadedBroker, gateway: Gateway, workers: int, sessions: int, *, devices: int, rate: int
) -> list[Absence]:
    """Roll under load; the absences of all sessions, each of which was away once for each time."""
    absences = broker.watch_absences()
    broker.start_load(rate // 8, devices=devices)  # a Kafka that has just started is slow with its first batches
    load_for(SECONDS)
    warming = broker.stop_load()
    broker.start_load(rate, devices=devices, counts=warming)
    load_for(SECONDS)
    before = gateway.pids()
    times = 3 if FULL else 1
    for _ in range(times):
        status, said = gateway.command("restart")
        assert status == 0, said + gateway.tail()
        assert f"All {workers} workers were replaced" in said
        load_for(SECONDS)
    assert not set(before) & set(gateway.pids())
    assert gateway.samples("gateway_worker_restarts_total") == {f'{{worker="{n}"}}': 0 for n in range(workers)}
    assert {name: len(lengths) for name, lengths in absences.items()} == dict.fromkeys(
        client_ids(workers, sessions), times
    )
    found = [absence for lengths in absences.values() for absence in lengths]
    print(f"a session was away for at most {max(found).seconds * 1e3:.0f} ms")
    return found


def test_rolled_under_load_at_an_emqx_with_its_defaults(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """Window 32, queue 1000: two workers of two sessions, 4,000 msg/s in all."""
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 2})
        gateway.start()
        absences = roll(broker, gateway, 2, 2, devices=200, rate=4000)
        found = finish(broker, gateway, kafka.bootstrap, unique)
        assert found.copies == 0, "an orderly hand-over acknowledges what it has"
        assert max(absences).seconds <= 0.3


def test_four_thousand_a_second_for_one_session_outlast_its_absence(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """A queue of 1000 is a quarter of a second of that: a session that is away longer makes EMQX drop.

    Through a window of 32 that rate leaves no room for a machine that is busy with other things, so what such a one
    drops while the session is there is not the hand-over's: counted is what a queue would have to hold.
    """
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=1, mqtt={"sessions": 1})
        gateway.start()
        absences = roll(broker, gateway, 1, 1, devices=200, rate=4000)
        broker.stop_load()
        assert max(absences).seconds <= 0.3
        assert max(absence.published for absence in absences) < 1000
        wait_until(broker.drained, "everything is acknowledged")


def test_a_new_worker_that_does_not_get_warm_leaves_the_old_one(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """The settings can be read, but Kafka has no such topic: that shows when a worker tries, before anybody let go."""
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 1})
        gateway.start()
        absences = broker.watch_absences()
        broker.start_load(500)
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
        finish(broker, gateway, kafka.bootstrap, unique)


def test_a_new_worker_that_fails_with_the_slot_gives_way_to_the_old_settings(
    kafka: KafkaCluster, make_gateway: MakeGateway, unique: str
) -> None:
    """A wrong MQTT password shows only when the old sessions have gone: the slot then gets the right one again."""
    rules = Rules(strategy="hash_clientid", queue=1_000_000, users={"gateway": b"right"})
    with ThreadedBroker(rules) as broker:
        mqtt = {"sessions": 1, "username": "gateway", "password": "right"}
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=2, mqtt=mqtt)
        gateway.start()
        broker.start_load(500)
        before = gateway.pids()
        gateway.configure(mqtt={"password": "wrong"})
        status, said = gateway.command("restart", "--reload")
        assert status == 1
        assert "refused client 'gateway-0-0'" in said
        assert "wrong" not in said
        gateway.wait_ready()
        assert gateway.pids()[1] == before[1], "the other slot was not touched"
        finish(broker, gateway, kafka.bootstrap, unique)


def test_rolled_with_other_settings(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Good settings are taken, bad ones refused with a sentence; what crashes afterwards starts with the good ones."""
    with ThreadedBroker(Rules(strategy="hash_clientid")) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 1})
        gateway.start()
        broker.start_load(500)
        gateway.configure(mqtt={"sessions": 2})
        status, said = gateway.command("restart", "--reload")
        assert status == 0, said
        assert members(broker) == client_ids(2, 2)
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

        assert before[0] is not None
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: gateway.pids()[0] not in (before[0], None), "another is started")
        gateway.wait_ready()
        assert members(broker) == client_ids(2, 2), "with the settings that were good"
        # Another number of sessions is another membership of the group, across which nobody keeps an order.
        finish(broker, gateway, kafka.bootstrap, unique, order=False)


def test_scaled_in_and_out(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Four to two by reload, two to one at a start, and back: sessions nobody returns to are drained and ended."""
    with ThreadedBroker(Rules(queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=4, mqtt={"sessions": 1})
        data = gateway.log_file.parent / "data"
        gateway.start()
        assert members(broker) == client_ids(4, 1)
        broker.start_load(1000)
        load_for(SECONDS)
        gateway.configure(workers=2)
        status, said = gateway.command("restart", "--reload")
        assert status == 0, said
        wait_until(lambda: members(broker) == client_ids(2, 1), f"two sessions have ended; {gateway.tail()}")
        wait_until(lambda: slots(data) == {0, 1}, "and are forgotten")
        wait_until(lambda: gateway.metric("gateway_worker_slots_retiring") == 0, "nothing is being retired")
        assert len(gateway.pids()) == 2
        load_for(SECONDS)
        assert gateway.stop() == -signal.SIGTERM
        gateway.configure(workers=1)
        gateway.start()
        wait_until(lambda: members(broker) == client_ids(1, 1), f"the orphan's session has ended; {gateway.tail()}")
        wait_until(lambda: slots(data) == {0}, "and is forgotten")
        gateway.configure(workers=3)
        status, said = gateway.command("restart", "--reload")
        assert status == 0, said
        wait_until(lambda: members(broker) == client_ids(3, 1), "two more are there")
        gateway.wait_ready()
        load_for(SECONDS)
        finish(broker, gateway, kafka.bootstrap, unique, order=False)


def test_the_supervisor_is_killed(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Its workers stop in good order, and the next supervisor's take their slots without being told to wait."""
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 2})
        gateway.start()
        broker.start_load(1000)
        for _ in range(3 if FULL else 1):
            load_for(SECONDS)
            gateway.kill()
            gateway.start()
        load_for(SECONDS)
        found = finish(broker, gateway, kafka.bootstrap, unique)
        assert found.copies == 0, "the orphans acknowledged what they had"
        lines = gateway.log_file.read_text()
        assert "supervisor_gone" in lines
        assert '"clean": false' not in lines


def test_a_second_supervisor_on_the_same_data_is_refused(
    kafka: KafkaCluster, make_gateway: MakeGateway, tmp_path: Any, unique: str
) -> None:
    with ThreadedBroker() as broker:
        first = make_gateway(broker.port, kafka.bootstrap, unique, workers=1)
        first.start()
        tables = {
            "workers": 2, "data_dir": str(first.log_file.parent / "data"), "http": {"port": 0},
            "mqtt": {"addresses": [f"mqtt://127.0.0.1:{broker.port}"]},
            "routes": [{"name": "telemetry", "filters": ["devices/#"], "topic": unique}],
        }  # fmt: skip
        status, said = run_to_end(tmp_path / "second", tables)
        assert status == 78
        assert f"process {first.process.pid} supervises the workers" in said
        assert first.ready()


def test_a_second_signal_does_not_wait_for_kafka(
    make_kafka: Callable[..., KafkaCluster], make_gateway: MakeGateway, unique: str
) -> None:
    """Messages that nobody takes hold up a stop until its deadline; who cannot wait says so by a second signal."""
    cluster = make_kafka()
    with ThreadedBroker(Rules(queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, cluster.bootstrap, unique, workers=2, mqtt={"sessions": 1})
        gateway.start()
        broker.start_load(200)
        cluster.freeze(1)
        wait_until(lambda: broker.unacknowledged() > 40, "messages wait for Kafka")
        gateway.terminate()
        wait_until(lambda: gateway.events("supervisor_stopping"), "the stop has begun")
        wait_until(lambda: len(gateway.events("stop_signal_received")) == 3, "the workers know")
        began = time.monotonic()
        gateway.terminate()
        assert gateway.process.wait(20) == 75, gateway.tail()
        assert time.monotonic() - began < 10
        broker.stop_load()
        (stopped,) = gateway.events("supervisor_stopped")
        assert not stopped["clean"]
        assert len(stopped["remained"]) == 2
        assert "messages unacknowledged" in stopped["remained"][0]
        assert find_supervisor(gateway.log_file.parent / "data") is None


def test_a_stop_while_the_workers_wait_for_kafka(
    make_gateway: MakeGateway, free_ports: Callable[[int], list[int]], unique: str
) -> None:
    with ThreadedBroker() as broker:
        (port,) = free_ports(1)
        gateway = make_gateway(broker.port, f"127.0.0.1:{port}", unique, workers=2)
        gateway.start(ready=False)
        wait_until(lambda: len(gateway.events("kafka_not_ready")) >= 2, "both wait")
        assert "Worker 0: The worker is starting." in gateway.reasons()
        assert gateway.stop(10) == -signal.SIGTERM


def test_a_stop_while_the_workers_start(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    with ThreadedBroker() as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=2)
        gateway.start(ready=False)
        wait_until(lambda: gateway.events("worker_started"), "a worker has its settings")
        assert gateway.stop(10) == -signal.SIGTERM
        (stopped,) = gateway.events("supervisor_stopped")
        assert stopped["clean"], stopped
        assert find_supervisor(gateway.log_file.parent / "data") is None


def test_retired_as_a_whole(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """`gateway retire` ends every worker's sessions, and says so."""
    with ThreadedBroker(Rules(queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 2})
        gateway.start()
        broker.start_load(500)
        load_for(SECONDS)
        published = broker.stop_load()
        status, said = gateway.command("retire")
        assert status == 0, said + gateway.tail()
        assert "Instance gateway has retired" in said
        assert gateway.process.wait(10) == 0
        assert not members(broker)
        assert not slots(gateway.log_file.parent / "data")
        found = account(kafka.bootstrap, unique, published)
        assert not found.missing, str(found)


def test_a_frozen_worker_holds_nobody_up(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """The port answers for the others meanwhile, and a stop kills what does not stop."""
    with ThreadedBroker(Rules(queue=1_000_000)) as broker:
        gateway = make_gateway(
            broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 1}, shutdown_timeout="6s"
        )
        gateway.start()
        frozen, _ = gateway.pids()
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        assert gateway.samples("gateway_worker_up") == {'{worker="0"}': 0, '{worker="1"}': 1}
        assert gateway.get("/healthz")[0] == 200
        gateway.terminate()
        assert gateway.process.wait(30) == 75
        (killed,) = gateway.events("worker_killed")
        assert killed["pid"] == frozen


@in_full_form
def test_a_stop_in_the_middle_of_a_roll(kafka: KafkaCluster, make_gateway: MakeGateway, unique: str) -> None:
    """Whichever process has the slot, and however warm the other is: all end, in good order, and the next start finds
    everything."""
    with ThreadedBroker(Rules(strategy="hash_clientid", queue=1_000_000)) as broker:
        gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 1})
        gateway.start()
        broker.start_load(500)
        for milestone in ("operation_asked", "worker_replaced"):
            gateway.process.signal(signal.SIGUSR2)
            gateway.process.signal(signal.SIGHUP)
            wait_until(lambda: gateway.events(milestone), f"{milestone}; {gateway.tail()}")  # noqa: B023
            assert gateway.stop(20) == -signal.SIGTERM, gateway.tail()
            assert gateway.events("supervisor_stopped")[0]["clean"]
            gateway.start()
        found = finish(broker, gateway, kafka.bootstrap, unique)
        assert found.copies == 0, str(found)


@in_full_form
def test_at_a_real_broker(
    kafka: KafkaCluster, make_mosquitto: Callable[..., Mosquitto], make_gateway: MakeGateway, unique: str
) -> None:
    """Rolled, a worker killed, the supervisor killed, scaled in: nothing is missing."""
    broker = make_mosquitto()
    gateway = make_gateway(broker.port, kafka.bootstrap, unique, workers=2, mqtt={"sessions": 1})
    gateway.start()
    with Publishers(broker.port, rate=500) as publishers:
        load_for(SECONDS)
        status, said = gateway.command("restart")
        assert status == 0, said
        load_for(SECONDS)
        victim = gateway.pids()[1]
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: gateway.pids()[1] not in (victim, None), "another is started")
        gateway.wait_ready()
        gateway.kill()
        gateway.start()
        load_for(SECONDS)
        gateway.configure(workers=1)
        status, said = gateway.command("restart", "--reload")
        assert status == 0, said
        wait_until(lambda: gateway.metric("gateway_worker_slots_retiring") == 0, "the second slot is ended")
        load_for(SECONDS)
        published = publishers.stop()
    wait_until(gateway.settled, "nothing is in flight")
    assert gateway.imbalance() == 0
    found = account(kafka.bootstrap, unique, published)
    assert not found.missing, str(found)
    assert not found.strangers, str(found)
