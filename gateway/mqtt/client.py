"""paho's client with our stream in place of its socket: CONNECT and SUBSCRIBE, and what the broker answers to them."""

from __future__ import annotations

__all__ = ["Handshake", "PahoClient", "either", "prepare"]

import asyncio
import contextlib
import socket
import ssl
import threading
import traceback
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paho.mqtt.reasoncodes import ReasonCode

    from bridge.routing.filters import Subscription
    from config.settings import MqttSettings
    from config.values.addresses import MqttAddress
    from gateway.mqtt.login import Shown

log = structlog.get_logger("mqtt")


class PahoClient(paho.Client):
    """One connection's client: made anew for each, so that nothing of the last one is left in it."""

    stream: PacketStream | None = None
    framed = False  # TLS or a WebSocket
    _spare: socket.socket | None = None  # a second handle on the connection while it is being made
    _aborted = False

    def _get_proxy(self) -> dict[str, Any] | None:
        """The settings' proxy or none; paho would look into the environment as well (mqtt_proxy), unasked."""
        proxy: dict[str, Any] = self._proxy
        return proxy or None

    def _create_socket(self) -> Any:
        try:
            create = super()._create_socket
        except AttributeError:
            raise MqttError(
                "This paho-mqtt has no Client._create_socket, on which the bulk path rests; install paho-mqtt 2.2."
            ) from None
        try:
            self.stream = PacketStream(create(), framed=self.framed)
        except BaseException as error:
            _close_sockets(error)
            raise
        finally:
            spare, self._spare = self._spare, None
            if spare is not None:
                spare.close()
        return self.stream

    def _create_socket_connection(self) -> socket.socket:
        made = super()._create_socket_connection()
        if self._aborted:
            made.close()
            raise TimeoutError("given up")
        self._spare = made.dup()
        return made

    def abort(self) -> None:
        """Give up a connection that is being made in a thread, or was just made: the thread then ends. Does not
        block."""
        self._aborted = True
        spare = self._spare
        if spare is not None:
            with contextlib.suppress(OSError):  # the thread may have closed it just now
                spare.shutdown(socket.SHUT_RDWR)
        if self.stream is not None:
            self.stream.close()

    def let_go(self) -> None:
        """Tell nobody of anything any more: who was told knows this client, and the cycle would keep both, some 100
        objects, until the garbage collector comes."""
        self.on_connect = self.on_subscribe = self.on_unsubscribe = self.on_publish = None
        self.on_disconnect = self.on_socket_close = None


class Handshake:
    """Makes one connection and its subscriptions: ``client`` has both when all three awaits have returned.

    ``will`` is topic and payload of the retained last will; ``shown`` what proves who we are. ``window`` is afterwards
    how many messages the broker will send without an acknowledgement, as far as it says; ``session_present`` whether it
    still had the session.
    """

    def __init__(
        self, settings: MqttSettings, address: MqttAddress, client_id: str, will: tuple[str, bytes] | None, shown: Shown
    ) -> None:
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._address = address
        self._client_id = client_id
        self._v5 = settings.protocol == "5"
        self._connected: asyncio.Future[None] = loop.create_future()
        self._granted: asyncio.Future[None] = loop.create_future()
        self._subscriptions: Sequence[Subscription] = ()
        self._packet_id: int | None = None
        self.window = settings.receive_maximum
        self.session_present = False
        self._deadline_s = 0.0  # of the event loop's clock
        self.client = self._make_client(will, shown)

    async def connect(self) -> None:
        """Open the connection and send CONNECT: paho blocks for that, so it runs in a thread of its own.

        Raises ConnectError; what the broker answers comes in ``connected``.
        """
        settings, client = self._settings, self.client
        arguments: dict[str, Any] = {}
        if self._v5:
            # Unless told so, paho cleans the session on a client's first connect.
            arguments = {"clean_start": not settings.persistent, "properties": self._connect_properties()}
        keepalive_s = int(settings.keepalive.total_seconds())
        self._deadline_s = asyncio.get_running_loop().time() + settings.connect_timeout.total_seconds()

        def work() -> None:
            client.connect(self._address.host, self._address.port, keepalive_s, **arguments)

        try:
            # paho's own time-out is one for each step, and for each byte of a WebSocket handshake.
            async with asyncio.timeout_at(self._deadline_s):
                await _in_thread(work, client.abort)
        except (OSError, ValueError, paho.WebsocketConnectionError) as error:
            raise reasons.connect_error(self._address, error, settings) from error
        if client.stream is None or client.stream.closed:
            raise ConnectError(f"{self._address} closed the connection as soon as it was made.", "protocol")

    async def connected(self, ended: asyncio.Future[Any]) -> None:
        """Wait for CONNACK. Raises MqttRefusedError, or ConnectError when the connection ends first."""
        left_s = self._deadline_s - asyncio.get_running_loop().time()
        await self._answer(self._connected, ended, "CONNECT", max(left_s, 0.0))

    async def subscribe(
        self, subscriptions: Sequence[Subscription], ended: asyncio.Future[Any], silent_s: Callable[[], float]
    ) -> None:
        """Subscribe and wait for SUBACK; again for more, or for another QoS. Raises as ``connected`` does; nothing to
        subscribe to is fine.

        A session that is resumed sends all it has before SUBACK, so patience ends with silence only: ``silent_s`` says
        for how long nothing has come."""
        if not subscriptions:
            return  # more sessions than separate filters: this one only stands by
        self._granted = asyncio.get_running_loop().create_future()
        self._subscriptions = subscriptions
        self._packet_id = self._send_subscribe(subscriptions)
        await self._answer(self._granted, ended, "SUBSCRIBE", self._settings.connect_timeout.total_seconds(), silent_s)

    def repeat(self, subscriptions: Sequence[Subscription]) -> None:
        """Subscribe again to the same; nobody waits for the answer. Raises ConnectError."""
        self._send_subscribe(subscriptions)

    def _send_subscribe(self, subscriptions: Sequence[Subscription]) -> int | None:
        """Returns the packet id. Raises ConnectError."""
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

    async def _answer(
        self,
        answer: asyncio.Future[None],
        ended: asyncio.Future[Any],
        packet: str,
        patience_s: float,
        silent_s: Callable[[], float] | None = None,
    ) -> None:
        await either({answer, ended}, patience_s, silent_s)
        if answer.done():
            answer.result()
        elif ended.done():
            _, detail = ended.result()
            failure = self.client.stream.failure if self.client.stream is not None else None
            if isinstance(failure, ssl.SSLError):  # TLS 1.3 asks for the client's certificate after its handshake
                raise reasons.connect_error(self._address, failure, self._settings) from failure
            raise ConnectError(
                f"{self._address} ended the connection before it answered our {packet} "
                f"({detail or 'no reason given'}). "
                "Is this its MQTT listener, for this scheme (mqtt, mqtts, ws, wss) and this mqtt.protocol?",
                "protocol",
            )
        elif silent_s is not None:
            text = f"{self._address} did not answer our {packet}, and has been silent for mqtt.connect_timeout."
            raise ConnectError(text, "timeout")
        else:
            raise ConnectError(
                f"{self._address} did not answer our {packet} within mqtt.connect_timeout. Is it an MQTT broker?",
                "timeout",
            )

    def _make_client(self, will: tuple[str, bytes] | None, shown: Shown) -> PahoClient:
        settings, address = self._settings, self._address
        client = PahoClient(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            protocol=paho.MQTTv5 if self._v5 else paho.MQTTv311,
            transport="websockets" if address.websocket else "tcp",
            reconnect_on_failure=False,  # else a refused 3.1.1 CONNECT reconnects inside a callback, blocking
            clean_session=None if self._v5 else not settings.persistent,
        )
        client.framed = address.websocket or address.encrypted
        prepare(client, settings, address, shown)
        if will is not None:
            client.will_set(*will, qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        return client

    def _connect_properties(self) -> Properties:
        settings = self._settings
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.ReceiveMaximum = settings.receive_maximum
        properties.MaximumPacketSize = settings.max_packet_bytes
        properties.SessionExpiryInterval = int(settings.session_expiry.total_seconds()) if settings.persistent else 0
        return properties

    def _on_connect(
        self, _client: object, _data: object, flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if self._connected.done():
            return
        code = reason.value
        if reason.is_failure:
            self._connected.set_exception(self._refusal(code, getattr(properties, "ServerReference", "")))
            return
        self.session_present = flags.session_present
        # Formally the other direction's limit, but EMQX echoes min(ours, its max_inflight) here.
        self.window = min(self.window, getattr(properties, "ReceiveMaximum", self.window))
        if getattr(properties, "SharedSubscriptionAvailable", 1) == 0 and self._settings.distribution == "shared":
            text = (
                f"{self._address} has shared subscriptions switched off. "
                'Allow them there, or set mqtt.distribution = "partitioned".'
            )
            self._connected.set_exception(MqttRefusedError(text, "subscribe"))
            return
        self._connected.set_result(None)

    def _refusal(self, code: int, reference: str) -> ConnectError:
        label = reasons.connect_label(code)
        text = (
            f"{self._address} refused client {self._client_id!r}: {reasons.words(code)}.{reasons.status_advice(code)}"
        )
        if code in REDIRECTIONS:
            return ConnectError(text, label, Redirection(code, reference), code=code)
        if label == "banned":
            # For five minutes, as EMQX does with who flaps: to end the start for good would make hours of them.
            text += " See the broker's list of bans; EMQX bans a client id that disconnects too often, for a while."
        if label in {"unavailable", "banned"}:
            return ConnectError(text, label, code=code)
        if label in {"credentials", "not_authorised"}:
            proof = "mqtt.password" if self._settings.token is None else "mqtt.token"
            text += f" Check mqtt.username ({self._settings.username!r}) and {proof}, and the broker's rules."
        return MqttRefusedError(text, label, code=code)

    def _on_subscribe(
        self, _client: object, _data: object, packet_id: int, codes: list[ReasonCode], _properties: object
    ) -> None:
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


def prepare(client: paho.Client, settings: MqttSettings, address: MqttAddress, shown: Shown) -> None:
    """Tell a client which way it is to go to the broker, and what to show there."""
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
    """Wait until one of them is there, ``patience_s`` at most; with ``silent_s``, until it was silent for so long."""
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
    """Close the socket of a TLS or WebSocket handshake that failed: paho leaves it open, in the failed call's frame."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, socket.socket):
                value.close()


async def _in_thread(work: Callable[[], object], abort: Callable[[], object]) -> None:
    """Run ``work`` in a daemon thread: a process that ends does not wait for a host that never answers.

    ``abort`` is called when nobody waits for the work any more, and again when it ends nevertheless."""
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
        del error  # it knows this frame

    threading.Thread(target=run, name="mqtt-connect", daemon=True).start()
    try:
        await done
    except asyncio.CancelledError:
        abort()
        raise
