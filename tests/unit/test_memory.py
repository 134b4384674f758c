"""What a worker's memory settings promise."""

import ctypes
import gc
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from gateway.base.lifecycle import Lifecycle, State
from gateway.base.process import memory
from gateway.worker.run import _on_state


@pytest.fixture
def settled() -> Iterator[None]:
    before = gc.get_threshold()
    memory.freeze_loaded_objects()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class Knot:
    """It knows itself, so that only the collector frees it."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Knot.alive += 1

    def __del__(self) -> None:
        Knot.alive -= 1


@pytest.mark.usefixtures("settled")
def test_what_waits_for_the_collector_is_bounded() -> None:
    most = 0
    for _ in range(50_000):
        Knot()
        most = max(most, Knot.alive)
    assert 0 < most <= 5_050  # from Python 3.12 on the collector waits for the end of a loop's round or a call


@pytest.mark.usefixtures("settled")
def test_what_is_alive_when_the_worker_is_ready_is_not_looked_at_again() -> None:
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < 2_000


def test_a_worker_collects_before_its_sessions_bring_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would wait for 20 ms."""
    collected = []
    lifecycle = Lifecycle()
    monkeypatch.setattr(memory, "freeze_loaded_objects", lambda: collected.append(lifecycle.state))
    lifecycle.listen(partial(_on_state, None))
    for state in (State.STARTING, State.RECOVERY, State.RUNNING):
        lifecycle.advance(state)
    assert collected == [State.RECOVERY]


MAPPED = """
import ctypes
from gateway.base.process import memory

class Info(ctypes.Structure):
    _fields_ = [("words", ctypes.c_size_t * 10)]

def mapped():
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Info
    return ask().words[4]  # hblkhd: bytes in blocks of their own

memory.keep_heap_small()
bytearray(8 << 20)  # freed at once
before = mapped()
block = bytearray(4 << 20)
assert mapped() - before >= 4 << 20, "it would stay in the heap when it is freed"
"""


REUSED = """
import random
import resource
import socket
from aiokafka.codec import zstd_encode
from gateway.base.process import memory

memory.keep_heap_small()
words = [random.randbytes(6).hex().encode() for _ in range(500)]
batch = b" ".join(random.choices(words, k=20_000))[:256 << 10]
ours, theirs = socket.socketpair()
for size in (2 << 10, 10 << 10, 100 << 10, 256 << 10):
    for number in range(60):
        if number == 20:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        zstd_encode(batch[:size])
        theirs.send(b"x")
        ours.recv(256 << 10)
    each = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 40
    assert each < 10, f"{each:g} new pages for a batch of {size} bytes and a read"
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="no glibc, or one before 2.33")
@pytest.mark.parametrize("code", [MAPPED, REUSED], ids=["a large block is freed", "reads and compression"])
def test_the_heap_keeps_no_large_block_and_takes_no_new_pages_each_time(code: str) -> None:
    """New pages cost more than the compression."""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
