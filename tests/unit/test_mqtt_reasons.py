"""What the user reads when a broker or a network says no."""

import errno
import re
import socket
import ssl

import pytest
from paho.mqtt.client import WebsocketConnectionError
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from socks import GeneralProxyError, HTTPError, ProxyConnectionError

from config.errors import ExitStatus
from config.settings import MqttSettings
from config.values.addresses import parse_mqtt_address
from gateway.base.metrics import CONNECT_FAILURES, DISCONNECTS
from gateway.mqtt import reasons
from gateway.mqtt.errors import ConnectError, MqttRefusedError
from gateway.mqtt.reasons import packet_name
from tests.brokers.packets import Type

ADDRESS = parse_mqtt_address("mqtts://broker.example:8884")


def codes(packet: int) -> list[int]:
    """The failure codes paho knows for a packet."""
    names = ReasonCode(PacketTypes.CONNACK).names
    return sorted(code for code, kinds in names.items() if code >= 0x80 for name in kinds if packet in kinds[name])


@pytest.mark.parametrize("packet", [PacketTypes.CONNACK, PacketTypes.SUBACK, PacketTypes.DISCONNECT])
def test_every_code_of_the_specification_has_words(packet: int) -> None:
    assert codes(packet)
    for code in codes(packet):
        text = reasons.words(code)
        assert "unknown" not in text
        assert text.endswith(f"(0x{code:02X})")


def test_a_code_nobody_knows_is_shown_by_its_number() -> None:
    assert reasons.words(0xFE) == "unknown reason (0xFE)"


def test_labels_are_those_of_the_metrics() -> None:
    assert {reasons.connect_label(code) for code in range(256)} <= set(CONNECT_FAILURES)
    assert {reasons.disconnect_label(code) for code in range(256)} <= set(DISCONNECTS)
    assert reasons.connect_label(0x86) == "credentials"
    assert reasons.connect_label(0x87) == "not_authorised"
    assert reasons.connect_label(0x88) == "unavailable"
    assert reasons.disconnect_label(0x8E) == "taken_over"


def verification_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = 18  # X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT
    error.verify_message = "self-signed certificate"
    return error


PROXY = {"proxy": {"host": "proxy.example", "port": 3128}}
CASES = {
    "refused": (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), {}, "unreachable", "refused the connection"),
    "no such name": (socket.gaierror(-2, "Name or service not known"), {}, "unreachable", "name is not known here"),
    "time-out": (TimeoutError("timed out"), {}, "timeout", "mqtt.connect_timeout"),
    "no route": (OSError(errno.EHOSTUNREACH, "No route to host"), {}, "unreachable", "no route to host"),
    "a reset": (ConnectionResetError(errno.ECONNRESET, "reset"), {}, "protocol", "while it was being made.*for mqtts"),
    "an error without words": (OSError(), {}, "unreachable", "no reason"),
    "a certificate nobody signed": (
        verification_error(), {"tls": {"ca_file": "/etc/ca.pem"}}, "tls", r"self-signed.*mqtt\.tls\.ca_file"
    ),
    "no TLS at the other end": (ssl.SSLError(1, "wrong version number"), {}, "tls", "wrong version.*TLS listener"),
    "TLS that ends at once": (ssl.SSLEOFError(8, "EOF occurred"), {}, "tls", "client certificate"),
    "no WebSocket at the other end": (
        WebsocketConnectionError("WebSocket handshake error"), {}, "protocol", "mqtt.websocket_path \\(/mqtt\\)"
    ),
    "a proxy that is not there": (ProxyConnectionError("refused"), PROXY, "proxy", "proxy.example:3128.*mqtt.proxy"),
    "a proxy that says no": (HTTPError("407: wants a password"), PROXY, "proxy", "407.*mqtt.proxy"),
    "a proxy that talks nonsense": (GeneralProxyError("closed"), PROXY, "proxy", "mqtt.proxy"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_connection_that_fails_is_explained(case: str) -> None:
    error, fields, label, words = CASES[case]
    explained = reasons.connect_error(ADDRESS, error, MqttSettings.model_validate(fields))
    assert explained.reason == label
    assert label in CONNECT_FAILURES
    text = str(explained)
    assert text.startswith("mqtts://broker.example:8884")
    assert re.search(words, text), text
    assert text.endswith((".", "?"))


def test_an_error_that_may_pass_and_one_that_will_not_end_with_different_statuses() -> None:
    assert ConnectError("x", "other").exit_status is ExitStatus.UNAVAILABLE
    assert MqttRefusedError("x", "credentials").exit_status is ExitStatus.REFUSED


def test_packets_are_named() -> None:
    for kind in Type:
        assert packet_name(kind) == f"{kind.name} packet"
    assert packet_name(0) == "packet of type 0"
