"""One MQTT connection on the bulk path: reading, the window of unacknowledged packet ids, acknowledging, keepalive.

Packet ids of QoS 1 belong to their connection. When it ends, unacknowledged messages are *returned*: the broker sends
them again. Later releases change nothing, since the broker uses the ids again.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from config.error_words import words
from gateway.mqtt import reasons
from gateway.mqtt.errors import MalformedPacketError
from gateway.mqtt.flow import SHORTEST_PACE_NS, Flow
from gateway.mqtt.ingest import until_publish
from gateway.mqtt.keepalive import Keepalive, Verdict
from gateway.mqtt.servers import REDIRECTIONS, Redirection

if TYPE_CHECKING:
    from bridge.produce.accumulator import Accumulator
    from bridge.produce.batch import Span
    from bridge.produce.dispatch import Dispatcher
    from gateway.mqtt.client import PahoClient
    from gateway.mqtt.ingest import Ingest
    from gateway.mqtt.stream import PacketStream

log = structlog.get_logger("mqtt")

DISCONNECT = b"\xe0\x00"
DISCONNECT_AND_END = b"\xe0\x07\x00\x05\x11\x00\x00\x00\x00"  # MQTT 5: reason 0, session expiry interval 0
FAREWELL_S = 2.0
BUSY_READ_BYTES = 64 * 1024  # a read of that size is followed by another at once
PROTOCOL_ERROR = 0x82  # paho's code for a packet that it cannot parse
MOST_IDS = 65_535  # the number of packet ids, and so the most unacknowledged messages
MAX_READS = 64  # most reads in one turn from a TLS layer with more data
LOOK_S = 1.0  # between two looks for room in the broker's window
LOOKS = 3  # so many in a row find room: a broker that fetches its queue from a disk may answer a ping before it does


class Connection:
    """A connection from the open socket until ``ended`` is done. Belongs to the event loop's thread.

    ``ended`` becomes (label of gateway_mqtt_disconnects_total, known reason). ``label`` names the connection in
    delivery ids. ``limit`` is the announced number of messages that the broker may send unacknowledged. Beyond it,
    reading stops until half of them are acknowledged; ``overrun`` is the number reached.
    """

    def __init__(
        self,
        client: PahoClient,
        stream: PacketStream,
        ingest: Ingest,
        flow: Flow,
        accumulator: Accumulator,
        dispatcher: Dispatcher,
        *,
        label: bytes,
        window: int,
        keepalive_s: float,
        limit: int = MOST_IDS,
    ) -> None:
        self._client = client
        self._stream = stream
        self._ingest = ingest
        self._flow = flow
        self._accumulator = accumulator
        self._dispatcher = dispatcher
        self._label = label
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[tuple[str, str | None]] = self._loop.create_future()
        self.acknowledged = 0  # PUBACK and PUBREC sent
        self.received_bytes = 0
        self.returned = 0  # messages unacknowledged at the end
        self.redirection: Redirection | None = None  # from the broker's DISCONNECT
        self.stopping = False
        self._is_left = False  # DISCONNECT is sent
        self._held = False  # reading is paused until all received messages are acknowledged
        self._limit = limit
        self.overrun = 0
        self.overrun_ns = 0  # time of the last overrun
        self._is_over_limit = False  # reading is paused until half of the limit is acknowledged
        self._is_withheld = False  # reading is paused: messages came before SUBACK, and were put back
        self._listened_ns = 0  # when reading in the event loop began last
        self.pace_ns = flow.pacing_ns
        self.idle_ticks = 0
        self._writable = asyncio.Event()
        self._settled = asyncio.Event()
        self._rest: list[bytes] = []  # the beginning of an incomplete packet
        self._in_spans = 0  # packet ids handed to spans and not released
        self._released2 = 0  # QoS 2 ids released
        self._to_send: list[bytes] = []
        self._unsent = 0  # packet ids in it
        self._half_window = max(1, window // 2)
        self._most_unacked = 0
        self._read_ns = time.monotonic_ns()
        self._keepalive = Keepalive(keepalive_s)
        self.messages = 0  # received
        self._answered = asyncio.Event()  # a PINGRESP came
        self._completed = False  # PUBCOMP was sent since the last look: the broker's window has room for more
        self._served = 0  # type of the packet that paho looks at
        self._reuse_reported = False
        self.handshaking = True  # until SUBACK: a pause of reading applies once it has brought messages
        self._ping_timer: asyncio.TimerHandle | None = None
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = self._on_socket_close
        ingest.control.clear()
        ingest.answers.clear()
        ingest.missing = ingest.pongs = ingest.taken = ingest.handed2 = ingest.reused = 0
        ingest.newest.clear()

    def open(self) -> None:
        """Begin to read and write; the connecting thread no longer uses the stream."""
        self._stream.want_write = self._want_write
        self._stream.set_user_timeout(int(self._keepalive.interval_s * 3000))
        if not self._stream.flush():
            self._want_write()
        self._flow.add(self)
        self._arm_ping()

    def set_window(self, window: int, keepalive_s: float) -> None:
        """Adopt CONNACK's window and keep alive."""
        self._half_window = max(1, window // 2)
        if self._keepalive.shorten(keepalive_s):
            self._arm_ping()

    def subscribed(self) -> None:
        """Note the end of the handshake: from now on a pause of reading applies to this connection too."""
        self.handshaking = False
        self._flow.subscribed(self)

    # --- reading -----------------------------------------------------------------------------------

    def listen(self) -> None:
        """Begin or continue to read, unless ``hold`` or too many unacknowledged messages forbid it."""
        if not self._stream.closed and not (self._held or self._is_over_limit):
            self._is_withheld = False
            self._listened_ns = time.monotonic_ns()
            self._loop.add_reader(self._stream.fileno(), self.read)
            if self._stream.pending():
                self._loop.call_soon(self.read)

    def ignore(self) -> None:
        if not self._stream.closed:
            self._loop.remove_reader(self._stream.fileno())

    def read(self) -> None:
        """Read what has arrived. The event loop's reader and the common tick call this, perhaps after a pause began."""
        if self._stream.closed or self.ended.done() or self._held or self._is_over_limit:
            return
        try:
            self._read()
        except BaseException as error:
            # A defect. The bytes are no longer in the stream, so the connection ends: then the broker sends the
            # messages again.
            log.critical("mqtt_read_failed", error=repr(error), exc_info=error)
            self._end_connection("other", f"reading failed: {words(error)}")
            if not isinstance(error, Exception):
                raise

    def _read(self) -> None:
        stream, ingest = self._stream, self._ingest
        messages = size = 0
        at_end = False
        failure: BaseException | None = None
        for _ in range(MAX_READS):
            data = stream.read()
            if not data:
                at_end = data is not None
                break
            size += len(data)
            try:
                messages += self._feed(data)
            except BaseException as error:  # noqa: BLE001 - raised below, once what came before it is counted
                messages += ingest.taken
                failure = error
                break
            if self._is_withheld or not stream.pending():
                break
        self.received_bytes += size
        self.messages += messages
        if ingest.reused and not self._reuse_reported:
            self._report_reuse()
        try:
            if ingest.control:
                self._serve_paho()
            if ingest.answers:
                stream.write(bytes(ingest.answers))
                ingest.answers.clear()
                self._completed = True
            if ingest.pongs >= self._keepalive.pings:
                self._answered.set()
        finally:  # also after an error, so that the ledger counts every received message
            if size:
                self._settle_pace(messages, size)
            else:
                self.idle_ticks += 1
        # Last, so that the ledger counts the messages before the end.
        if isinstance(failure, MalformedPacketError):
            self._reject(failure)
        elif failure is not None:
            raise failure
        elif at_end:
            self._end_connection(
                "closed", words(stream.failure) if stream.failure else "the broker closed the connection"
            )

    def _report_reuse(self) -> None:
        """Warn once that a QoS 2 message came with the packet id of another one that is still held."""
        self._reuse_reported = True
        log.warning(
            "mqtt_packet_ids_reused",
            connection=self._label.decode(),
            consequence="the messages are delivered: they are no copies of those that had these packet ids before",
            advice="the broker has lost or rolled back its session state; see docs/failures.md",
        )

    def _feed(self, data: bytes) -> int:
        """Decode a read, together with the rest of the last one. Returns the number of messages."""
        ingest = self._ingest
        rest = self._rest
        if rest:
            rest.append(data)
            if len(data) < ingest.missing:
                ingest.missing -= len(data)  # a large packet: join its pieces once, when the last is there
                self._accumulator.now_ns = time.monotonic_ns()
                return 0
            data = b"".join(rest)
            rest.clear()
        if self.handshaking and self._flow.paused:
            data = self._withhold_messages(data)
        self._dispatcher.delivery_prefix = self._label
        used, messages = ingest.feed(data)
        if used:
            self._keepalive.packet_finished()
        if used < len(data):
            rest.append(data[used:])
        return messages

    def _withhold_messages(self, data: bytes) -> bytes:
        """The bytes before the first PUBLISH. The others wait in the stream for the end of the pause.

        A resumed session sends its window before SUBACK. With memory full, each reconnection would take more of it."""
        end = until_publish(data)
        if end < len(data):
            self._stream.put_back(data[end:])
            self.received_bytes -= len(data) - end  # they are counted again
            self._is_withheld = True
            self.ignore()
        return data[:end]

    def _serve_paho(self) -> None:
        """Let paho handle its own packets."""
        stream, client = self._stream, self._client
        stream.control += self._ingest.control
        self._ingest.control.clear()
        while stream.control and not stream.closed:
            self._served = stream.control[0] >> 4
            client.loop_read()
        if not stream.closed and client.want_write():
            client.loop_write()

    def _settle_pace(self, messages: int, size: int) -> None:
        """Decide how this connection is read next, as bytes arrive (``unpace``) or on the tick; report the read."""
        flow = self._flow
        now_ns = self._accumulator.now_ns
        since_ns, self._read_ns = now_ns - self._read_ns, now_ns
        self.idle_ticks = 0
        unacked = self.unacked + self._unsent
        # Half of the announced window, or of the level at which the broker has stopped before (3.1.1 announces none).
        pressed = unacked >= self._half_window or unacked == self._most_unacked > 1
        self._most_unacked = max(self._most_unacked, unacked)
        if pressed or size >= BUSY_READ_BYTES:
            flow.unpace(self)
        elif messages:
            # At most a quarter of the window between two reads, or the broker stops and waits.
            share = max(1, self._half_window // 2)
            if messages > share:
                self.pace_ns = max(SHORTEST_PACE_NS, self.pace_ns * share // messages)
            else:
                self.pace_ns = min(flow.longest_pace_ns(size), self.pace_ns + (self.pace_ns >> 2))
            if since_ns < 2 * flow.pacing_ns:
                flow.pace(self)
        flow.took(messages, size, pressed=pressed)
        if unacked > self._limit:
            self._note_overrun(unacked)

    def _note_overrun(self, unacked: int) -> None:
        """The broker sent more unacknowledged messages than the limit: warn, and stop reading for now."""
        if not self.overrun:
            log.warning(
                "mqtt_window_overrun",
                connection=self._label.decode(),
                unacked=unacked,
                window=self._limit,
                consequence="reading stops until half of them are acknowledged; a lost connection brings copies",
            )
        self.overrun = max(self.overrun, unacked)
        self.overrun_ns = time.monotonic_ns()
        self._is_over_limit = True
        self._flow.hold(self)

    def _reject(self, error: MalformedPacketError) -> None:
        log.error("mqtt_malformed", error=str(error), consequence="disconnecting; the broker may send it again")
        self._end_connection("protocol", str(error))
        self._client.disconnect(reasoncode=ReasonCode(PacketTypes.DISCONNECT, identifier=error.reason_code))
        self._client.loop_write()

    # --- the window --------------------------------------------------------------------------------

    @property
    def unacked(self) -> int:
        """Messages of QoS 1 and 2 received and not acknowledged."""
        return self._in_spans + len(self._ingest.ids) + len(self._ingest.ids2)

    @property
    def _unreleased(self) -> int:
        """Messages of QoS 2 between PUBREC and PUBREL."""
        ingest = self._ingest
        return max(0, len(ingest.qos2) - len(ingest.ids2) - (ingest.handed2 - self._released2))

    def hand_over(self, span: Span) -> None:
        """Give ``span`` the packet ids collected since the last call: it releases them when it is durable."""
        ingest = self._ingest
        if ingest.ids or ingest.ids2:
            span.owed.append((self, ingest.ids, ingest.ids2))
            self._in_spans += len(ingest.ids) + len(ingest.ids2)
            ingest.handed2 += len(ingest.ids2)
            ingest.ids, ingest.ids2 = [], []

    def release(self, ids: list[bytes], ids2: list[bytes]) -> None:
        """Queue acknowledgements of QoS 1 ``ids`` and QoS 2 ``ids2``, now durable. Nothing on an ended connection."""
        if self.ended.done():
            return
        self._in_spans -= len(ids) + len(ids2)
        self.acknowledged += len(ids) + len(ids2)
        self._unsent += len(ids) + len(ids2)
        if ids:
            self._to_send.append(b"@\x02" + b"@\x02".join(ids))  # PUBACK
        if ids2:
            first, self._released2 = self._released2, self._released2 + len(ids2)
            if self._ingest.newest:
                ids2 = self._without_superseded(first, ids2)
        if ids2:
            self._to_send.append(b"P\x02" + b"P\x02".join(ids2))  # PUBREC

    def _without_superseded(self, first: int, ids2: list[bytes]) -> list[bytes]:
        """The ids without those that a later message on this connection has used again.

        The broker would take such a PUBREC for the later message, which is not durable yet. ``first`` is the number of
        the first id.
        """
        newest = self._ingest.newest
        kept = []
        for number, packet_id in enumerate(ids2, first):
            last = newest.get(packet_id, -1)
            if last <= number:
                kept.append(packet_id)
                if last == number:
                    del newest[packet_id]
        return kept

    def send_acknowledgements(self) -> None:
        """Write what ``release`` queued; wake ``settled``; read again once half of an overrun is acknowledged."""
        if self._to_send:
            self._stream.write(b"".join(self._to_send))
            self._to_send.clear()
            self._unsent = 0
        if self.stopping:
            self._settled.set()
        if self._is_over_limit and self.unacked <= self._limit // 2:
            self._is_over_limit = False
            self._is_withheld = self._flow.paused
            self._flow.resume(self)

    @property
    def _is_unread(self) -> bool:
        """Whether the gateway itself has paused reading. Then silence is not the broker's."""
        flow = self._flow
        waits = self._held or self._is_over_limit or self._is_withheld
        return waits or flow.reading_stopped or (flow.paused and not self.handshaking)

    def silent_s(self) -> float:
        """Time since the last bytes, while the gateway was reading."""
        if self._is_unread:
            return 0.0
        return (time.monotonic_ns() - max(self._read_ns, self._listened_ns)) / 1e9

    def hold(self) -> None:
        """Pause reading, and flush received messages, so that ``settled`` returns."""
        self._held = True
        self._flow.hold(self)

    def resume(self) -> None:
        """Read again after ``hold``."""
        self._held = False
        self._flow.resume(self)

    async def settled(self) -> None:
        """Wait until every received message is acknowledged and written. Returns at once on an ended connection."""
        self.stopping = True
        while not self.ended.done() and (self.unacked or self._to_send):
            self._settled.clear()
            await self._settled.wait()
        while not self.ended.done() and self._stream.unwritten:
            self._writable.clear()
            await self._writable.wait()

    async def drained(self) -> None:
        """Wait until the broker's queue for this session is empty. Call it after the subscriptions have ended.

        The queue moves as the window frees. So acknowledge everything, then ping: the broker writes in order, so its
        answer comes behind every message that it could send. If none came, none is left. A message of QoS 2 takes its
        room until PUBCOMP: after one, ping again.
        """
        while not self.ended.done():
            await self.settled()
            if self.ended.done():
                return
            before, self._completed = self.messages, False
            self._answered.clear()
            self._send_ping()
            await self._answered.wait()
            if self.messages == before and not self.unacked and not self._completed:
                return

    async def emptied(self) -> bool:
        """Wait until the broker's queue for this session was empty for a moment, while messages flow. False: the
        connection has ended before.

        A broker queues only what its window has no room for. As it answers a ping, at most this is in the window: what
        was unacknowledged as the ping was sent, and what came before the answer. The window is at least as large as the
        most that was ever unacknowledged.
        """
        looks = 0
        while looks < LOOKS:
            await asyncio.sleep(LOOK_S)
            if self.ended.done():
                return False
            before = self.acknowledged - self._unsent - self._unreleased  # these have left the window
            self._answered.clear()
            self._send_ping()
            await self._answered.wait()
            in_window = self.acknowledged + self.unacked - before
            looks = looks + 1 if in_window < max(1, self._most_unacked) else 0
        return not self.ended.done()

    # --- writing and keepalive ---------------------------------------------------------------------

    def _want_write(self) -> None:
        if not self._stream.closed:
            self._loop.add_writer(self._stream.fileno(), self._on_writable)

    def _on_writable(self) -> None:
        if self._stream.flush():
            self._loop.remove_writer(self._stream.fileno())
            self._writable.set()

    def _ping(self) -> None:
        """The timer's call: end a silent or stuck connection, else ping and set the timer again."""
        verdict = self._keepalive.due(
            time.monotonic_ns(),
            read_ns=self._read_ns,
            received_bytes=self.received_bytes,
            pongs=self._ingest.pongs,
            unfinished=bool(self._rest),
            paused=self._is_unread,
        )
        if verdict is Verdict.SILENT:
            self._end_connection("keepalive", "no PINGRESP")
            return
        if verdict is Verdict.STUCK:
            text = "The broker began a packet and does not finish it: its length is wrong, or the broker hangs."
            self._reject(MalformedPacketError(text))
            return
        self._send_ping()
        if self._stream.failure is not None and self._is_unread:
            # Otherwise the reader notices the end, after all bytes before it.
            self._end_connection("closed", words(self._stream.failure))
            return
        self._arm_ping()

    def _arm_ping(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        self._ping_timer = self._loop.call_later(self._keepalive.interval_s, self._ping)

    def _send_ping(self) -> None:
        self._keepalive.pings += 1
        self._stream.write(b"\xc0\x00")

    # --- the end -----------------------------------------------------------------------------------

    def _on_disconnect(
        self, _client: object, _data: object, flags: Any, reason: ReasonCode, properties: object
    ) -> None:
        """paho's report that the connection has ended, by the broker's DISCONNECT or without one."""
        if flags.is_disconnect_packet_from_server:
            code = reason.value
            text = reasons.lost(code, sent=True)
            if advice := reasons.disconnect_advice(code):
                text += f"; {advice}"
            if code in REDIRECTIONS:
                self.redirection = Redirection(code, getattr(properties, "ServerReference", ""))
            self._end_connection(reasons.disconnect_label(code), text)
        elif reason.value == PROTOCOL_ERROR:
            kind = reasons.packet_name(self._served)
            self._end_connection("protocol", f"the broker sent a {kind} that MQTT does not allow, or not here")
        else:
            failure = self._stream.failure
            text = words(failure) if failure else reasons.lost(reason.value, sent=False)
            self._end_connection("requested" if self.stopping else "closed", text)

    def _on_socket_close(self, _client: object, _data: object, _stream: object) -> None:
        """Remove the descriptor from the event loop before paho closes it."""
        self._forget()

    def _forget(self) -> None:
        if self._stream.fileno() >= 0:
            self._loop.remove_reader(self._stream.fileno())
            self._loop.remove_writer(self._stream.fileno())

    def _end_connection(self, label: str, detail: str | None) -> None:
        """Complete ``ended``: the metric's label and what is known of the cause. Later calls do nothing."""
        if self.ended.done():
            return
        self._flow.remove(self)
        self.returned = self._accumulator.returned(self)
        self._flow.returned(self.returned)
        self._dispatcher.returned(self._label)
        self.ended.set_result((label, detail))
        self._in_spans = 0
        self._to_send.clear()
        self._settled.set()
        self._writable.set()
        self._answered.set()
        if self._ping_timer is not None:
            self._ping_timer.cancel()

    async def disconnect(self, *, end_session: bool) -> None:
        """Send DISCONNECT and wait up to two seconds for the broker to close, as it must [MQTT-3.14.4-2].

        If the gateway closed with PUBLISH packets unread, the kernel would reset the connection. The broker would lose
        what it has not read yet: the last acknowledgements, and the DISCONNECT itself. A second call only waits.
        """
        if self.ended.done():
            return
        # Packet ids of a later read would be left for the next connection to acknowledge, and the broker may have given
        # them to other messages by then.
        self.stopping = self._held = True
        self._flow.remove(self)
        if not self._is_left:
            self._is_left = True
            self.send_acknowledgements()
            self._stream.write(DISCONNECT_AND_END if end_session else DISCONNECT)  # AND_END: of the session, too
            self._loop.add_reader(self._stream.fileno(), self._discard)
        await asyncio.wait({self.ended}, timeout=FAREWELL_S)
        self.close()

    def _discard(self) -> None:
        """The reader after DISCONNECT: drop what still arrives, until the broker closes."""
        for _ in range(MAX_READS):
            data = self._stream.read()
            if data is None:
                return
            if not data:
                self._end_connection("requested", None)
                return

    def close(self) -> None:
        """Close the socket. Without a DISCONNECT before, the broker sends the will."""
        self._end_connection("requested", None)
        if not self._stream.closed:
            self._forget()
            self._stream.close()
        self._stream.want_write = None
