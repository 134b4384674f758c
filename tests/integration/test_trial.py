"""``gateway trial`` on real brokers: every message accounted for, and afterwards the brokers as they were before."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType

from bridge.kafka.group_admin import delete_group
from config.errors import ExitStatus
from gateway.cli.main import main
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from tests.brokers.client import Client
from tests.brokers.fixtures import MakeTopic
from tests.brokers.kafka_backend import KafkaBackend, read_topic, set_rights
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.scripted import ScriptedBroker
from tests.brokers.scripted_rules import Rules
from tests.brokers.topics import consumer_groups, delete_topics, topic_names
from tests.command_line import GATEWAY, run_gateway
from tests.toml_text import to_toml
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the test's own, by which its trials are told from others on this machine."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)


@dataclass(frozen=True)
class Traces:
    """What a trial of this test could leave behind, as it is at one moment."""

    topics: frozenset[str]
    groups: frozenset[str]
    folders: frozenset[str]
    processes: frozenset[int]

    @classmethod
    def now(cls, bootstrap: str) -> Traces:
        running = [
            p.pid
            for p in psutil.process_iter(["cmdline", "environ"])
            if "gateway.tools.trial.subject" in (p.info["cmdline"] or ())
            and (p.info["environ"] or {}).get("TMPDIR") == tempfile.gettempdir()
        ]
        return cls(
            frozenset(name for name in topic_names(bootstrap) if "trial" in name),
            frozenset(group for group in consumer_groups(bootstrap) if "trial" in group),
            frozenset(str(one) for one in Path(tempfile.gettempdir()).glob("gateway-trial-*")),
            frozenset(running),
        )


def trial(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["trial", *arguments, "--json"])
    out, err = capsys.readouterr()
    assert out, err
    return status, json.loads(out)


def sessions_left(port: int, run: str) -> list[str]:
    """Client ids of a trial that the broker still has a session for."""
    ids = [f"trial-{run}-0-{n}" for n in range(4)] + [f"trial-{run}-publisher-{n}" for n in range(4)]
    left = []
    for client_id in ids:
        with Client(port, client_id=client_id, clean=False) as client:
            if client.session_present:
                left.append(client_id)
        Client(port, client_id=client_id).close()  # ends the session that was just asked for
    return left


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_message_comes_through_and_nothing_is_left(
    kafka: KafkaCluster, mqtt_broker: MqttBroker, capsys: pytest.CaptureFixture[str], qos: int
) -> None:
    before = Traces.now(kafka.bootstrap)
    arguments = ("--mqtt", f"mqtt://127.0.0.1:{mqtt_broker.port}", "--kafka", kafka.bootstrap, "-n", "1500")
    status, result = trial(capsys, *arguments, "--qos", str(qos), "--size", "150")
    assert (status, result["delivered"], result["missing"]) == (ExitStatus.OK, 1500, 0)
    assert result["sent"] == result["acknowledged"] == 1500
    assert result["left_behind"] == []
    assert result["published_bytes"] > 1500 * 150
    assert result["record_bytes"] > 1500 * 150
    assert result["batch_bytes"] > 0
    stored, read = result["kafka_acknowledged"], result["read_back"]
    for one in (stored, read):
        assert 0 < one["p50"] <= one["p99"] <= one["highest"] < DEADLINE_S
    assert 0 < result["cpu_seconds"] < result["seconds"] * 4
    assert Traces.now(kafka.bootstrap) == before
    assert sessions_left(mqtt_broker.port, result["run"]) == []
    with Client(mqtt_broker.port) as client:
        client.subscribe("gateway-trial/#")
        client.subscribe("gateways/#")  # other gateways have been at this broker
        client.publish("gateway-trial/mark", b"mark")
        came = []
        while (message := client.receive()).payload != b"mark":
            came.append(message)
        assert not [one for one in came if one.topic.startswith("gateway-trial/") or result["run"] in one.topic], came


def command_tables(answer_timeout: str, **changes: object) -> dict[str, object]:
    """Settings with an entry whose devices answer, and one whose devices do not."""
    ways = {"device": "${topic[1]}", "metadata_headers": ["topic", "properties", "device"]}
    common = {"secret": "s" * 32, "settle": "0s", "answer_timeout": answer_timeout}
    return {
        "routes": [
            {"name": "answers", "filters": ["devices/+/res/#"], "topic": "answers", **ways},
            {"name": "acked", "filters": ["acked/+"], "topic": "acked", **ways},
        ],
        "commands": [
            {"name": "switches", "topics": ["commands"], "status_topic": "statuses", "answers": "answers",
             "mqtt_topic": "devices/${device}/req/${subject}/${id}", **common},
            {"name": "plain", "topics": ["plain"], "status_topic": "plain-statuses", "delivered_by": "acked",
             "confirm": "delivered", "mqtt_topic": "plain/${device}", **common},
        ],
        **changes,
    }  # fmt: skip


def test_commands_reach_devices_of_the_trial_alone_and_nothing_is_left(
    kafka: KafkaCluster, mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(to_toml(command_tables("1m")))
    before = Traces.now(kafka.bootstrap)
    topics = topic_names(kafka.bootstrap)
    arguments = ("--mqtt", f"mqtt://127.0.0.1:{mosquitto.port}", "--kafka", kafka.bootstrap, "-n", "50", "--config")
    with Client(mosquitto.port) as real:
        for topic in ("devices/#", "plain/#", "mark"):
            real.subscribe(topic)
        status, result = trial(capsys, *arguments, str(file), "--commands", "45")
        real.publish("mark", b"mark")
        assert real.receive().payload == b"mark", "no command of a trial reaches a real device"
    assert (status, result["delivered"], result["left_behind"]) == (ExitStatus.OK, 50, [])
    switches, plain = result["commands"]
    for one, outcome in ((switches, "succeeded"), (plain, "sent")):
        account = one["account"]
        assert account["finished"] == {outcome: 45}
        assert (account["written"], account["received"], one["missing"], one["stalled"]) == (45, 45, 0, "")
        assert 0 < one["to_device"]["p50"] <= one["to_device"]["p99"] < DEADLINE_S
        assert 0 < one["to_sent"]["p50"] < DEADLINE_S
    assert switches["account"]["answers"] == 45
    assert switches["to_device"]["highest"] < switches["to_succeeded"]["highest"]
    assert (plain["to_succeeded"], plain["account"]["answers"]) == (None, 0)
    assert switches["not_judged"] == []
    assert [text.split()[0] for text in plain["not_judged"]] == ["deliveries"], "what is not claimed is said"
    assert Traces.now(kafka.bootstrap) == before
    assert not {"commands", "statuses", "plain", "plain-statuses", "answers", "acked"} & (
        topic_names(kafka.bootstrap) - topics
    ), "the topics of the settings are not touched"


async def test_an_unanswered_command_is_missing_and_a_group_that_stays_is_named(
    backend: KafkaBackend, make_mosquitto: Callable[..., Mosquitto], tmp_path: Path
) -> None:
    """With MQTT 3.1.1. The broker keeps the answers of half of the devices from the gateway."""
    answered = [f"topic read gateway-trial/+/commands/+/res/d0{number}/#" for number in range(5)]
    acl = ["user gateway", "topic write gateway-trial/#", "topic read gateway-trial/+/+/+", *answered]
    acl += ["user device", "topic readwrite gateway-trial/#", ""]
    broker = make_mosquitto(users={"gateway": "right", "device": "secret"}, acl="\n".join(acl))
    (tmp_path / "secret").write_text("secret\n")
    kafka = {
        "bootstrap_servers": [backend.cluster.sasl_bootstrap],
        "security": "SASL_PLAINTEXT",
        "sasl": {"username": "gateway", "password": "gateway-secret"},
    }
    mqtt = {"username": "gateway", "password": "right", "protocol": "3.1.1"}
    tables = command_tables("4s", kafka=kafka, mqtt={**mqtt, "addresses": [f"mqtt://127.0.0.1:{broker.port}"]})
    tables["commands"] = tables["commands"][:1]  # type: ignore[index]
    (tmp_path / "gateway.toml").write_text(to_toml(tables))
    arguments = ["-n", "20", "--commands", "10", "--publisher-username", "device", "--publisher-password-file"]
    groups = partial(set_rights, backend.cluster.bootstrap, "trial-", kind=ResourceType.GROUP, prefixed=True)
    await asyncio.to_thread(groups, {AclOperation.READ: AclPermissionType.ALLOW})  # and not deleted
    try:
        done = await asyncio.to_thread(
            run_gateway, "trial", "--config", "gateway.toml", *arguments, "secret", cwd=tmp_path
        )
    finally:
        await asyncio.to_thread(groups, {})
    assert done.returncode == ExitStatus.MISSING_MESSAGES, done.stderr
    assert "MISSING: 5 commands of 'switches'" in done.stdout
    assert "5 succeeded, 5 timed_out" in done.stdout
    (group,) = Traces.now(backend.cluster.bootstrap).groups
    assert f"LEFT BEHIND: consumer group {group}: Kafka does not let us delete group {group}." in done.stderr
    assert f"kafka-consumer-groups.sh --bootstrap-server {backend.cluster.sasl_bootstrap} --delete" in done.stderr
    await delete_group(backend.settings, "test", group)
    assert not Traces.now(backend.cluster.bootstrap).groups


async def test_where_no_topic_may_be_made_one_that_is_there_keeps_the_records(
    kafka: KafkaCluster, mqtt_broker: MqttBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic = await make_topic(f"{unique}-scratch", partitions=2)
    before = Traces.now(kafka.bootstrap)
    arguments = ["--mqtt", f"mqtt://127.0.0.1:{mqtt_broker.port}", "--kafka", kafka.bootstrap, "-n", "100"]
    done = run_gateway("trial", *arguments, "--topic", topic, "--rate", "400", cwd=tmp_path)
    assert done.returncode == ExitStatus.OK, done.stderr
    assert f"stay in topic {topic}" in done.stdout
    assert sum(len(partition) for partition in read_topic(kafka.bootstrap, topic)) == 100
    assert Traces.now(kafka.bootstrap) == before


def start_flowing(kafka: KafkaCluster, mqtt_broker: MqttBroker, folder: Path) -> subprocess.Popen[str]:
    """A long trial in a process of its own; returns when its messages reach Kafka."""
    arguments = ["--mqtt", f"mqtt://127.0.0.1:{mqtt_broker.port}", "--kafka", kafka.bootstrap, "-n", "1000000"]
    before = Traces.now(kafka.bootstrap).topics
    process = subprocess.Popen(
        [*GATEWAY, "trial", *arguments, "--rate", "200"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def flows() -> bool:
        assert process.poll() is None, process.communicate()
        new = Traces.now(kafka.bootstrap).topics - before
        with contextlib.suppress(KafkaException):  # a topic that was made just now has no leader yet
            return bool(new) and any(read_topic(kafka.bootstrap, next(iter(new))))
        return False

    wait_until(flows, "a message reaches Kafka")
    return process


def test_ctrl_c_takes_everything_away(kafka: KafkaCluster, mqtt_broker: MqttBroker, tmp_path: Path) -> None:
    before = Traces.now(kafka.bootstrap)
    process = start_flowing(kafka, mqtt_broker, tmp_path)
    run = next(iter(Traces.now(kafka.bootstrap).topics - before.topics)).removeprefix("gateway-trial-")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGINT, stderr
    assert "nothing is left behind" in stderr
    assert Traces.now(kafka.bootstrap) == before
    assert sessions_left(mqtt_broker.port, run) == []


def test_a_gateway_that_dies_fails_the_trial_and_nothing_is_left(
    kafka: KafkaCluster, mqtt_broker: MqttBroker, tmp_path: Path
) -> None:
    before = Traces.now(kafka.bootstrap)
    process = start_flowing(kafka, mqtt_broker, tmp_path)
    (subject,) = Traces.now(kafka.bootstrap).processes - before.processes
    run = next(iter(Traces.now(kafka.bootstrap).topics - before.topics)).removeprefix("gateway-trial-")
    os.kill(subject, signal.SIGKILL)
    _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == ExitStatus.FAILED, stderr
    assert "The gateway's process ended." in stderr
    assert Traces.now(kafka.bootstrap) == before
    assert sessions_left(mqtt_broker.port, run) == [], "its sessions were ended for it"


def test_a_killed_trial_leaves_no_session_and_no_process(
    kafka: KafkaCluster, mqtt_broker: MqttBroker, tmp_path: Path
) -> None:
    """Nobody is left to delete the topic; the gateway itself retires when its parent is gone."""
    before = Traces.now(kafka.bootstrap)
    process = start_flowing(kafka, mqtt_broker, tmp_path)
    topic = next(iter(Traces.now(kafka.bootstrap).topics - before.topics))
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: Traces.now(kafka.bootstrap).processes == before.processes, "the gateway ends")
    assert sessions_left(mqtt_broker.port, topic.removeprefix("gateway-trial-")) == []
    asyncio.run(delete_topics(kafka.bootstrap, [topic]))


def test_brokers_that_are_not_there(
    kafka: KafkaCluster,
    mqtt_broker: MqttBroker,
    capsys: pytest.CaptureFixture[str],
    free_ports: Callable[[int], list[int]],
) -> None:
    before = Traces.now(kafka.bootstrap)
    (port,) = free_ports(1)
    here = f"mqtt://127.0.0.1:{mqtt_broker.port}"
    assert main(["trial", "--mqtt", f"mqtt://127.0.0.1:{port}", "--kafka", kafka.bootstrap]) == ExitStatus.UNAVAILABLE
    assert f"mqtt://127.0.0.1:{port} refused the connection" in capsys.readouterr().err
    assert main(["trial", "--mqtt", here, "--kafka", f"127.0.0.1:{port}"]) == ExitStatus.UNAVAILABLE
    assert "Kafka cannot be reached" in capsys.readouterr().err
    assert main(["trial", "--mqtt", here, "--kafka", kafka.bootstrap, "--topic", "absent"]) == ExitStatus.UNAVAILABLE
    assert "Kafka has no topic absent" in capsys.readouterr().err
    assert Traces.now(kafka.bootstrap) == before


def config(tmp_path: Path, **tables: dict[str, str]) -> Path:
    file = tmp_path / "gateway.toml"
    file.write_text(to_toml({name.replace("__", "."): table for name, table in tables.items()}))
    return file


def test_mqtt_logins_rights_and_transports(
    kafka: KafkaCluster, make_mosquitto: Callable[..., Mosquitto], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    users = {"gateway": "right", "device": "secret"}
    acl = "user gateway\ntopic read gateway-trial/#\nuser device\ntopic readwrite gateway-trial/#\n"
    broker = make_mosquitto(users=users, acl=acl, tls=True)
    before = Traces.now(kafka.bootstrap)
    tls = {"ca_file": str(broker.ca_file)}
    wrong = config(tmp_path, mqtt={"username": "gateway", "password": "wrong"}, mqtt__tls=tls)
    arguments = [
        "--mqtt",
        f"mqtts://localhost:{broker.tls_port}",
        "--kafka",
        kafka.bootstrap,
        "-n",
        "50",
        "--config",
        str(wrong),
    ]
    assert main(["trial", *arguments]) == ExitStatus.REFUSED
    assert "The publisher connected as 'gateway': check mqtt.username" in capsys.readouterr().err
    right = config(tmp_path, mqtt={"username": "gateway", "password": "right"}, mqtt__tls=tls)
    assert main(["trial", *arguments]) == ExitStatus.REFUSED
    said = capsys.readouterr().err
    assert "does not let us publish to gateway-trial/" in said
    assert "gateway auth acl add allow 'gateway-trial/#' --username gateway --first" in said
    (tmp_path / "secret").write_text("secret\n")
    publisher = ["--publisher-username", "device", "--publisher-password-file", str(tmp_path / "secret")]
    status, result = trial(capsys, *arguments[:4], "-n", "300", "--config", str(right), *publisher)
    assert (status, result["delivered"]) == (ExitStatus.OK, 300)
    assert Traces.now(kafka.bootstrap) == before


async def test_a_subscription_that_is_refused_names_the_rule_to_add(
    kafka: KafkaCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As EMQX answers the user that `gateway auth init` has made: 0x87."""
    file = config(tmp_path, mqtt={"username": "gateway", "password": "right"})
    async with ScriptedBroker(Rules(refuse_subscribe=0x87)) as broker:
        arguments = ["--mqtt", f"mqtt://127.0.0.1:{broker.port}", "--kafka", kafka.bootstrap, "--config", str(file)]
        done = await asyncio.to_thread(run_gateway, "trial", *arguments, cwd=tmp_path)
    assert done.returncode == ExitStatus.REFUSED, done.stderr
    assert "not authorised (0x87)" in done.stderr
    assert "gateway auth acl add allow 'gateway-trial/#' --username gateway --first" in done.stderr


async def test_kafka_logins_and_rights(backend: KafkaBackend, mqtt_broker: MqttBroker, tmp_path: Path) -> None:
    before = Traces.now(backend.cluster.bootstrap)
    arguments = ["trial", "--mqtt", f"mqtt://127.0.0.1:{mqtt_broker.port}", "--kafka", backend.cluster.sasl_bootstrap]
    sasl = {"username": "gateway", "password": "wrong"}
    file = config(tmp_path, kafka={"security": "SASL_PLAINTEXT"}, kafka__sasl=sasl)
    done = run_gateway(*arguments, "--config", str(file), cwd=tmp_path)
    assert done.returncode == ExitStatus.REFUSED, done.stderr
    assert "refused user 'gateway'" in done.stderr
    config(tmp_path, kafka={"security": "SASL_PLAINTEXT"}, kafka__sasl={**sasl, "password": "gateway-secret"})
    topics = partial(set_rights, backend.cluster.bootstrap, "gateway-trial-", prefixed=True)
    await asyncio.to_thread(topics, {AclOperation.CREATE: AclPermissionType.DENY})
    await backend.allow_creation(allowed=False)
    try:
        done = run_gateway(*arguments, "--config", str(file), cwd=tmp_path)
        assert done.returncode == ExitStatus.REFUSED, done.stderr
        assert "nothing is left behind" in done.stderr
        assert "Or name a topic that is there already: --topic." in done.stderr
        topic = await backend.topic()
        done = run_gateway(*arguments, "--config", str(file), "--topic", topic, "-n", "50", cwd=tmp_path)
        assert done.returncode == ExitStatus.OK, done.stderr
    finally:
        await asyncio.to_thread(topics, {})
        await backend.allow_creation(allowed=True)
    after = Traces.now(backend.cluster.bootstrap)
    assert (after.groups, after.folders, after.processes) == (before.groups, before.folders, before.processes)
    assert not [name for name in after.topics if name.startswith("gateway-trial-")]
