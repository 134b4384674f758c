"""TLS and SASL to Kafka as settings say, and what the operator reads when they are wrong."""

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from bridge.certificate import validity_of_der
from bridge.errors import BridgeError, RefusedError, RetriableError, UnreachableError
from bridge.kafka.producer import KafkaProducer
from config.errors import ConfigError, ExitStatus
from config.settings import KafkaSettings, Settings
from gateway.admin.kafka import KafkaAdmin
from gateway.admin.looking import look
from tests.brokers.kafka_backend import KafkaBackend, kafka_settings
from tests.brokers.secured import SecuredKafka
from tests.producer_port import running, sent, values

USER = {"username": "gateway", "password": "gateway-secret"}


def tls(cluster: SecuredKafka, **changes: Any) -> dict[str, Any]:
    return {"ca_file": cluster.certificates.ca_file, **changes}


def patient(bootstrap: str, **changes: Any) -> KafkaSettings:
    """Nothing here is silent: a busy broker may take long with an answer."""
    return kafka_settings(bootstrap, request_timeout="30s", **changes)


async def starts(backend: KafkaBackend, bootstrap: str, **changes: Any) -> None:
    """A producer with these settings writes, and a reader finds it."""
    topic = await backend.topic()
    async with running(KafkaProducer(patient(bootstrap, **changes), "test", [topic])) as producer:
        assert await sent(producer, topic, values(b"x")) is None
    assert await backend.read(topic) == values(b"x")


async def refuses(kind: type[BridgeError], bootstrap: str, **changes: Any) -> str:
    """A producer with these settings does not start; returns the sentence, which holds no password."""
    producer = KafkaProducer(patient(bootstrap, **changes), "test", [])
    with pytest.raises(kind) as failure:
        await producer.start()
    await producer.close(patience_s=1)
    sentence = str(failure.value)
    assert "secret" not in sentence
    assert not re.search(r"\b(None|object at|Errno -?\d+$)", sentence), sentence
    return sentence


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_user_with_the_right_password_writes(backend: KafkaBackend, listener: str, mechanism: str) -> None:
    cluster = backend.cluster
    bootstrap = cluster.sasl_bootstrap if listener == "SASL_PLAINTEXT" else cluster.sasl_tls_bootstrap
    await starts(backend, bootstrap, security=listener, sasl={**USER, "mechanism": mechanism}, tls=tls(cluster))


@pytest.mark.parametrize("changes", [{}, {"minimum_version": "1.3"}, {"server_name": "localhost"}])
async def test_tls_with_the_authority_named(backend: KafkaBackend, changes: dict[str, Any]) -> None:
    await starts(backend, backend.cluster.tls_bootstrap, security="SSL", tls=tls(backend.cluster, **changes))


async def test_tls_with_a_client_certificate(backend: KafkaBackend) -> None:
    certificates = backend.cluster.certificates
    shown = {"certificate_file": certificates.client_certificate, "key_file": certificates.client_key}
    await starts(backend, backend.cluster.tls_bootstrap, security="SSL", tls=tls(backend.cluster, **shown))


async def test_tls_without_verification_for_a_first_try(backend: KafkaBackend) -> None:
    await starts(
        backend, backend.cluster.tls_bootstrap, security="SSL", tls={"verify": False, "server_name": "elsewhere"}
    )


# --- what is read when it is wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("wrong", [{"password": "wrong-secret"}, {"username": "nobody"}], ids=["password", "user"])
async def test_a_wrong_password_or_user_is_refused_and_the_user_named(
    secured_kafka: SecuredKafka, mechanism: str, wrong: dict[str, str]
) -> None:
    sasl = {**USER, **wrong, "mechanism": mechanism}
    sentence = await refuses(RefusedError, secured_kafka.sasl_bootstrap, security="SASL_PLAINTEXT", sasl=sasl)
    assert sentence.startswith(f"Kafka at {secured_kafka.sasl_bootstrap} refused user '{sasl['username']}'")
    assert f"with {mechanism}" in sentence
    assert "Check kafka.sasl.username, password and mechanism" in sentence
    assert RefusedError.exit_status is ExitStatus.REFUSED


async def test_a_mechanism_that_the_broker_does_not_speak_and_a_user_without_any_right_are_refused(
    make_kafka: Callable[..., SecuredKafka],
) -> None:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    cluster = make_kafka(sasl=True, settings=settings)
    sentence = await refuses(RefusedError, cluster.sasl_bootstrap, security="SASL_PLAINTEXT", sasl=USER)
    assert sentence.startswith(f"Kafka at {cluster.sasl_bootstrap} does not offer SCRAM-SHA-512.")
    assert "kafka.sasl.mechanism" in sentence
    plain = {**USER, "mechanism": "PLAIN"}
    sentence = await refuses(RefusedError, cluster.sasl_bootstrap, security="SASL_PLAINTEXT", sasl=plain)
    assert sentence.startswith("Kafka refused us: ")
    assert "ACL" in sentence


async def test_a_dead_port_is_unreachable_and_the_address_named(free_ports: Callable[[int], list[int]]) -> None:
    one, other = free_ports(2)
    sentence = await refuses(UnreachableError, f"127.0.0.1:{one},127.0.0.1:{other}")
    for port in (one, other):
        assert f"127.0.0.1:{port}: connection refused. Is the broker running" in sentence
    assert "PLAINTEXT listener" in sentence
    assert issubclass(UnreachableError, RetriableError)
    assert UnreachableError.exit_status is ExitStatus.UNAVAILABLE


async def test_a_name_that_nobody_knows_is_unreachable() -> None:
    sentence = await refuses(UnreachableError, "kafka.invalid:9092")
    assert sentence.startswith("Kafka cannot be reached. kafka.invalid:9092:")


async def test_one_address_of_several_is_enough(backend: KafkaBackend, free_ports: Callable[[int], list[int]]) -> None:
    await starts(backend, f"127.0.0.1:{free_ports(1)[0]},{backend.cluster.bootstrap}")


@pytest.mark.parametrize(
    ("spoken", "listener"),
    [("PLAINTEXT", "tls_bootstrap"), ("PLAINTEXT", "sasl_bootstrap"), ("SSL", "bootstrap"), ("SSL", "sasl_bootstrap")],
)
async def test_a_wrong_protocol_for_a_port_is_guessed(secured_kafka: SecuredKafka, spoken: str, listener: str) -> None:
    address = getattr(secured_kafka, listener)
    sentence = await refuses(UnreachableError, address, security=spoken, tls=tls(secured_kafka))
    assert address in sentence
    assert "answers now" not in sentence
    assert spoken in sentence
    assert "kafka.security" in sentence


async def test_an_unknown_authority_is_told_with_the_setting_to_check(secured_kafka: SecuredKafka) -> None:
    sentence = await refuses(UnreachableError, secured_kafka.tls_bootstrap, security="SSL", tls={})
    assert "shows a certificate that is not trusted" in sentence
    assert "Check kafka.tls.ca_file" in sentence


async def test_a_certificate_for_another_name_is_told_with_the_setting_to_check(secured_kafka: SecuredKafka) -> None:
    settings = tls(secured_kafka, server_name="kafka.elsewhere")
    sentence = await refuses(UnreachableError, secured_kafka.tls_bootstrap, security="SSL", tls=settings)
    assert "kafka.elsewhere" in sentence
    assert "kafka.tls.server_name" in sentence


async def test_how_long_the_brokers_certificates_are_good_is_known(backend: KafkaBackend) -> None:
    """Of the present connections, each broker's; without TLS there is none."""
    cluster, topic = backend.cluster, await backend.topic()
    settings = patient(cluster.tls_bootstrap, security="SSL", tls=tls(cluster))
    async with running(KafkaProducer(settings, "test", [topic])) as producer:
        assert await sent(producer, topic, values(b"x")) is None
        shown = set(producer.certificates())
    assert shown
    assert all(0 < one.ends_s - time.time() < 86_400 * 366 * 30 for one in shown)
    pem = ssl.get_server_certificate(("127.0.0.1", int(cluster.tls_bootstrap.partition(",")[0].rpartition(":")[2])))
    assert validity_of_der(ssl.PEM_cert_to_DER_cert(pem)) in shown
    async with running(KafkaProducer(patient(cluster.bootstrap), "test", [topic])) as producer:
        assert await sent(producer, topic, values(b"x")) is None
        assert not list(producer.certificates())


@pytest.mark.parametrize("setting", ["ca_file", "certificate_file"])
@pytest.mark.parametrize("content", [None, "no certificate"], ids=["absent", "garbage"])
async def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, setting: str, content: str | None) -> None:
    path = tmp_path / "certificate.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=rf"kafka\.tls\.{setting} .*certificate\.pem"):
        KafkaProducer(kafka_settings("127.0.0.1:1", security="SSL", tls={setting: path}), "test", [])


async def test_a_group_whose_topic_may_not_be_seen_is_said_to_be_unseen(backend: KafkaBackend) -> None:
    """Kafka leaves the offsets out without a word, and the group looks as if it had none."""
    cluster, topic = backend.cluster, await backend.topic()
    group = f"{topic}-reader"
    committing = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    commit = [TopicPartition(topic, 0, 0)]
    assert await asyncio.to_thread(committing.commit, offsets=commit, asynchronous=False)
    committing.close()
    admin = {"bootstrap_servers": cluster.sasl_bootstrap.split(","), "security": "SASL_PLAINTEXT"}
    sasl = {**USER, "mechanism": "PLAIN"}
    settings = Settings.model_validate(
        {"kafka": {"bootstrap_servers": ["127.0.0.1:1"]}, "admin": {**admin, "sasl": sasl}}
    )

    def seen() -> str:
        with KafkaAdmin(settings) as kafka_admin:
            return look(kafka_admin, group).unseen

    assert await asyncio.to_thread(seen) == ""
    await backend.hide(topic)
    assert "its topics may not be seen" in await asyncio.to_thread(seen)
