"""What brokers and networks answer instead of yes: in words for people, and as the metrics' labels."""

from __future__ import annotations

from config import error_words

__all__ = [
    "SHORT_LIVED",
    "connect_error",
    "connect_label",
    "disconnect_advice",
    "disconnect_label",
    "lost",
    "status_advice",
    "suback_advice",
    "words",
]

import socket
import ssl
from typing import TYPE_CHECKING

from paho.mqtt.client import WebsocketConnectionError

from bridge.tls import distrust
from gateway.mqtt.errors import ConnectError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from config.settings import MqttSettings
    from config.values.addresses import MqttAddress

NO_SHARED = 0x9E
# MQTT 5.0 section 2.4.
_WORDS = {
    0x00: "normal disconnection",
    0x04: "disconnection with will",
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: "unsupported protocol version",
    0x85: "client identifier not valid",
    0x86: "bad user name or password",
    0x87: "not authorised",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x8F: "topic filter invalid",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x93: "receive maximum exceeded",
    0x94: "topic alias invalid",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
    0x9A: "retain not supported",
    0x9B: "QoS not supported",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9E: "shared subscriptions not supported",
    0x9F: "connection rate exceeded",
    0xA0: "maximum connect time",
    0xA1: "subscription identifiers not supported",
    0xA2: "wildcard subscriptions not supported",
}
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
    0x87: "check its rules for our subscriptions and for publishing to mqtt.status.topic",
    0x8E: "another client connected with our client id, and each ends the other's connection, less and less often: "
    "does a second gateway run with the same instance and worker, or with a copy of these settings?",
    0x96: _MORE_ROOM,
    0x97: _MORE_ROOM,
    0x98: "somebody ended the connection there; EMQX throws away what a session holds when it is kicked",
}


_LOST = {0x82: "the broker sent what MQTT does not allow", 0x8D: "no PINGRESP"}
SHORT_LIVED = (
    "no connection lasts: does another client connect with our client id? (In MQTT 3.1.1 a broker cannot say so, and "
    "some do not in MQTT 5.)"
)


def words(code: int) -> str:
    """A reason code in the specification's words, with its number."""
    return f"{_WORDS.get(code, 'unknown reason')} (0x{code:02X})"


def lost(code: int, *, sent: bool) -> str:
    """Why a connection ended, by what paho says; ``sent`` by the broker, or paho's own finding."""
    if sent:
        return f"the broker disconnected us: {words(code)}"
    return _LOST.get(code, "the broker closed the connection")


def status_advice(code: int) -> str:
    """What to do when the retained birth message or the will may be what the broker refuses; empty for other codes."""
    if code in {0x9A, 0x9B}:
        return " The birth message and the will are retained, at QoS 1: allow that, or set mqtt.status.enabled = false."
    return ""


def suback_advice(codes: Iterable[int]) -> str:
    """What to do when the broker refuses subscriptions with these codes."""
    if NO_SHARED in codes:
        return (
            'Set mqtt.distribution = "partitioned": the broker has no shared subscriptions for this session. The '
            "open-source EMQX has none for its durable sessions; durable_sessions.enable = false is the other way out."
        )
    return "Check its authorisation rules for these filters, and that it supports $share."


def disconnect_advice(code: int) -> str:
    """What to look at when the broker disconnects with this code; empty for codes that say it themselves."""
    return _DISCONNECT_ADVICE.get(code, "")


def connect_label(code: int) -> str:
    """The label of gateway_mqtt_connect_failures_total for a CONNACK's reason code."""
    return _CONNECT_LABELS.get(code, "other")


def disconnect_label(code: int) -> str:
    """The label of gateway_mqtt_disconnects_total for a DISCONNECT's reason code."""
    return _DISCONNECT_LABELS.get(code, "other")


def connect_error(address: MqttAddress, error: Exception, settings: MqttSettings) -> ConnectError:
    """Why a connection could not be made, in a sentence that says what to look at."""
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
    if isinstance(error, WebsocketConnectionError):
        advice = f"Is this a WebSocket listener, and mqtt.websocket_path ({settings.websocket_path}) right?"
        return ConnectError(f"{address}: {text}. {advice}", "protocol")
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        advice = f"Is this port a listener for {address.scheme}?"
        return ConnectError(f"{address} hung up while the connection was made ({text}). {advice}", "protocol")
    return ConnectError(f"{address}: {text}.", "unreachable")
