"""Refusals of brokers and networks: in words for people, and as labels of metrics."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING

from paho.mqtt.client import WebsocketConnectionError
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from bridge.tls import distrust
from config import error_words
from gateway.mqtt.errors import ConnectError

if TYPE_CHECKING:
    from config.settings import MqttSettings
    from config.values.addresses import MqttAddress

NO_SHARED = 0x9E
# Where paho's table of MQTT 5.0 section 2.4 has several words, or others than this product.
_OWN_WORDS = {
    0x00: "normal disconnection",
    0x04: "disconnection with will",
    0x87: "not authorised",
    0x9B: "QoS not supported",
    0x9E: "shared subscriptions not supported",
    0xA2: "wildcard subscriptions not supported",
}
_PAHO_WORDS = {
    code: name[0].lower() + name[1:]
    for code, names in ReasonCode(PacketTypes.DISCONNECT).names.items()
    for name in names
}
_WORDS = {**_PAHO_WORDS, **_OWN_WORDS}
# paho shows a 3.1.1 return code (section 3.2.2.3) as the MQTT 5 reason code that means the same.
_CONNECT_LABELS = {
    0x81: "protocol",
    0x82: "protocol",
    0x84: "protocol",
    0x85: "client_id",
    0x86: "credentials",
    0x87: "not_authorised",
    0x88: "unavailable",
    0x89: "unavailable",
    0x8A: "banned",
    0x8B: "unavailable",
    0x8C: "credentials",
    0x97: "unavailable",
    0x9C: "redirected",
    0x9D: "redirected",
    0x9F: "unavailable",
}
_DISCONNECT_LABELS = {
    0x81: "protocol",
    0x82: "protocol",
    0x87: "not_authorised",
    0x8B: "server_stopping",
    0x8D: "keepalive",
    0x8E: "taken_over",
    0x90: "protocol",
    0x93: "protocol",
    0x94: "protocol",
    0x95: "protocol",
    0x98: "administrative",
    0x9C: "redirected",
    0x9D: "redirected",
}
_MORE_ROOM = "raise the broker's limits for this client, or spread the load over more sessions (mqtt.sessions)"
_DISCONNECT_ADVICE = {
    0x87: "check its rules for the gateway's subscriptions and for publishing to mqtt.status.topic",
    0x8E: "another client connected with this client id, and each ends the other's connection, with growing pauses: "
    "does a second gateway run with the same instance and worker, or with a copy of these settings?",
    0x96: _MORE_ROOM,
    0x97: _MORE_ROOM,
    0x98: "an operator or a rule of the broker ended the connection; EMQX discards the messages of a kicked session",
}


_LOST = {0x82: "the broker sent what MQTT does not allow", 0x8D: "no PINGRESP"}
SHORT_LIVED = (
    "no connection lasts: does another client connect with this client id? (MQTT 3.1.1 brokers, and some of MQTT 5, do "
    "not report it.)"
)


def words(code: int) -> str:
    """A reason code in the specification's words, with its number."""
    return f"{_WORDS.get(code, 'unknown reason')} (0x{code:02X})"


def packet_name(number: int) -> str:
    """The name of a control packet type (MQTT 5.0 section 2.1.2)."""
    names = PacketTypes.Names
    return f"{names[number].upper()} packet" if 0 < number < len(names) else f"packet of type {number}"


def lost(code: int, *, sent: bool) -> str:
    """Why a connection ended, by paho's reason; ``sent`` says whether the broker sent it."""
    if sent:
        return f"the broker disconnected us: {words(code)}"
    return _LOST.get(code, "the broker closed the connection")


def status_advice(code: int) -> str:
    """Advice when the broker may have refused the retained birth message or the will; empty for other codes."""
    if code in {0x9A, 0x9B}:
        return " The birth message and the will are retained, at QoS 1: allow that, or set mqtt.status.enabled = false."
    return ""


def suback_advice(codes: Iterable[int]) -> str:
    """Advice when the broker refuses subscriptions with these codes."""
    if NO_SHARED in codes:
        return (
            'Set mqtt.distribution = "partitioned": the broker has no shared subscriptions for this session. The '
            "open-source EMQX has none for its durable sessions; durable_sessions.enable = false is the other way out."
        )
    return "Check its authorisation rules for these filters, and that it supports $share."


def disconnect_advice(code: int) -> str:
    """Advice when the broker disconnects with this code; empty for codes that need none."""
    return _DISCONNECT_ADVICE.get(code, "")


def connect_label(code: int) -> str:
    """The label of gateway_mqtt_connect_failures_total for a CONNACK's reason code."""
    return _CONNECT_LABELS.get(code, "other")


def disconnect_label(code: int) -> str:
    """The label of gateway_mqtt_disconnects_total for a DISCONNECT's reason code."""
    return _DISCONNECT_LABELS.get(code, "other")


def ended_early(address: MqttAddress, packet: str, detail: str | None) -> ConnectError:
    """The error that the connection ended before the broker answered ``packet``. ``detail``: the reason, if known."""
    return ConnectError(
        f"{address} ended the connection before it answered our {packet} ({detail or 'no reason given'}). Is this its "
        "MQTT listener, for this scheme (mqtt, mqtts, ws, wss) and this mqtt.protocol?",
        "protocol",
    )


def connect_error(address: MqttAddress, error: Exception, settings: MqttSettings) -> ConnectError:
    """Why a connection could not be made, in a sentence with advice."""
    text = error_words.words(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectError(f"{address} {distrust(error, 'mqtt.tls')}", "tls")
    if isinstance(error, ssl.SSLError):
        advice = "Is this the TLS listener, and does it want a client certificate (mqtt.tls)?"
        return ConnectError(f"{address}: {text}. {advice}", "tls")
    if settings.proxy is not None and type(error).__module__ == "socks":
        at = f"{settings.proxy.host}:{settings.proxy.port}"
        return ConnectError(f"{address} by way of the proxy {at}: {text.strip()}. Check mqtt.proxy.", "proxy")
    if isinstance(error, ConnectionRefusedError):
        advice = "Is the broker running, and is this its port?"
        return ConnectError(f"{address} refused the connection. {advice}", "unreachable")
    if isinstance(error, socket.gaierror):
        advice = "Check mqtt.addresses and DNS."
        return ConnectError(f"{address}: {text}. {advice}", "unreachable")
    if isinstance(error, TimeoutError):
        advice = "A firewall, or a wrong address?"
        if address.websocket:
            advice = f"A firewall, a wrong address, or a wrong mqtt.websocket_path ({settings.websocket_path})?"
        return ConnectError(f"{address} did not answer within mqtt.connect_timeout. {advice}", "timeout")
    if isinstance(error, IndexError):  # paho's, of an answer whose headers it cannot read
        text = "WebSocket handshake error"
    if isinstance(error, WebsocketConnectionError | IndexError):
        advice = f"Is this a WebSocket listener, and mqtt.websocket_path ({settings.websocket_path}) right?"
        return ConnectError(f"{address}: {text}. {advice}", "protocol")
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        advice = f"Is this port a listener for {address.scheme}?"
        return ConnectError(f"{address} closed the connection while it was being made ({text}). {advice}", "protocol")
    return ConnectError(f"{address}: {text}.", "unreachable")
