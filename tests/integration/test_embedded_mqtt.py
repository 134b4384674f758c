"""The embedded MQTT brokers are real ones: what the gateway relies on, on the default broker and on mosquitto."""

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gateway.local.embedded.mqtt import MqttBroker
from gateway.local.runtime.cache import cache_directory
from gateway.local.runtime.errors import EmbeddedError, PortTakenError, StartError
from tests.brokers.client import Client
from tests.brokers.mosquitto import Mosquitto
from tests.brokers.secured import SecuredMqtt
from tests.waiting import DEADLINE_S

Broker = SecuredMqtt | Mosquitto


@pytest.fixture(scope="module", params=["hivemq", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Each broker with all its listeners."""
    made: Broker = SecuredMqtt(tls=True) if request.param == "hivemq" else Mosquitto(tls=True)
    with made:
        yield made


def test_a_persistent_session_is_kept_while_away(broker: Broker, unique: str) -> None:
    with Client(broker.port, client_id=unique, clean=False) as away:
        assert not away.session_present
        away.subscribe(f"{unique}/#")
    with Client(broker.port) as publisher:
        for number in range(1500):  # more than the default of most brokers keeps
            publisher.paho.publish(f"{unique}/a", b"%d" % number, 1)
        publisher.publish(f"{unique}/a", b"last")
    with Client(broker.port, client_id=unique, clean=False) as back:
        assert back.session_present
        received = [back.receive().payload for _ in range(1501)]
    assert received == [*(b"%d" % number for number in range(1500)), b"last"]


def test_the_window_is_as_large_as_the_client_asks(broker: Broker, unique: str) -> None:
    """A client that acknowledges nothing gets 300 messages; the embedded broker's own limit would be 50.

    They wait before it comes: HiveMQ sends nothing more to a client that owes an acknowledgement, so the window of one
    that is there already is whatever had come when it was last owed none.
    """
    with Client(broker.port, client_id=unique, clean=False) as away:
        away.subscribe(f"{unique}/#")
    with Client(broker.port) as publisher:
        for number in range(400):
            publisher.publish(f"{unique}/a", b"%d" % number)
    with Client(broker.port, client_id=unique, clean=False, receive_maximum=300, manual_ack=True) as back:
        assert [back.receive().payload for _ in range(300)] == [b"%d" % number for number in range(300)]


def test_every_socket_is_bound_to_loopback(broker: Broker) -> None:
    listening = [c.laddr for c in psutil.Process(broker.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    ports = {broker.port, broker.websocket_port, broker.tls_port, broker.wss_port}
    assert {address.port for address in listening} == ports
    assert {address.ip for address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_a_stop_closes_the_connections_and_leaves_the_next_start_its_classes(
    make_mqtt_broker: Callable[..., SecuredMqtt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jars", "java"):
        (tmp_path / name).symlink_to(cache_directory() / name)
    monkeypatch.setenv("GATEWAY_CACHE", str(tmp_path))
    broker = make_mqtt_broker()
    with Client(broker.port) as client:
        broker.stop()
        assert client.closed.wait(DEADLINE_S), "the client did not notice"
    with pytest.raises(EmbeddedError, match="not started"):
        _ = broker.port
    (archive,) = (tmp_path / "hivemq").glob("*.jsa")
    broker.start()
    assert str(archive) in {file.path for file in psutil.Process(broker.pid).memory_maps()}


def test_a_taken_port_is_told(mqtt_broker: MqttBroker) -> None:
    with pytest.raises(PortTakenError, match=f"Port {mqtt_broker.port} on 127.0.0.1 is in use"):
        MqttBroker(port=mqtt_broker.port).start()
    assert mqtt_broker.alive


def test_a_port_taken_while_it_was_down_is_told(make_mqtt_broker: Callable[..., SecuredMqtt]) -> None:
    """A thief between kill and start: the old port cannot be had, and another would surprise its clients."""
    import socket

    broker = make_mqtt_broker()
    port = broker.port
    broker.kill()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(PortTakenError, match=str(port)):
        broker.start()
    assert not broker.alive


def test_a_failure_to_start_shows_the_log() -> None:
    with pytest.raises(StartError, match=r"(?s)The MQTT broker ended while starting.*\(log: ") as caught:
        MqttBroker(heap_mib=1).start()
    assert "heap" in str(caught.value).lower()
