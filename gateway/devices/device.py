"""One MQTT connection of a publishing device, driven by an asyncio loop without a thread of its own.

The simulated devices and load generators use it; the gateway's own sessions do not. It is thin on purpose: connect,
publish, tell what was acknowledged, disconnect. What to send again after a lost connection is its owner's decision
(``gateway.devices.outbox``), so an object serves one connection and is then thrown away.
"""

from __future__ import annotations

__all__ = ["DeviceConnectError", "DeviceConnection", "DeviceEvents", "DeviceRefusedError", "Way"]

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paho.mqtt.client import MQTT_ERR_SUCCESS, Client, WebsocketConnectionError
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from bridge.fresh_secret import fresh
from config.error_words import words
from config.errors import ExitStatus, GatewayError
from gateway.mqtt import reasons

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

    from config.settings import MqttSettings
    from config.values.addresses import MqttAddress
    from gateway.mqtt.login import Login

Qos = Literal[0, 1, 2]
_PENDING_READS = 1000  # packets that a TLS record has room for; more than that waits for the next turn
_FINAL = frozenset(("credentials", "not_authorised", "client_id", "protocol"))
_DEFAULT_RECEIVE_MAXIMUM = 65_535  # MQTT 5.0, 3.2.2.3.3: what holds when CONNACK does not say


class DeviceConnectError(GatewayError):
    """A device's connection was refused or could not be made; the message says by whom and why."""

    exit_status = ExitStatus.UNAVAILABLE


class DeviceRefusedError(DeviceConnectError):
    """The broker answered, and will say no again: who we are, or our client id."""

    exit_status = ExitStatus.REFUSED


@dataclass(frozen=True, slots=True)
class Way:
    """How to reach a broker as the settings say: transport, TLS, proxy, protocol version, and what to show."""

    address: MqttAddress
    settings: MqttSettings
    login: Login


class _Client(Client):
    def _get_proxy(self) -> dict[str, Any] | None:
        """Ours or none; paho would look into the environment as well (mqtt_proxy), unasked."""
        proxy: dict[str, Any] = self._proxy
        return proxy or None


class DeviceEvents(Protocol):
    """What a connection tells its owner, always on the loop's thread."""

    def on_acknowledged(self, packet_id: int, reason: int) -> None:
        """PUBACK came. ``reason`` below 0x80 is success; 0x10 means that nobody was subscribed (MQTT 5.0, 3.4.2.1)."""
        ...

    def on_lost(self, why: str) -> None:
        """The connection ended without :meth:`DeviceConnection.disconnect`. Nothing more will come from it."""
        ...


class DeviceConnection:
    """One connection from CONNECT to its end. Not thread-safe: create and use it on one loop.

    The session ends with the connection (clean start, expiry 0): the owner repeats what was not acknowledged.
    """

    def __init__(self, client_id: str, events: DeviceEvents, *, keepalive_s: int = 30, way: Way | None = None) -> None:
        """With ``way`` it is connected by :meth:`connect_by`, without by :meth:`connect`."""
        self.client_id = client_id
        self.receive_maximum = _DEFAULT_RECEIVE_MAXIMUM
        self._events = events
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._sock: Any = None  # a socket, or what paho has around it for TLS or a WebSocket
        self._ended = asyncio.Event()
        self._attached = False
        self._writing = False
        self._closing = False
        self._way = way
        v5 = way is None or way.settings.protocol == "5"
        self._owed: set[int] = set()  # packet ids that the broker has to acknowledge
        self._client = client = _Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion.MQTTv5 if v5 else MQTTProtocolVersion.MQTTv311,
            transport="websockets" if way is not None and way.address.websocket else "tcp",
            clean_session=None if v5 else True,
            reconnect_on_failure=False,
        )
        client.max_inflight_messages_set(0)  # the owner's window decides, within the broker's receive maximum
        client.on_connect = self._on_connect
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect

    def login(self, username: str, password: str) -> None:
        """Sets what it shows the broker. Before :meth:`connect`."""
        self._client.username_pw_set(username, password)

    def will(self, topic: str, payload: bytes) -> None:
        """Sets the retained QoS 1 message the broker publishes when this device vanishes. Before :meth:`connect`."""
        self._client.will_set(topic, payload, qos=1, retain=True)

    async def connect(self, host: str, port: int, *, timeout_s: float) -> None:
        """Connects and waits for CONNACK. Raises :class:`DeviceConnectError`; the object is then of no further use."""
        try:
            await self._open(host, port, timeout_s)
        except TimeoutError as error:
            raise DeviceConnectError(
                f"device {self.client_id}: no answer from the MQTT broker at {host}:{port} within {timeout_s:g} s;"
                " is it overloaded or hanging?"
            ) from error
        except OSError as error:
            raise DeviceConnectError(
                f"device {self.client_id}: cannot reach the MQTT broker at {host}:{port}: {words(error)};"
                " is it running?"
            ) from error

    async def connect_by(self, *, timeout_s: float, login: tuple[str, str] | None = None) -> None:
        """The same as :meth:`connect`, the way the settings say; ``login`` is user name and password instead of theirs.

        Raises :class:`DeviceConnectError` and, for TLS files that cannot be used, ConfigError."""
        way, client = self._way, self._client
        assert way is not None
        address, settings = way.address, way.settings
        try:
            shown = await way.login.show(encrypted=address.encrypted)
        except GatewayError as error:
            raise DeviceConnectError(str(error)) from error
        if shown.context is not None:
            client.tls_set_context(shown.context)
        username, password = login or (shown.username, shown.password)
        if username is not None:
            client.username_pw_set(username, password)
        if address.websocket:
            client.ws_set_options(settings.websocket_path, dict(settings.websocket_headers) or None)
        if settings.proxy is not None:
            import socks

            proxy = settings.proxy
            client.proxy_set(
                proxy_type=socks.HTTP,
                proxy_addr=proxy.host,
                proxy_port=proxy.port,
                proxy_username=proxy.username,
                proxy_password=None if proxy.password is None else fresh(proxy.password, "mqtt.proxy.password"),
            )
        try:
            await self._open(address.host, address.port, timeout_s)
        except (OSError, ValueError, WebsocketConnectionError) as error:  # a time-out is an OSError
            raise DeviceConnectError(str(reasons.connect_error(address, error, settings))) from error

    def publish(self, topic: str, payload: bytes, *, qos: Qos = 1, retain: bool = False) -> int | None:
        """Sends one message and returns its packet id; None if the connection is gone (``on_lost`` follows). With QoS 0
        nothing is acknowledged."""
        if self._sock is None:
            return None
        info = self._client.publish(topic, payload, qos=qos, retain=retain)
        if info.rc != MQTT_ERR_SUCCESS:
            return None
        if qos:
            self._owed.add(info.mid)
        self._watch_writes()
        return info.mid

    @property
    def unwritten(self) -> bool:
        """Whether something waits for room in the socket."""
        return self._writing

    def keep_alive(self) -> None:
        """Pings when due and ends a connection whose peer does not answer. Call it every second or so."""
        if self._sock is not None:
            self._client.loop_misc()
            self._watch_writes()

    async def disconnect(self, *, timeout_s: float = 5.0) -> None:
        """Sends DISCONNECT behind what is still to be written, and closes. The will is not published."""
        if self._sock is None:
            return
        self._closing = True
        self._client.disconnect()
        self._watch_writes()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()  # paho closes the socket when DISCONNECT is written
        self._detach()

    def abort(self) -> None:
        """Closes the socket without a word, as a device that lost power would; the broker then publishes the will."""
        self._closing = True
        self._detach()

    async def _open(self, host: str, port: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                # paho opens the socket and writes CONNECT in the call, which blocks: off the loop.
                self._client.connect_timeout = timeout_s
                await asyncio.to_thread(self._client.connect, host, port, self._keepalive_s)
                self._attach()
                await self._connected
        except BaseException:
            self._closing = True  # whoever connects is told by this error, and of no loss besides
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
        self._loop.remove_reader(sock.fileno())
        if self._writing:
            self._loop.remove_writer(sock.fileno())
            self._writing = False
        self._sock = None
        self._ended.set()

    def _readable(self) -> None:
        self._client.loop_read()
        for _ in range(_PENDING_READS):
            # What TLS has decrypted already makes no descriptor readable.
            pending = getattr(self._sock, "pending", None)
            if pending is None or not pending():
                break
            self._client.loop_read()
        self._watch_writes()

    def _writable(self) -> None:
        self._client.loop_write()
        self._watch_writes()

    def _watch_writes(self) -> None:
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
        if packet_id in self._owed:  # paho says of QoS 0 that it was sent, even before publish returns
            self._owed.discard(packet_id)
            self._events.on_acknowledged(packet_id, reason.value)

    def _on_disconnect(self, _client: Any, _data: Any, flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if self._closing or not self._attached:  # before _attach we are in connect()'s thread, and connect() raises
            return
        self._closing = True
        why = reasons.lost(reason.value, sent=flags.is_disconnect_packet_from_server)
        if not self._connected.done():
            self._connected.set_exception(
                DeviceConnectError(f"device {self.client_id}: the connection ended before CONNACK: {why}")
            )
        elif not self._connected.cancelled():
            # Not from inside paho's callback: the owner may start a new connection at once.
            self._loop.call_soon(self._events.on_lost, why)
