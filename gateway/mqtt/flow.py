"""Decides when the sessions of a group are read, flushed and paused.

At low rates a single message is flushed at once. Under load each wake-up and each partition batch costs as much as
about twenty messages. So flushes are up to ``flow.linger_max`` apart, and busy sessions are read on a common tick: with
the flushes, or every ``flow.read_pacing_max`` if that is longer.

Three things come before the rhythm: a window that is half full, a span that has grown large, and memory. A broker stops
sending at a full window (EMQX's default is 32).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bridge.ledger import Ledger
    from bridge.produce.accumulator import Accumulator
    from bridge.produce.batch import Span
    from bridge.produce.sender import Sender

SPAN_BYTES = 1 << 20
RATE_AT_SHORTEST = (
    4_000  # messages/s up to which flushes are as close as reads; beyond it they move apart in proportion
)
SEVERAL = 4  # messages of a flush, from which on acknowledgements wait for those of the next
SHORTEST_PACE_NS = 500_000
LARGE_READ_BYTES = 16 * 1024  # beyond it less is saved by larger reads
HELD_LOOK_S = 0.02
IDLE_TICKS = 3  # a session without input for so many ticks goes back to the event loop's reader


class Paced(Protocol):
    """A session, as the flow uses it."""

    pace_ns: int
    idle_ticks: int
    handshaking: bool

    def read(self) -> None:
        """Read what has arrived, and decode it."""

    def listen(self) -> None:
        """Wait for input in the event loop until ``ignore``."""

    def ignore(self) -> None:
        """Do not read."""

    def hand_over(self, span: Span) -> None:
        """Give the span the packet ids collected since the last one."""

    def send_acknowledgements(self) -> None:
        """Write the released acknowledgements."""


class Rhythm:
    """Decides from rates how far apart reads and flushes are. Pure: the caller passes times, in nanoseconds."""

    __slots__ = ("_longest_ns", "_rate", "_shortest_ns", "flushed_ns", "linger_ns", "messages")

    def __init__(self, shortest_ns: int, longest_ns: int) -> None:
        self._shortest_ns = min(shortest_ns, longest_ns)
        self._longest_ns = longest_ns
        self._rate = 0.0  # messages a second, smoothed
        self.linger_ns = self._shortest_ns  # the present distance between flushes
        self.flushed_ns = 0  # when the last flush was
        self.messages = 0  # since the last flush

    def adopt(self, shortest_ns: int, longest_ns: int) -> None:
        """Use other distances from the next flush on."""
        self._shortest_ns = min(shortest_ns, longest_ns)
        self._longest_ns = longest_ns
        self.linger_ns = max(self._shortest_ns, min(longest_ns, self.linger_ns))

    def due_ns(self) -> int:
        """When the next flush is due."""
        return self.flushed_ns + self.linger_ns

    @property
    def gathers(self) -> bool:
        """Whether flushes hold several messages."""
        return self._rate * self._shortest_ns >= SEVERAL * 1e9

    def flushed(self, now_ns: int) -> None:
        """Note a flush and adapt the distance to the next."""
        elapsed_ns = max(now_ns - self.flushed_ns, 1)
        self._rate += 0.25 * (self.messages * 1e9 / elapsed_ns - self._rate)
        wanted_ns = int(self._shortest_ns * self._rate / RATE_AT_SHORTEST)
        self.linger_ns = max(self._shortest_ns, min(self._longest_ns, wanted_ns))
        self.flushed_ns = now_ns
        self.messages = 0


class Flow:
    """Couples sessions, accumulator and sender of one group. Belongs to the event loop's thread."""

    def __init__(
        self,
        accumulator: Accumulator,
        sender: Sender,
        ledger: Ledger,
        *,
        linger_ns: int,
        pacing_ns: int,
        memory_bytes: int,
    ) -> None:
        self._accumulator = accumulator
        self._sender = sender
        self._ledger = ledger
        self.rhythm = Rhythm(pacing_ns, linger_ns)  # the shortest and the longest distance between flushes
        self.pacing_ns = pacing_ns
        self._memory_bytes = memory_bytes  # with more than this, reading pauses
        self._span_bytes = min(SPAN_BYTES, memory_bytes // 4)  # after so many read bytes, a flush
        self._bytes = 0  # read since the last flush
        self._sessions: list[Paced] = []
        self._paced: list[Paced] = []  # those that are read on the tick
        self._tick_timer: asyncio.TimerHandle | None = None
        self._flush_timer: asyncio.TimerHandle | None = None
        self._is_flush_next = False  # the next turn of the event loop flushes
        self._unwritten_ns = 0  # since when acknowledgements wait to be written; 0: none do
        self._ticking = False  # sessions are being read one after the other
        self.paused = False  # memory is full, until half of it is free
        self.reading_stopped = False  # for good
        self._empty = asyncio.Event()  # no span waits to be durable
        self._progress: asyncio.Event | None = None  # set when a span is durable; None: no caller waits
        self._loop = asyncio.get_running_loop()

    def adopt(self, *, linger_ns: int, pacing_ns: int, memory_bytes: int) -> None:
        """Use another rhythm (shortest and longest distance of flushes) and other bounds from now on."""
        self.rhythm.adopt(pacing_ns, linger_ns)
        self.pacing_ns = pacing_ns
        self._memory_bytes = memory_bytes
        self._span_bytes = min(SPAN_BYTES, memory_bytes // 4)
        if self.paused:
            self._freed()  # the new bound may leave room

    # --- sessions come and go
    # -----------------------------------------------------------------------------------------------------

    def add(self, session: Paced) -> None:
        """Read a new connection, also during a pause: CONNACK and SUBACK must arrive.

        A connection that brings messages before SUBACK is not read again until the pause ends.
        """
        self._sessions.append(session)
        if not self.reading_stopped:
            session.listen()

    def subscribed(self, session: Paced) -> None:
        """Note the end of a connection's handshake."""
        if self.paused and session in self._sessions:
            session.ignore()

    def remove(self, session: Paced) -> None:
        """Stop reading a connection and forget it; the open span gets its packet ids."""
        if session in self._sessions:
            self._sessions.remove(session)
            if session in self._paced:
                self._paced.remove(session)
            session.ignore()
            session.hand_over(self._accumulator.current)

    def hold(self, session: Paced) -> None:
        """Pause this session, and flush the messages of all sessions in the next turn of the event loop."""
        if session in self._paced:
            self._paced.remove(session)
        session.ignore()
        self._flush_next()

    def resume(self, session: Paced) -> None:
        """Read this session again, unless all reading is paused."""
        if session in self._sessions and not (self.paused or self.reading_stopped):
            session.listen()

    def returned(self, messages: int) -> None:
        """Count the unacknowledged messages of an ended connection, which the broker sends again.

        Call it in the step of the event loop in which the accumulator notes them too.
        """
        self._ledger.returned += messages

    def stop_reading(self) -> None:
        """Stop reading for good; flush the messages that have been read."""
        self.reading_stopped = True
        for session in self._sessions:
            session.ignore()
        self._paced.clear()
        self.flush()

    # --- reading -----------------------------------------------------------------------------------

    def took(self, messages: int, size: int, *, pressed: bool) -> None:
        """Note a read of ``size`` bytes with ``messages`` messages. ``pressed``: the window is nearly full."""
        self._ledger.received += messages
        self.rhythm.messages += messages
        self._bytes += size
        if pressed and self._unwritten_ns:
            self._write()
        if self._bytes >= self._span_bytes:
            self.flush()
        elif pressed:
            self._flush_next()
        elif messages and not self._ticking:
            self._flush_or_wait()
        if self._accumulator.buffered_bytes > self._memory_bytes and not self.paused:
            self.pause()

    def longest_pace_ns(self, size: int) -> int:
        """The longest pause after a read of ``size`` bytes. Messages wait for the flush, so reads need not be closer
        than flushes, unless they are large."""
        return max(self.pacing_ns, self.rhythm.linger_ns * LARGE_READ_BYTES // max(size, LARGE_READ_BYTES))

    def pace(self, session: Paced) -> None:
        """Read this session on the tick instead of in the event loop's reader."""
        if session not in self._paced and session in self._sessions and not self.paused:
            session.ignore()
            session.idle_ticks = 0
            self._paced.append(session)
            self._arm_tick()

    def unpace(self, session: Paced) -> None:
        if session in self._paced:
            self._paced.remove(session)
            if not (self.paused or self.reading_stopped):
                session.listen()

    def _arm_tick(self) -> None:
        """Set the timer of the next tick, unless it is set or no session is paced."""
        if self._tick_timer is None and self._paced:
            pace_ns = min(session.pace_ns for session in self._paced)
            # A tick at the moment a flush is due serves both.
            until_flush_ns = self.rhythm.due_ns() - time.monotonic_ns()
            if 0 < until_flush_ns < pace_ns:
                pace_ns = max(until_flush_ns, SHORTEST_PACE_NS)
            self._tick_timer = self._loop.call_later(pace_ns / 1e9, self._tick)

    def _tick(self) -> None:
        """Read every paced session once, then flush if that is due; write acknowledgements that waited for it."""
        self._tick_timer = None
        stopped = self.paused or self.reading_stopped
        if self._unwritten_ns and (stopped or time.monotonic_ns() - self._unwritten_ns >= self.pacing_ns):
            self._write()
        if stopped:
            return
        self._ticking = True
        for session in list(self._paced):
            session.read()
            if self.paused:
                break
            if session.idle_ticks >= IDLE_TICKS:
                self.unpace(session)
        self._ticking = False
        if self.rhythm.messages:
            self._flush_or_wait()  # once for all sessions of the tick
        if not self.paused:
            self._arm_tick()
        if self._unwritten_ns and self._tick_timer is None:
            self._write()

    # --- flushing ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """End the open span: it gets the packet ids of all sessions, and its batches go to the sender."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        self._is_flush_next = False
        accumulator = self._accumulator
        for session in self._sessions:
            session.hand_over(accumulator.current)
        self._bytes = 0
        accumulator.flush()
        self.rhythm.flushed(time.monotonic_ns())
        self._sender.pump()

    def _flush_or_wait(self) -> None:
        """Flush if a flush is due, else make sure that it happens."""
        wait_ns = self.rhythm.due_ns() - time.monotonic_ns()
        if wait_ns <= 0:
            self.flush()
        elif self._flush_timer is None:
            self._flush_timer = self._loop.call_later(wait_ns / 1e9, self._flush_due)

    def _flush_next(self) -> None:
        """Flush in the next turn of the event loop: once for all sessions that are read in this one, with larger
        batches."""
        if not self._is_flush_next:
            self._is_flush_next = True
            self._loop.call_soon(self._flush_read)

    def _flush_read(self) -> None:
        if self._is_flush_next:  # otherwise another flush came first
            self.flush()

    def _flush_due(self) -> None:
        self._flush_timer = None
        self.flush()

    # --- memory ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Pause reading until half of the memory is free: no window limits QoS 0 and floods."""
        self.paused = True
        self._accumulator.freed = self._freed
        for session in self._sessions:
            if session.handshaking:
                session.listen()
            else:
                session.ignore()
        self._paced.clear()
        self.flush()

    def _freed(self) -> None:
        """Continue reading if half of the memory is free; the accumulator calls it after it has freed some."""
        if self._accumulator.buffered_bytes >= self._memory_bytes // 2:
            return
        self.paused = False
        self._accumulator.freed = None
        if not self.reading_stopped:
            for session in self._sessions:
                session.listen()

    # --- acknowledging
    # -------------------------------------------------------------------------------------------------------------

    def completed(self, span: Span) -> None:
        """A span is durable: settle its messages in the ledger and release its packet ids.

        Acknowledgements are written once a turn of the event loop. Under load they wait for a tick, so that those of
        two flushes leave together: each write costs as much as ten messages.
        """
        ledger = self._ledger
        # The broker delivers returned messages again, and they are counted then. Which ones they are is not known: they
        # are taken off the terms in this order.
        returned = span.returned
        from_stored = min(returned, span.stored)
        from_dead = min(returned - from_stored, span.dead)
        ledger.delivered += span.stored - from_stored
        ledger.dead_lettered += span.dead - from_dead
        from_filtered = min(returned - from_stored - from_dead, span.filtered)
        ledger.filtered += span.filtered - from_filtered
        from_copies = min(returned - from_stored - from_dead - from_filtered, span.copies)
        ledger.copies += span.copies - from_copies
        # Returned messages that the spool has nevertheless, and delivers.
        ledger.recovered += returned - from_stored - from_dead - from_filtered - from_copies
        for connection, ids, ids2 in span.owed:
            connection.release(ids, ids2)
        if not self._accumulator.spans:
            self._empty.set()
        if self._progress is not None:
            self._progress.set()
        if not self._unwritten_ns:
            self._unwritten_ns = time.monotonic_ns()
            if self._tick_timer is None or not self.rhythm.gathers:
                self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._unwritten_ns = 0
        for session in self._sessions:
            session.send_acknowledgements()

    async def drained(self) -> None:
        """Wait until every message that was read is durable, QoS 0 included. The caller sets the limit.

        Call it at the end, when nothing is read any more.
        """
        self.flush()
        while self._accumulator.spans:
            self._empty.clear()
            await self._empty.wait()

    async def wait_until_durable(self, held_back: Callable[[], Mapping[Span, int]]) -> None:
        """Wait until every message read so far is durable or returned, while reading goes on. The caller sets the
        limit.

        Messages of stopped routes are excepted: ``held_back`` says how many, by span. One caller at a time.
        """
        self.flush()
        spans = self._accumulator.spans
        if not spans:
            return
        last = spans[-1]
        progress = self._progress = asyncio.Event()
        try:
            while last in spans:
                kept = held_back()
                if kept and all(span.pending == kept.get(span, 0) for span in _up_to(last, spans)):
                    return
                progress.clear()
                with contextlib.suppress(TimeoutError):
                    # A span behind others reports nothing when its batches are written.
                    async with asyncio.timeout(HELD_LOOK_S if kept else None):
                        await progress.wait()
        finally:
            self._progress = None

    def close(self) -> None:
        self._is_flush_next = False
        for timer in (self._tick_timer, self._flush_timer):
            if timer is not None:
                timer.cancel()


def _up_to(last: Span, spans: Iterable[Span]) -> Iterator[Span]:
    for span in spans:
        yield span
        if span is last:
            return
