"""Whole processes with a recognisable text for every secret, and a search for it in all that they say and show."""

import base64
import contextlib
import http.client
import http.server
import json
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from config.errors import ExitStatus
from tests.asking import exchange
from tests.brokers.packets import Connect, Message
from tests.brokers.scripted_rules import Rules
from tests.brokers.secured import SecuredKafka, TokenCheck
from tests.chaos.fixtures import MakeGateway
from tests.chaos.harness import Gateway, read_topic, run_to_end, settle_account
from tests.chaos.threaded import ThreadedBroker
from tests.servers.identity_provider import IdentityProvider
from tests.waiting import wait_until

MARK = "kanarie"
MQTT, MQTT_NEXT, KAFKA, WRONG, HMAC = (f"{MARK}-{what}-0x5ec7e7" for what in ("mqtt", "next", "kafka", "bad", "hmac"))
PATHS = ("/status", "/metrics", "/readyz", "/healthz", "/nowhere")
HTTP, EMQX, ADMIN = (f"{MARK}-{what}-0x5ec7e7" for what in ("http", "emqx", "admin"))
LEAKING = "tests.integration.leaking_interceptor:Leaking"


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as provider:
        provider.clients = {"gateway": f"{MARK}-client-0x5ec7e7"}
        yield provider


@pytest.fixture(scope="module")
def cluster(provider: IdentityProvider) -> Iterator[SecuredKafka]:
    check = TokenCheck(provider.jwks_url, "kafka")
    settings = {"connections.max.reauth.ms": "20000"}
    with SecuredKafka(sasl=True, users={"gateway": KAFKA}, tokens=check, settings=settings) as cluster:
        yield cluster


class Heard:
    """Everything that was said or shown, by where."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = [MARK, *secrets]
        self.looked_at: dict[str, int] = {}

    def check(self, where: str, text: str) -> None:
        """Fails when there is a secret in it."""
        self.looked_at[where] = self.looked_at.get(where, 0) + len(text)
        for secret in self.secrets:
            at = text.find(secret)
            assert at < 0, f"{where} tells a secret: …{text[max(0, at - 200) : at + 60]}…"

    def check_answers(self, gateway: Gateway) -> None:
        for path in PATHS:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.check(path, gateway.get(path)[1])

    def check_processes(self, pid: int, given: Iterable[str] = ()) -> list[int]:
        """Titles, command lines and environments of a process and all below it; ``given``: the variables in which the
        user has put secrets. Returns their ids."""
        found = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in found:
            folder = Path("/proc") / str(process.pid)
            for name in ("cmdline", "comm", "environ"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a child that has ended
                    lines = (folder / name).read_bytes().decode(errors="replace").split("\0")
                    if name == "environ":
                        lines = [line for line in lines if line.partition("=")[0] not in set(given)]
                    self.check(name, "\n".join(lines))
        return [process.pid for process in found]

    def check_files(self, folder: Path, *, but: Iterable[Path] = ()) -> None:
        for file in folder.rglob("*"):
            if file.is_file() and file not in set(but):
                self.check(f"file {file.name}", file.read_bytes().decode(errors="replace"))


def kafka_table(cluster: SecuredKafka, **sasl: Any) -> dict[str, Any]:
    table = {"username": "gateway", "mechanism": "SCRAM-SHA-512", **sasl}
    return {
        "bootstrap_servers": [cluster.sasl_bootstrap],
        "security": "SASL_PLAINTEXT",
        "sasl": {name: value for name, value in table.items() if value is not None},
        "topics": {"create": True, "partitions": 1, "replication": 1},
    }


def publish(broker: ThreadedBroker, text: str) -> None:
    broker.call(lambda: broker.broker.publish(Message("devices/1", text.encode(), 1, publisher="device-1")))


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_gateway_that_works_fails_and_crashes_tells_nothing(
    form: str, cluster: SecuredKafka, make_gateway: MakeGateway, unique: str, tmp_path: Path
) -> None:
    """Secrets from the secrets directory, a file and the environment; a plug-in's failure and a crash; a rotation."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "mqtt__password").write_text(MQTT)
    (secrets / "hmac").write_text(HMAC)
    heard = Heard()
    rules = Rules(users={"gateway": MQTT.encode()})
    with ThreadedBroker(rules) as broker:
        gateway = make_gateway(
            broker.port, cluster.sasl_bootstrap, unique, workers=1,
            mqtt={"username": "gateway", "sessions": 2, "reconnect_initial": "50ms"},
            kafka=kafka_table(cluster), log={"format": form, "level": "debug"},
            interceptors=[
                {"use": "mask", "method": "hmac", "fields": ["device"], "secret_file": str(secrets / "hmac")},
                {"use": LEAKING, "secret_file": str(secrets / "hmac"), "on_error": "dead_letter"},
            ],
        )  # fmt: skip
        gateway.environment = {
            "GATEWAY_SECRETS_DIR": str(secrets), "GATEWAY_KAFKA__SASL__PASSWORD": KAFKA, "PYTHONFAULTHANDLER": "1",
        }  # fmt: skip
        gateway.start()
        given = ["GATEWAY_KAFKA__SASL__PASSWORD"]
        assert len(heard.check_processes(gateway.process.pid, given)) >= 2
        publish(broker, '{"device": "d1", "text": "fail"}')
        publish(broker, '{"device": "d1"}')
        publish(broker, "no JSON")
        wait_until(gateway.settled, "all is settled")
        heard.check_answers(gateway)

        rules.users = {"gateway": MQTT_NEXT.encode()}  # the broker first: what is shown meanwhile is refused
        broker.call(lambda: [link.transport.abort() for link in broker.broker.links])
        wait_until(lambda: not gateway.ready(), "the old password is refused")
        heard.check_answers(gateway)
        (secrets / "mqtt__password").write_text(MQTT_NEXT)
        wait_until(gateway.ready, "the new password is taken")

        (worker,) = gateway.pids()
        publish(broker, '{"device": "d1", "text": "crash"}')
        wait_until(lambda: gateway.pids() != [worker], "the worker has crashed")
        heard.check_answers(gateway)
        heard.check_processes(gateway.process.pid, given)
        for name in ("config show", "config show --json", "config check", "dlq list", "verify"):
            said = gateway.command(*name.split())[1]
            assert said
            heard.check(name, said)
        gateway.kill()
        heard.check_files(tmp_path, but=[secrets / "mqtt__password", secrets / "hmac"])
    log = gateway.log_file.read_text(errors="replace")
    assert "Fatal Python error" in log, "there was no crash to look at"
    assert "ValueError: failed with" in log, "there was no traceback to look at"
    heard.check("log", log)
    assert heard.looked_at["/metrics"] > 10_000
    assert heard.looked_at["log"] > 2_000


class Echo(http.server.BaseHTTPRequestHandler):
    """An EMQX that refuses, and says again all that it was shown, in clear too."""

    def do_GET(self) -> None:
        shown = self.headers.get("Authorization", "")
        clear = base64.b64decode(shown.partition(" ")[2]).decode()
        text = json.dumps({"code": "BAD_API_KEY_OR_SECRET", "message": f"{shown} {clear}", "reason": clear})
        self.send_response(401, f"no {clear}")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("WWW-Authenticate", f'Basic realm="{clear}"')
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def echoing() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def ask(gateway: Gateway, path: str, **headers: str) -> tuple[int, str]:
    status, shown, body = exchange(gateway.http_port, path, headers=headers)
    return status, shown + body.decode()


LOOKS = (
    "topics apply --yes", "topics delete {topic}-more --yes", "topics describe {topic}",
    "cluster describe", "explain devices/1 {{}} --json", "reload --json",
    "tail --no-follow --from beginning",
)  # fmt: skip


def test_what_an_operator_asks_tells_no_login(
    cluster: SecuredKafka, make_gateway: MakeGateway, unique: str, tmp_path: Path
) -> None:
    """http.token, emqx.api_secret and admin.sasl.password: on the port, in every command, in every file left behind;
    good ones, then ones that are refused, by a reload that changes them."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    token = secrets / "http__token"
    token.write_text(HTTP)
    heard = Heard(base64.b64encode(f"key:{EMQX}".encode()).decode(), base64.b64encode(f"any:{HTTP}".encode()).decode())
    with ThreadedBroker(Rules(users={"gateway": MQTT.encode()})) as broker, echoing() as url:
        tables: dict[str, Any] = {
            "mqtt": {"username": "gateway", "password": MQTT, "sessions": 1},
            "kafka": kafka_table(cluster, password=KAFKA),
            "admin": {
                "security": "SASL_PLAINTEXT",
                "sasl": {"mechanism": "SCRAM-SHA-512", "username": "gateway", "password": KAFKA},
            },
            "emqx": {"url": url, "api_key": "key", "api_secret": EMQX, "interval": "1s", "timeout": "1s"},
            "log": {"format": "json", "level": "debug"},
        }
        tables["kafka"]["topics"]["declare"] = [{"name": f"{unique}-more", "partitions": 1, "replication": 1}]
        gateway = make_gateway(broker.port, cluster.sasl_bootstrap, unique, workers=1, **tables)
        gateway.environment = {"GATEWAY_SECRETS_DIR": str(secrets)}
        gateway.start()
        bearer = {"Authorization": f"Bearer {HTTP}"}
        publish(broker, '{"device": "d1"}')
        wait_until(lambda: "BAD_API_KEY_OR_SECRET" in ask(gateway, "/status", **bearer)[1], "EMQX has refused the key")
        for path in (*PATHS, "/", "/runbook"):
            heard.check(path, ask(gateway, path, **bearer)[1])
            for wrong in (f"Bearer {HTTP}x", "Basic " + base64.b64encode(f"any:{HTTP}x".encode()).decode(), HTTP):
                status, said = ask(gateway, path, Authorization=wrong)
                assert status in {200, 401, 404, 503}
                assert status != 200 or path in {"/healthz", "/readyz"}
                heard.check(f"{path} with a wrong token", said)
        heard.check_processes(gateway.process.pid)
        for words in LOOKS:
            said = gateway.command(*words.format(topic=unique).split())[1]
            assert said, words
            assert "Traceback" not in said, said
            heard.check(words, said)
        audit = (gateway.log_file.parent / "data" / "admin.log").read_text()
        assert audit.count("\n") >= 4, "two actions, two lines each"

        tables["admin"]["sasl"]["password"] = ADMIN  # which is wrong
        tables["emqx"]["api_secret"] = f"{EMQX}-other"
        tables["mqtt"]["password"] = MQTT_NEXT
        gateway.configure(admin=tables["admin"], emqx=tables["emqx"], mqtt=tables["mqtt"])
        for words in ("reload", "doctor --timeout 2 --json"):
            heard.check(words, said := gateway.command(*words.split())[1])
            assert "Traceback" not in said, said
            if words.startswith("reload"):
                assert "mqtt.password" in said
                assert "emqx.api_secret" in said
        heard.check("/status", ask(gateway, "/status", **bearer)[1])
        gateway.kill()
        settings_file = gateway.log_file.with_name("gateway.toml")
        heard.check_files(tmp_path, but=[token, settings_file])
    heard.check("log", log := gateway.log_file.read_text(errors="replace"))
    assert "http_token_wrong" in log
    assert "emqx_not_watched" in log


REFUSALS: dict[str, dict[str, Any]] = {
    "MQTT password": {"mqtt": {"username": "gateway", "password": WRONG}},
    "Kafka SCRAM password": {"sasl": {"password": WRONG}},
    "Kafka PLAIN password": {"sasl": {"password": WRONG, "mechanism": "PLAIN"}},
    "Kafka token": {
        "sasl": {"username": None, "mechanism": "OAUTHBEARER", "token": {"value": WRONG}, "extensions": {"x": "y"}}
    },
    "MQTT token": {"mqtt": {"username": "gateway", "token": {"value": WRONG}}},
}


@pytest.mark.parametrize(
    ("case", "workers"), [*((case, 1) for case in REFUSALS), ("MQTT token", 0), ("Kafka token", 0)]
)
def test_a_refusal_names_the_setting_and_not_the_secret(
    case: str, workers: int, cluster: SecuredKafka, tmp_path: Path, unique: str
) -> None:
    changes = json.loads(json.dumps(REFUSALS[case]))
    sasl = {"password": KAFKA, **changes.get("sasl", {})}
    if "token" in sasl:
        del sasl["password"]
    heard = Heard()
    with ThreadedBroker(Rules(users={"gateway": b"right"})) as broker:
        address = f"mqtt://127.0.0.1:{broker.port}"
        status, said = run_to_end(
            tmp_path,
            {
                "workers": workers,
                "mqtt": {"addresses": [address], "sessions": 1, "username": "gateway", **changes.get("mqtt", {})},
                "kafka": kafka_table(cluster, **sasl),
                "spool": {"enabled": False},
                "log": {"level": "debug", "format": "json"},
                "http": {"port": 0},
                "routes": [{"name": "telemetry", "filters": ["devices/#"], "topic": unique}],
            },
        )
        connects = broker.call(lambda: len(broker.broker.connects))
    heard.check("stderr", said)
    assert status == ExitStatus.REFUSED == 77, said
    assert bool(connects) is case.startswith("MQTT"), "no message is taken that could not be delivered"
    assert "Traceback" not in said
    setting = {"MQTT password": "mqtt.password", "MQTT token": "mqtt.token"}.get(case, "kafka.sasl")
    assert setting in said[said.rindex("gateway: ") :], said
    heard.check_files(tmp_path, but=[tmp_path / "gateway.toml"])


def oauth_tables(provider: IdentityProvider, cluster: SecuredKafka, secret: Path) -> dict[str, Any]:
    """Tokens for both sides from the identity provider."""

    def token(audience: str) -> dict[str, Any]:
        client = {"token_url": provider.token_url, "client_id": "gateway", "client_secret_file": str(secret)}
        return {"oauth": {**client, "audience": audience}, "renew_at": 0.35}

    kafka = kafka_table(cluster, username=None, mechanism="OAUTHBEARER", token=token("kafka"))
    mqtt = {"username": "gateway", "sessions": 2, "reconnect_initial": "50ms", "token": token("emqx")}
    return {"kafka": kafka, "mqtt": mqtt, "log": {"format": "json", "level": "debug"}}


class TokenBroker(ThreadedBroker):
    """Lets in whoever shows a token of the provider's that has not expired, and ends connections whose token has."""

    def __init__(self, provider: IdentityProvider, lifetime_s: float) -> None:
        super().__init__(Rules(check=self._check))
        self._provider = provider
        self._lifetime_s = lifetime_s
        self._seen: dict[bytes, float] = {}
        self.expired = 0

    def _check(self, connect: Connect) -> int | None:
        token = connect.password or b""
        began = self._seen.setdefault(token, time.monotonic())
        good = token.decode() in self._provider.issued and time.monotonic() - began < self._lifetime_s
        return None if good else 0x86

    def end_expired(self) -> None:
        """As EMQX does at the token's expiry."""
        for link in list(self.broker.links):
            if link.connect is not None and not link.transport.is_closing():
                token = link.connect.password or b""
                if time.monotonic() - self._seen[token] > self._lifetime_s:
                    self.expired += 1
                    link.end(0xA0)


def test_tokens_of_both_sides_are_renewed_and_told_by_nothing(
    cluster: SecuredKafka, provider: IdentityProvider, make_gateway: MakeGateway, unique: str, tmp_path: Path
) -> None:
    """Two workers, tokens of 20 s, a load for 25 s: no connection ends for a token, nothing is lost or copied."""
    secret = tmp_path / "client-secret"
    secret.write_text(provider.clients["gateway"])
    provider.claims, provider.lifetime_s = {"sub": "gateway"}, 20
    first = len(provider.issued)
    with TokenBroker(provider, 20.5) as broker:
        gateway = make_gateway(
            broker.port, cluster.sasl_bootstrap, unique, workers=2,
            ledger={"topic": f"{unique}-ledger"},  # other tests' gateways have the same name
            **oauth_tables(provider, cluster, secret),
        )  # fmt: skip
        gateway.start()
        broker.start_load(200, devices=20)
        end = time.monotonic() + 25
        while time.monotonic() < end:
            broker.call(broker.end_expired)
            time.sleep(0.05)
        published = broker.stop_load()
        wait_until(broker.drained, "all is acknowledged")
        wait_until(gateway.settled, "all is settled")
        heard = Heard(*provider.issued[first:])
        heard.check_answers(gateway)
        assert len(heard.check_processes(gateway.process.pid)) >= 3
        renewed = sum(
            n for labels, n in gateway.samples("gateway_mqtt_renewals_total").items() if '"renewed"' in labels
        )
        assert renewed >= 4, "each of four sessions once at least"
        assert gateway.metric("gateway_kafka_retries_total") == 0
        assert gateway.metric("gateway_kafka_renewal_failures_total") == 0
        expiry, now = gateway.samples("gateway_credential_expiry_timestamp_seconds"), time.time()
        for credential in ("mqtt_token", "kafka_token"):
            ends = [value for labels, value in expiry.items() if f'"{credential}"' in labels]
            assert len(ends) == 2, expiry
            assert all(now < value < now + 21 for value in ends), (now, expiry)
        for name in ("config show", "config show --json", "dlq list", "verify"):
            heard.check(name, gateway.command(*name.split())[1])
        assert gateway.command("verify")[0] == 0
        assert gateway.stop() in {0, -signal.SIGTERM}
    assert broker.expired == 0
    assert len(provider.issued) - first >= 8, "two sides of two workers, and again"
    heard.check("log", gateway.log_file.read_text(errors="replace"))
    heard.check_files(tmp_path, but=[secret])
    account = settle_account(published, read_topic(cluster.bootstrap, unique))
    assert (account.missing, account.copies, account.strangers) == ([], 0, []), str(account)


def test_a_refused_client_secret_is_waited_for_and_told_by_nothing(
    cluster: SecuredKafka, provider: IdentityProvider, make_gateway: MakeGateway, unique: str, tmp_path: Path
) -> None:
    """Nothing says that it will not be good in a moment: then the gateway is there, without a restart."""
    secret = tmp_path / "client-secret"
    secret.write_text(WRONG)
    provider.claims, provider.lifetime_s = {"sub": "gateway"}, 300
    heard = Heard()
    with TokenBroker(provider, 300) as broker:
        gateway = make_gateway(
            broker.port, cluster.sasl_bootstrap, unique, workers=0, spool={"enabled": False},
            **oauth_tables(provider, cluster, secret),
        )  # fmt: skip
        gateway.start(ready=False)
        wait_until(lambda: gateway.events("kafka_not_ready"), "it says that there is no token")
        heard.check_answers(gateway)
        heard.check_processes(gateway.process.pid)
        assert gateway.samples("gateway_token_failures_total")['{side="kafka"}'] >= 1
        secret.write_text(provider.clients["gateway"])
        gateway.wait_ready()
        heard.check_answers(gateway)
        gateway.kill()
    assert "kafka.sasl.token.oauth" in gateway.events("kafka_not_ready")[0]["error"]
    heard.check("log", gateway.log_file.read_text(errors="replace"))


def test_an_identity_provider_that_is_away_for_longer_than_a_token_lives_costs_no_message(
    cluster: SecuredKafka, provider: IdentityProvider, make_gateway: MakeGateway, unique: str, tmp_path: Path
) -> None:
    """The present tokens are used to their end; both brokers then let nobody in; all comes back by itself."""
    secret = tmp_path / "client-secret"
    secret.write_text(provider.clients["gateway"])
    provider.claims, provider.lifetime_s = {"sub": "gateway"}, 6
    first = len(provider.issued)
    with TokenBroker(provider, 6.5) as broker:
        gateway = make_gateway(
            broker.port, cluster.sasl_bootstrap, unique, workers=0, **oauth_tables(provider, cluster, secret)
        )
        gateway.start()
        broker.start_load(50, devices=10)
        provider.token_fault = "error"
        try:

            def away() -> bool:
                broker.call(broker.end_expired)
                return broker.expired >= 2 and not gateway.ready()

            wait_until(away, "the tokens have ended, and the broker let nobody in")
            wait_until(lambda: gateway.metric("gateway_token_failures_total") >= 2, "it asks again")
            wait_until(lambda: "mqtt.token.oauth" in " ".join(gateway.reasons()), "/readyz says where to look")
        finally:
            provider.token_fault = ""
        wait_until(gateway.ready, "it comes back by itself")
        published = broker.stop_load()
        wait_until(broker.drained, "all is acknowledged")
        wait_until(gateway.settled, "all is settled")
        assert gateway.metric("gateway_ledger_imbalance") == 0
        gateway.kill()
    Heard(*provider.issued[first:]).check("log", gateway.log_file.read_text(errors="replace"))
    account = settle_account(published, read_topic(cluster.bootstrap, unique))
    assert (account.missing, account.strangers) == ([], []), str(account)
