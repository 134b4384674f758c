"""One MQTT session: its client id, its window of unacknowledged messages, and the connection that carries it for now.

paho speaks MQTT (``gateway.mqtt.client``); PUBLISH goes through the bulk path (``gateway.mqtt.ingest``). Packet ids
of QoS 1 belong to one connection: what was unacknowledged when it ended is *returned*, and its acknowledgements are
dropped, for the broker uses the ids again. Ids of QoS 2 belong to the session until PUBREL."""

from __future__ import annotations

__all__ = ["Session", "SessionPlan"]

import asyncio
import contextlib
import json
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho
import structlog
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from bridge.backoff import Backoff
from bridge.dispatch import TopicNameError
from bridge.tls import tls_context
from config.addresses import parse_mqtt_address
from gateway.lifecycle import StopVerb
from gateway.mqtt.client import PahoClient, connect_in_thread, refusal_words
from gateway.mqtt.errors import ConnectError, MalformedPacketError, MqttRefusedError
from gateway.mqtt.ingest import Ingest

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.accumulator import Accumulator, Span
    from bridge.dispatch import Dispatcher
    from bridge.filters import Subscription
    from config.addresses import MqttAddress
    from config.settings import Settings
    from gateway.metrics import Metrics
    from gateway.mqtt.flow import Flow

log = structlog.get_logger("mqtt")

BUSY_READ_BYTES = 64 * 1024  # a read that brings so much is followed by another at once
MAX_READS = 64  # reads of one turn from a TLS layer that holds more
_REFUSED_REASONS = {
    0x84: "protocol", 0x85: "client_id", 0x86: "credentials", 0x87: "not_authorised", 0x88: "unavailable",
    0x89: "unavailable", 0x8A: "not_authorised", 0x8B: "unavailable", 0x97: "unavailable", 0x9C: "unavailable",
    0x9D: "unavailable", 0x9F: "unavailable", 1: "protocol", 2: "client_id", 3: "unavailable", 4: "credentials", 5: "not_authorised",
}  # fmt: skip
_DISCONNECT_REASONS = {0x8D: "keepalive", 0x8E: "taken_over", 0x98: "administrative", 0x8B: "server_stopping"}
_PROTOCOL_REASONS = {0x81, 0x82, 0x90, 0x93, 0x94, 0x95}


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What makes a session this one: ``number`` within the worker, its client id, its subscriptions; ``status_topic``
    where it announces the worker."""

    number: int
    client_id: str
    subscriptions: tuple[Subscription, ...]
    status_topic: str | None


class Session:
    """Kept connected from ``start`` to ``stop``. Belongs to the event loop's thread.

    ``start`` returns when every filter is granted for the first time. It raises MqttRefusedError if the broker says
    no before it ever said yes; a broker that cannot be reached is tried until it can."""

    def __init__(
        self,
        plan: SessionPlan,
        settings: Settings,
        flow: Flow,
        accumulator: Accumulator,
        dispatcher: Dispatcher,
        metrics: Metrics,
        returned: Callable[[int], None],
        verb: Callable[[], StopVerb],
        failed: Callable[[BaseException], None],
    ) -> None:
        mqtt = settings.mqtt
        self.plan = plan
        self.name = f"session-{plan.number}"
        self._mqtt = mqtt
        self._settings = settings
        self._flow = flow
        self._accumulator = accumulator
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._returned = returned
        self._verb = verb
        self._failed = failed
        self._v5 = mqtt.protocol == "5"
        self._addresses = [parse_mqtt_address(text) for text in mqtt.addresses]
        self._address_index = 0
        self._backoff = Backoff(
            _ns(mqtt.reconnect_initial),
            _ns(mqtt.reconnect_max),
            mqtt.reconnect_jitter,
            stable_after_ns=_ns(mqtt.stable_after),
        )
        self._ingest = Ingest(
            dispatcher,
            accumulator,
            v5=self._v5,
            max_packet=mqtt.max_packet_bytes,
            max_record=settings.kafka.max_record_bytes,
        )
        self._client: PahoClient | None = None
        self._connection = 0  # counts connections: acknowledgements of an earlier one are dropped
        self._chunks: list[bytes] = []
        self._chunk_bytes = 0
        self._release: list[bytes] = []  # acknowledgements to write, whole packets
        self._released = 0
        self._in_spans = 0  # ids handed to spans and not released
        self._half_window = max(1, mqtt.receive_maximum // 2)
        self._full_window = 0  # the most that was ever unacknowledged at once: a broker may stop there
        self._ended: asyncio.Future[str] | None = None
        self._connected: asyncio.Future[None] | None = None
        self._granted: asyncio.Future[None] | None = None
        self._subscribe_id: int | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ping_timer: asyncio.TimerHandle | None = None
        self._received_ns = 0
        self._pinged_ns = 0
        self._stopping = False
        self.pace_ns = flow.pacing_ns
        self.idle_ticks = 0
        self.connected = False
        self.subscribed = False
        self.session_present = False
        self.problem: str | None = "not connected yet"

    # --- life -------------------------------------------------------------------------------------------------------
    # ---------------

    async def start(self) -> None:
        first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(first), name=self.name)
        self._task.add_done_callback(lambda task: self._report(task, first))
        await first

    def _report(self, task: asyncio.Task[None], first: asyncio.Future[None]) -> None:
        """A session that ends by a defect of ours must not do so in silence."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if first.done():
            self._failed(error)
        else:
            first.set_exception(error)

    async def stop(self, deadline_ns: int) -> None:
        """Drain and disconnect by the verb: acknowledge what is under way, keep or end the session at the broker."""
        self._stopping = True
        verb = self._verb()
        client = self._client
        try:
            if self.connected and client is not None and time.monotonic_ns() < deadline_ns:
                await self._drain(client, verb)
        finally:
            if self._task is not None:
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task

    async def _drain(self, client: PahoClient, verb: StopVerb) -> None:
        if verb is StopVerb.RETIRE:
            # First the membership: what the group gets from now on goes to others. What we hold stays with the session.
            client.unsubscribe([subscription.filter for subscription in self.plan.subscriptions])
            client.loop_write()
        self._flow.stop_reading()
        while self.unacked or self._release:
            self._idle.clear()
            await self._idle.wait()
        self._announce(client, "stopped")
        await self._written(client)
        properties = None
        if verb is StopVerb.RETIRE and self._v5:
            properties = Properties(PacketTypes.DISCONNECT)
            properties.SessionExpiryInterval = 0
        client.disconnect(properties=properties)
        client.loop_write()

    async def _written(self, client: PahoClient) -> None:
        stream = client.stream
        while stream is not None and stream.unwritten and not stream.closed:
            self._idle.clear()
            await self._idle.wait()

    async def _run(self, first: asyncio.Future[None]) -> None:
        while True:
            try:
                await self._open()
                if not first.done():
                    first.set_result(None)
                reason = await self._wait_for_end()
                self._metrics.mqtt_disconnects.child(reason).value += 1
                log.warning("mqtt_disconnected", session=self.plan.number, reason=reason, detail=self.problem)
            except ConnectError as error:
                self._metrics.mqtt_connect_failures.child(error.reason).value += 1
                self.problem = str(error)
                if isinstance(error, MqttRefusedError) and not first.done() and len(self._addresses) == 1:
                    first.set_exception(error)
                    return
                log.warning("mqtt_connect_failed", session=self.plan.number, reason=error.reason, error=str(error))
                self._address_index += 1
            finally:
                self._close()
            if self._stopping:
                return
            delay_ns = self._backoff.next_ns(time.monotonic_ns())
            await asyncio.sleep(delay_ns / 1e9)

    async def _wait_for_end(self) -> str:
        assert self._ended is not None
        return await self._ended

    # --- connecting -------------------------------------------------------------------------------------------------
    # -----------------

    async def _open(self) -> None:
        """Connect, subscribe, announce. Raises ConnectError or MqttRefusedError."""
        address = self._addresses[self._address_index % len(self._addresses)]
        loop = asyncio.get_running_loop()
        self._connected, self._granted, self._ended = loop.create_future(), loop.create_future(), loop.create_future()
        client = self._client = self._make_client(address)
        timeout_s = self._mqtt.connect_timeout.total_seconds()
        arguments: dict[str, Any] = {}
        if self._v5:
            arguments = {"clean_start": not self._mqtt.persistent, "properties": self._connect_properties()}
        keepalive_s = int(self._mqtt.keepalive.total_seconds())
        try:
            async with asyncio.timeout(2 * timeout_s):
                await connect_in_thread(lambda: client.connect(address.host, address.port, keepalive_s, **arguments))
                self._attach(client)
                await self._stage(self._connected, "CONNECT", address)
                self._subscribe(client)
                await self._stage(self._granted, "SUBSCRIBE", address)
        except TimeoutError as error:
            stage = "SUBSCRIBE" if self.connected else "CONNECT"
            raise ConnectError(
                f"{address} did not answer our {stage} within mqtt.connect_timeout. Is it an MQTT broker?", "timeout"
            ) from error
        except (OSError, ssl.SSLError, ValueError, paho.WebsocketConnectionError) as error:
            raise _connect_error(address, error, self._mqtt) from error
        self.subscribed = True
        self.problem = None
        self._backoff.started(time.monotonic_ns())
        self._metrics.mqtt_connects.child().value += 1
        self._announce(client, "online")
        log.info(
            "mqtt_subscribed", session=self.plan.number, client_id=self.plan.client_id, broker=str(address),
            session_present=self.session_present, filters=[subscription.filter for subscription in self.plan.subscriptions],
        )  # fmt: skip

    async def _stage(self, answer: asyncio.Future[None], packet: str, address: MqttAddress) -> None:
        """Wait for an answer, or for the connection's end before it."""
        assert self._ended is not None
        await asyncio.wait({answer, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            answer.result()
            return
        detail = self.problem or "the connection ended"
        raise ConnectError(
            f"{address} ended the connection before it answered our {packet}: {detail}. "
            "Is this its MQTT listener (mqtt, mqtts, ws, wss), and does it speak this mqtt.protocol?",
            "protocol",
        )

    def _make_client(self, address: MqttAddress) -> PahoClient:
        mqtt = self._mqtt
        options: dict[str, Any] = {} if self._v5 else {"clean_session": not mqtt.persistent}
        client = PahoClient(
            paho.CallbackAPIVersion.VERSION2,
            client_id=self.plan.client_id,
            protocol=paho.MQTTv5 if self._v5 else paho.MQTTv311,
            transport="websockets" if address.websocket else "tcp",
            reconnect_on_failure=False,
            want_write=self._want_write,
            **options,
        )
        client.connect_timeout = mqtt.connect_timeout.total_seconds()
        if address.websocket:
            client.ws_set_options(mqtt.websocket_path, dict(mqtt.websocket_headers) or None)
        if address.encrypted:
            client.tls_set_context(tls_context(mqtt.tls, "mqtt.tls"))
        if mqtt.username is not None:
            client.username_pw_set(
                mqtt.username, mqtt.password.get_secret_value() if mqtt.password is not None else None
            )
        if mqtt.proxy is not None:
            import socks

            password = mqtt.proxy.password.get_secret_value() if mqtt.proxy.password is not None else None
            client.proxy_set(
                proxy_type=socks.HTTP, proxy_addr=mqtt.proxy.host, proxy_port=mqtt.proxy.port,
                proxy_username=mqtt.proxy.username, proxy_password=password,
            )  # fmt: skip
        if self.plan.status_topic is not None:
            client.will_set(self.plan.status_topic, self._status("offline"), qos=1, retain=True)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = self._on_socket_close
        return client

    def _connect_properties(self) -> Properties:
        mqtt = self._mqtt
        properties = Properties(PacketTypes.CONNECT)
        properties.ReceiveMaximum = mqtt.receive_maximum
        properties.MaximumPacketSize = mqtt.max_packet_bytes
        properties.SessionExpiryInterval = int(mqtt.session_expiry.total_seconds()) if mqtt.persistent else 0
        return properties

    def _attach(self, client: PahoClient) -> None:
        """The connecting thread is done with the stream: from here on it is the event loop's."""
        stream = client.stream
        if stream is None or stream.closed:
            raise ConnectionError("the connection ended while it was made")
        self._ingest.control.clear()
        self._chunks.clear()
        self._chunk_bytes = self._ingest.missing = 0
        self._received_ns = time.monotonic_ns()
        stream.set_user_timeout(int(self._mqtt.keepalive.total_seconds() * 1500))
        if not stream.flush():
            self._want_write()
        self._flow.add(self)
        self._arm_ping()

    def _subscribe(self, client: PahoClient) -> None:
        if self._v5:
            filters: Any = [
                # Without Retain As Published the retain flag would not arrive. Retained messages are only wanted for
                # a new subscription.
                (subscription.filter, SubscribeOptions(qos=subscription.qos, retainAsPublished=True, retainHandling=1))
                for subscription in self.plan.subscriptions
            ]
        else:
            filters = [(subscription.filter, subscription.qos) for subscription in self.plan.subscriptions]
        if not filters:
            assert self._granted is not None
            self._granted.set_result(None)  # more sessions than separate filters: this one only stands by
            return
        result, self._subscribe_id = client.subscribe(filters)
        if result != paho.MQTT_ERR_SUCCESS:
            raise ConnectionError(paho.error_string(result))
        client.loop_write()

    def _announce(self, client: PahoClient, state: str) -> None:
        if self.plan.status_topic is not None:
            client.publish(self.plan.status_topic, self._status(state), qos=1, retain=True)
            client.loop_write()

    def _status(self, state: str) -> bytes:
        """The retained status message: who, since when, and how many sessions stand behind it."""
        document = {
            "state": state,
            "instance": self._settings.instance,
            "worker": self._settings.worker,
            "sessions": self._mqtt.sessions,
        }
        if state != "offline":  # the will is written at connect: its time would be that one's
            document["time_ms"] = time.time_ns() // 1_000_000
        return json.dumps(document).encode()

    # --- paho's callbacks
    # --------------------------------------------------------------------------------------------------------------

    def _on_connect(
        self, _client: object, _data: object, flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        assert self._connected is not None
        if self._connected.done():
            return
        code = reason.value
        if reason.is_failure:
            words = refusal_words(code)
            text = f"The broker refused client {self.plan.client_id!r}: {words}."
            if code in {0x86, 0x87, 0x8C}:
                text += f" Check mqtt.username ({self._mqtt.username!r}) and mqtt.password, and what the broker allows this client id."
            label = _REFUSED_REASONS.get(code, "other")
            kind = ConnectError if label == "unavailable" else MqttRefusedError
            self._connected.set_exception(kind(text, label))
            return
        self.connected = True
        self.session_present = flags.session_present
        if not flags.session_present:
            self._ingest.qos2.clear()  # a new session knows nothing of the old one's exchanges
        self._metrics.mqtt_session_present.child(str(self.plan.number)).value = int(flags.session_present)
        window = self._mqtt.receive_maximum
        if properties is not None:
            # Formally the other direction's limit, but EMQX echoes min(ours, its max_inflight) here.
            window = min(window, getattr(properties, "ReceiveMaximum", window))
            if getattr(properties, "SharedSubscriptionAvailable", 1) == 0 and self._mqtt.distribution == "shared":
                self._connected.set_exception(
                    MqttRefusedError(
                        'The broker does not support shared subscriptions. Use mqtt.distribution = "partitioned", or allow them there.',
                        "subscribe",
                    )
                )
                return
        self._half_window = max(1, window // 2)
        self._full_window = 0
        self._metrics.mqtt_receive_window.child(str(self.plan.number)).value = window
        self._connected.set_result(None)

    def _on_subscribe(
        self, _client: object, _data: object, packet_id: int, codes: list[ReasonCode], _properties: object
    ) -> None:
        if self._granted is None or self._granted.done() or packet_id != self._subscribe_id:
            return
        refused = [
            f"{subscription.filter} ({refusal_words(code.value) if self._v5 else 'refused'})"
            for subscription, code in zip(self.plan.subscriptions, codes, strict=False)
            if code.is_failure
        ]
        if refused:
            text = (
                f"The broker refused to subscribe client {self.plan.client_id!r} to {', '.join(refused)}. "
                "Check its authorisation rules for these filters, and that it supports $share."
            )
            self._granted.set_exception(MqttRefusedError(text, "subscribe"))
        else:
            self._granted.set_result(None)

    def _on_disconnect(
        self, _client: object, _data: object, flags: Any, reason: ReasonCode, _properties: object
    ) -> None:
        code = reason.value
        if flags.is_disconnect_packet_from_server:
            label = _DISCONNECT_REASONS.get(code, "protocol" if code in _PROTOCOL_REASONS else "other")
            self._end(
                label, f"the broker disconnected us: {refusal_words(code)}" if code else "the broker disconnected us"
            )
        elif self._stopping:
            self._end("requested", None)
        else:
            self._end("closed", str(reason))

    def _on_socket_close(self, _client: object, _data: object, stream: Any) -> None:
        """The event loop must forget a descriptor before it is closed."""
        if _in_event_loop() and stream.fileno() >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(stream.fileno())
            loop.remove_writer(stream.fileno())

    # --- reading and writing
    # -------------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        stream = self._client.stream if self._client is not None else None
        if stream is not None and not stream.closed:
            asyncio.get_running_loop().add_reader(stream.fileno(), self.read)
            if stream.pending():
                asyncio.get_running_loop().call_soon(self.read)

    def ignore(self) -> None:
        stream = self._client.stream if self._client is not None else None
        if stream is not None and not stream.closed:
            asyncio.get_running_loop().remove_reader(stream.fileno())

    def read(self) -> None:
        """Take in what has arrived: the event loop's reader and the common tick call this."""
        client = self._client
        stream = client.stream if client is not None else None
        if client is None or stream is None or stream.closed:
            return
        messages = size = 0
        for _ in range(MAX_READS):
            data = stream.read()
            if not data:
                if data is not None:
                    self._end("closed", str(stream.failure) if stream.failure else "the broker closed the connection")
                    return
                break
            size += len(data)
            try:
                messages += self._feed(data)
            except (MalformedPacketError, TopicNameError) as error:
                self._reject(client, error)
                return
            if not stream.pending():
                break
        if self._ingest.control:
            self._serve(client)
        if self._ingest.answers:
            stream.write(bytes(self._ingest.answers))
            self._ingest.answers.clear()
        self._settle_pace(messages, size)

    def _feed(self, data: bytes) -> int:
        """Decode a read together with what was left of the one before."""
        ingest = self._ingest
        if self._chunks:
            self._chunks.append(data)
            self._chunk_bytes += len(data)
            if len(data) < ingest.missing:
                ingest.missing -= len(data)
                return 0
            data = b"".join(self._chunks)
            self._chunks.clear()
        self._dispatcher.delivery_prefix = b"%s:%d:" % (self.plan.client_id.encode(), self._connection)
        used, messages = ingest.feed(data)
        if used < len(data):
            self._chunks.append(data[used:])
        return messages

    def _serve(self, client: PahoClient) -> None:
        """Let paho handle its packets."""
        while self._ingest.control:
            packet = self._ingest.control
            if client.stream is None or client.stream.closed:
                packet.clear()
                return
            client.stream.control += packet
            packet.clear()
            while client.stream.control and not client.stream.closed:
                client.loop_read()
        if client.want_write():
            client.loop_write()

    def _settle_pace(self, messages: int, size: int) -> None:
        flow = self._flow
        if not size:
            self.idle_ticks += 1
            return
        now_ns = self._accumulator.now_ns or time.monotonic_ns()
        since_ns, self._received_ns = now_ns - self._received_ns, now_ns
        self.idle_ticks = 0
        unacked = self.unacked
        pressed = unacked >= self._half_window or (unacked >= self._full_window > 1)
        if unacked > self._full_window:
            self._full_window = unacked
            pressed = unacked >= self._half_window
        if pressed or size >= BUSY_READ_BYTES:
            flow.unpace(self)
        elif messages:
            # No more than a quarter of the window between two reads, or the broker stops and waits for us.
            share = max(1, self._half_window // 2)
            if messages > share:
                self.pace_ns = max(500_000, self.pace_ns * share // messages)
            else:
                self.pace_ns = min(flow.pacing_ns, self.pace_ns + self.pace_ns // 4)
            if since_ns < 2 * flow.pacing_ns:
                flow.pace(self)
        flow.took(self, messages, size, pressed=pressed)

    def _reject(self, client: PahoClient, error: MalformedPacketError | TopicNameError) -> None:
        code = error.reason_code if isinstance(error, MalformedPacketError) else 0x90
        log.error(
            "mqtt_malformed",
            session=self.plan.number,
            error=str(error),
            consequence="disconnecting; the broker may send it again",
        )
        if self._v5:
            client.disconnect(reasoncode=ReasonCode(PacketTypes.DISCONNECT, identifier=code))
            client.loop_write()
        self._end("protocol", str(error))

    def _want_write(self) -> None:
        stream = self._client.stream if self._client is not None else None
        if stream is not None and not stream.closed and _in_event_loop():
            asyncio.get_running_loop().add_writer(stream.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        client = self._client
        stream = client.stream if client is not None else None
        if client is None or stream is None or stream.closed:
            return
        if stream.flush():
            asyncio.get_running_loop().remove_writer(stream.fileno())
            if client.want_write():
                client.loop_write()
            self._idle.set()

    # --- the window -------------------------------------------------------------------------------------------------
    # -------------------

    @property
    def unacked(self) -> int:
        """Messages of QoS 1 and 2 received on this connection and not acknowledged."""
        return self._in_spans + len(self._ingest.ids) + len(self._ingest.ids2)

    def hand_over(self, span: Span) -> None:
        ingest = self._ingest
        if ingest.ids or ingest.ids2:
            span.owed.append((self, self._connection, ingest.ids, ingest.ids2))
            self._in_spans += len(ingest.ids) + len(ingest.ids2)
            ingest.ids, ingest.ids2 = [], []

    def release(self, connection: int, ids: list[bytes], ids2: list[bytes]) -> None:
        if connection != self._connection:
            return  # the broker uses the ids again; what was owed has been returned
        self._in_spans -= len(ids) + len(ids2)
        self._released += len(ids) + len(ids2)
        if ids:
            self._release.append(b"@\x02" + b"@\x02".join(ids))
        if ids2:
            self._release.append(b"P\x02" + b"P\x02".join(ids2))

    def send_acknowledgements(self) -> None:
        if self._release and self._client is not None and self._client.stream is not None:
            self._client.stream.write(b"".join(self._release))
            self._release.clear()
            self._metrics.mqtt_acks.child().value += self._released
            self._released = 0
        if self._stopping:
            self._idle.set()

    @property
    def redelivered(self) -> int:
        return self._ingest.redelivered

    # --- keepalive and the end
    # -----------------------------------------------------------------------------------------------------

    def _arm_ping(self) -> None:
        interval_s = self._mqtt.keepalive.total_seconds()
        if self._client is not None:
            interval_s = min(interval_s, self._client.keepalive or interval_s)  # the broker's Server Keep Alive
        self._ping_timer = asyncio.get_running_loop().call_later(interval_s / 2, self._ping)

    def _ping(self) -> None:
        """Send a PINGREQ twice per keepalive, read or not; give up on a peer that answered neither it nor anything
        else."""
        stream = self._client.stream if self._client is not None else None
        if stream is None or stream.closed:
            return
        if (
            not self._flow.paused
            and self._pinged_ns
            and not self._ingest.pinged
            and self._received_ns < self._pinged_ns
        ):
            self._end("keepalive", "no PINGRESP")
            return
        self._ingest.pinged = False
        self._pinged_ns = 0 if self._flow.paused else time.monotonic_ns()
        stream.write(b"\xc0\x00")
        self._arm_ping()

    def _end(self, reason: str, detail: str | None) -> None:
        if self._ended is not None and not self._ended.done():
            self.problem = detail
            self._ended.set_result(reason)
            self._detach()

    def _detach(self) -> None:
        """Stop using the connection: its unacknowledged messages go back to the broker."""
        self._flow.remove(self)
        gone = self._accumulator.returned(self, self._connection)
        if gone:
            self._returned(gone)
        self._connection += 1
        self._in_spans = 0
        self._release.clear()
        self.connected = self.subscribed = False
        self._idle.set()
        self._flow.flush()

    def _close(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._pinged_ns = 0
        client, stream = self._client, self._client.stream if self._client is not None else None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result("requested")
            self._detach()
        if client is not None and stream is not None and not stream.closed:
            self._on_socket_close(client, None, stream)
            stream.close()
        self._client = None


def _in_event_loop() -> bool:
    """Whether this thread runs the event loop: the connecting thread writes too, before there is a reader."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _connect_error(address: MqttAddress, error: Exception, mqtt: Any) -> ConnectError:
    """Why connecting failed, in a sentence that says what to look at."""
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectError(
            f"{address}: its certificate was not accepted ({error.verify_message}). Check mqtt.tls.ca_file ({mqtt.tls.ca_file}) and mqtt.tls.server_name.",
            "tls",
        )
    if isinstance(error, ssl.SSLError):
        return ConnectError(
            f"{address}: TLS failed ({text}). Is this the TLS listener, and does it want a client certificate (mqtt.tls)?",
            "tls",
        )
    if isinstance(error, ConnectionRefusedError):
        return ConnectError(
            f"{address} refused the connection: is the broker running, and is this its port?", "unreachable"
        )
    if isinstance(error, socket.gaierror):
        return ConnectError(
            f"{address}: the name {address.host!r} is not known ({text}). Check mqtt.addresses and DNS.", "unreachable"
        )
    if isinstance(error, TimeoutError):
        return ConnectError(
            f"{address} did not answer within mqtt.connect_timeout. A firewall, or a wrong address?", "timeout"
        )
    if isinstance(error, paho.WebsocketConnectionError):
        return ConnectError(f"{address}: {text}. Is mqtt.websocket_path ({mqtt.websocket_path}) right?", "protocol")
    if type(error).__module__.startswith("socks"):
        return ConnectError(
            f"{address} by proxy {mqtt.proxy.host}:{mqtt.proxy.port}: {text}. Check mqtt.proxy.", "proxy"
        )
    return ConnectError(f"{address}: {text}.", "unreachable")


def _ns(length: Any) -> int:
    return round(length.total_seconds() * 1e9)
