"""How the gateway proves itself to a real Kafka: tokens that it verifies, sessions that it ends, files that change."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.conn import create_conn
from aiokafka.errors import SaslAuthenticationFailed
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from structlog.testing import capture_logs

from bridge.errors import BridgeError, RefusedError, UnreachableError
from bridge.kafka import client as kafka_client
from bridge.kafka.connection import cluster_id
from bridge.kafka.login import KafkaLogin
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.session import open_connection
from bridge.kafka.topics import Topics
from config.settings import KafkaSettings, Settings
from config.values.secret_files import FileSecret
from gateway.admin.errors import AdminRefusedError
from gateway.admin.kafka import KafkaAdmin
from gateway.tools.verify.reader import KafkaReader
from tests.brokers.fixtures import MakeTopic
from tests.brokers.kafka_backend import kafka_settings, read_topic
from tests.brokers.secured import SecuredKafka, TokenCheck
from tests.producer_port import running, sent, values
from tests.servers.authority import Authority
from tests.servers.identity_provider import IdentityProvider, make_key
from tests.servers.token_source import MadeTokens
from tests.waiting import DEADLINE_S, until

SESSION_S = 8.0
USER = {"username": "gateway", "password": "gateway-secret"}
OAUTH = {"mechanism": "OAUTHBEARER", "token": {"value": "comes from the test's own source"}}


@pytest.fixture(autouse=True)
def _early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is renewed while more than five seconds of it are left: a machine may stand still for some of them."""
    monkeypatch.setattr(kafka_client, "RENEW_AT", (0.2, 0.3))


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as provider:
        yield provider


@pytest.fixture(scope="module")
def cluster(provider: IdentityProvider) -> Iterator[SecuredKafka]:
    """Verifies tokens with the provider's keys, and ends every session after SESSION_S."""
    check = TokenCheck(provider.jwks_url, "kafka", provider.url)
    settings = {
        "connections.max.reauth.ms": str(round(SESSION_S * 1000)),
        "sasl.oauthbearer.clock.skew.seconds": "0",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": "1000",
    }
    with SecuredKafka(sasl=True, tls=True, tokens=check, settings=settings) as cluster:
        yield cluster


def tokens(provider: IdentityProvider, lifetime_s: float = 300, **changes: Any) -> MadeTokens:
    claims = {"sub": "gateway", "aud": "kafka"} | changes
    # A JWT counts in whole seconds, rounded down.
    return MadeTokens(lambda: provider.sign(claims, lifetime_s=lifetime_s + 1), lifetime_s)


def settings_for(cluster: SecuredKafka, listener: str, sasl: dict[str, Any], **changes: Any) -> KafkaSettings:
    bootstrap = cluster.sasl_bootstrap if listener == "SASL_PLAINTEXT" else cluster.sasl_tls_bootstrap
    tls = {"ca_file": cluster.certificates.ca_file}
    return kafka_settings(bootstrap, security=listener, sasl=sasl, tls=tls, request_timeout="30s", **changes)


def producer_for(settings: KafkaSettings, login: KafkaLogin, topic: str, retries: list[str]) -> KafkaProducer:
    def retried(_topic: str, error: BridgeError) -> None:
        retries.append(str(error))

    return KafkaProducer(settings, "outward-test", [topic], None, retried, login)


# --- tokens that the broker verifies ------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_a_good_token_writes_creates_and_asks(
    cluster: SecuredKafka, provider: IdentityProvider, unique: str, listener: str
) -> None:
    settings = settings_for(cluster, listener, {**OAUTH, "extensions": {"logicalCluster": "lkc"}})
    source = tokens(provider)
    login = KafkaLogin(settings, source)
    await Topics(settings, "outward-test", login).create([unique], 1)
    assert await cluster_id(settings, "outward-test", login)
    async with running(producer_for(settings, login, unique, [])) as producer:
        assert await sent(producer, unique, values(b"x")) is None
    assert await asyncio.to_thread(read_topic, cluster.bootstrap, unique) == [values(b"x")]
    assert source.refusals == []
    assert len(source.made) == 1


@pytest.mark.parametrize("wrong", ["audience", "issuer", "expired", "unknown key", "no token"])
async def test_a_bad_token_is_refused_in_a_sentence_and_its_source_told(
    cluster: SecuredKafka, provider: IdentityProvider, wrong: str
) -> None:
    claims = {"sub": "gateway", "aud": "kafka"}
    match wrong:
        case "audience":
            source = MadeTokens(lambda: provider.sign(claims | {"aud": "others"}))
        case "issuer":
            source = MadeTokens(lambda: provider.sign(claims | {"iss": "http://elsewhere"}))
        case "expired":
            source = MadeTokens(lambda: provider.sign(claims | {"iat": int(time.time()) - 600}, lifetime_s=-60))
        case "unknown key":
            source = MadeTokens(lambda: provider.sign(claims, key=make_key(kid="nobody-knows")))
        case _:
            source = MadeTokens(lambda: "no-jwt-at-all-0815")
    settings = settings_for(cluster, "SASL_PLAINTEXT", OAUTH)
    producer = KafkaProducer(settings, "test", [], login=KafkaLogin(settings, source))
    with pytest.raises(RefusedError) as failure:
        await producer.start()
    await producer.close(patience_s=1)
    sentence = str(failure.value)
    assert sentence.startswith(
        f"Kafka at {cluster.sasl_bootstrap} refused the token of kafka.sasl.token with OAUTHBEARER: "
    )
    assert "issuer" in sentence
    assert "audience" in sentence
    assert set(source.refusals) == set(source.made)
    for token in source.made:
        assert token not in sentence
        assert token.rpartition(".")[2] not in sentence


async def test_aiokafka_itself_takes_a_refused_token_for_an_accepted_one(
    cluster: SecuredKafka, provider: IdentityProvider
) -> None:
    """Why connections are of a kind of our own. When this fails, ``bridge.kafka.session`` may do less."""
    settings = settings_for(cluster, "SASL_PLAINTEXT", OAUTH)
    login = KafkaLogin(settings, MadeTokens(lambda: provider.sign({"sub": "gateway", "aud": "others"})))
    host, _, port = cluster.sasl_bootstrap.partition(":")
    theirs = await create_conn(host, int(port), **login.options())
    assert theirs.connected()
    await theirs.close()
    with pytest.raises(SaslAuthenticationFailed):
        await open_connection(host, int(port), **login.options())


async def test_where_no_token_can_be_had_kafka_cannot_be_asked(
    cluster: SecuredKafka, provider: IdentityProvider
) -> None:
    settings = settings_for(cluster, "SASL_PLAINTEXT", OAUTH)
    source = tokens(provider)
    source.broken = "The identity provider does not answer."
    producer = KafkaProducer(settings, "test", [], login=KafkaLogin(settings, source))
    with pytest.raises(UnreachableError, match=r"^Kafka cannot be asked: The identity provider does not answer\.$"):
        await producer.start()
    await producer.close(patience_s=1)
    source.broken = ""
    async with running(KafkaProducer(settings, "test", [], login=KafkaLogin(settings, source))):
        """It is back."""


# --- sessions that end ----------------------------------------------------------------------------------------------


async def write_for(seconds: float, producer: KafkaProducer, topic: str) -> int:
    """Send batches one after the other for so long; returns how many. Each must be stored."""
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        assert await sent(producer, topic, values(b"%d" % count)) is None
        count += 1
        await asyncio.sleep(0.01)  # the pace, not a wait for anything
    return count


async def all_there(cluster: SecuredKafka, topic: str, count: int) -> None:
    """Every batch once, in order."""
    (records,) = await asyncio.to_thread(read_topic, cluster.bootstrap, topic)
    assert [record.value for record in records] == [b"%d" % number for number in range(count)]


def login_by(
    mechanism: str, cluster: SecuredKafka, provider: IdentityProvider
) -> tuple[KafkaSettings, KafkaLogin, MadeTokens | None]:
    oauth = mechanism == "OAUTHBEARER"
    settings = settings_for(cluster, "SASL_PLAINTEXT", OAUTH if oauth else {**USER, "mechanism": mechanism})
    # The broker would take a token for longer than its source shows it.
    claims = {"sub": "gateway", "aud": "kafka"}
    source = MadeTokens(lambda: provider.sign(claims), 3) if oauth else None
    return settings, KafkaLogin(settings, source), source


async def test_sessions_are_renewed_before_the_broker_ends_them(
    cluster: SecuredKafka, provider: IdentityProvider, make_topic: MakeTopic
) -> None:
    """Of each mechanism, side by side: longer than a session, without a batch that has to be sent again."""

    async def write(mechanism: str) -> None:
        topic = await make_topic(f"write-{mechanism}", cluster=cluster)
        settings, login, source = login_by(mechanism, cluster, provider)
        retries: list[str] = []
        async with running(producer_for(settings, login, topic, retries)) as producer:
            count = await write_for(1.5 * SESSION_S, producer, topic)
        assert retries == []
        await all_there(cluster, topic, count)
        if source is not None:
            assert len(source.made) >= 3, "one token of three seconds lasted for twelve"

    with capture_logs() as lines:
        await asyncio.gather(*(write(mechanism) for mechanism in ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER")))
    assert [line for line in lines if line["log_level"] in {"warning", "error"}] == []


async def test_readers_outlive_their_sessions(
    cluster: SecuredKafka, provider: IdentityProvider, make_topic: MakeTopic
) -> None:
    """A verification may take longer than a session, and asks through two clients."""

    async def read(mechanism: str) -> None:
        topic = await make_topic(f"read-{mechanism}", cluster=cluster)
        settings, login, _ = login_by(mechanism, cluster, provider)
        async with running(producer_for(settings, login, topic, [])) as producer:
            assert await sent(producer, topic, values(b"x")) is None
        async with KafkaReader(settings, "test", login) as reader:
            end, looks = time.monotonic() + 1.5 * SESSION_S, 0
            while time.monotonic() < end or looks < 6:
                view = await reader.topic(topic)
                assert view is not None
                assert view.partitions[0].end == 1
                assert [len(records) async for records in reader.records(topic, 0, 0, 1)] == [1]
                looks += 1
                await asyncio.sleep(0.2)

    await asyncio.gather(read("SCRAM-SHA-512"), read("OAUTHBEARER"))


async def test_a_session_that_the_broker_ends_costs_a_repetition_and_loses_nothing(
    cluster: SecuredKafka, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would happen without renewal, and does when it fails: this is what aiokafka makes of KIP-368."""
    monkeypatch.setattr(kafka_client, "RENEW_AT", (100.0, 100.0))
    topic = await make_topic(cluster=cluster)
    settings = settings_for(cluster, "SASL_PLAINTEXT", {**USER, "mechanism": "PLAIN"})
    retries: list[str] = []
    async with running(producer_for(settings, KafkaLogin(settings), topic, retries)) as producer:
        count = await write_for(1.5 * SESSION_S, producer, topic)
    assert retries
    await all_there(cluster, topic, count)


async def test_without_new_tokens_batches_wait_for_one(
    cluster: SecuredKafka, provider: IdentityProvider, make_topic: MakeTopic
) -> None:
    """The connection is kept for as long as the broker takes it; then what is to be sent waits for a token."""
    topic = await make_topic(cluster=cluster)
    settings = settings_for(cluster, "SASL_PLAINTEXT", OAUTH)
    source = tokens(provider, lifetime_s=3)
    retries: list[str] = []
    async with running(producer_for(settings, KafkaLogin(settings, source), topic, retries)) as producer:
        assert await sent(producer, topic, values(b"0")) is None
        source.broken = "The identity provider is away."
        count, began = 1, time.monotonic()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = asyncio.ensure_future(sent(producer, topic, values(b"%d" % count)))
                count += 1
                await asyncio.wait([answer], timeout=1)
                if retries and not answer.done():
                    break
                assert await answer is None
        assert time.monotonic() - began > 2, "the token's life was not used"
        source.broken = ""
        assert await answer is None
    assert retries
    await all_there(cluster, topic, count)


async def test_a_connection_that_cannot_be_replaced_is_kept(
    cluster: SecuredKafka, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The file has another password than the broker: what stands goes on, is tried again, counted, and said once."""
    topic = await make_topic(cluster=cluster)
    file = tmp_path / "password"
    file.write_text(USER["password"])
    sasl = {"username": USER["username"], "password": FileSecret(USER["password"], file)}
    settings = settings_for(cluster, "SASL_PLAINTEXT", sasl)
    failures: list[float] = []
    login = KafkaLogin(settings, not_renewed=lambda: failures.append(time.monotonic()))
    retries: list[str] = []
    with capture_logs() as lines:
        async with running(producer_for(settings, login, topic, retries)) as producer:
            file.write_text("not yet the broker's")
            async with asyncio.timeout(DEADLINE_S):
                while len(failures) < 2:
                    assert await sent(producer, topic, values(b"x")) is None
                    await asyncio.sleep(0.01)
            assert retries == []
            file.write_text(USER["password"])
            await write_for(SESSION_S, producer, topic)
    assert retries == []
    said = [line for line in lines if line["event"] == "broker_connection_not_renewed"]
    assert len(said) == len(failures)
    assert "not yet" not in str(lines)


# --- files that change ------------------------------------------------------------------------------------------------


async def test_a_rotated_password_is_shown_by_the_next_connection(
    cluster: SecuredKafka, make_topic: MakeTopic, tmp_path: Path, unique: str
) -> None:
    def set_password(text: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(unique, info, text.encode())
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for answer in admin.alter_user_scram_credentials([change]).values():
            answer.result(DEADLINE_S)

    topic = await make_topic(cluster=cluster)
    await asyncio.to_thread(set_password, "first")
    file = tmp_path / "password"
    file.write_text("first")
    settings = settings_for(cluster, "SASL_PLAINTEXT", {"username": unique, "password": FileSecret("first", file)})

    async def is_known() -> bool:
        with contextlib.suppress(RefusedError):
            return bool(await cluster_id(settings, "outward-test", KafkaLogin(settings)))
        return False

    await until(is_known, "the broker knows the user, a moment after the controller")
    retries: list[str] = []
    login = KafkaLogin(settings)
    async with running(producer_for(settings, login, topic, retries)) as producer:
        first = await write_for(0.2, producer, topic)
        file.write_text("second")
        await asyncio.to_thread(set_password, "second")
        with capture_logs() as lines:  # the next session shows the new one
            count = 0
            end = time.monotonic() + SESSION_S * 1.2
            while time.monotonic() < end:
                assert await sent(producer, topic, values(b"%d" % (first + count))) is None
                count += 1
                await asyncio.sleep(0.02)
    assert "secret_file_changed" in [line["event"] for line in lines]
    assert retries == []
    await all_there(cluster, topic, first + count)


async def test_client_certificates_follow_their_files(tmp_path: Path, unique: str) -> None:
    """A broker that asks for one: not with a stranger's, nor with a key that does not fit, then with the right one."""
    ours, strangers = Authority(tmp_path / "ours"), Authority(tmp_path / "strangers")
    settings = {"ssl.client.auth": "required", "ssl.truststore.location": str(ours.ca_file)}
    with SecuredKafka(tls=True, settings=settings) as cluster:
        bad, good = strangers.issue("gateway"), ours.issue("gateway")
        certificate, key = tmp_path / "client.crt", tmp_path / "client.key"
        certificate.write_bytes(bad.certificate.read_bytes())
        key.write_bytes(bad.key.read_bytes())
        shown = {"ca_file": cluster.certificates.ca_file, "certificate_file": certificate, "key_file": key}
        kafka = kafka_settings(cluster.tls_bootstrap, security="SSL", tls=shown, request_timeout="30s")
        login = KafkaLogin(kafka)
        with pytest.raises(UnreachableError):
            await cluster_id(kafka, unique, login)
        certificate.write_bytes(good.certificate.read_bytes())
        with capture_logs() as lines, pytest.raises(UnreachableError):  # half of it is there
            await cluster_id(kafka, unique, login)
        assert "tls_files_not_usable" in [line["event"] for line in lines]
        key.write_bytes(good.key.read_bytes())
        with capture_logs() as lines:
            assert await cluster_id(kafka, unique, login)
        assert [line["event"] for line in lines] == ["tls_files_changed"]


def test_the_administration_shows_a_token(cluster: SecuredKafka, provider: IdentityProvider, tmp_path: Path) -> None:
    """From the file that somebody keeps fresh, read for each connection that needs one."""
    file = tmp_path / "token"
    sasl = {"mechanism": "OAUTHBEARER", "token": {"file": str(file)}}
    kafka = {"bootstrap_servers": cluster.sasl_bootstrap.split(",")}
    settings = Settings.model_validate({"kafka": kafka, "admin": {"security": "SASL_PLAINTEXT", "sasl": sasl}})
    claims = {"sub": "gateway", "aud": "kafka"}
    file.write_text(provider.sign(claims | {"aud": "other"}, lifetime_s=60))
    with KafkaAdmin(settings) as admin:
        with pytest.raises(AdminRefusedError) as failure:
            admin.cluster()
        assert "does not let the token of admin.sasl.token in" in str(failure.value)
        assert "issuer" in str(failure.value)
        file.write_text(provider.sign(claims, lifetime_s=60))
        assert [broker.id for broker in admin.brokers()] == [1]
