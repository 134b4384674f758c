"""The embedded MQTT broker asks a service who may connect and what a client may do; closed without its answer."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gateway.local.embedded.access import AccessClient, AccessEndpoint, Login
from gateway.local.embedded.mqtt import MqttBroker
from tests.brokers.client import Client, RefusedError
from tests.waiting import DEADLINE_S

SECRET = "of-the-test"


class Service(ThreadingHTTPServer):
    """Lets in who has his own name as password, to topics below his name; ``root`` to all. Counts the questions."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.status = 200
        self.body: bytes | None = None
        self.gate = threading.Event()  # cleared: the service is frozen
        self.gate.set()
        self.hang_up = 0

    @property
    def access(self) -> AccessEndpoint:
        return AccessEndpoint(self.server_address[1], SECRET)

    def answer(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        name = question["username"]
        if path == "/authn":
            if question["password"] != name:
                return {"result": "deny"}
            attributes = {"tenant": "acme", "groups": "a,b", "site": "berlin"}
            return {"result": "allow", "is_superuser": name == "root", "client_attrs": attributes}
        topic = question["topic"].removeprefix("$share/g/")
        return {"result": "allow" if topic.startswith(f"{name}/") else "deny"}


class _Handler(BaseHTTPRequestHandler):
    server: Service
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.gate.wait()
        if self.server.hang_up:
            self.server.hang_up -= 1
            self.close_connection = True
            return
        self.server.asked.append((self.path, question))
        status = self.server.status if self.headers["authorization"] == f"Bearer {SECRET}" else 401
        answered = self.server.body
        if answered is None:
            answered = json.dumps(self.server.answer(self.path, question)).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(answered)))
        self.end_headers()
        self.wfile.write(answered)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
        pass


@contextlib.contextmanager
def serving() -> Iterator[Service]:
    with Service() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.gate.set()
        made.shutdown()
        thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def module_service() -> Iterator[Service]:
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def broker(module_service: Service) -> Iterator[MqttBroker]:
    with MqttBroker(access=module_service.access) as made:
        yield made


@pytest.mark.parametrize("version", [4, 5])
def test_a_client_may_what_the_service_allows(broker: MqttBroker, module_service: Service, version: int) -> None:
    module_service.asked.clear()
    with Client(broker.port, user=("d1", "d1"), client_id=f"c{version}", version=version) as client:
        client.subscribe("d1/#", 1)
        client.publish("d1/a", b"x", 1)
        assert client.receive().payload == b"x"
    (path, login), (_, subscribe), (_, publish) = module_service.asked
    assert path == "/authn"
    assert login == {"username": "d1", "clientid": f"c{version}", "password": "d1", "peerhost": "127.0.0.1"}
    assert subscribe["topic"] == "d1/#"
    assert publish == {
        "username": "d1", "clientid": f"c{version}", "peerhost": "127.0.0.1", "topic": "d1/a", "action": "publish",
        "qos": "1", "retain": "false", "tenant": "acme", "groups": "a,b", "attr_site": "berlin",
    }  # fmt: skip


@pytest.mark.parametrize("user", [("d1", "wrong"), ("", ""), None])
def test_who_is_not_known_is_refused(broker: MqttBroker, user: tuple[str, str] | None) -> None:
    # Without a user name the service above would let in who has none as password, too: not so the real one.
    if user is None or not user[0]:
        user = ("nobody", "")
    with pytest.raises(RefusedError, match="Not authorized"):
        Client(broker.port, user=user)


def test_topics_of_others_are_denied(broker: MqttBroker) -> None:
    with Client(broker.port, user=("d1", "d1"), version=5) as client:
        with pytest.raises(RefusedError):
            client.subscribe("d2/#", 1)
        with pytest.raises(RefusedError):
            client.subscribe("$share/g/d2/#", 1)
        client.subscribe("$share/g/d1/#", 1)
        assert client.publish_refused("d2/a", b"x")
        assert client.closed.wait(DEADLINE_S), "this broker ends the connection of who publishes what he may not"


def test_answers_are_kept_for_a_client(broker: MqttBroker, module_service: Service) -> None:
    with Client(broker.port, user=("d3", "d3"), version=5) as client:
        module_service.asked.clear()
        for number in range(5):
            client.publish("d3/a", b"%d" % number, 1)
    assert [question["topic"] for _, question in module_service.asked] == ["d3/a"]


def test_a_service_that_does_not_answer_lets_nobody_in(broker: MqttBroker, module_service: Service) -> None:
    with Client(broker.port, user=("d4", "d4"), version=5) as client:
        module_service.status = 500
        try:
            with pytest.raises(RefusedError):
                Client(broker.port, user=("d5", "d5"))
            assert client.publish_refused("d4/new", b"x")
        finally:
            module_service.status = 200
    with Client(broker.port, user=("d4", "d4"), version=5) as client:
        client.publish("d4/new", b"x", 1)  # what was no answer is not remembered


# --- the client alone ------------------------------------------------------------------------------------------------

LOGIN = Login("d1", "c1", "127.0.0.1", {"tenant": "acme"})


@pytest.fixture
def client(service: Service) -> AccessClient:
    return AccessClient(service.access)


def test_a_login_survives_being_kept_as_text() -> None:
    login = Login("ü", 'c"', "::1", {"a": "b,c"}, is_superuser=True, expires_at_s=17)
    assert Login.from_json(login.to_json()) == login


def test_it_shows_the_secret_and_knows_a_no(service: Service, client: AccessClient) -> None:
    assert AccessClient(AccessEndpoint(service.access.port, "wrong")).login("d1", "c", "d1", "::1") is None
    assert client.login("d1", "c", "d1", "::1") is not None
    assert client.may(LOGIN, "publish", "d1/a", 0, retain=False)
    assert not client.may(LOGIN, "publish", "d2/a", 0, retain=False)
    assert client.known(LOGIN, "publish", "d2/a", 0, retain=False) is False
    assert client.known(LOGIN, "publish", "d1/a", 1, retain=False) is None
    assert "of-the-test" not in repr(service.access)


@pytest.mark.parametrize(("status", "body"), [
    (204, b""),
    (403, b'{"result": "allow"}'),
    (200, b"{"),
    (200, b"[]"),
    (200, b'{"result": "ignore"}'),
    (200, b'{"result": true}'),
    (200, b'{"result": "allow", "client_attrs": []}'),
    (200, b'{"result": "allow", "expire_at": "soon"}'),
    (200, b'{"result": "allow", "expire_at": 1}'),
])  # fmt: skip
def test_what_is_no_clear_allow_lets_none_in(service: Service, client: AccessClient, status: int, body: bytes) -> None:
    service.status, service.body = status, body
    assert client.login("d1", "c", "d1", "::1") is None


def test_a_service_that_hangs_up_lets_nobody_in(service: Service, client: AccessClient) -> None:
    service.hang_up = 1
    assert client.login("d1", "c", "d1", "::1") is None
    assert client.login("d1", "c", "d1", "::1") is not None


def test_a_login_that_is_over_allows_nothing(service: Service, client: AccessClient) -> None:
    over = Login("d1", "c1", "::1", {}, is_superuser=True, expires_at_s=int(time.time()) - 1)
    assert not client.may(over, "publish", "d1/a", 0, retain=False)
    assert service.asked == []
