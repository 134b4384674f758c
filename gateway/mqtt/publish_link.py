"""An MQTT connection that only publishes, for commands and for the canary. It reconnects by itself, and its session
ends with each connection.

PUBLISH packets are made here, and their answers are read here: paho tells no reason code of PUBREC. All other packets
are paho's, as on the sessions' connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from bridge.commands.ports import CUT, DENIED, Outgoing, Published
from bridge.waiting import end_tasks, until_set
from config.error_words import words
from config.errors import forget_frames
from config.values.addresses import parse_mqtt_address
from gateway.mqtt import reasons
from gateway.mqtt.client import Handshake
from gateway.mqtt.errors import ConnectError
from gateway.mqtt.retry import Retry, Siblings
from gateway.mqtt.servers import REDIRECTIONS, Redirection, Servers
from gateway.mqtt.watched import WatchedStream

if TYPE_CHECKING:
    from paho.mqtt.reasoncodes import ReasonCode

    from config.settings import MqttSettings
    from gateway.mqtt.client import PahoClient
    from gateway.mqtt.login import Login
    from gateway.mqtt.stream import PacketStream

log = structlog.get_logger("mqtt")

_PUBACK: Final = 4
_PUBREC: Final = 5
_PUBCOMP: Final = 7
_IDS: Final = 65_535
_AT_ONCE: Final = 64 * 1024  # bytes of packets that are written without waiting for more
_MOST_UNWRITTEN: Final = 1024 * 1024  # bytes
_LARGEST: Final = 268_435_455  # the largest remaining length [MQTT-1.5.5]


class PublishLink:
    """``bridge.commands.ports.CommandLink``. Belongs to the event loop's thread.

    ``connected_ns`` is when the present connection was made (monotonic), None without one; ``problem`` says why there
    is none.
    """

    def __init__(self, settings: MqttSettings, client_id: str, login: Login) -> None:
        # It has no subscriptions, so shared ones do not matter.
        self._settings = settings.model_copy(update={"persistent": False, "distribution": "partitioned"})
        self.client_id = client_id
        self._login = login
        self._v5 = settings.protocol == "5"
        self._servers = Servers([parse_mqtt_address(text) for text in settings.addresses], settings.redirect)
        self._siblings = Siblings()
        self._retry = Retry(settings, self._siblings)
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._changed: list[Callable[[], None]] = []  # called when there is more room, or none
        self._waiting: dict[int, Published] = {}  # by packet id, until the broker has answered
        self._received: dict[int, int] = {}  # QoS 2: by packet id the code of PUBREC, until PUBCOMP comes
        self._next_id = 0
        self._window = 0  # how many may wait for an answer
        self._largest = _LARGEST  # bytes of a packet that the broker takes
        self._highest_qos = 2  # that the broker takes
        self._client: PahoClient | None = None
        self._stream: PacketStream | None = None
        self._ended: asyncio.Future[tuple[str, str | None]] = self._loop.create_future()  # label and detail
        self._redirection: Redirection | None = None  # in the last DISCONNECT
        self._rest = b""  # the begin of a packet
        self._packets = bytearray()  # to be written together, before the loop waits
        self._watched: WatchedStream | None = None
        self._idle = asyncio.Event()  # no message waits for an answer
        self._idle.set()
        self._is_stopping = False
        self.connected_ns: int | None = None
        self.problem: str | None = "not connected yet"  # why it is not connected

    # --- the port ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns at once."""
        self._task = asyncio.create_task(self._run(), name="publish link")

    async def stop(self, deadline_ns: int) -> None:
        """Wait for outstanding answers until the deadline, then disconnect."""
        self._is_stopping = True
        left_s = (deadline_ns - time.monotonic_ns()) / 1e9
        await until_set(self._idle, left_s)
        await end_tasks(self._task)

    @property
    def room(self) -> int:
        """How many PUBLISH packets may be given to it now."""
        stream = self._stream
        if self.connected_ns is None or self._is_stopping or stream is None or stream.unwritten > _MOST_UNWRITTEN:
            return 0  # of QoS 0 nothing else bounds what waits for a broker that takes nothing
        return max(0, self._window - len(self._waiting))

    @property
    def window(self) -> int:
        """How many PUBLISH packets may be unanswered at the broker."""
        return self._window

    @property
    def outstanding(self) -> int:
        """PUBLISH packets that the broker has not answered."""
        return len(self._waiting)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever ``room`` has risen, and when the connection is made or ends."""
        self._changed.append(changed)

    def publish(self, message: Outgoing, published: Published) -> None:
        """Send. Only while ``room`` is above 0. ``published`` is called later, with the broker's code. Raises
        ValueError for a message that is too large, or of a higher QoS than the broker takes [MQTT-3.2.2-11]."""
        stream = self._stream
        assert stream is not None
        assert self.room > 0
        if message.qos > self._highest_qos:
            raise ValueError(f"its QoS is {message.qos}, and the broker takes {self._highest_qos} at most")
        packet_id = self._packet_id() if message.qos else 0
        packet = encode_publish(message, packet_id, v5=self._v5)
        if len(packet) > self._largest:
            raise ValueError(
                f"the message has {len(packet):,} bytes, and the broker takes {self._largest:,} at most (its Maximum "
                "Packet Size)"
            )
        if not self._packets:
            self._loop.call_soon(self._send)
        self._packets += packet
        if len(self._packets) >= _AT_ONCE:
            self._send()
        if message.qos:
            self._waiting[packet_id] = published
            self._idle.clear()
        else:
            self._loop.call_soon(published, 0)

    def give_up(self, why: str) -> None:
        """End the present connection and make another: the broker answers pings, perhaps, but no messages."""
        self._end_connection("closed", why)

    def _send(self) -> None:
        """Write the packets that have gathered: a call of the system takes longer than to make one."""
        packets, self._packets = self._packets, bytearray()
        if packets and self._stream is not None:
            self._stream.write(bytes(packets))

    def _packet_id(self) -> int:
        while True:
            self._next_id = self._next_id % _IDS + 1
            if self._next_id not in self._waiting:
                return self._next_id

    # --- connecting ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Keeps the connection, until it is cancelled."""
        siblings = self._siblings
        while True:
            sibling_subscribed = siblings.next_subscribed
            try:
                await self._connect()
                log.info("publish_link_connected", client_id=self.client_id, window=self._window)
                label, detail = await asyncio.shield(self._ended)
                self.problem = f"The connection has ended: {detail or label}."
                log.warning("publish_link_ended", client_id=self.client_id, reason=label, detail=detail)
                sibling_subscribed = siblings.next_subscribed
                self._servers.connection_ended(time.monotonic_ns())
                pause = self._retry.ended(label, time.monotonic_ns())
                if self._redirection is not None and self._redirect(self._redirection):
                    continue
            except ConnectError as error:
                self.problem = str(error)
                log.warning("publish_link_failed", client_id=self.client_id, error=str(error), repeat_key=error.reason)
                pause = self._retry.failed(error, time.monotonic_ns())
                forget_frames(error)
                to = error.redirection or self._redirection  # in CONNACK, or in a DISCONNECT instead of it
                if self._redirect(to) if to is not None else self._servers.next_after_failure() and pause.is_shared:
                    continue
            except Exception as error:
                self.problem = repr(error)
                log.exception("publish_link_defect", client_id=self.client_id)
                pause = self._retry.ended("other", time.monotonic_ns())
            finally:
                self._hang_up()
            await siblings.wait(pause, sibling_subscribed)
            self._servers.waited()

    def _redirect(self, to: Redirection) -> bool:
        """Follow a redirection: True to go on at once. Otherwise the next address is tried after a wait."""
        here = self._servers.current()
        objection = self._servers.redirect(to)
        if objection is None:
            log.warning("publish_link_redirected", broker=str(here), to=str(self._servers.current()))
            return True
        self.problem = f"{here} redirects to another server, and {objection}."
        self._servers.next_after_failure()
        return False

    async def _connect(self) -> None:
        """Connect to the present address; after CONNACK there is room. Raises ConnectError."""
        address = self._servers.current()
        self._redirection = None
        self._ended = self._loop.create_future()
        shown = await self._login.show(encrypted=address.encrypted)
        handshake = Handshake(self._settings, address, self.client_id, None, shown)
        client = self._client = handshake.client
        client.on_disconnect = self._on_disconnect
        await handshake.connect()
        stream = self._stream = client.stream
        assert stream is not None, "a connection that was made has its stream"
        self._rest = b""
        watched = self._watched = WatchedStream(
            client, stream, self._settings.keepalive,
            take=self._take, ended=partial(self._end_connection, "closed"), written=self._tell_change,
        )  # fmt: skip
        await handshake.connected(self._ended)
        self._window, self._largest = handshake.window, handshake.largest or _LARGEST
        self._highest_qos = handshake.highest_qos
        self.connected_ns, self.problem = time.monotonic_ns(), None
        self._servers.subscribed(self.connected_ns)
        self._retry.subscribed(self.connected_ns)
        watched.keep_alive()
        self._tell_change()

    def _hang_up(self) -> None:
        """Close the connection, if there is one. Who waits for an answer is told first that none is known."""
        is_connected = self.connected_ns is not None
        self._end_connection("closed", None)
        client, self._client = self._client, None
        stream, self._stream = self._stream, None
        if client is not None:
            if is_connected and self._is_stopping:
                client.disconnect()
            client.drop_callbacks()
            if stream is None:
                client.abort()
        if stream is not None:
            stream.flush()
            stream.close()

    def _end_connection(self, label: str, detail: str | None) -> None:
        """Note the end. Unanswered messages are told None, but the first one DENIED or CUT."""
        if self._watched is not None:
            self._watched.stop()
            self._watched = None
        self._packets = bytearray()
        was_connected, self.connected_ns = self.connected_ns is not None, None
        if not self._ended.done():
            self._ended.set_result((label, detail))
        waiting, self._waiting = self._waiting, {}
        # EMQX with deny_action = disconnect has answered all before the message that it refuses, and none after it.
        first = next((packet_id for packet_id in waiting if packet_id not in self._received), None)
        reason = DENIED if label == "not_authorised" else CUT
        self._received.clear()
        self._idle.set()
        for packet_id, published in waiting.items():
            self._tell_of(published, reason if packet_id == first else None)
        if was_connected:
            self._tell_change()

    def _tell_change(self) -> None:
        for changed in self._changed:
            changed()

    # --- what comes ----------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Take the answers to our PUBLISH packets out of the bytes that were read. paho gets the others."""
        stream = self._stream
        assert stream is not None
        data = self._rest + data
        at, room = 0, self.room
        while (packet := _packet(data, at)) is not None:
            kind, begin, end = packet
            if kind in (_PUBACK, _PUBREC, _PUBCOMP):
                self._take_answer(stream, kind, data[begin:end])
            else:
                stream.control += data[at:end]
            at = end
        self._rest = data[at:]
        if not self._waiting:
            self._idle.set()
        if self.room > room:
            self._tell_change()

    def _take_answer(self, stream: PacketStream, kind: int, body: bytes) -> None:
        """``body`` is that of a PUBACK, PUBREC or PUBCOMP, its packet id first."""
        if len(body) < 2:
            self._end_connection("protocol", "the broker sent an acknowledgement without a packet id")
            return
        packet_id = int.from_bytes(body[:2])
        code = body[2] if len(body) > 2 else 0  # left out: success [MQTT-3.4.2.1]
        if kind == _PUBREC and code < 0x80:
            if packet_id in self._waiting:
                self._received[packet_id] = code
            stream.write(b"\x62\x02" + body[:2])  # PUBREL
            return
        published, received = self._waiting.pop(packet_id, None), self._received.pop(packet_id, None)
        if published is None:
            return
        if kind == _PUBCOMP:  # 0x92: the broker did not know it any more
            self._tell_of(published, None if code >= 0x80 else received)
        else:
            self._tell_of(published, code)

    def _tell_of(self, published: Published, code: int | None) -> None:
        try:
            published(code)
        except Exception:  # the answers behind it must be read all the same
            log.exception("publish_link_defect", client_id=self.client_id)

    def _on_disconnect(
        self, _client: object, _data: object, flags: Any, reason: ReasonCode, properties: object
    ) -> None:
        """paho's report that the connection has ended, by the broker's DISCONNECT or without one."""
        code = reason.value
        if flags.is_disconnect_packet_from_server:
            if code in REDIRECTIONS:
                self._redirection = Redirection(code, getattr(properties, "ServerReference", ""))
            advice = reasons.disconnect_advice(code)
            self._end_connection(
                reasons.disconnect_label(code), reasons.lost(code, sent=True) + (f"; {advice}" if advice else "")
            )
        else:
            failure = self._stream.failure if self._stream is not None else None
            self._end_connection("closed", words(failure) if failure else reasons.lost(code, sent=False))


def _packet(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Type, begin of the body and end of the packet at ``at``; None while it is not complete. MQTT 5.0 section 2.1."""
    length, shift, place = 0, 0, at + 1
    while place < len(data):
        byte = data[place]
        place += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            end = place + length
            return (data[at] >> 4, place, end) if end <= len(data) else None
        shift += 7
        if shift > 21:
            return data[at] >> 4, place, len(data)  # malformed: paho says so
    return None


def encode_publish(message: Outgoing, packet_id: int, *, v5: bool) -> bytes:
    """A PUBLISH packet, not retained. MQTT 5.0 section 3.3; properties only with ``v5``."""
    topic = message.topic.encode()
    body = bytearray(len(topic).to_bytes(2) + topic)
    if message.qos:
        body += packet_id.to_bytes(2)
    if v5:
        properties = _properties(message)
        body += _variable(len(properties)) + properties
    body += message.payload
    return bytes([0x30 | message.qos << 1]) + _variable(len(body)) + bytes(body)


def _properties(message: Outgoing) -> bytes:
    """The message's properties of MQTT 5, encoded."""
    found = bytearray()
    if message.expiry_s is not None:
        found += b"\x02" + min(message.expiry_s, 0xFFFF_FFFF).to_bytes(4)
    if message.content_type is not None:
        found += b"\x03" + _text(message.content_type)
    if message.response_topic is not None:
        found += b"\x08" + _text(message.response_topic)
    if message.correlation_data is not None:
        found += b"\x09" + len(message.correlation_data).to_bytes(2) + message.correlation_data
    for name, value in message.user:
        found += b"\x26" + _text(name) + _text(value)
    return bytes(found)


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) > 0xFFFF:
        raise ValueError(f"a text of {len(data):,} bytes is longer than MQTT allows (65,535)")
    return len(data).to_bytes(2) + data


def _variable(number: int) -> bytes:
    """``number`` as a variable byte integer [MQTT-1.5.5]. Raises ValueError beyond its range."""
    if number > _LARGEST:
        raise ValueError(f"the message has {number:,} bytes; MQTT allows {_LARGEST:,}")
    found = bytearray()
    while True:
        number, low = divmod(number, 128)
        found.append(low | 0x80 if number else low)
        if not number:
            return bytes(found)
