"""Guarded processes: they end with us however we end, and signals reach them and nobody else."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from gateway.local.runtime.errors import StartError
from gateway.local.runtime.process import GuardedProcess, last_lines, wait_for_line
from tests.waiting import DEADLINE_S, wait_until

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
# Deaf to SIGTERM, with a child of its own, as a shell script around a server would be.
STUBBORN = [
    sys.executable,
    "-c",
    (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print('up', c.pid, flush=True);"
        "time.sleep(600)"
    ),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_CACHE", str(tmp_path / "cache"))


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def start(argv: list[str], log: Path, **options: object) -> GuardedProcess:
    process = GuardedProcess(argv, log=log, **options)  # type: ignore[arg-type]
    wait_for_line(process, re.compile(rb"up.*\n"), time.monotonic() + DEADLINE_S, "the child")
    return process


def test_output_and_status_are_told(tmp_path: Path) -> None:
    process = GuardedProcess(
        [sys.executable, "-c", "import os, sys; print(os.environ['X']); sys.stderr.write('e'); sys.exit(7)"],
        log=tmp_path / "log",
        env={"X": "value"},
    )
    assert process.wait(DEADLINE_S) == 7
    assert process.returncode == 7
    assert (tmp_path / "log").read_text() == "value\ne"


def test_a_long_environment_gets_through(tmp_path: Path) -> None:
    """Longer than a pipe holds."""
    process = GuardedProcess(
        [sys.executable, "-c", "import os; print(sum(len(v) for k, v in os.environ.items() if k.startswith('BIG')))"],
        log=tmp_path / "log",
        env={f"BIG{n}": "x" * 100_000 for n in range(5)},
    )
    assert process.wait(DEADLINE_S) == 0
    assert (tmp_path / "log").read_text().strip() == "500000"


def test_what_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"/no/such/program cannot be run: .*No such file"):
        GuardedProcess(["/no/such/program"], log=tmp_path / "log")


def test_kill_and_terminate(tmp_path: Path) -> None:
    killed = start(SLEEPER, tmp_path / "a")
    killed.kill()
    killed.kill()
    assert killed.returncode == -signal.SIGKILL
    terminated = start(SLEEPER, tmp_path / "b")
    terminated.terminate(DEADLINE_S)
    assert terminated.returncode == -signal.SIGTERM


def test_who_ignores_a_polite_end_is_killed_with_its_children(tmp_path: Path) -> None:
    process = start(STUBBORN, tmp_path / "log")
    grandchild = int((tmp_path / "log").read_text().split()[1])
    process.terminate(0.2)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: gone(grandchild), "the grandchild's end")


def test_a_frozen_process_is_frozen_on_return_and_can_be_ended(tmp_path: Path) -> None:
    process = start(SLEEPER, tmp_path / "log")
    for _ in range(20):
        process.signal(signal.SIGSTOP)
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        process.signal(signal.SIGCONT)
    process.signal(signal.SIGSTOP)
    process.terminate(DEADLINE_S)
    assert process.returncode == -signal.SIGTERM


def test_waiting_has_a_limit(tmp_path: Path) -> None:
    process = start(SLEEPER, tmp_path / "log")
    with pytest.raises(TimeoutError, match="still runs"):
        process.wait(0.05)
    process.kill()


def test_a_signal_to_one_that_has_ended_does_nothing(tmp_path: Path) -> None:
    process = GuardedProcess([sys.executable, "-c", "pass"], log=tmp_path / "log")
    wait_until(lambda: gone(process.pid), "the child's end")
    process.signal(signal.SIGTERM)
    process.kill()
    assert process.returncode == 0


def test_many_threads_may_talk_to_it(tmp_path: Path) -> None:
    process = start(SLEEPER, tmp_path / "log")
    failures: list[BaseException] = []

    def pester() -> None:
        try:
            for _ in range(20):
                process.signal(signal.SIGCONT)
                _ = process.returncode
            process.kill()
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)

    threads = [threading.Thread(target=pester) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not failures
    assert process.returncode == -signal.SIGKILL


# A child of its own in a session of its own, as Spark's Java is.
SCATTERED = [
    sys.executable,
    "-c",
    (
        "import subprocess, sys, time;"
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True);"
        "print('up', c.pid, flush=True); time.sleep(600)"
    ),
]
linux_only = pytest.mark.skipif(not Path("/proc").exists(), reason="processes are found in /proc")


def scattered_child(log: Path) -> int:
    # Its words come one by one where output is not buffered.
    wait_until(lambda: log.exists() and b"\n" in log.read_bytes(), "the child's child")
    return int(log.read_text().split()[1])


@linux_only
def test_a_sweep_ends_what_a_process_leaves_and_nothing_else(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    process = start(SCATTERED, tmp_path / "log", sweep=True)
    left = scattered_child(tmp_path / "log")
    try:
        assert not gone(left)
        process.kill()
        assert gone(left)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


class TestTheEndOfOurProcess:
    """A helper process starts a guarded one; then the helper ends in each possible way."""

    def helper(
        self, tmp_path: Path, then: str, argv: list[str] = STUBBORN, *, sweep: bool = False
    ) -> tuple[subprocess.Popen[str], int]:
        directory = tmp_path / "temporary"
        directory.mkdir()
        (directory / "data").write_text("x")
        script = f"""
import os, signal, sys, threading, time
from pathlib import Path
from gateway.local.runtime.process import GuardedProcess
def begin():
    remove = [Path({str(directory)!r})]
    p = GuardedProcess({argv!r}, log=Path({str(tmp_path / "log")!r}), remove=remove, sweep={sweep})
    print(p.pid, flush=True)
    return p
{then}
"""
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        return process, int(process.stdout.readline())

    def check(self, tmp_path: Path, process: subprocess.Popen[str], pid: int) -> None:
        process.stdout.close()
        process.wait(DEADLINE_S)
        wait_until(lambda: gone(pid), "the guarded process's end")
        wait_until(lambda: not (tmp_path / "temporary").exists(), "the removal of the temporary directory")

    @pytest.mark.parametrize("then", [
        "p = begin()",  # falls off the end
        "p = begin(); sys.exit(3)",
        "p = begin(); os._exit(1)",
        "p = begin(); raise RuntimeError",
        "p = begin(); os.kill(os.getpid(), signal.SIGKILL)",
        "p = begin(); p.signal(signal.SIGSTOP); os.kill(os.getpid(), signal.SIGKILL)",
    ])  # fmt: skip
    def test_ends_the_guarded_one(self, tmp_path: Path, then: str) -> None:
        process, pid = self.helper(tmp_path, then)
        self.check(tmp_path, process, pid)

    @linux_only
    def test_what_the_guarded_one_leaves_is_swept_up(self, tmp_path: Path) -> None:
        process, pid = self.helper(tmp_path, "p = begin(); time.sleep(600)", argv=SCATTERED, sweep=True)
        left = scattered_child(tmp_path / "log")
        process.kill()
        self.check(tmp_path, process, pid)
        wait_until(lambda: gone(left), "the end of what it left")

    def test_ends_it_when_a_forked_child_holds_the_pipe(self, tmp_path: Path) -> None:
        """A forked child inherits the pipe whose end the guard waits for; it looks for its parent too."""
        process, pid = self.helper(
            tmp_path, "p = begin()\nif os.fork() == 0:\n    os.close(1); time.sleep(30); os._exit(0)\nos._exit(0)"
        )
        self.check(tmp_path, process, pid)

    def test_a_thread_s_end_does_not_end_it(self, tmp_path: Path) -> None:
        """PR_SET_PDEATHSIG on the process itself would: it goes by threads."""
        process, pid = self.helper(
            tmp_path,
            "t = threading.Thread(target=begin); t.start(); t.join(); print('joined', flush=True); time.sleep(600)",
        )
        assert process.stdout.readline() == "joined\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert not gone(pid)
        process.kill()
        self.check(tmp_path, process, pid)

    @pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
    def test_the_guard_s_own_end_ends_it(self, tmp_path: Path) -> None:
        process = start(SLEEPER, tmp_path / "log")
        guard = psutil.Process(process.pid).ppid()
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: gone(process.pid), "the guarded process's end")
        assert process.wait(DEADLINE_S) == -signal.SIGKILL


class TestWaitingForALine:
    def test_the_match_is_returned(self, tmp_path: Path) -> None:
        process = GuardedProcess([sys.executable, "-c", "print('port 17')"], log=tmp_path / "log")
        match = wait_for_line(process, re.compile(rb"port (\d+)"), time.monotonic() + DEADLINE_S, "x")
        assert match[1] == b"17"
        process.wait(DEADLINE_S)

    @pytest.mark.parametrize(("code", "says"), [
        ("print('down')", r"(?s)The broker ended while starting \(status 0\).*    down\n"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ])  # fmt: skip
    def test_an_earlier_run_s_lines_do_not_count_and_an_end_is_told(self, tmp_path: Path, code: str, says: str) -> None:
        (tmp_path / "log").write_text("up\n")
        process = GuardedProcess([sys.executable, "-c", code], log=tmp_path / "log")
        with pytest.raises(StartError, match=says):
            wait_for_line(process, re.compile(rb"up.*\n"), time.monotonic() + DEADLINE_S, "The broker")

    def test_a_deadline_passes(self, tmp_path: Path) -> None:
        process = start(SLEEPER, tmp_path / "log")
        with pytest.raises(StartError, match="The broker did not come up in time"):
            wait_for_line(process, re.compile(rb"never"), time.monotonic() + 0.1, "The broker")
        process.kill()

    def test_the_cause_is_guessed_and_the_log_outlives_its_folder(self, tmp_path: Path) -> None:
        log = tmp_path / "folder" / "node.log"
        log.parent.mkdir()
        code = "print('java.net.BindException: Address already in use'); raise SystemExit(1)"
        process = GuardedProcess([sys.executable, "-c", code], log=log)
        with pytest.raises(StartError, match="A port it needs is taken by another program") as caught:
            wait_for_line(process, re.compile(rb"up.*\n"), time.monotonic() + DEADLINE_S, "The broker")
        log.unlink()
        kept = Path(str(caught.value).rpartition("(log: ")[2].rstrip(")"))
        assert "BindException" in kept.read_text()


def test_last_lines_are_the_last_and_never_empty() -> None:
    assert last_lines(b"a\nb\nc\n", 2) == "    b\n    c"
    assert last_lines(b"\xff") == "    \ufffd"
    assert last_lines(b"") == "    (it logged nothing)"
