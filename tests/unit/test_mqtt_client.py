"""The seam: what we rely on in paho, so that an upgrade that changes it says so."""

import inspect
import socket

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from gateway.mqtt.client import PahoClient
from gateway.mqtt.errors import MqttError
from gateway.mqtt.stream import PacketStream


def make() -> PahoClient:
    return PahoClient(CallbackAPIVersion.VERSION2, client_id="x", protocol=paho.MQTTv5, reconnect_on_failure=False)


def test_paho_makes_its_socket_where_we_expect_it() -> None:
    assert "_create_socket" in vars(paho.Client), "the one method that is overridden"
    assert list(inspect.signature(paho.Client._create_socket).parameters) == ["self"]
    assert "_create_socket" in inspect.getsource(paho.Client.reconnect), "connect() no longer calls it"


def test_a_paho_without_that_method_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(paho.Client, "_create_socket")
    with pytest.raises(MqttError, match=r"paho-mqtt 2\.2"):
        make().connect("127.0.0.1", 1)


def test_everything_paho_writes_goes_through_our_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        monkeypatch.setattr(paho.Client, "_create_socket_connection", lambda _self: ours)
        client = make()
        client.connect("pair", 1)
        assert isinstance(client.socket(), PacketStream)
        assert client.stream is client.socket()
        assert theirs.recv(100)[:1] == b"\x10"
        client.subscribe("a/b", 1)
        client.publish("c", b"d", 1)
        sent = theirs.recv(100)
        assert sent[:1] == b"\x82"
        assert b"\x32" in sent
        client.disconnect()
        assert theirs.recv(100)[:1] == b"\xe0"
        assert theirs.recv(100) == b"", "paho closed our stream, which closed the socket"


def test_paho_asks_for_more_without_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    """``loop_read`` on an empty stream must return at once, whatever is on the wire."""
    ours, theirs = socket.socketpair()
    with theirs:
        monkeypatch.setattr(paho.Client, "_create_socket_connection", lambda _self: ours)
        client = make()
        client.connect("pair", 1)
        theirs.send(b"\x20\x03\x00\x00\x00")
        assert client.loop_read() == paho.MQTT_ERR_SUCCESS
        assert not client.is_connected(), "CONNACK is not paho's until we feed it"
        client.stream.control += b"\x20\x03\x00\x00\x00"
        client.loop_read()
        assert client.is_connected()
        client.disconnect()
