"""Whole gateways with Kafka, a broker and devices of another client: each status is reached, each rule is kept."""

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.kafka.reader import TopicFacts, TopicReader
from config.settings import KafkaSettings
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.runtime.ports import reserve_ports
from tests.brokers.client import Client
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.reading import read_all
from tests.chaos.command_case import begin, in_ms
from tests.chaos.commands import Device, Got, Site, check_devices, check_histories, is_silent, running
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import Gateway
from tests.waiting import wait_until

ENDED = -signal.SIGTERM  # in good order
VERSIONS = pytest.mark.parametrize("version", [5, 4], ids=["MQTT 5", "MQTT 3.1.1"])


class Plant:
    """A gateway at mosquitto with an entry of commands for each way to end, each with a prefix of its own."""

    def __init__(self, kafka: KafkaCluster, broker: Mosquitto, directory: Path, port: int) -> None:
        self.site = Site(kafka.bootstrap, f"plant-{time.time_ns()}").create()
        self.broker = broker
        self.others = {name: Site(kafka.bootstrap, f"{self.site.name}-{name}").create() for name in ENTRIES}
        more = []
        for name, entry in ENTRIES.items():
            site = self.others[name]
            more.append(site.tables(prefix=name, name=name, **entry)["commands"][0])
        tables = self.site.tables(more=more, waiting_per_device=3)
        self.gateway = Gateway(directory, port, {
            **tables,
            "mqtt": {**tables["mqtt"], "addresses": [f"mqtt://127.0.0.1:{broker.port}"]},
            "kafka": {"bootstrap_servers": [kafka.bootstrap], "topics": {"create": True, "replication": 1}},
        })  # fmt: skip

    def device(self, name: str, **options: Any) -> Device:
        return Device(self.broker.port, name, **options)

    def facts(self, name: str = "switches") -> dict[str, Any]:
        return dict(self.gateway.status()["commands"]["routes"][name])


ENTRIES: dict[str, dict[str, Any]] = {
    "confirmed": {"confirm": "delivered", "delivered_by": "acked"},
    "unconfirmed": {"confirm": "delivered", "delivered_by": "acked", "answer_timeout": "3s"},
    "silent": {"answer_timeout": "3s"},
    "failing": {"when_offline": "fail"},
    "queueing": {"when_offline": "queue"},
    "loose": {"qos": 0},
    "exact": {"qos": 2},
}


@pytest.fixture(scope="module")
def plant(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    reservation = reserve_ports(1)
    with Mosquitto() as broker:
        found = Plant(kafka, broker, tmp_path_factory.mktemp("plant"), reservation.ports[0])
        with found.gateway:
            found.gateway.start()
            wait_until(lambda: all(r["partitions"] for r in found.gateway.status()["commands"]["routes"].values()),
                       lambda: f"all groups are joined; {found.gateway.tail()}")  # fmt: skip
            yield found
            assert [found.facts(name)["imbalance"] for name in ("switches", *ENTRIES)] == [0] * 8
            check_histories(found.site.finished(0))
            assert not found.gateway.events("commands_defect")
            assert found.gateway.stop() == ENDED
    reservation.release()


# --- an outcome each ---


@VERSIONS
@pytest.mark.parametrize(("code", "outcome"), [(200, "succeeded"), (404, "rejected"), (503, "failed")])
def test_the_devices_answer_is_the_outcome(plant: Plant, version: int, code: int, outcome: str) -> None:
    name = f"answer-{version}-{code}"
    with plant.device(name, version=version, answers=lambda *_: (102, code)) as device:
        plant.site.send(name, b"\x00payload", id_=name, site_header="x")
        status = plant.site.outcome(name, outcome)
        (got,) = device.wait(1)
    assert [one["status"] for one in plant.site.of(name)] == ["sent", "in_progress", outcome]
    assert got.payload == b"\x00payload"
    assert got.topic == f"devices/{name}/req/switch/{got.token}"
    assert status["answer"]["status"] == code
    assert status["answer"]["payload"] == "done"
    assert status["attempt"] == 1
    assert status["key"] == name
    if version == 5:
        assert got.user["command-id"] == name
        assert got.user["site-header"] == "x"
        assert int(got.user["expires-at"]) == status["deadline_ms"]
        assert got.expiry_s is not None
        assert 30 <= got.expiry_s <= 60


@pytest.mark.parametrize(("entry", "code"), [("", 0), ("loose", None), ("exact", 0)])
def test_a_command_of_which_no_more_is_asked_ends_as_sent(plant: Plant, entry: str, code: int | None) -> None:
    site, name = plant.others.get(entry, plant.site), f"sent-{entry}"
    with plant.device(name, prefix=entry or "devices", qos=2) as device:
        site.send(name, id_=name, answer=entry == "loose")
        status = site.outcome(name, "sent")
        device.wait(1)
    assert status.get("mqtt_reason_code") == code
    assert status["receiver"] == "unknown"


def test_with_qos_2_a_device_gets_each_command_once(plant: Plant) -> None:
    site = plant.others["exact"]
    with plant.device("twice", prefix="exact", qos=2) as device:
        for number in range(30):
            site.send("twice", id_=f"exact-{number}")
        site.outcome("exact-29", "succeeded")
        assert device.ids == [f"exact-{number}" for number in range(30)]


@pytest.mark.parametrize("answer", [False, True])
def test_a_delivery_is_what_the_broker_reports(plant: Plant, *, answer: bool) -> None:
    """EMQX's rule is played by a client that publishes the event as it does."""
    site, name = plant.others["confirmed"], f"confirmed-{answer}"
    held = threading.Event()

    def wait_for_it(_device: Device, _got: Got) -> Iterable[int]:
        held.wait(60)
        return (200,) if answer else ()

    with plant.device(name, prefix="confirmed", answers=wait_for_it) as device, Client(plant.broker.port) as rule:
        site.send(name, id_=name, answer=answer)
        (got,) = device.wait(1)
        rule.publish(f"acked/{name}", b'{"token": "%s"}' % got.token.encode())
        if answer:
            wait_until(lambda: "delivered" in [one["status"] for one in site.of(name)], "it is delivered")
            held.set()
            site.outcome(name, "succeeded")
        else:
            site.outcome(name, "delivered")
            held.set()
    words = [one["status"] for one in site.of(name)]
    assert words == (["sent", "delivered", "succeeded"] if answer else ["sent", "delivered"])


def test_without_a_report_a_delivery_is_not_claimed(plant: Plant) -> None:
    site = plant.others["unconfirmed"]
    with plant.device("unreported", prefix="unconfirmed"):
        site.send("unreported", id_="unreported", answer=False)
        site.outcome("unreported", "timed_out")


@VERSIONS
def test_silence_times_out_and_a_late_answer_is_noted_once(plant: Plant, version: int) -> None:
    name, site = f"late-{version}", plant.others["silent"]
    with plant.device(name, prefix="silent", version=version, answers=is_silent) as device:
        site.send(name, id_=name)
        site.outcome(name, "timed_out")
        (got,) = device.wait(1)
        device.answer(got, 200)
        device.answer(got, 500)
        late = site.outcome(name, "succeeded")
        assert late["late"]
        site.send(name, id_=f"{name}-2", answer=False)
        site.outcome(f"{name}-2", "sent")
    assert [one["status"] for one in site.of(name)] == ["sent", "timed_out", "succeeded"]


def test_what_expires_is_never_sent(plant: Plant) -> None:
    past = in_ms(-1)
    with plant.device("expired") as device:
        plant.site.send("expired", id_="expired", expires_at=past)
        assert plant.site.outcome("expired", "expired")["attempt"] == 0
        plant.site.send("expired", id_="expired-2")
        plant.site.outcome("expired-2", "succeeded")
        assert device.ids == ["expired-2"]


def test_a_waiting_command_expires(plant: Plant) -> None:
    plant.site.send("away", id_="away", expires_at=in_ms(10_000))
    status = plant.site.outcome("away", "expired")
    assert status["mqtt_reason_code"] == 0x10
    assert [one["status"] for one in plant.site.of("away")] == ["waiting", "expired"]


@VERSIONS
def test_a_device_that_comes_back_gets_what_waited_in_order(plant: Plant, version: int) -> None:
    name = f"back-{version}"
    for number in range(3):
        plant.site.send(name, id_=f"{name}-{number}")
    plant.site.flush()
    wait_until(lambda: "waiting" in [one["status"] for one in plant.site.of(f"{name}-0")], "the first waits")
    with plant.device(name, version=version) as device:
        plant.site.outcome(f"{name}-2", "succeeded", 60)
        assert device.ids == [f"{name}-{number}" for number in range(3)]
    assert [one["status"] for one in plant.site.of(f"{name}-2")] == ["accepted", "sent", "succeeded"]


@pytest.mark.parametrize("entry", ["failing", "queueing"])
def test_a_command_that_is_not_to_wait_is_undeliverable(plant: Plant, entry: str) -> None:
    site = plant.others[entry]
    site.send("nobody", id_="nobody")
    assert site.outcome("nobody", "undeliverable")["mqtt_reason_code"] == 0x10
    assert [one["status"] for one in site.of("nobody")] == ["undeliverable"]


@VERSIONS
def test_a_persistent_session_holds_what_is_queued(plant: Plant, version: int) -> None:
    name, site = f"sleeper-{version}", plant.others["queueing"]
    device = plant.device(name, prefix="queueing", version=version, persistent=True)
    with device:
        pass
    site.send(name, id_=name)
    wait_until(lambda: [one["status"] for one in site.of(name)] == ["sent"], "the broker has it")
    with device:
        site.outcome(name, "succeeded")
    assert device.ids == [name]


@pytest.mark.parametrize("name", ["a/b", "+", "#", "$SYS", "nul\0", ""])
def test_a_name_that_no_topic_may_have_is_refused_and_dead_lettered(plant: Plant, name: str) -> None:
    at = len(read_all(plant.site.bootstrap, plant.site.dead, lambda message: message.key())[0])
    plant.site.send(name, b"bad")
    plant.site.flush()

    def letters() -> list[Any]:
        return read_all(plant.site.bootstrap, plant.site.dead, lambda message: message.value())[0]

    wait_until(lambda: len(letters()) > at, "a dead letter")
    wait_until(lambda: "refused" in [s[-1]["status"] for s in plant.site.history().values() if s[-1]["device"] is None],
               "it is refused")  # fmt: skip
    shown = plant.gateway.status()["dead_letters"]
    assert (shown["total"], shown["last"][0]["route"]) == (len(letters()), "switches")


def test_an_id_is_refused_while_another_with_it_is_not_finished(plant: Plant) -> None:
    with plant.device("copy", answers=is_silent) as device:
        plant.site.send("copy", b"1", id_="copy")
        device.wait(1)
        plant.site.send("copy", b"2", id_="copy")
        refused = plant.site.outcome("copy", "refused")
        assert refused["reason"] == "duplicate"
        assert refused["key"] == refused["command"]
        device.answer(device.got[0], 200)
        plant.site.outcome("copy", "succeeded")
        device.answers = lambda *_: (200,)
        plant.site.send("copy", b"3", id_="copy")
        wait_until(lambda: sum(s["status"] == "succeeded" for s in plant.site.of("copy")) == 2, "it is a new command")
        assert [got.payload for got in device.got] == [b"1", b"3"]


def test_too_many_for_a_device_are_refused_and_others_go_on(plant: Plant) -> None:
    with plant.device("calm") as calm, plant.device("crowded", answers=is_silent) as crowded:
        plant.site.send("crowded", id_="crowded-0")
        (first,) = crowded.wait(1)  # under way, and so it waits no more
        for number in range(1, 5):
            plant.site.send("crowded", id_=f"crowded-{number}")
        plant.site.send("calm", id_="calm")
        plant.site.outcome("calm", "succeeded")
        assert "too many" in plant.site.outcome("crowded-4", "refused")["reason"]
        crowded.answers = lambda *_: (200,)
        crowded.answer(first, 200)
        plant.site.outcome("crowded-3", "succeeded")
        assert crowded.ids == [f"crowded-{number}" for number in range(4)]
        assert calm.ids == ["calm"]


def test_answers_that_belong_to_nothing_change_nothing(plant: Plant) -> None:
    def unmatched() -> int:
        return sum(plant.facts()["unmatched"].values())

    with plant.device("honest", answers=is_silent) as device, plant.device("liar", answers=is_silent) as liar:
        plant.site.send("honest", id_="honest")
        (got,) = device.wait(1)
        before = unmatched()
        liar.answer(got, 500)  # another device
        device.answer(got._replace(token="forged.token"), 500)
        device.answer(got._replace(token=""), 500)
        device.answer(got, 999)
        device.answer(got, 200)
        plant.site.outcome("honest", "succeeded")
        device.answer(got, 200)
        wait_until(lambda: unmatched() >= before + 3, lambda: f"{plant.facts()['unmatched']}, {before} before")
    assert [one["status"] for one in plant.site.of("honest")] == ["sent", "succeeded"]


# --- order, restarts, several workers ---


def test_commands_of_a_device_come_in_order_and_one_after_the_other(plant: Plant) -> None:
    under_way, most = [0], [0]

    def takes_time(device: Device, got: Got) -> Iterable[int]:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])

        def later() -> None:
            under_way[0] -= 1
            device.answer(got, 200)

        threading.Timer(0.05, later).start()
        return ()

    site = plant.others["queueing"]
    with plant.device("series", prefix="queueing", answers=takes_time) as device:
        for number in range(40):
            site.send("series", id_=f"series-{number}")
        site.outcome("series-39", "succeeded", 60)
        assert device.ids == [f"series-{number}" for number in range(40)]
    assert most[0] == 1


def test_what_a_device_answers_during_a_restart_is_found(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    """Two commands are under way at SIGTERM; one is answered while nobody is there, and neither is sent again."""
    site = Site(kafka.bootstrap, unique).create()
    gateway = begin(make_gateway, site, mosquitto.port, answer_timeout="2m")
    with running([Device(mosquitto.port, name, answers=is_silent) for name in ("a", "b")]) as (a, b):
        site.send("a", id_="a")
        site.send("b", id_="b")
        site.flush()
        a.wait(1)
        b.wait(1)
        wait_until(lambda: len(site.of("a")) == len(site.of("b")) == 1, "both are sent")
        assert gateway.stop() == ENDED
        a.answer(a.got[0], 200)
        gateway.start()
        site.outcome("a", "succeeded")
        b.answer(b.got[0], 500)
        site.outcome("b", "failed")
        assert (a.ids, b.ids) == (["a"], ["b"])
    check_histories(site.finished(2))
    assert gateway.stop() == ENDED


def test_the_status_topic_is_made_and_one_with_too_few_partitions_is_refused(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    site = Site(kafka.bootstrap, unique, partitions=4).create()
    others = Site(kafka.bootstrap, f"{unique}-few", partitions=2).create()
    few = site.tables(name="few", prefix="few", status_topic=others.statuses, group=f"{unique}-few")["commands"]
    tables = site.tables(more=few, status_topic=f"{unique}-made", status_retention="2h")
    gateway = make_gateway(mosquitto.port, kafka.bootstrap, unique, **tables)
    gateway.start()
    with Device(mosquitto.port, "a"):
        site.send("a", id_="a")
        wait_until(lambda: "commands-unreadable" in [one["id"] for one in gateway.problems()], "it is a problem")
        (problem,) = [one for one in gateway.problems() if one["id"] == "commands-unreadable"]
        assert f"Topic {others.statuses} has 2 partitions, and {site.commands} has 4" in problem["text"]
        site.outcome("a", "succeeded", topic=f"{unique}-made")

    async def facts() -> TopicFacts:
        settings = KafkaSettings(bootstrap_servers=(kafka.bootstrap,))
        async with TopicReader(settings, "test", [f"{unique}-made"]) as reader:
            return reader.facts[0]

    made = asyncio.run(facts())
    assert (made.partitions, made.retention_ms, made.cleanup_policy) == (4, 7_200_000, "compact,delete")
    assert gateway.stop() == ENDED


def test_a_right_that_the_gateway_lacks_is_told(
    kafka: KafkaCluster, make_gateway: MakeGateway, make_mosquitto: Callable[..., Mosquitto], unique: str
) -> None:
    broker = make_mosquitto(acl="topic readwrite +/+/res/#\ntopic readwrite allowed/#\ntopic read devices/#\n")
    site = Site(kafka.bootstrap, unique).create()
    others = Site(kafka.bootstrap, f"{unique}-allowed").create()
    tables = site.tables(more=others.tables(name="allowed", prefix="allowed")["commands"])
    gateway = make_gateway(broker.port, kafka.bootstrap, unique, **tables)
    gateway.start()
    with Device(broker.port, "a"), Device(broker.port, "a", prefix="allowed"):
        site.send("a", id_="a")
        others.send("a", id_="b")
        assert site.outcome("a", "undeliverable")["mqtt_reason_code"] == 0x87
        others.outcome("b", "succeeded")
    (problem,) = [one for one in gateway.problems() if one["id"] == "commands-not-allowed"]
    assert "switches" in problem["text"]
    assert gateway.metric("gateway_mqtt_disconnects_total") <= 1, "mosquitto 2.0.11 ends it behind the refused status"
    assert gateway.stop() == ENDED


def test_beyond_max_waiting_partitions_are_not_read_and_it_is_said_whose_commands_wait(
    kafka: KafkaCluster, mosquitto: Mosquitto, make_gateway: MakeGateway, unique: str
) -> None:
    site = Site(kafka.bootstrap, unique, partitions=1).create()
    gateway = begin(make_gateway, site, mosquitto.port, max_waiting=5, expiry="10m")
    for number in range(1500):
        site.send("hog", id_=f"hog-{number}")
    site.flush()
    wait_until(lambda: "commands-paused" in [one["id"] for one in gateway.problems()], "it is a problem")
    (problem,) = [one for one in gateway.problems() if one["id"] == "commands-paused"]
    assert "hog (" in problem["text"]
    facts = gateway.status()["commands"]["routes"]["switches"]
    assert 5 <= facts["waiting"] <= 1005, "one read more at most"
    with Device(mosquitto.port, "hog") as device:
        site.outcome("hog-1499", "succeeded", 60)
        check_devices([device], {"hog": site.sent})
        copies = {one: count for one, count in Counter(device.ids).items() if count > 1}
        assert not copies, f"no command comes twice: {copies}; {gateway.tail()}"
    assert gateway.metric("gateway_commands_paused_partitions") == 0
    assert gateway.stop() == ENDED
