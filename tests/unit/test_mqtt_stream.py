"""The seam's socket: partial writes, layers that hold bytes, WebSocket frames, and the ends a connection can have."""

import errno
import socket
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mqtt.stream import PacketStream
from gateway.mqtt.websocket import WebSocket


class Wrapped:
    """What paho would have used: ``room`` says what each send takes, ``arriving`` what each recv gives."""

    def __init__(self, room: list[Any] | None = None, arriving: list[Any] | None = None) -> None:
        self.room = room if room is not None else []
        self.arriving = arriving if arriving is not None else []
        self.sent = bytearray()
        self.closed = False

    def send(self, data: bytes | bytearray) -> int:
        step = self.room.pop(0) if self.room else len(data)
        if isinstance(step, Exception):
            raise step
        self.sent += data[:step]
        return min(step, len(data))

    def recv(self, count: int) -> bytes:
        step = self.arriving.pop(0) if self.arriving else BlockingIOError()
        if isinstance(step, Exception):
            raise step
        assert len(step) <= count
        return step

    def close(self) -> None:
        self.closed = True

    def fileno(self) -> int:
        return -1 if self.closed else 99


WOULD_BLOCK = [BlockingIOError(), InterruptedError(), ssl.SSLWantReadError(), ssl.SSLWantWriteError()]


@given(
    writes=st.lists(st.binary(min_size=1, max_size=50), max_size=20),
    room=st.lists(st.one_of(st.integers(0, 30), st.sampled_from(WOULD_BLOCK)), max_size=40),
    through_paho=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_bytes_leave_once_and_in_order_however_little_the_socket_takes(
    writes: list[bytes], room: list[Any], through_paho: list[bool]
) -> None:
    wrapped = Wrapped(room)
    stream = PacketStream(wrapped, reads_in_frames=False)
    wanted = 0

    def want_write() -> None:
        nonlocal wanted
        wanted += 1

    stream.want_write = want_write
    for data, paho in zip(writes, through_paho, strict=False):
        if paho:
            assert stream.send(data) == len(data), "paho must never have to send a part again: ours come between"
        else:
            stream.write(data)
        assert wanted or not stream.unwritten, "what is left over has to be asked for"
    while not stream.flush():
        pass
    assert wrapped.sent == b"".join(writes)
    assert stream.unwritten == 0


@pytest.mark.parametrize("error", WOULD_BLOCK, ids=lambda error: type(error).__name__)
def test_nothing_to_read_is_not_the_end(error: Exception) -> None:
    stream = PacketStream(Wrapped(arriving=[error, b"data", b""]), reads_in_frames=False)
    assert stream.read() is None
    assert stream.read() == b"data"
    assert stream.read() == b""
    assert stream.failure is None


@pytest.mark.parametrize("error", [
    ConnectionResetError(errno.ECONNRESET, "reset"), TimeoutError(), ssl.SSLError("bad record"), OSError(5, "x"),
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_an_error_in_reading_is_the_end_and_keeps_its_reason(error: OSError) -> None:
    stream = PacketStream(Wrapped(arriving=[error]), reads_in_frames=False)
    assert stream.read() == b""
    assert stream.failure is error


def test_an_error_in_writing_does_not_raise_and_keeps_its_reason() -> None:
    """Whoever writes is in the middle of something; the reader sees the end and deals with it."""
    reset = ConnectionResetError(errno.ECONNRESET, "reset")
    stream = PacketStream(Wrapped([reset]), reads_in_frames=False)
    stream.write(b"x")
    assert stream.failure is reset
    assert stream.flush()
    assert stream.unwritten == 0


@pytest.mark.parametrize(("arriving", "reads"), [
    ([b"a", b"b", b"c", BlockingIOError(), b"d"], [b"abc", b"d", None]), ([b"a", b"b", b"", b""], [b"ab", b""]),
    ([bytes(100_000) for _ in range(20)], [bytes(300_000)]),
], ids=["together", "those in front of the end first", "bounded"])  # fmt: skip
def test_the_records_of_tls_are_read(arriving: list[Any], reads: list[bytes | None]) -> None:
    """A record a read, paced, would be a message a tick."""
    stream = PacketStream(Wrapped(arriving=arriving), reads_in_frames=True)
    assert [stream.read() for _ in reads] == reads


CONTINUATION, BINARY, CLOSE, PING, PONG = 0, 2, 8, 9, 10
DATA = st.tuples(st.sampled_from([CONTINUATION, BINARY]), st.sampled_from([0, 1, 125, 126, 300, 1 << 16]))
CONTROL = st.tuples(st.sampled_from([PING, PONG]), st.integers(0, 125))


def served(code: int, body: bytes, first: int = 0x80) -> bytes:
    """A frame of a server's."""
    size = len(body)
    length = (
        bytes((size,)) if size < 126 else b"\x7e" + size.to_bytes(2) if size < 1 << 16 else b"\x7f" + size.to_bytes(8)
    )
    return bytes((first | code,)) + length + body


def frames_of_a_client(data: bytes) -> list[tuple[int, bytes]]:
    """Code and content of each frame; all are whole and have a mask."""
    found = []
    while data:
        assert data[0] & 0xF0 == 0x80
        assert data[1] & 0x80, "a server closes for a frame without a mask"
        size, at = data[1] & 0x7F, 2
        if size > 125:
            at = {126: 4, 127: 10}[size]
            size = int.from_bytes(data[2:at])
        key, body, code = data[at : at + 4], data[at + 4 : at + 4 + size], data[0] & 15
        found.append((code, bytes(byte ^ key[place % 4] for place, byte in enumerate(body))))
        data = data[at + 4 + size :]
    return found


@given(
    sizes=st.lists(st.one_of(DATA, CONTROL), max_size=12),
    cuts=st.lists(st.integers(1, 200), max_size=20),
    writes=st.lists(st.binary(min_size=1, max_size=200), max_size=12),
    room=st.lists(st.one_of(st.integers(0, 30), st.sampled_from(WOULD_BLOCK)), max_size=40),
)
def test_a_websocket_carries_both_directions_however_they_are_cut(
    sizes: list[tuple[int, int]], cuts: list[int], writes: list[bytes], room: list[Any]
) -> None:
    """Pings are answered between two frames. What comes behind one in the same read does not wait for the next read."""
    frames = [(code, bytes((number,)) * size) for number, (code, size) in enumerate(sizes)]
    wire, arriving = b"".join(served(*frame) for frame in frames), []
    for cut in [*cuts, *[1 << 17] * 7]:
        arriving += [piece for piece in (wire[:cut], BlockingIOError()) if piece]
        wire = wire[cut:]
    wrapped = Wrapped(room, arriving)
    stream, read = PacketStream(WebSocket(wrapped), reads_in_frames=False), b""
    waiting = list(writes)
    while wrapped.arriving:
        read += stream.read() or b""
        if waiting:
            stream.write(waiting.pop(0))
    assert read == b"".join(body for code, body in frames if code in {CONTINUATION, BINARY})
    wrapped.room = []
    for data in (*waiting, b"the end"):  # what is still to be sent goes first
        stream.write(data)
    sent = frames_of_a_client(bytes(wrapped.sent))
    assert b"".join(body for code, body in sent if code == BINARY) == b"".join(writes) + b"the end"
    assert [body for code, body in sent if code == PONG] == [body for code, body in frames if code == PING]


@pytest.mark.parametrize(("frame", "failure"), [
    (served(CLOSE, b"\x03\xe8"), None), (served(1, b"text"), "0x81"), (served(BINARY, b"x", 0xC0), "0xC2"),
    (b"\x82\x81keysx", "0x82"), (b"\x89\x7f\x7f" + bytes(7), "0x89"),
], ids=["close", "text", "reserved bit", "mask", "long ping"])  # fmt: skip
def test_a_websocket_ends_with(frame: bytes, failure: str | None) -> None:
    wrapped = Wrapped(arriving=[served(BINARY, b"before"), frame, b"behind"])
    stream = PacketStream(WebSocket(wrapped), reads_in_frames=False)
    assert stream.read() == b"before"
    assert stream.read() == b""
    assert (stream.failure is None) if failure is None else failure in str(stream.failure)
    assert frames_of_a_client(bytes(wrapped.sent)) == ([] if failure else [(CLOSE, b"\x03\xe8")])


def test_an_end_that_was_read_with_bytes_before_it_is_pending() -> None:
    """The server may wait for our answer to TLS's close_notify, or to a close frame: no other event comes."""
    for wrapped in Wrapped(arriving=[b"a", b"", b""]), WebSocket(Wrapped(arriving=[served(BINARY, b"a") + b"\x88\0"])):
        stream = PacketStream(wrapped, reads_in_frames=True)
        assert stream.read() == b"a"
        assert stream.pending()
        assert stream.read() == b""


def test_paho_sees_what_is_fed_to_it_and_nothing_else() -> None:
    stream = PacketStream(Wrapped(arriving=[b"PUBLISH"]), reads_in_frames=False)
    with pytest.raises(BlockingIOError):
        stream.recv(1)
    stream.control += b"CONNACK"
    assert stream.recv(1) == b"C"
    assert stream.recv(100) == b"ONNACK"
    with pytest.raises(BlockingIOError):
        stream.recv(1)


def test_what_a_tls_layer_holds_is_known() -> None:
    class Holding(Wrapped):
        def pending(self) -> int:
            return 5

    assert PacketStream(Holding(), reads_in_frames=False).pending() == 5
    assert PacketStream(Wrapped(), reads_in_frames=False).pending() == 0


def test_closing_writes_what_fits_first_and_happens_once() -> None:
    wrapped = Wrapped([BlockingIOError()])
    stream = PacketStream(wrapped, reads_in_frames=False)
    stream.want_write = lambda: None  # the event loop's by now; the connecting thread's buffer is not touched
    stream.write(b"\xe0\x00")
    assert wrapped.sent == b""
    stream.close()
    assert wrapped.sent == b"\xe0\x00", "the DISCONNECT left"
    assert wrapped.closed
    assert stream.closed
    stream.close()
    assert stream.fileno() == -1


def test_nagle_is_off_and_the_kernel_gives_a_dead_peer_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        stream = PacketStream(ours, reads_in_frames=False)
        stream.setblocking(False)
        stream.set_user_timeout(45_000)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 45_000
