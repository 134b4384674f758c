"""``gateway tail``, ``simulate`` and ``compare`` on real brokers."""

import asyncio
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from config.errors import ExitStatus
from gateway.cli.main import main
from gateway.devices.physics import build_fleet
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from tests.brokers.client import Client
from tests.brokers.fixtures import MakeTopic
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.secured import SecuredKafka
from tests.brokers.topics import add_partitions, alter_topic, consumer_groups, create_topic, produce, topic_names
from tests.command_line import GATEWAY, Cli, run_gateway
from tests.waiting import DEADLINE_S


@pytest.fixture
def settings(kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A gateway.toml in the working directory that names the Kafka."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "gateway.toml"
    file.write_text(f"[kafka]\nbootstrap_servers = {json.dumps(kafka.bootstrap.split(','))}\n")
    return file


def create(kafka: KafkaCluster, topics: dict[str, int]) -> list[str]:
    """Topics by their number of partitions."""
    for name, partitions in topics.items():
        asyncio.run(create_topic(kafka.bootstrap, name, partitions=partitions))
    return list(topics)


def tail(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = ExitStatus.OK) -> list[dict[str, Any]]:
    assert main(["tail", "--json", *arguments]) == status
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.usefixtures("settings")
async def test_what_is_there_is_shown_from_where_one_wants(
    kafka: KafkaCluster, make_topic: MakeTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = await make_topic(partitions=2)
    before = consumer_groups(kafka.bootstrap)
    headers = [("mqtt.topic", b"devices/d1/x"), ("gateway.device", b"d1")]
    produce(kafka.bootstrap, topic, [f'{{"n":{n}}}' for n in range(10)], partition=0, key="k", headers=headers)
    produce(kafka.bootstrap, topic, [b"\xff\x1b[2J"], partition=1)

    def in_thread(*arguments: str, status: int = ExitStatus.OK) -> list[dict[str, Any]]:
        found: list[Any] = []
        thread = threading.Thread(
            target=lambda: found.append(tail(capsys, "--topic", topic, "--no-follow", *arguments, status=status))
        )
        thread.start()  # asyncio.run wants a thread without a running loop
        thread.join(DEADLINE_S)
        return found[0]  # type: ignore[no-any-return]

    assert len(in_thread("--from", "beginning")) == 11
    assert in_thread() == [], "nothing came after now"
    shown = in_thread("--from", "0:7")
    assert [one["payload"]["n"] for one in shown] == [7, 8, 9]
    assert shown[0]["mqtt_topic"] == "devices/d1/x"
    assert shown[0]["latency_ms"] is None, "it was there before"
    assert [one["payload"]["n"] for one in in_thread("--since", "1h", "--where", "json.n % 2 == 1", "-n", "2")] == [
        1,
        3,
    ]
    assert in_thread("--since", "2100-01-01") == []
    assert len(in_thread("--from", "beginning", "--device", "d1", "--mqtt-topic", "devices/+/x")) == 10
    assert in_thread("--from", "1:0")[0]["payload"] == {"base64": "/xtbMko="}
    in_thread("--from", "1:5", status=ExitStatus.USAGE)
    in_thread("--from", "9:0", status=ExitStatus.USAGE)
    assert consumer_groups(kafka.bootstrap) <= before


def test_what_arrives_is_shown_and_new_partitions_are_noticed(kafka: KafkaCluster, unique: str, settings: Path) -> None:
    (topic,) = create(kafka, {unique: 1})
    produce(kafka.bootstrap, topic, ["old"])
    process = subprocess.Popen(
        [*GATEWAY, "tail", "--topic", topic, "--json", "--config", str(settings)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines: list[dict[str, Any]] = []
    assert process.stdout is not None
    reading = threading.Thread(target=lambda: lines.extend(json.loads(line) for line in process.stdout or ()))
    reading.start()

    def shown(condition: Callable[[], bool], **options: Any) -> None:
        """Produce until it is shown: nobody tells when the command has begun to read."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, lines
            produce(kafka.bootstrap, topic, ["new"], **options)
            time.sleep(0.1)

    try:
        shown(lambda: bool(lines))
        assert {line["payload"] for line in lines} == {"new"}
        assert 0 <= lines[-1]["latency_ms"] < DEADLINE_S * 1000
        asyncio.run(add_partitions(kafka.bootstrap, topic, 2))
        shown(lambda: any(line["partition"] == 1 for line in lines), partition=1)
        assert min(line["offset"] for line in lines if line["partition"] == 1) == 0, "from its beginning"
    finally:
        process.send_signal(signal.SIGINT)
        reading.join(DEADLINE_S)
    assert process.wait(DEADLINE_S) == ExitStatus.OK
    with process:
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_kafka_that_falls_silent_is_not_a_quiet_topic(
    secured_kafka: SecuredKafka, unique: str, settings: Path
) -> None:
    asyncio.run(create_topic(secured_kafka.bootstrap, unique))
    servers = json.dumps(secured_kafka.bootstrap.split(","))
    settings.write_text(f'[kafka]\nbootstrap_servers = {servers}\nrequest_timeout = "1s"\n')
    words = [*GATEWAY, "tail", "--topic", unique, "--from", "beginning", "--config", str(settings)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        produce(secured_kafka.bootstrap, unique, ["first"])
        assert "first" in process.stdout.readline()
        secured_kafka.freeze()
        try:
            said = process.stderr.readline()
        finally:
            secured_kafka.thaw()
        assert "Kafka does not answer." in said
        assert "can be read again" in process.stderr.readline()
        produce(secured_kafka.bootstrap, unique, ["second"])
        assert "second" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
    assert process.returncode == ExitStatus.OK


@pytest.mark.usefixtures("settings")
def test_a_place_is_of_its_partition_alone_also_later(
    kafka: KafkaCluster, unique: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic,) = create(kafka, {unique: 2})
    produce(kafka.bootstrap, topic, ["old"], partition=0)
    produce(kafka.bootstrap, topic, ["of another"], partition=1)
    monkeypatch.setattr("bridge.kafka.reader.LOOK_AGAIN_S", 0.0)
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.1):
            produce(kafka.bootstrap, topic, ["new"], partition=0)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        found = tail(capsys, "--topic", topic, "--from", "0:0", "-n", "20")
    finally:
        ended.set()
        writing.join()
    assert {line["partition"] for line in found} == {0}


@pytest.mark.usefixtures("settings")
def test_a_topic_that_is_not_there_is_not_made(kafka: KafkaCluster, unique: str) -> None:
    assert main(["tail", "--topic", unique]) == ExitStatus.UNAVAILABLE
    assert unique not in topic_names(kafka.bootstrap)


def test_two_topics_are_compared(kafka: KafkaCluster, unique: str, settings: Path) -> None:
    left, right = create(kafka, {f"{unique}-left": 3, f"{unique}-right": 2})
    long_ago = 1_700_000_000_000
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for n in range(300):
        options = {"key": f"d{n % 7}", "timestamp": long_ago + n}
        producer.produce(left, json.dumps({"payload": f"m{n}", "clientid": "c"}), **options)
        if n != 42:
            producer.produce(right, f"m{n}", **options)
    assert producer.flush(DEADLINE_S) == 0
    produce(kafka.bootstrap, left, [json.dumps({"payload": "young"})])
    before = consumer_groups(kafka.bootstrap)
    words = ["compare", "--left", left, "--right", right, "--json", "--left-field", "payload", "--config"]
    done = run_gateway(*words, settings, timeout_s=DEADLINE_S)
    assert done.returncode == ExitStatus.MISSING_MESSAGES, done.stderr
    found = json.loads(done.stdout)
    assert (found["matched"], found["only_left"], found["only_right"], found["recent"]) == (299, 1, 0, 1)
    assert (found["devices"], found["behind"], found["differing_keys"]) == (7, 0, 0)
    done = run_gateway(*words, settings, "--since", "2023-11-14T22:13:20.100Z", timeout_s=DEADLINE_S)
    assert done.returncode == ExitStatus.UNJUDGED, "what is missing lies before; one is too young"
    assert json.loads(done.stdout)["matched"] == 200
    done = run_gateway(*words, settings, "--since", "1970-01-01", timeout_s=DEADLINE_S)
    assert done.returncode == ExitStatus.MISSING_MESSAGES, done.stderr
    for value, at_ms in (("younger", 0), ("m42", long_ago + 42)):  # a spool delayed it
        produce(kafka.bootstrap, right, [value], key="d0", timestamp=at_ms)
    done = run_gateway(*words, settings, "--until", "2023-11-14T22:13:20.300Z", timeout_s=DEADLINE_S)
    assert (done.returncode, json.loads(done.stdout)["matched"]) == (ExitStatus.OK, 300), done.stderr
    alter_topic(kafka.bootstrap, right, "message.timestamp.type", "LogAppendTime")
    produce(
        kafka.bootstrap, left, [json.dumps({"payload": "m300", "clientid": "c"})], key="d0", timestamp=long_ago + 42
    )
    produce(kafka.bootstrap, right, ["m300"], key="d0")  # delayed too, and its time is that of now
    done = run_gateway(*words, settings, "--until", "2023-11-14T22:13:20.300Z", timeout_s=DEADLINE_S)
    assert (done.returncode, json.loads(done.stdout)["matched"]) == (ExitStatus.OK, 301), done.stderr
    assert consumer_groups(kafka.bootstrap) <= before


@pytest.mark.usefixtures("settings")
def test_what_the_left_delayed_beyond_since_may_only_seem_to_be_missing(
    kafka: KafkaCluster, unique: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.records.compare._GRACE_MS", -600_000)  # nothing is too recent
    left, right = create(kafka, {f"{unique}-left": 1, f"{unique}-right": 1})
    alter_topic(kafka.bootstrap, left, "message.timestamp.type", "LogAppendTime")
    produce(kafka.bootstrap, left, ["delayed"])
    produce(kafka.bootstrap, right, ["delayed"], timestamp=(int(time.time()) - 7200) * 1000)
    words = ["compare", "--left", left, "--right", right, "--since"]
    assert main([*words, "1h"]) == ExitStatus.MISSING_MESSAGES
    assert "(LogAppendTime)" in capsys.readouterr().out
    assert main([*words, "3h"]) == ExitStatus.OK


@pytest.mark.parametrize("qos", [0, 2])
def test_simulated_devices_publish_what_they_say(
    mqtt_broker: MqttBroker, capsys: pytest.CaptureFixture[str], settings: Path, unique: str, qos: int
) -> None:
    with Client(mqtt_broker.port) as subscriber:
        subscriber.subscribe(f"{unique}/+/telemetry", qos=2)
        faults = "duplicates=0.2,reorder=0.1,corrupt=0.1,disconnects=0.02,wrong-clock=0.5"
        arguments = ["--devices", "10", "--rate", "10", "--duration", "2s", "--prefix", unique, "--faults", faults]
        address = f"mqtt://127.0.0.1:{mqtt_broker.port}"
        assert main(["simulate", "--mqtt", address, *arguments, "--qos", str(qos), "--json"]) == ExitStatus.OK
        account = json.loads(capsys.readouterr().out)
        heard = []
        readings = set()
        while qos == 2 and len(readings) < account["acknowledged_readings"]:
            heard.append(subscriber.receive())
            assert not heard[-1].retain
            try:
                body = json.loads(heard[-1].payload)
            except ValueError:
                continue
            readings.add((body["device"], body["seq"]))
    assert account["messages"] == account["acknowledged_messages"] > 50
    assert account["duplicates"] > 0
    assert account["corrupt"] > 0
    with Client(mqtt_broker.port) as subscriber:
        subscriber.subscribe(f"{unique}/#")
        subscriber.publish(f"{unique}/mark", b"mark")
        assert subscriber.receive().payload == b"mark", "nothing was retained"


def test_devices_that_never_connected_are_counted(
    make_mosquitto: Callable[..., Mosquitto], settings: Path, cli: Cli, tmp_path: Path
) -> None:
    names = [one.device for one in build_fleet(5, 1)]
    address = f"mqtt://127.0.0.1:{make_mosquitto(users=dict.fromkeys(names, 'right')).port}"
    secrets = tmp_path / "secrets.csv"
    secrets.write_text("name,secret\n" + "".join(f"{name},{'right' if name == names[0] else 'x'}\n" for name in names))
    words = ["simulate", "--mqtt", address, "--devices", "5", "--duration", "2s", "--secrets", secrets, "--json"]
    account = json.loads(cli(*words, status=ExitStatus.INCOMPLETE).out)
    assert (account["devices"], account["never_connected"]) == (5, 4)


def test_simulated_devices_use_the_settings_to_reach_the_broker(
    make_mosquitto: Callable[..., Mosquitto], capsys: pytest.CaptureFixture[str], settings: Path
) -> None:
    broker = make_mosquitto(users={"devices": "right"}, tls=True)
    settings.write_text(f'[mqtt]\nusername = "devices"\npassword = "wrong"\ntls.ca_file = "{broker.ca_file}"\n')
    arguments = ["simulate", "--devices", "3", "--rate", "20", "--duration", "2s", "--json"]
    for address in (f"mqtts://localhost:{broker.tls_port}", f"wss://localhost:{broker.wss_port}"):
        settings.write_text(settings.read_text().replace('"right"', '"wrong"'))
        assert main([*arguments, "--mqtt", address]) == ExitStatus.REFUSED
        settings.write_text(settings.read_text().replace('"wrong"', '"right"'))
        capsys.readouterr()
        assert main([*arguments, "--mqtt", address]) == ExitStatus.OK
        assert json.loads(capsys.readouterr().out)["acknowledged_messages"] > 20
