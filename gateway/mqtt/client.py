"""paho's client on the gateway's stream instead of a socket: CONNECT, SUBSCRIBE, and the broker's answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import paho.mqtt.client as paho
import structlog
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from bridge.fresh_secret import fresh
from gateway.mqtt import reasons
from gateway.mqtt.errors import ConnectError, MqttError, MqttRefusedError
from gateway.mqtt.servers import REDIRECTIONS, Redirection
from gateway.mqtt.stream import PacketStream
from gateway.mqtt.websocket import WebSocket

if TYPE_CHECKING:
    from paho.mqtt.reasoncodes import ReasonCode

    from bridge.routing.filters import Subscription
    from config.settings import MqttSettings
    from config.values.addresses import MqttAddress
    from gateway.mqtt.login import Shown

log = structlog.get_logger("mqtt")


class Client(paho.Client):
    """paho's client without the proxy of the environment (mqtt_proxy)."""

    def _get_proxy(self) -> dict[str, Any] | None:
        proxy: dict[str, Any] = self._proxy
        return proxy or None


C = TypeVar("C", bound=Client)


class PahoClient(Client):
    """The client of one connection. Each connection gets a new one, so that no state of the last one remains."""

    stream: PacketStream | None = None
    reads_in_frames = False  # TLS
    _spare: socket.socket | None = None  # a second handle on the connection while it is being made
    _aborted = False

    def _create_socket(self) -> Any:
        """Overrides paho's: the open connection as a PacketStream, after any TLS or WebSocket handshake."""
        try:
            create = super()._create_socket
        except AttributeError:
            raise MqttError(
                "This paho-mqtt has no Client._create_socket, which the bulk path needs; install paho-mqtt 2.2."
            ) from None
        try:
            made: Any = create()
            if self.transport == "websockets":
                made = WebSocket(made._socket)  # noqa: SLF001 - paho's has no other way to it
            self.stream = PacketStream(made, reads_in_frames=self.reads_in_frames)
        except BaseException as error:
            _close_sockets(error)
            raise
        finally:
            spare, self._spare = self._spare, None
            if spare is not None:
                spare.close()
        return self.stream

    def _create_socket_connection(self) -> socket.socket:
        """Overrides paho's: the TCP connection. ``_spare`` is a second handle on it, by which ``abort`` can end it."""
        made = super()._create_socket_connection()
        if self._aborted:
            made.close()
            raise TimeoutError("given up")
        self._spare = made.dup()
        return made

    def abort(self) -> None:
        """Abort a connection that a thread is making or has just made; the thread then ends. Does not block."""
        self._aborted = True
        spare = self._spare
        if spare is not None:
            with contextlib.suppress(OSError):  # the thread may have closed it already
                spare.shutdown(socket.SHUT_RDWR)
        if self.stream is not None:
            self.stream.close()

    def drop_callbacks(self) -> None:
        """Drop all callbacks. Their objects refer to this client, and the cycle would keep some 100 objects until
        garbage collection."""
        self.on_connect = self.on_subscribe = self.on_unsubscribe = self.on_publish = None
        self.on_disconnect = self.on_socket_close = None


class Handshake:
    """Makes one connection and its subscriptions: ``client`` has both after all three awaits.

    ``will`` is topic and payload of the retained last will; ``shown`` are the credentials. Afterwards, ``window`` is
    the number of unacknowledged messages that the broker announced, and ``session_present`` is whether it had the
    session.
    """

    def __init__(
        self, settings: MqttSettings, address: MqttAddress, client_id: str, will: tuple[str, bytes] | None, shown: Shown
    ) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._address = address
        self._client_id = client_id
        self._v5 = settings.protocol == "5"
        self._connected: asyncio.Future[None] = loop.create_future()  # by CONNACK
        self._granted: asyncio.Future[None] = loop.create_future()  # by SUBACK
        self._subscriptions: Sequence[Subscription] = ()
        self._packet_id: int | None = None  # of the last SUBSCRIBE
        self.window = settings.receive_maximum  # after CONNACK at most the broker's Receive Maximum
        self.session_present = False
        self.largest: int | None = None  # bytes of a packet that the broker takes, if it says
        self.highest_qos = 2  # that the broker takes
        self._deadline_s = 0.0  # of the event loop's clock
        self._will = will  # its topic and payload; None: without a will
        self.client = self._make_client(will, shown)

    async def connect(self) -> None:
        """Open the connection and send CONNECT. paho blocks for that, so it runs in a thread of its own.

        Raises ConnectError. The broker's answer arrives in ``connected``.
        """
        settings, client = self._settings, self.client
        arguments: dict[str, Any] = {}
        if self._v5:
            # Without this, paho cleans the session on a client's first connect.
            arguments = {"clean_start": not settings.persistent, "properties": self._connect_properties()}
        keepalive_s = int(settings.keepalive.total_seconds())
        self._deadline_s = asyncio.get_running_loop().time() + settings.connect_timeout.total_seconds()

        def work() -> None:
            client.connect(self._address.host, self._address.port, keepalive_s, **arguments)

        try:
            # paho's own time-out is one for each step, and for each byte of a WebSocket handshake.
            async with asyncio.timeout_at(self._deadline_s):
                await _in_thread(work, client.abort)
        except (OSError, ValueError, IndexError, paho.WebsocketConnectionError) as error:
            raise reasons.connect_error(self._address, error, settings) from error
        if client.stream is None or client.stream.closed:
            raise ConnectError(f"{self._address} closed the connection at once.", "protocol")

    async def connected(self, ended: asyncio.Future[Any]) -> None:
        """Wait for CONNACK. Raises MqttRefusedError, or ConnectError when the connection ends first."""
        left_s = self._deadline_s - asyncio.get_running_loop().time()
        await self._await_answer(self._connected, ended, "CONNECT", max(left_s, 0.0))

    async def subscribe(
        self, subscriptions: Sequence[Subscription], ended: asyncio.Future[Any], silent_s: Callable[[], float]
    ) -> None:
        """Subscribe and wait for SUBACK. Call it again for further filters or another QoS; none at all is allowed.

        A resumed session sends its whole queue before SUBACK, so only silence ends the wait. ``silent_s`` returns the
        time since the last bytes. Raises as ``connected`` does.
        """
        if not subscriptions:
            return  # more sessions than separate filters: this one has none
        self._granted = asyncio.get_running_loop().create_future()
        self._subscriptions = subscriptions
        self._packet_id = self._send_subscribe(subscriptions)
        await self._await_answer(
            self._granted, ended, "SUBSCRIBE", self._settings.connect_timeout.total_seconds(), silent_s
        )

    def repeat(self, subscriptions: Sequence[Subscription]) -> None:
        """Send the same SUBSCRIBE again; nothing waits for the answer. Raises ConnectError."""
        self._send_subscribe(subscriptions)

    def _send_subscribe(self, subscriptions: Sequence[Subscription]) -> int | None:
        """Returns its packet id (None only by paho's type). Raises ConnectError."""
        filters: Any = [(subscription.filter, subscription.qos) for subscription in subscriptions]
        if self._v5:
            # Without Retain As Published the retain flag would not arrive; retained messages are for new subscriptions.
            filters = [
                (text, SubscribeOptions(qos=qos, retainAsPublished=True, retainHandling=1)) for text, qos in filters
            ]
        result, packet_id = self.client.subscribe(filters)
        if result != paho.MQTT_ERR_SUCCESS:
            raise ConnectError(f"{self._address}: SUBSCRIBE was not sent: {paho.error_string(result)}", "other")
        self.client.loop_write()
        return packet_id

    async def _await_answer(
        self,
        answer: asyncio.Future[None],
        ended: asyncio.Future[Any],
        packet: str,
        patience_s: float,
        silent_s: Callable[[], float] | None = None,
    ) -> None:
        """Raises ConnectError if ``ended`` comes first, or nothing in time (``either`` has both arguments)."""
        try:
            await either({answer, ended}, patience_s, silent_s)
        finally:
            if answer.done():
                answer.exception()  # marks it as read: asyncio would log a refusal that comes just as a stop cancels
        if answer.done():
            answer.result()
        elif ended.done():
            _, detail = ended.result()
            failure = self.client.stream.failure if self.client.stream is not None else None
            if isinstance(failure, ssl.SSLError):  # TLS 1.3 asks for the client's certificate after its handshake
                raise reasons.connect_error(self._address, failure, self._settings) from failure
            raise reasons.ended_early(self._address, packet, detail)
        elif silent_s is not None:
            text = f"{self._address} did not answer our {packet}, and has been silent for mqtt.connect_timeout."
            raise ConnectError(text, "timeout")
        else:
            raise ConnectError(
                f"{self._address} did not answer our {packet} within mqtt.connect_timeout. Is it an MQTT broker?",
                "timeout",
            )

    def _make_client(self, will: tuple[str, bytes] | None, shown: Shown) -> PahoClient:
        """paho's client for this attempt, with our callbacks."""
        settings, address = self._settings, self._address
        client = make_client(PahoClient, settings, address, self._client_id, shown, clean=not settings.persistent)
        client.reads_in_frames = address.encrypted
        if will is not None:
            client.will_set(*will, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        return client

    def _connect_properties(self) -> Properties:
        settings = self._settings
        properties = connect_properties(settings)
        properties.SessionExpiryInterval = int(settings.session_expiry.total_seconds()) if settings.persistent else 0
        return properties

    def _on_connect(
        self, _client: object, _data: object, flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        """CONNACK: completes ``_connected``, with the refusal as its error."""
        if self._connected.done():
            return
        code = reason.value
        if reason.is_failure:
            self._connected.set_exception(self._refusal(code, getattr(properties, "ServerReference", "")))
            return
        self.session_present = flags.session_present
        # Formally the other direction's limit, but EMQX echoes min(ours, its max_inflight) here.
        self.window = min(self.window, getattr(properties, "ReceiveMaximum", self.window))
        self.largest = getattr(properties, "MaximumPacketSize", None)
        self.highest_qos = getattr(properties, "MaximumQoS", 2)
        if getattr(properties, "SharedSubscriptionAvailable", 1) == 0 and self._settings.distribution == "shared":
            text = (
                f"{self._address} has shared subscriptions disabled. "
                'Allow them there, or set mqtt.distribution = "partitioned".'
            )
            self._connected.set_exception(MqttRefusedError(text, "subscribe"))
            return
        self._connected.set_result(None)

    def _refusal(self, code: int, reference: str) -> ConnectError:
        """The error for a CONNACK with reason ``code``; ``reference`` names the other server of a redirection."""
        label = reasons.connect_label(code)
        text = (
            f"{self._address} refused client {self._client_id!r}: {reasons.words(code)}.{reasons.status_advice(code)}"
        )
        if code in REDIRECTIONS:
            return ConnectError(text, label, Redirection(code, reference), code=code)
        if label == "banned":
            # EMQX bans a flapping client for five minutes. A start that gave up for good would be down for hours.
            text += " See the broker's list of bans; EMQX bans a client id that disconnects too often, for a while."
        if label in {"unavailable", "banned"}:
            return ConnectError(text, label, code=code)
        if label in {"credentials", "not_authorised"}:
            proof = "mqtt.password" if self._settings.token is None else "mqtt.token"
            text += f" Check mqtt.username ({self._settings.username!r}) and {proof}, and the broker's rules"
            text += f", also about publishing to {self._will[0]} (mqtt.status)." if self._will else "."
        return MqttRefusedError(text, label, code=code)

    def _on_subscribe(
        self, _client: object, _data: object, packet_id: int, codes: list[ReasonCode], _properties: object
    ) -> None:
        """SUBACK: completes ``_granted``, with an error if a filter is refused. A lower QoS is only logged."""
        if self._granted.done() or packet_id != self._packet_id:
            return
        if len(codes) != len(self._subscriptions):
            text = f"{self._address} answered {len(self._subscriptions)} filters with {len(codes)} reason codes."
            self._granted.set_exception(ConnectError(text, "protocol"))
            return
        refused = [
            f"{subscription.filter} ({reasons.words(code.value)})"
            for subscription, code in zip(self._subscriptions, codes, strict=True)
            if code.is_failure
        ]
        lower = [
            f"{subscription.filter} (QoS {code.value})"
            for subscription, code in zip(self._subscriptions, codes, strict=True)
            if code.value < subscription.qos
        ]
        if lower:
            log.warning(
                "mqtt_qos_lowered",
                client_id=self._client_id,
                filters=lower,
                consequence="messages of these filters may be lost at a break; raise the broker's highest QoS",
            )
        if refused:
            advice = reasons.suback_advice(code.value for code in codes)
            text = f"{self._address} refused to subscribe client {self._client_id!r} to {', '.join(refused)}. {advice}"
            self._granted.set_exception(MqttRefusedError(text, "subscribe"))
        else:
            self._granted.set_result(None)


def make_client(
    kind: type[C], settings: MqttSettings, address: MqttAddress, client_id: str, shown: Shown, *, clean: bool
) -> C:
    """A client of class ``kind`` for one connection, which shows the credentials ``shown``. ``clean`` is MQTT 3.1.1's
    clean session; MQTT 5 says it in ``connect``."""
    v5 = settings.protocol == "5"
    client = kind(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        protocol=paho.MQTTv5 if v5 else paho.MQTTv311,
        transport="websockets" if address.websocket else "tcp",
        reconnect_on_failure=False,  # otherwise a refused 3.1.1 CONNECT reconnects inside a callback, blocking
        clean_session=None if v5 else clean,
    )
    prepare(client, settings, address, shown)
    return client


def connect_properties(settings: MqttSettings) -> Properties:
    """The limits of MQTT 5 that a CONNECT announces."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.ReceiveMaximum = settings.receive_maximum
    properties.MaximumPacketSize = settings.max_packet_bytes
    return properties


def prepare(client: paho.Client, settings: MqttSettings, address: MqttAddress, shown: Shown) -> None:
    """Give a client its transport, its proxy and its credentials, ``shown``."""
    client.connect_timeout = settings.connect_timeout.total_seconds()
    if address.websocket:
        client.ws_set_options(settings.websocket_path, dict(settings.websocket_headers) or None)
    if shown.context is not None:
        client.tls_set_context(shown.context)
    if shown.username is not None:
        client.username_pw_set(shown.username, shown.password)
    if settings.proxy is not None:
        import socks

        proxy = settings.proxy
        client.proxy_set(
            proxy_type=socks.HTTP,
            proxy_addr=proxy.host,
            proxy_port=proxy.port,
            proxy_username=proxy.username,
            proxy_password=fresh(proxy.password, "mqtt.proxy.password") if proxy.password is not None else None,
        )


async def either(
    answers: set[asyncio.Future[Any]], patience_s: float | None, silent_s: Callable[[], float] | None = None
) -> None:
    """Wait until one of the futures is done, for at most ``patience_s`` (None: without limit). With ``silent_s``, which
    returns the time since the last bytes, only that much silence ends the wait."""
    loop = asyncio.get_running_loop()
    begin_s, left_s = loop.time(), patience_s
    while not any(answer.done() for answer in answers):
        await asyncio.wait(answers, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if patience_s is None:
            return
        waited_s = loop.time() - begin_s
        left_s = patience_s - (waited_s if silent_s is None else min(waited_s, silent_s()))
        if left_s <= 0:
            return


def _close_sockets(error: BaseException) -> None:
    """Close the socket of a failed TLS or WebSocket handshake: paho leaves it open in the frame of the failed call."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, socket.socket):
                value.close()


async def _in_thread(work: Callable[[], object], abort: Callable[[], object]) -> None:
    """Run ``work`` in a daemon thread: the end of the process does not wait for an unresponsive host.

    ``abort`` is called when the caller stops waiting, and again when the work ends nevertheless.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if done.done():
            abort()
        elif error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - carried to the loop, whatever it is
            error = raised
        try:
            loop.call_soon_threadsafe(finish, error)
        except RuntimeError:  # the loop has closed meanwhile
            abort()
        del error  # it refers to this frame

    threading.Thread(target=run, name="mqtt-connect", daemon=True).start()
    try:
        await done
    except asyncio.CancelledError:
        abort()
        raise
