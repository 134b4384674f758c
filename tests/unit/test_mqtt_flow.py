"""The rhythm: quiet input is answered at once, load is gathered, nothing waits where the broker waits for us."""

import asyncio
import time

from hypothesis import given
from hypothesis import strategies as st

from bridge.produce.batch import Span
from gateway.mqtt.connection import BUSY_READ_BYTES
from gateway.mqtt.flow import LARGE_READ_BYTES, SPAN_BYTES, Flow, Rhythm
from tests.brokers.data_path import MemoryPath, make_settings
from tests.brokers.rig import make_rig
from tests.waiting import until

MS = 1_000_000
SECOND = 1000 * MS


def run(rhythm: Rhythm, rate: float, seconds: float, now_ns: int = SECOND) -> int:
    """Feed messages at a rate, flushing whenever it is due; returns the time."""
    end_ns = now_ns + int(seconds * SECOND)
    while now_ns < end_ns:
        due_ns = max(rhythm.due_ns(), now_ns + 1)
        rhythm.messages += round(rate * (due_ns - now_ns) / SECOND)
        now_ns = due_ns
        rhythm.flushed(now_ns)
    return now_ns


def test_flushes_are_close_at_a_low_rate_and_apart_at_a_high_one() -> None:
    rhythm = Rhythm(5 * MS, 20 * MS)
    now_ns = run(rhythm, 500, 2)
    assert rhythm.linger_ns == 5 * MS
    now_ns = run(rhythm, 200_000, 2, now_ns)
    assert rhythm.linger_ns == 20 * MS
    run(rhythm, 500, 2, now_ns)
    assert rhythm.linger_ns == 5 * MS, "it comes back when the load has gone"


@given(
    shortest=st.integers(0, 50 * MS),
    longest=st.integers(0, 50 * MS),
    events=st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(0, 1_000_000)), max_size=50),
)
def test_the_distance_never_leaves_its_bounds(shortest: int, longest: int, events: list[tuple[int, int]]) -> None:
    """Also with linger_max 0, with a clock that stands still, and after any burst."""
    rhythm = Rhythm(shortest, longest)
    now_ns = 1
    for step_ns, messages in events:
        now_ns += step_ns
        rhythm.messages += messages
        rhythm.flushed(now_ns)
        assert min(shortest, longest) <= rhythm.linger_ns <= longest
        assert rhythm.messages == 0


class Paced:
    """A session for the flow alone: counts what it is told."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.pace_ns = MS
        self.idle_ticks = 0
        self.handshaking = False
        self.listening = False
        self.reads = 0
        self.handed = 0
        self.written = 0

    def read(self) -> None:
        self.reads += 1

    def listen(self) -> None:
        self.listening = True

    def ignore(self) -> None:
        self.listening = False

    def hand_over(self, span: Span) -> None:
        self.handed += 1

    def send_acknowledgements(self) -> None:
        self.written += 1


def path(**flow: object) -> MemoryPath:
    return MemoryPath(make_settings(flow=flow))


def append(path: MemoryPath, value: bytes, topic: str = "telemetry") -> None:
    """A message, past the ingest."""
    path.accumulator.now_ns = time.monotonic_ns()
    slot = path.accumulator.slot("telemetry", 0, topic, 0)
    path.accumulator.append(slot, timestamp=1, key=b"k", value=value, headers=[])


async def test_a_paced_session_is_read_on_the_tick_and_waited_for_again_when_it_is_idle() -> None:
    async with path() as it:
        session = Paced(it.flow)
        it.flow.add(session)
        assert session.listening
        it.flow.pace(session)
        assert not session.listening, "a wake-up for every few messages is what pacing saves"
        await until(lambda: session.reads > 5, "ticks")
        session.idle_ticks = 100
        await until(lambda: session.listening, "the idle session is waited for")
        reads = session.reads
        await asyncio.sleep(0.02)
        assert session.reads == reads, "no tick without a session that is paced"


async def test_reads_are_as_far_apart_as_flushes_while_they_are_small() -> None:
    async with path(linger_max="20ms", read_pacing_max="5ms") as it:
        flow = it.flow
        assert flow.longest_pace_ns(1) == 5 * MS
        flow.rhythm.linger_ns = 20 * MS  # as at a high rate
        assert flow.longest_pace_ns(1) == flow.longest_pace_ns(LARGE_READ_BYTES) == 20 * MS
        assert flow.longest_pace_ns(2 * LARGE_READ_BYTES) == 10 * MS
        assert flow.longest_pace_ns(BUSY_READ_BYTES) == 5 * MS, "larger reads would gain nothing"


async def test_a_busy_session_is_read_with_the_flushes() -> None:
    """15,000 messages a second: read three times between two flushes, they would be decoded no sooner than they leave,
    at three times the wake-ups."""
    async with make_rig(window=1000, flow={"linger_max": "20ms", "read_pacing_max": "1ms"}) as rig:
        rig.path.flow.rhythm.adopt(20 * MS, 20 * MS)
        packet_id = 0
        while rig.connection.pace_ns <= 10 * MS:
            packet_id += 1
            assert packet_id < 500, "the pause between reads has not grown"
            rig.send(rig.publish("devices/1", qos=1, packet_id=packet_id))


async def test_a_session_that_leaves_is_forgotten_by_the_tick() -> None:
    async with path() as it:
        session = Paced(it.flow)
        it.flow.add(session)
        it.flow.pace(session)
        it.flow.remove(session)
        await asyncio.sleep(0.02)
        assert session.reads == 0
        it.flow.pace(session)
        await asyncio.sleep(0.02)
        assert session.reads == 0, "what is not there cannot be paced"


async def test_too_much_in_memory_stops_the_reading_until_half_is_gone() -> None:
    async with path(memory_bytes=1 << 20) as it:
        session = Paced(it.flow)
        it.flow.add(session)
        it.producer.holding = True
        for _ in range(30):
            append(it, bytes(50_000))
            it.flow.took(1, 50_000, pressed=False)
            it.flow.flush()
            if it.flow.paused:
                break
        assert it.flow.paused
        assert not session.listening
        assert it.accumulator.buffered_bytes < 1.3 * (1 << 20), "it stopped in time"
        late = Paced(it.flow)
        late.handshaking = True
        it.flow.add(late)
        assert late.listening, "a handshake is read, or the session would never be there"
        it.flow.pace(late)
        assert late.listening, "there is no tick while reading is paused"
        it.producer.release()
        await until(lambda: not it.flow.paused, "reading goes on")
        assert session.listening
        assert late.listening
        assert it.accumulator.buffered_bytes == 0
        it.check()


async def test_stopping_to_read_is_for_good() -> None:
    async with path() as it:
        first, second = Paced(it.flow), Paced(it.flow)
        it.flow.add(first)
        it.flow.add(second)
        it.flow.pace(second)
        it.flow.stop_reading()
        assert not first.listening
        late = Paced(it.flow)
        it.flow.add(late)
        it.flow.unpace(second)
        await asyncio.sleep(0.02)
        assert (late.listening, second.listening, second.reads) == (False, False, 0)


async def test_drained_waits_for_qos_0_which_nobody_acknowledges() -> None:
    async with path() as it:
        await asyncio.wait_for(it.flow.drained(), 60)
        it.producer.holding = True
        append(it, b"read, not flushed")
        it.flow.took(1, 10, pressed=False)
        waiting = asyncio.create_task(it.flow.drained())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        it.producer.release()
        await asyncio.wait_for(waiting, 60)
        assert it.values == [b"read, not flushed"]


async def test_sessions_that_are_read_in_one_turn_share_a_flush() -> None:
    """Each flush makes a batch for every partition. Small ones cost twice the CPU and compress worse."""
    async with path(linger_max="1s", read_pacing_max="1s") as it:
        session = Paced(it.flow)
        it.flow.add(session)
        it.flow.flush()
        for number in range(4):
            append(it, b"%d" % number)
            it.flow.took(1, 10, pressed=True)
        it.flow.hold(session)
        assert (session.handed, it.log) == (1, []), "the others of this turn have not been read yet"
        await asyncio.sleep(0)
        assert (session.handed, len(it.log)) == (2, 4)
        await asyncio.sleep(0)
        assert session.handed == 2, "it was flushed once"
        append(it, b"large")
        it.flow.took(1, SPAN_BYTES, pressed=True)
        assert len(it.log) == 5, "more than a span may hold does not wait"


async def test_a_flush_is_written_out_once_whatever_the_number_of_spans() -> None:
    async with path() as it:
        session = Paced(it.flow)
        it.flow.add(session)
        it.producer.holding = True
        for number in range(5):
            append(it, b"%d" % number)
            it.flow.flush()
        it.flow.took(5, 50, pressed=False)
        it.producer.release()
        await until(lambda: it.ledger.delivered == 5, "all durable")
        await asyncio.sleep(0)
        assert session.written <= 2, "acknowledgements of one loop turn leave in one write"
        it.check()


async def test_acknowledgements_of_paced_sessions_leave_together_and_never_stay() -> None:
    async with path(linger_max="20ms", read_pacing_max="20ms") as it:
        flow, session = it.flow, Paced(it.flow)
        flow.add(session)
        flow.completed(Span())
        await asyncio.sleep(0)
        assert session.written == 1, "a message that comes alone is acknowledged at once"
        flow.pace(session)
        flow.completed(Span())
        await asyncio.sleep(0)
        assert session.written == 2, "so are a few"
        flow.rhythm.messages = 1000
        flow.rhythm.flushed(flow.rhythm.flushed_ns + 20 * MS)
        began = time.monotonic()
        for _ in range(3):
            flow.completed(Span())
            await asyncio.sleep(0.002)
        if time.monotonic() - began < 0.02:  # otherwise the machine stood still
            assert session.written == 2
        await until(lambda: session.written > 2, "they are written")
        flow.completed(Span())
        flow.took(1, 1, pressed=True)
        assert session.written >= 4, "the broker waits for them"
        before = session.written
        flow.completed(Span())
        session.idle_ticks = 100
        await until(lambda: session.written > before, "no tick follows")
        flow.pace(session)
        before = session.written
        flow.completed(Span())
        flow.stop_reading()
        await until(lambda: session.written > before, "reading has stopped")


async def test_messages_wait_for_company_no_longer_than_the_linger() -> None:
    async with path(linger_max="1s", read_pacing_max="1s") as it:
        append(it, b"first")
        it.flow.took(1, 10, pressed=False)
        assert len(it.log) == 1, "alone: at once"
        append(it, b"second")
        it.flow.took(1, 10, pressed=False)
        began = time.monotonic()
        assert len(it.log) == 1, "soon after another: it waits for company"
        await until(lambda: len(it.log) == 2, "the flush that is due")
        assert time.monotonic() - began < 30
        it.check()


async def test_a_ping_is_no_message_that_waits() -> None:
    """The next message would look as old as the ping, and /readyz would call it overdue."""
    async with path() as it:
        ingest = it.ingest()
        ingest.feed(b"\xd0\x00")
        await asyncio.sleep(0.05)
        before_ns = time.monotonic_ns()
        ingest.feed(b"\x30\x0e\x00\x09devices/1\x00ab")
        assert it.accumulator.oldest_ns() >= before_ns
