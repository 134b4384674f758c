"""One MQTT connection of a publishing device, driven by an asyncio loop without a thread of its own.

Simulated devices and load generators use it, the gateway's own sessions do not. It connects, publishes, reports
acknowledgements, takes messages of one subscription and disconnects. Its owner decides what to send again after a lost
connection (``gateway.devices.outbox``), so an object serves one connection.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paho.mqtt.client import MQTT_ERR_SUCCESS, WebsocketConnectionError
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from bridge.waiting import until_set
from config.errors import ExitStatus, GatewayError
from config.settings import MqttSettings
from config.values.addresses import MqttAddress, parse_mqtt_address
from gateway.mqtt import reasons
from gateway.mqtt.client import Client, prepare
from gateway.mqtt.login import Login

if TYPE_CHECKING:
    from collections.abc import Callable

    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.reasoncodes import ReasonCode


Qos = Literal[0, 1, 2]
_COMMAND_ID, _STATUS = "command-id", "status"  # user properties of commands and of answers
_PENDING_READS = 1000  # more than the packets of a TLS record; others wait for the next turn
_FINAL = frozenset(("credentials", "not_authorised", "client_id", "protocol"))
_DEFAULT_RECEIVE_MAXIMUM = 65_535  # MQTT 5.0, 3.2.2.3.3: the value without one in CONNACK


class DeviceConnectError(GatewayError):
    """A device's connection was refused or could not be made; the message names broker and reason."""

    exit_status = ExitStatus.UNAVAILABLE


class DeviceRefusedError(DeviceConnectError):
    """The broker refuses the login or the client id, so a retry fails too."""

    exit_status = ExitStatus.REFUSED


@dataclass(frozen=True, slots=True)
class Way:
    """The way to a broker by the settings: transport, TLS, proxy, protocol version, credentials."""

    address: MqttAddress
    settings: MqttSettings
    login: Login

    @classmethod
    def plain(cls, host: str, port: int) -> Way:
        """MQTT 5 over TCP, without a login."""
        settings = MqttSettings()
        return cls(parse_mqtt_address(f"mqtt://{host}:{port}"), settings, Login(settings))


@dataclass(frozen=True, slots=True)
class Heard:
    """A message for the device, with the properties of MQTT 5 that a command has."""

    topic: str
    payload: bytes
    response_topic: str | None
    correlation_data: bytes
    command_id: str


def _heard(message: MQTTMessage) -> Heard:
    """A message of paho's; its command id is the property, else the correlation data."""
    properties = message.properties
    token = getattr(properties, "CorrelationData", b"")
    own = dict(getattr(properties, "UserProperty", ()))
    return Heard(
        message.topic,
        bytes(message.payload),
        getattr(properties, "ResponseTopic", None),
        token,
        own.get(_COMMAND_ID, token.decode("ascii", "replace")),
    )


class DeviceEvents(Protocol):
    """Events of a connection for its owner, always in the loop's thread."""

    def on_acknowledged(self, packet_id: int, reason: int) -> None:
        """A PUBACK has arrived. ``reason`` below 0x80 is success; 0x10: no subscriber (MQTT 5.0, 3.4.2.1)."""
        ...

    def on_lost(self, why: str) -> None:
        """The connection ended without :meth:`DeviceConnection.disconnect`. No further event follows."""
        ...


class DeviceConnection:
    """One connection from CONNECT to its end. Not thread-safe: create and use it on one loop.

    The session ends with the connection (clean start, expiry 0), so the owner repeats unacknowledged messages.
    """

    def __init__(self, client_id: str, events: DeviceEvents, way: Way, *, keepalive_s: int = 30) -> None:
        self.client_id = client_id
        self.receive_maximum = _DEFAULT_RECEIVE_MAXIMUM
        self._events = events
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._sock: Any = None  # a socket, or paho's wrapper of it for TLS or a WebSocket
        self._ended = asyncio.Event()
        self._attached = False  # the loop reads the socket
        self._writing = False  # the loop waits for a writable socket
        self._closing = False  # we end it, or its end is reported
        self._way = way
        v5 = way.settings.protocol == "5"
        self._owed: set[int] = set()  # packet ids without an acknowledgement
        self._client = client = Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion.MQTTv5 if v5 else MQTTProtocolVersion.MQTTv311,
            transport="websockets" if way.address.websocket else "tcp",
            clean_session=None if v5 else True,
            reconnect_on_failure=False,
        )
        client.max_inflight_messages_set(0)  # the owner limits the window, within the broker's receive maximum
        client.on_connect = self._on_connect
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect

    def will(self, topic: str, payload: bytes) -> None:
        """Set the last will, retained at QoS 1. Call it before :meth:`connect`."""
        self._client.will_set(topic, payload, qos=1, retain=True)

    async def connect(self, *, timeout_s: float, login: tuple[str, str] | None = None) -> None:
        """Connect and wait for CONNACK. ``login`` (user name, password) replaces that of the way.

        Raises :class:`DeviceConnectError`, after which the object is of no further use, and, for TLS files that cannot
        be used, ConfigError."""
        address, settings = self._way.address, self._way.settings
        try:
            shown = await self._way.login.show(encrypted=address.encrypted)
        except GatewayError as error:
            raise DeviceConnectError(str(error)) from error
        if login is not None:
            shown = replace(shown, username=login[0], password=login[1])
        prepare(self._client, settings, address, shown)
        try:
            await self._open(address.host, address.port, timeout_s)
        except (OSError, ValueError, WebsocketConnectionError) as error:  # a time-out is an OSError
            raise DeviceConnectError(str(reasons.connect_error(address, error, settings))) from error

    def subscribe(self, topic_filter: str, receive: Callable[[Heard], None], *, qos: Qos = 1) -> asyncio.Future[int]:
        """Subscribe; ``receive`` is called with each message, which is acknowledged after it. Gives the broker's reason
        code; without a connection none comes."""
        answer: asyncio.Future[int] = self._loop.create_future()

        def on_subscribe(_client: Any, _data: Any, _mid: int, codes: list[ReasonCode], _properties: Any) -> None:
            if not answer.done():
                answer.set_result(codes[0].value)

        if self._sock is not None:
            self._client.on_message = lambda _client, _data, message: receive(_heard(message))
            self._client.on_subscribe = on_subscribe
            self._client.subscribe(topic_filter, qos=qos)
            self._watch_writes()
        return answer

    def publish(
        self, topic: str, payload: bytes, *, qos: Qos = 1, retain: bool = False, properties: Properties | None = None
    ) -> int | None:
        """Send one message and return its packet id; None without a connection (``on_lost`` follows). QoS 0 messages
        are not acknowledged."""
        if self._sock is None:
            return None
        info = self._client.publish(topic, payload, qos=qos, retain=retain, properties=properties)
        if info.rc != MQTT_ERR_SUCCESS:
            return None
        if qos:
            self._owed.add(info.mid)
        self._watch_writes()
        return info.mid

    def answer(self, heard: Heard, payload: bytes, status: int) -> int | None:
        """Publish the answer to a command at its response topic, if it has one; as :meth:`publish`."""
        if heard.response_topic is None:
            return None
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.CorrelationData, properties.UserProperty = heard.correlation_data, (_STATUS, str(status))
        properties.ContentType = "application/json"
        return self.publish(heard.response_topic, payload, properties=properties)

    @property
    def unwritten(self) -> bool:
        """Whether unsent bytes wait for the socket."""
        return self._writing

    def keep_alive(self) -> None:
        """Ping when due, and end a connection whose peer does not answer. Call it about every second."""
        if self._sock is not None:
            self._client.loop_misc()
            self._watch_writes()

    async def disconnect(self) -> None:
        """Send DISCONNECT after all pending bytes, and close. The broker does not publish the will."""
        if self._sock is None:
            return
        self._closing = True
        self._client.disconnect()
        self._watch_writes()
        await until_set(self._ended, 5.0)  # paho closes the socket when DISCONNECT is written
        self._detach()

    def abort(self) -> None:
        """Close the socket without DISCONNECT, like a device that lost power. The broker then publishes the will."""
        self._closing = True
        self._detach()

    async def _open(self, host: str, port: int, timeout_s: float) -> None:
        """Connect and wait for CONNACK. After a failure the socket is closed."""
        try:
            async with asyncio.timeout(timeout_s):
                # paho's call opens the socket and writes CONNECT. It blocks, so it runs in a thread.
                self._client.connect_timeout = timeout_s
                await asyncio.to_thread(self._client.connect, host, port, self._keepalive_s)
                self._attach()
                await self._connected
        except BaseException:
            self._closing = True  # the caller gets this error, and no event on_lost
            self._detach()
            raise

    def _attach(self) -> None:
        # From here the loop owns the socket. paho is given no register-write callback: without one it writes at once,
        # which spares an epoll round trip per message; what does not fit is watched for in _watch_writes.
        sock: Any = self._client.socket()
        if sock is None:
            raise ConnectionError("the broker closed the connection at once")
        raw = getattr(sock, "_socket", sock)  # of a WebSocket
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._attached = True
        self._client.on_socket_close = self._on_socket_close
        self._loop.add_reader(sock.fileno(), self._readable)
        self._watch_writes()

    def _detach(self) -> None:
        sock = self._sock
        if sock is not None:
            self._forget(sock)
            sock.close()

    def _forget(self, sock: Any) -> None:
        """The loop no longer watches the socket."""
        self._loop.remove_reader(sock.fileno())
        if self._writing:
            self._loop.remove_writer(sock.fileno())
            self._writing = False
        self._sock = None
        self._ended.set()

    def _readable(self) -> None:
        """The loop's reader: let paho read what has arrived."""
        self._client.loop_read()
        for _ in range(_PENDING_READS):
            # Bytes that TLS has already decrypted do not make the descriptor readable.
            pending = getattr(self._sock, "pending", None)
            if pending is None or not pending():
                break
            self._client.loop_read()
        self._watch_writes()

    def _writable(self) -> None:
        self._client.loop_write()
        self._watch_writes()

    def _watch_writes(self) -> None:
        """Watch for a writable socket while paho has bytes to write, and no longer."""
        sock, wanted = self._sock, self._client.want_write()
        if sock is None or wanted == self._writing:
            return
        self._writing = wanted
        if wanted:
            self._loop.add_writer(sock.fileno(), self._writable)
        else:
            self._loop.remove_writer(sock.fileno())

    def _on_socket_close(self, _client: Any, _userdata: Any, sock: Any) -> None:
        if self._sock is not None:
            self._forget(sock)

    def _on_connect(
        self, _client: Any, _data: Any, _flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        """CONNACK: completes ``_connected``, with the refusal as its error."""
        if self._connected.done():
            return
        if reason.is_failure:
            kind = DeviceRefusedError if reasons.connect_label(reason.value) in _FINAL else DeviceConnectError
            self._connected.set_exception(
                kind(f"device {self.client_id}: the MQTT broker refused the connection: {reasons.words(reason.value)}")
            )
            return
        self.receive_maximum = getattr(properties, "ReceiveMaximum", _DEFAULT_RECEIVE_MAXIMUM)
        self._connected.set_result(None)

    def _on_publish(
        self, _client: Any, _data: Any, packet_id: int, reason: ReasonCode, _properties: Properties
    ) -> None:
        """An acknowledgement of the broker's: tell the owner."""
        if packet_id in self._owed:  # paho also reports QoS 0 messages as sent, even before publish returns
            self._owed.discard(packet_id)
            self._events.on_acknowledged(packet_id, reason.value)

    def _on_disconnect(self, _client: Any, _data: Any, flags: Any, reason: ReasonCode, _properties: Any) -> None:
        """The connection has ended: tell who waits for CONNACK, else the owner."""
        if self._closing or not self._attached:  # before _attach this is connect()'s thread, and connect() raises
            return
        self._closing = True
        why = reasons.lost(reason.value, sent=flags.is_disconnect_packet_from_server)
        if not self._connected.done():
            self._connected.set_exception(
                DeviceConnectError(f"device {self.client_id}: the connection ended before CONNACK: {why}")
            )
        elif not self._connected.cancelled():
            # Outside of paho's callback, because the owner may start a new connection at once.
            self._loop.call_soon(self._events.on_lost, why)
