"""Kafka's settings as Spark's options, and the topics to read."""

import contextlib
import socket
from pathlib import Path

import pytest
from pydantic import SecretStr

from config.errors import ConfigError, ExitStatus
from config.settings import KafkaSettings, RouteSettings, SaslSettings, Settings, StreamSettings, TlsSettings
from streaming.errors import KafkaUnavailableError, MasterUnavailableError
from streaming.kafka.options import source_options, topics
from streaming.runtime.reach import require_kafka, require_master

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
ISSUER = "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----"
ENCRYPTED_KEY = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIF\n-----END ENCRYPTED PRIVATE KEY-----"
RSA_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIG\n-----END RSA PRIVATE KEY-----"


def sasl(**changes: object) -> SaslSettings:
    return SaslSettings(**{"username": "spark", "password": SecretStr("hush"), **changes})  # type: ignore[arg-type]


def route(name: str, topic: str) -> RouteSettings:
    return RouteSettings(name=name, filters=(f"{name}/#",), topic=topic)


def test_a_plain_broker_needs_its_addresses_alone() -> None:
    assert source_options(KafkaSettings(bootstrap_servers=("a.example:9092", "b.example:9093"))) == {
        "kafka.bootstrap.servers": "a.example:9092,b.example:9093",
        "kafka.security.protocol": "PLAINTEXT",
        "groupIdPrefix": "gateway-stream",
    }


def test_tls_settings_are_not_used_on_a_plain_connection(tmp_path: Path) -> None:
    options = source_options(KafkaSettings(tls=TlsSettings(ca_file=tmp_path / "absent.pem")))
    assert not [name for name in options if "ssl" in name]


@pytest.mark.parametrize(("mechanism", "module"), [
    ("PLAIN", "plain.PlainLoginModule"),
    ("SCRAM-SHA-256", "scram.ScramLoginModule"),
    ("SCRAM-SHA-512", "scram.ScramLoginModule"),
])  # fmt: skip
def test_user_and_password_become_a_login(mechanism: str, module: str) -> None:
    options = source_options(KafkaSettings(security="SASL_PLAINTEXT", sasl=sasl(mechanism=mechanism)))
    assert options["kafka.security.protocol"] == "SASL_PLAINTEXT"
    assert options["kafka.sasl.mechanism"] == mechanism
    assert options["kafka.sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.{module} required username="spark" password="hush";'
    )
    assert not [name for name in options if name.startswith("kafka.ssl")]


def test_a_password_cannot_break_out_of_its_quotes() -> None:
    options = source_options(KafkaSettings(security="SASL_PLAINTEXT", sasl=sasl(password=SecretStr('a"b\\c"; x="'))))
    assert options["kafka.sasl.jaas.config"].endswith(r"""password="a\"b\\c\"; x=\"";""")


def test_certificates_travel_as_text(tmp_path: Path) -> None:
    ca, certificate, key = (tmp_path / name for name in ("ca.pem", "client.pem", "client.key"))
    ca.write_text(ISSUER)
    certificate.write_text(f"subject=spark\n{CERTIFICATE}\n{ISSUER}\n")
    key.write_text(ENCRYPTED_KEY)
    tls = TlsSettings(ca_file=ca, certificate_file=certificate, key_file=key, key_password=SecretStr("open"))
    options = source_options(KafkaSettings(security="SSL", tls=tls))
    assert {name.removeprefix("kafka.ssl."): text for name, text in options.items() if "ssl." in name} == {
        "enabled.protocols": "TLSv1.3,TLSv1.2", "truststore.type": "PEM", "truststore.certificates": ISSUER,
        "keystore.type": "PEM", "keystore.certificate.chain": f"{CERTIFICATE}\n{ISSUER}",
        "keystore.key": ENCRYPTED_KEY, "key.password": "open",
    }  # fmt: skip


def test_certificate_and_key_may_share_a_file(tmp_path: Path) -> None:
    both = tmp_path / "client.pem"
    both.write_text(f"{KEY}\n{CERTIFICATE}\n")
    options = source_options(KafkaSettings(security="SSL", tls=TlsSettings(certificate_file=both)))
    assert options["kafka.ssl.keystore.certificate.chain"] == CERTIFICATE
    assert options["kafka.ssl.keystore.key"] == KEY


def test_the_minimum_tls_version_holds() -> None:
    options = source_options(KafkaSettings(security="SSL", tls=TlsSettings(minimum_version="1.3")))
    assert options["kafka.ssl.enabled.protocols"] == "TLSv1.3"


def test_a_key_that_java_cannot_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    certificate, key = tmp_path / "client.pem", tmp_path / "client.key"
    certificate.write_text(CERTIFICATE)
    key.write_text(RSA_KEY)
    tls = TlsSettings(certificate_file=certificate, key_file=key)
    with pytest.raises(ConfigError, match="openssl pkcs8 -topk8") as caught:
        source_options(KafkaSettings(security="SSL", tls=tls))
    assert str(key) in str(caught.value)


@pytest.mark.parametrize(("tls", "named"), [
    (TlsSettings(verify=False), "kafka.tls.verify"),
    (TlsSettings(server_name="broker.example"), "kafka.tls.server_name"),
])  # fmt: skip
def test_what_the_java_client_cannot_do_is_refused(tls: TlsSettings, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        source_options(KafkaSettings(security="SSL", tls=tls))


@pytest.mark.parametrize("content", [None, b"", b"\x30\x82\xff", b"no certificate"])
def test_a_file_that_is_no_pem_is_refused(tmp_path: Path, content: bytes | None) -> None:
    ca = tmp_path / "ca.pem"
    if content is not None:
        ca.write_bytes(content)
    with pytest.raises(ConfigError, match=r"kafka\.tls\.ca_file"):
        source_options(KafkaSettings(security="SSL", tls=TlsSettings(ca_file=ca)))


def test_topics_are_those_of_the_routes_each_once() -> None:
    settings = Settings(routes=(route("a", "telemetry"), route("b", "events"), route("c", "telemetry")))
    assert topics(settings) == ("telemetry", "events")


def test_topics_that_are_named_win() -> None:
    settings = Settings(routes=(route("a", "t-${topic[1]}"),), stream=StreamSettings(topics=("t-1", "t-2", "t-1")))
    assert topics(settings) == ("t-1", "t-2")


def test_topics_nobody_knows_have_to_be_named() -> None:
    with pytest.raises(ConfigError, match="no routes"):
        topics(Settings())
    with pytest.raises(ConfigError, match="route 'b' is a template"):
        topics(Settings(routes=(route("a", "telemetry"), route("b", "t-${topic[1]}"))))


def test_one_broker_that_answers_is_enough() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        require_kafka(("127.0.0.1:1", f"127.0.0.1:{port}"), timeout_s=5)
        require_master(f"spark://127.0.0.1:1,127.0.0.1:{port}", timeout_s=5)


def test_brokers_that_do_not_answer_are_named() -> None:
    with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:1 \(Connection refused\)") as caught:
        require_kafka(("127.0.0.1:1",), timeout_s=5)
    assert "kafka.bootstrap_servers" in str(caught.value)
    assert caught.value.exit_status is ExitStatus.UNAVAILABLE


def test_a_master_that_does_not_answer_is_named() -> None:
    with pytest.raises(MasterUnavailableError, match=r"127\.0\.0\.1:1 \(Connection refused\)") as caught:
        require_master("spark://127.0.0.1:1", timeout_s=5)
    assert "stream.master" in str(caught.value)
    with pytest.raises(ConfigError, match=r"stream\.master is 'spark://nowhere'"):
        require_master("spark://nowhere", timeout_s=5)


@pytest.mark.parametrize("master", ["local[2]", "yarn", "k8s://https://cluster:6443"])
def test_other_kinds_of_master_are_sparks_business(master: str) -> None:
    require_master(master, timeout_s=5)
