"""A visit to an MQTT broker that leaves nothing behind: connect, read what it grants, subscribe for an instant, leave.

It has a client id of its own: a broker ends the older of two connections with one id. The session is clean. It ends
with the DISCONNECT, or with a broken connection. An UNSUBSCRIBE follows the SUBSCRIBE at once, and asks for no retained
messages, so that the broker sends little. A visit may ask for the retained message of a single topic instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from gateway.mqtt import reasons
from gateway.mqtt.client import Client, connect_properties, make_client
from gateway.mqtt.errors import ConnectError

if TYPE_CHECKING:
    from bridge.routing.filters import Subscription
    from config.settings import MqttSettings
    from config.values.addresses import MqttAddress
    from gateway.mqtt.login import Shown

_TICK_S: Final = 0.05
_FAREWELL_S: Final = 0.5
_RETAINED_S: Final = 1.0  # a broker without a retained message does not answer
_PROPERTIES: Final = {
    "ReceiveMaximum": "receive_maximum",
    "SessionExpiryInterval": "session_expiry",
    "MaximumPacketSize": "maximum_packet_size",
    "MaximumQoS": "maximum_qos",
    "RetainAvailable": "retain_available",
    "SharedSubscriptionAvailable": "shared_available",
    "WildcardSubscriptionAvailable": "wildcard_available",
    "ServerKeepAlive": "keepalive",
}


@dataclass(slots=True)
class Visit:
    """The result of a visit.

    ``error`` says why there was no CONNACK, or no SUBACK in time; ``code`` is the CONNACK's, 0 for success. ``granted``
    are the codes of the SUBACK, one for each filter, None without one.

    ``limits`` are the properties that the CONNACK had, by our names for them. ``retained`` is the message of the
    requested topic, None where the broker gives none.
    """

    seconds: float = 0.0
    error: ConnectError | None = None
    code: int | None = None
    limits: dict[str, int] = field(default_factory=dict)
    granted: list[int] | None = None
    retained: bytes | None = None

    @property
    def welcome(self) -> bool:
        return self.code == 0


class _Client(Client):
    def close(self) -> None:
        """Close the connection, if there is one, and the pair of sockets with which ``loop`` wakes itself.

        paho does it when the client is collected, which is any time later: callbacks tie it into a circle.
        """
        self._reset_sockets()


def visit(
    settings: MqttSettings,
    address: MqttAddress,
    client_id: str,
    shown: Shown,
    *,
    filters: Sequence[Subscription] = (),
    retained: str | None = None,
    timeout_s: float,
) -> Visit:
    """Connect once, subscribe to ``filters``, read the retained message of the topic ``retained``, and leave.

    Blocks for ``timeout_s`` for each answer at most. Broker and network failures are in the result, never raised.
    """
    return _Visitor(settings, address, client_id, shown, filters, retained, timeout_s).visit()


class _Visitor:
    def __init__(
        self,
        settings: MqttSettings,
        address: MqttAddress,
        client_id: str,
        shown: Shown,
        filters: Sequence[Subscription],
        retained: str | None,
        timeout_s: float,
    ) -> None:
        self._settings, self._address = settings, address
        self._v5 = settings.protocol == "5"
        self._filters, self._retained, self._timeout_s = filters, retained, timeout_s
        self.result = Visit()
        self._ended = ""  # how the connection ended; empty: it has not
        client = self._client = make_client(_Client, settings, address, client_id, shown, clean=True)
        client.connect_timeout = timeout_s
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect

    def visit(self) -> Visit:
        try:
            self._visit()
        finally:
            self._client.close()
        return self.result

    def _visit(self) -> None:
        """Fills ``result``; its ``seconds`` are those until CONNACK."""
        began = time.monotonic()
        # paho waits for a TLS or WebSocket handshake as long as its keepalive is. Longer than we wait, or it would be
        # paho that gives up, with words of its own.
        keepalive_s = math.ceil(self._timeout_s) + 2
        arguments: dict[str, Any] = {}
        if self._v5:
            arguments = {"clean_start": True, "properties": self._properties()}
        try:
            self._client.connect(self._address.host, self._address.port, keepalive_s, **arguments)
            self._wait(lambda: self.result.code is not None)
        except (OSError, ValueError, IndexError, paho.WebsocketConnectionError) as error:
            self.result.error = reasons.connect_error(self._address, error, self._settings)
        self.result.seconds = time.monotonic() - began
        if self.result.error is None and self.result.code is None:
            self.result.error = self._no_answer()
        if self.result.welcome:
            if self._filters:
                self._subscribe()
            if self._retained is not None:
                self._client.subscribe(self._retained)
                self._wait(lambda: self.result.retained is not None, min(_RETAINED_S, self._timeout_s))
            self._leave()

    def _properties(self) -> Properties:
        """The properties of CONNECT, with MQTT 5."""
        settings = self._settings
        properties = connect_properties(settings)
        if settings.persistent and not self._filters:
            # With nothing subscribed, to see whether the broker grants it; DISCONNECT ends the session.
            properties.SessionExpiryInterval = int(settings.session_expiry.total_seconds())
        return properties

    def _no_answer(self) -> ConnectError:
        """The error when no CONNACK came."""
        if self._ended:
            return reasons.ended_early(self._address, "CONNECT", self._ended)
        return ConnectError(
            f"{self._address} accepted the connection and did not answer CONNECT within {self._timeout_s:g} s.",
            "timeout",
        )

    def _subscribe(self) -> None:
        """Subscribe, for the codes of SUBACK, and unsubscribe at once."""
        filters: Any = [(one.filter, one.qos) for one in self._filters]
        if self._v5:
            filters = [(name, SubscribeOptions(qos=qos, retainHandling=2)) for name, qos in filters]
        self._client.subscribe(filters)
        self._client.unsubscribe([one.filter for one in self._filters])
        self._wait(lambda: self.result.granted is not None)
        if self.result.granted is None and not self._ended:
            text = f"{self._address} did not answer SUBSCRIBE within {self._timeout_s:g} s."
            self.result.error = ConnectError(text, "timeout")

    def _leave(self) -> None:
        """Disconnect, which ends the session, and wait a moment for the broker to close."""
        properties = None
        if self._v5:
            properties = Properties(PacketTypes.DISCONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 0
        self._client.disconnect(properties=properties)
        self._wait(lambda: False, _FAREWELL_S)

    def _wait(self, condition: Any, timeout_s: float | None = None) -> None:
        """Carry packets until ``condition()`` holds, the connection has ended, or its time (None: a visit's) is up."""
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while not condition() and not self._ended and time.monotonic() < deadline:
            if self._client.loop(_TICK_S) != paho.MQTT_ERR_SUCCESS:
                self._ended = self._ended or reasons.lost(0, sent=False)

    def _on_connect(self, _client: object, _data: object, _flags: object, reason: Any, properties: Any) -> None:
        """CONNACK: note its code, and the limits in its properties by our names."""
        self.result.code = reason.value
        for theirs, ours in _PROPERTIES.items():
            value = getattr(properties, theirs, None)
            if isinstance(value, int):
                self.result.limits[ours] = value

    def _on_subscribe(self, _client: object, _data: object, _id: object, codes: list[Any], _more: object) -> None:
        self.result.granted = [code.value for code in codes]

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        if message.topic == self._retained and message.retain:
            self.result.retained = bytes(message.payload)

    def _on_disconnect(self, _client: object, _data: object, flags: Any, reason: Any, _more: object) -> None:
        sent = flags.is_disconnect_packet_from_server
        self._ended = self._ended or reasons.lost(reason.value, sent=sent)
