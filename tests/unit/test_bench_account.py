"""The benchmark's account of a process: its CPU is what it burnt, its children's included, and its memory what it
touched.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.bench.account import SpanClock, cpu_of, cpu_of_each, own_peak_rss_mib, peak_rss_mib, pss_mib, rss_mib, tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the account reads Linux's /proc")

# Burns the CPU seconds it is told and says what its own clocks show.
_BURN = """
import os, sys, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
"""


@contextmanager
def script(body: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that talks over its pipes; ended when the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-c", _BURN + body], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_cpu_of_a_process_is_its_own_clock() -> None:
    tell = "print(time.process_time_ns(), flush=True); input();"
    with script(f"burn(0.1); {tell} {tell}") as process:
        before = int(hear(process))
        measured = cpu_of(process.pid)
        say(process)
        assert before <= measured.total_ns <= int(hear(process)) + 1e7
        # The split comes from counters in steps of 10 ms, one for each of user and system.
        assert abs(measured.user_ns + measured.system_ns - measured.total_ns) < 5e7


def test_span_counts_what_is_burnt_in_it_and_nothing_before() -> None:
    body = "burn(0.2); print('ready', flush=True); input(); burn(0.1); print('done', flush=True); input()"
    with script(body) as process:
        assert hear(process) == "ready\n"
        clock = SpanClock(process.pid)
        say(process)
        assert hear(process) == "done\n"
        span = clock.stop()
    assert 0.1e9 <= span.cpu.total_ns < 0.3e9
    assert span.ns >= span.cpu.total_ns


def test_cpu_counts_ended_and_living_children() -> None:
    body = """
if os.fork() == 0:
    burn(0.1); os._exit(0)
os.wait()
if os.fork() == 0:
    burn(0.1); print('ready', flush=True); input(); os._exit(0)
input()
"""
    with script(body) as process:
        assert hear(process) == "ready\n"
        assert len(tree(process.pid)) == 2
        assert 0.19e9 <= cpu_of(process.pid).total_ns <= 0.6e9


def test_cpu_of_an_ended_process_is_an_error() -> None:
    with script("pass") as process:
        process.wait()
    with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
        cpu_of(process.pid)


def test_peak_memory_stays_after_the_memory_is_freed() -> None:
    with script(
        "data = bytearray(os.urandom(1)) * (64 << 20); del data; print('freed', flush=True); input()"
    ) as process:
        assert hear(process) == "freed\n"
        assert 64 <= peak_rss_mib(process.pid) < 128
        assert rss_mib(process.pid) < 48


def test_cpu_of_each_process_is_its_own() -> None:
    child = "burn(0.05); print('done', flush=True); sys.stdin.readline()"
    body = f"""
import subprocess
child = subprocess.Popen([sys.executable, "-c", {_BURN + child!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, time.process_time_ns(), flush=True)
input()
"""
    with script(body) as process:
        pid, own_ns = map(int, hear(process).split())
        found = cpu_of_each(process.pid)
        assert set(found) == {process.pid, pid}
        assert own_ns <= found[process.pid]
        assert found[process.pid] + found[pid] == pytest.approx(cpu_of(process.pid).total_ns, abs=1e7)
        assert found[pid] >= 50_000_000
        say(process)


def test_shared_pages_count_once_in_the_sum_of_the_shares() -> None:
    body = """
data = bytearray(os.urandom(1)) * (64 << 20)
if os.fork() == 0:
    print('ready', flush=True); input(); os._exit(0)
os.wait()
"""
    with script(body) as process:
        assert hear(process) == "ready\n"
        parent, child = tree(process.pid)
        assert 64 <= own_peak_rss_mib(parent) < 100
        assert 32 <= pss_mib(parent) < 60
        assert 32 <= pss_mib(child) < 60
        say(process)
