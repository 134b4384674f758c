"""Kafka's administration against a real broker: topics made and grown, groups and their lag, logins, rights, audit."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AclOperation, AclPermissionType

from config.errors import ConfigError, ExitStatus
from config.settings import Settings
from gateway.admin.errors import (
    AdminError,
    AdminMissingError,
    AdminRefusedError,
    AdminRetriableError,
    AdminUnsupportedError,
    BrokerSilentError,
    BrokerUnreachableError,
)
from gateway.admin.groups import offsets_partition
from gateway.admin.kafka import KafkaAdmin
from gateway.admin.model import GroupListing, TopicPartition
from gateway.cli.main import main
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from tests.brokers import topics as of_kafka
from tests.brokers.fixtures import MakeTopic
from tests.brokers.kafka_backend import KafkaBackend
from tests.brokers.secured import SecuredKafka

SECONDS = 60.0
USER = {"username": "gateway", "password": "gateway-secret"}
SURROGATES = "группа-\N{GRINNING FACE}-组"


class Commands:
    """The command line with a settings file of the test's own, which ``write`` replaces."""

    def __init__(self, folder: Path, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._bootstrap = bootstrap
        self._capsys = capsys
        self.file = folder / "gateway.toml"
        self.write("")

    def write(self, text: str) -> None:
        servers = json.dumps(self._bootstrap.split(","))
        self.file.write_text(
            f'data_dir = "{self._folder}"\n[ledger]\ntopic = ""\n[kafka]\nbootstrap_servers = {servers}\n{text}\n'
        )

    def __call__(self, *arguments: str, status: ExitStatus = ExitStatus.OK) -> str:
        """Standard output of a command that ends with ``status``; what it said on stderr is in ``said``."""
        self._capsys.readouterr()
        ended = main([*arguments, "--config", str(self.file)])
        out, self.said = self._capsys.readouterr()
        assert ended == status, (ended, out, self.said)
        return out

    def json(self, *arguments: str, status: ExitStatus = ExitStatus.OK) -> Any:
        return json.loads(self(*arguments, "--json", status=status))

    @property
    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._folder / "admin.log").read_text().splitlines()]


@pytest.fixture
def commands(kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, kafka.bootstrap, capsys)


def settings_of(bootstrap: str, **tables: Any) -> Settings:
    kafka = {"bootstrap_servers": bootstrap.split(","), **tables.pop("kafka", {})}
    return Settings.model_validate({"kafka": kafka, **tables})


def declared(name: str, **settings: object) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    dead = f'[dead_letter]\ntopic = "{name}-dead"\n'
    return dead + "\n".join(["[[kafka.topics.declare]]", f'name = "{name}"', *lines, ""])


# --- topics ---


def test_topics_become_what_the_settings_say_and_stay_so(commands: Commands, unique: str) -> None:
    commands.write(declared(unique, partitions=2, retention="1h"))
    plan = commands.json("topics", "plan", "--check", status=ExitStatus.INCOMPLETE)
    assert {step["topic"]: step["step"] for step in plan["steps"]} == {unique: "create", f"{unique}-dead": "create"}
    assert all(step["refused"] is None for step in plan["steps"])
    commands("topics", "apply", "--dry-run")
    assert not (commands.file.parent / "admin.log").exists()
    assert "Every broker shows it." in commands("topics", "apply", "--yes")
    assert "retention.ms=3600000" in commands("topics", "describe", unique)
    commands("topics", "plan", "--check")

    commands.write(declared(unique, partitions=5, retention="2h", cleanup_policy="compact,delete"))
    shown = commands("topics", "plan", "--check", status=ExitStatus.INCOMPLETE)
    assert re.search(rf"{unique}\s+grow\s+from 2 to 5 partitions", shown)
    assert "retention.ms: 3600000 → 7200000, cleanup.policy: delete → compact,delete" in shown
    assert "With 5 instead of 2 partitions most keys move to another one" in shown
    done = commands.json("topics", "apply", "--yes")
    assert [step["step"] for step in done["done"]] == ["grow", "configure"]
    assert (done["left"], done["behind"]) == ([], [])
    described = commands.json("topics", "describe", unique)["topics"][0]
    assert len(described["partitions"]) == 5
    assert described["configs"]["retention.ms"] == {
        "name": "retention.ms", "value": "7200000", "source": "topic", "read_only": False, "sensitive": False
    }  # fmt: skip
    assert "Nothing to do" in commands("topics", "apply", "--yes")
    grown = [entry for entry in commands.audited if entry["action"] == "topic.grow"]
    assert [(entry["phase"], entry.get("result")) for entry in grown] == [("intent", None), ("outcome", "done")]
    assert (grown[0]["before"], grown[0]["wanted"]) == ({"partitions": 2}, {"partitions": 5})
    assert len({entry["id"] for entry in grown}) == 1


def test_what_settings_cannot_have_is_told_and_left(commands: Commands, unique: str) -> None:
    commands.write(declared(unique, partitions=4))
    commands("topics", "apply", "--yes")
    commands.write(declared(unique, partitions=3, replication=3))
    plan = commands.json("topics", "plan", "--check")  # nothing that apply would do
    texts = [step["text"] for step in plan["steps"] if step["topic"] == unique]
    assert "partitions cannot be removed" in texts[0]
    assert "kafka-reassign-partitions.sh" in texts[1]

    commands.write(declared(f"{unique}-new", partitions=1, replication=3))
    shown = commands("topics", "plan")
    assert "Kafka would refuse it." in shown
    result = commands.json("topics", "apply", "--yes", status=ExitStatus.INCOMPLETE)
    assert [step["topic"] for step in result["left"]] == [f"{unique}-new"]
    assert "replication factor" in result["left"][0]["why"].lower()
    outcome = [entry for entry in commands.audited if entry["what"] == f"{unique}-new"][-1]
    assert outcome["result"].startswith("not done: ")


def test_nothing_is_done_without_consent_or_account(commands: Commands, unique: str) -> None:
    commands.write(declared(unique, partitions=1))
    commands("topics", "apply", status=ExitStatus.USAGE)
    assert "give --yes" in commands.said
    (commands.file.parent / "admin.log").mkdir()
    commands("topics", "apply", "--yes", status=ExitStatus.FAILED)
    assert "Nothing was changed" in commands.said
    (commands.file.parent / "admin.log").rmdir()
    commands("topics", "describe", unique, status=ExitStatus.NOT_FOUND)


def test_a_deleted_topic_is_gone_when_the_command_returns(commands: Commands, unique: str) -> None:
    commands.write(declared(unique, partitions=1))
    commands("topics", "apply", "--yes")
    commands("topics", "delete", unique, "--dry-run")
    commands("topics", "delete", unique, status=ExitStatus.USAGE)
    assert "No broker shows" in commands("topics", "delete", unique, "--yes")
    assert f"The settings use {unique} (declared)" in commands.said
    commands("topics", "describe", unique, status=ExitStatus.NOT_FOUND)
    commands("topics", "delete", unique, "--yes", status=ExitStatus.NOT_FOUND)
    commands("topics", "delete", "__consumer_offsets", "--yes", status=ExitStatus.FAILED)
    assert "belongs to Kafka: without it" in commands.said


def test_what_forbids_or_undoes_a_deletion_is_said(
    make_kafka: Callable[..., KafkaCluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"delete.topic.enable": "false", "auto.create.topics.enable": "true"}
    cluster = make_kafka(heap_mib=256, settings=settings)
    commands = Commands(tmp_path, cluster.bootstrap, capsys)
    commands.write(declared("wanted", partitions=1))
    commands("topics", "apply", "--yes")
    commands("topics", "delete", "wanted", "--yes", status=ExitStatus.FAILED)
    assert "delete.topic.enable=false on broker 1" in commands.said
    with KafkaAdmin(settings_of(cluster.bootstrap)) as admin, pytest.raises(AdminError) as refused:
        admin.delete_topic("wanted")  # Kafka itself
    assert "cannot be deleted" in str(refused.value)


# --- groups ---


@pytest.fixture
def consume(kafka: KafkaCluster) -> Iterator[Callable[..., Consumer]]:
    consumers: list[Consumer] = []

    def make(group: str, topic: str, **options: Any) -> Consumer:
        consumer = Consumer(
            {"bootstrap.servers": kafka.bootstrap, "group.id": group, "client.id": "reader", "log_level": 0,
             "auto.offset.reset": "earliest", "enable.auto.commit": False, **options}
        )  # fmt: skip
        consumer.subscribe([topic])
        consumers.append(consumer)
        return consumer

    yield make
    for consumer in consumers:
        consumer.close()


def produce(kafka: KafkaCluster, topic: str, count: int, partition: int = 0) -> None:
    of_kafka.produce(kafka.bootstrap, topic, map(str, range(count)), partition=partition)


def took(consumer: Consumer, count: int) -> None:
    """The consumer reads so many records and commits them."""
    read, deadline = 0, time.monotonic() + SECONDS
    while read < count:
        assert time.monotonic() < deadline, f"{read} of {count} records came"
        read += len(consumer.consume(count - read, 0.1))
    consumer.commit(asynchronous=False)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_lag_and_members_are_what_another_client_sees(
    kafka: KafkaCluster, make_topic: MakeTopic, consume: Any, commands: Commands, unique: str, protocol: str
) -> None:
    topic = await make_topic(partitions=2)
    before_ms = time.time() * 1000
    produce(kafka, topic, 10)
    group = f"{unique}-{SURROGATES}"
    consumer = consume(group, topic, **{"group.protocol": protocol})
    took(consumer, 10)
    produce(kafka, topic, 7)
    found = commands.json("groups", "describe", group, "--sample", "0s")
    listed = {one["id"]: one for one in commands.json("groups", "list", "--state", "stable")["groups"]}
    assert listed[group]["type"] == found["group"]["type"] == protocol
    assert (found["group"]["state"], found["group"]["coordinator"]) == ("Stable", 1)
    assert listed[group]["offsets_partition"] == found["group"]["offsets_partition"] == offsets_partition(group, 3)
    (member,) = found["group"]["members"]
    assert (member["client_id"], member["host"]) == ("reader", "/127.0.0.1")
    assert [place["partition"] for place in member["assignment"]] == [0, 1]
    first = found["partitions"][0]
    committed = consumer.committed([Place(topic, 0)], SECONDS)[0].offset
    end = consumer.get_watermark_offsets(Place(topic, 0), SECONDS)[1]
    assert (first["committed"], first["log_end"], first["lag"]) == (committed, end, end - committed) == (10, 17, 7)
    assert 0 <= first["age_seconds"] <= time.time() - before_ms / 1000
    assert (first["state"], found["lag"]) == ("behind", 7)


async def test_a_consumer_that_stopped_is_told_from_one_that_moves(
    kafka: KafkaCluster, make_topic: MakeTopic, consume: Any, commands: Commands, unique: str
) -> None:
    from gateway.admin.lag import group_lag
    from gateway.admin.looking import look

    topic = await make_topic()
    produce(kafka, topic, 30)
    moving, stuck = consume(f"{unique}-moving", topic), consume(f"{unique}-stuck", topic)
    took(moving, 10)
    took(stuck, 10)
    with KafkaAdmin(settings_of(kafka.bootstrap)) as admin:
        before = [look(admin, f"{unique}-{name}") for name in ("moving", "stuck")]
        took(moving, 10)
        after = [look(admin, f"{unique}-{name}") for name in ("moving", "stuck")]
    states = [group_lag(now, then, {}, 0).partitions[0].state for now, then in zip(after, before, strict=True)]
    assert states == ["catching up", "stopped"]
    shown = commands("groups", "describe", f"{unique}-stuck", "--sample", "10ms", status=ExitStatus.INCOMPLETE)
    assert "FAIL: stopped, commits nothing" in shown
    assert "FAIL reader is in the group and commits nothing" in shown
    stuck.close()
    shown = commands("groups", "describe", f"{unique}-stuck", status=ExitStatus.INCOMPLETE)
    assert "FAIL the group has no member: its consumer does not run" in shown


async def test_records_deleted_before_they_were_read_are_counted(
    kafka: KafkaCluster, make_topic: MakeTopic, consume: Any, commands: Commands, unique: str
) -> None:
    topic = await make_topic()
    produce(kafka, topic, 20)
    took(consume(unique, topic), 5)
    of_kafka.delete_before(kafka.bootstrap, topic, 0, 12)
    found = commands.json("groups", "describe", unique, "--sample", "0s", status=ExitStatus.INCOMPLETE)
    (one,) = found["partitions"]
    assert (one["lost"], one["lag"], one["state"]) == (7, 8, "lost records")


async def test_a_share_group_is_described_by_its_own_tool(
    kafka: KafkaCluster, make_topic: MakeTopic, consume: Any, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client here can be a member of one: what Kafka lists is made up, the rest is asked of it."""
    topic = await make_topic()
    produce(kafka, topic, 1)
    took(consume(f"{unique}-other", topic), 1)  # has Kafka make its topic of offsets
    with KafkaAdmin(settings_of(kafka.bootstrap)) as admin:
        listed = GroupListing(unique, "share", "Empty", "share", 1)
        monkeypatch.setattr(KafkaAdmin, "_groups_at", lambda _self, _broker: (listed,))
        with pytest.raises(AdminUnsupportedError) as failure:
            admin.group(unique)
    assert "kafka-share-groups.sh describes it" in str(failure.value)


def test_a_group_that_nobody_knows_is_not_found(commands: Commands, unique: str) -> None:
    commands("groups", "describe", unique, status=ExitStatus.NOT_FOUND)
    assert re.search("knows no group|No consumer group has ever", commands.said)


# --- logins and rights ---


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_the_administrator_logs_in(secured_kafka: SecuredKafka, mechanism: str, encrypted: bool) -> None:
    """As ``admin`` says; the gateway's own settings are those of another listener."""
    bootstrap = secured_kafka.sasl_tls_bootstrap if encrypted else secured_kafka.sasl_bootstrap
    tls = {"tls": {"ca_file": secured_kafka.certificates.ca_file}} if encrypted else {}
    security = "SASL_SSL" if encrypted else "SASL_PLAINTEXT"
    servers = bootstrap.split(",")
    admin = {"bootstrap_servers": servers, "security": security, "sasl": {**USER, "mechanism": mechanism}, **tls}
    with KafkaAdmin(settings_of("127.0.0.1:1", admin=admin)) as kafka_admin:
        assert [broker.id for broker in kafka_admin.brokers()] == [1]


def test_a_certificate_is_shown_and_checked(secured_kafka: SecuredKafka) -> None:
    certificates = secured_kafka.certificates
    tls = {"ca_file": certificates.ca_file}
    with KafkaAdmin(settings_of(secured_kafka.tls_bootstrap, kafka={"security": "SSL", "tls": tls})) as admin:
        assert admin.cluster().id
    shown = {**tls, "certificate_file": certificates.client_certificate, "key_file": certificates.client_key}
    with KafkaAdmin(settings_of(secured_kafka.tls_bootstrap, admin={"security": "SSL", "tls": shown})) as admin:
        assert admin.cluster().id  # "requested": the broker checks it, since it is shown
    with (
        KafkaAdmin(settings_of(secured_kafka.tls_bootstrap, kafka={"security": "SSL"})) as admin,
        pytest.raises(BrokerUnreachableError) as failure,
    ):
        admin.cluster()
    assert "certificate that is not trusted" in str(failure.value)
    with pytest.raises(ConfigError):
        KafkaAdmin(settings_of("k:1", admin={"security": "SSL", "tls": {"ca_file": "/nowhere"}}))


def test_a_wrong_login_is_a_sentence(secured_kafka: SecuredKafka, caplog: pytest.LogCaptureFixture) -> None:
    sasl = {"username": "gateway", "password": "wrong-secret"}
    settings = settings_of(secured_kafka.sasl_bootstrap, admin={"security": "SASL_PLAINTEXT", "sasl": sasl})
    with KafkaAdmin(settings) as admin, pytest.raises(AdminRefusedError) as failure:
        admin.cluster()
    assert "does not let user 'gateway' in" in str(failure.value)
    assert "Check admin.sasl.username" in str(failure.value)
    assert "secret" not in str(failure.value)
    assert failure.value.exit_status is ExitStatus.REFUSED
    assert not caplog.records, "kafka-python's own lines"
    with KafkaAdmin(settings_of(secured_kafka.sasl_bootstrap, admin={"timeout": "30s"})) as admin:
        with pytest.raises(BrokerUnreachableError) as closed:
            admin.cluster()
        assert "requires TLS or a login" in str(closed.value)


def test_the_wrong_kind_of_listener_is_a_sentence(secured_kafka: SecuredKafka, mqtt_broker: MqttBroker) -> None:
    """TLS to a plain listener, none to one with TLS, and no Kafka at all."""
    ssl = {"security": "SSL", "tls": {"ca_file": secured_kafka.certificates.ca_file}}
    said = []
    for bootstrap, admin in (
        (secured_kafka.bootstrap, ssl),
        (secured_kafka.tls_bootstrap, {}),
        (f"127.0.0.1:{mqtt_broker.port}", {}),
    ):
        with (
            KafkaAdmin(settings_of(bootstrap, admin={"timeout": "30s", **admin})) as kafka_admin,
            pytest.raises(AdminRetriableError) as failure,
        ):
            kafka_admin.cluster()
        said.append(str(failure.value))
    for sentence, part in zip(
        said, ("accept TLS (TLS: ", "does not answer as Kafka", "closed the connection"), strict=True
    ):
        assert part in sentence
        assert "127.0.0.1:" in sentence
        assert "Errno" not in sentence


async def test_a_missing_right_is_named(backend: KafkaBackend) -> None:
    topic = await backend.topic()
    settings = Settings(kafka=backend.settings)
    operations = {
        AclOperation.DESCRIBE: AclPermissionType.ALLOW,
        AclOperation.DESCRIBE_CONFIGS: AclPermissionType.DENY,
        AclOperation.ALTER: AclPermissionType.DENY,
    }
    await backend._allow(topic, operations)
    with KafkaAdmin(settings) as admin:
        assert [one.name for one in admin.topics([topic])] == [topic]
        refusals = {"configs": lambda: admin.configs("topic", [topic]), "grow": lambda: admin.add_partitions(topic, 3)}
        for name, forbidden in refusals.items():
            with pytest.raises(AdminRefusedError) as failure:
                pytest.fail(f"{name} was allowed: {forbidden()}")
            assert topic in str(failure.value)
            assert "It needs" in str(failure.value)


# --- brokers that do not answer ---


def test_nobody_there(free_ports: Callable[[int], list[int]]) -> None:
    (port,) = free_ports(1)
    with KafkaAdmin(settings_of(f"127.0.0.1:{port}")) as admin, pytest.raises(BrokerUnreachableError) as failure:
        admin.cluster()
    assert f"127.0.0.1:{port} refuses connections" in str(failure.value)
    assert failure.value.exit_status is ExitStatus.UNAVAILABLE


def test_a_frozen_broker_ends_no_later_than_the_time_out(secured_kafka: SecuredKafka) -> None:
    settings = settings_of(secured_kafka.bootstrap, admin={"timeout": "3s"})
    with KafkaAdmin(settings) as admin:
        admin.cluster()
        secured_kafka.freeze()
        try:
            began = time.monotonic()
            with pytest.raises(BrokerSilentError) as failure:
                admin.topics()
            assert time.monotonic() - began < 30
        finally:
            secured_kafka.thaw()
    assert "did not answer within 3 s" in str(failure.value)


async def test_offsets_of_what_is_gone_are_problems(kafka: KafkaCluster, make_topic: MakeTopic, unique: str) -> None:
    topic = await make_topic()
    with KafkaAdmin(settings_of(kafka.bootstrap)) as admin:
        ends = admin.log_ends([TopicPartition(topic, 0), TopicPartition(topic, 9), TopicPartition(unique, 0)])
        assert ends.values == {TopicPartition(topic, 0): 0}
        assert set(ends.problems) == {TopicPartition(topic, 9), TopicPartition(unique, 0)}
        with pytest.raises(AdminMissingError):
            admin.configs("topic", [unique])
