"""The first signal asks for an orderly stop, the second forces it, and the process ends as the signal says."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from gateway.base.lifecycle import StopRequest, StopVerb
from gateway.base.signals import StopSignals
from tests.command_line import own_environment

STOPPING = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("second", STOPPING)
@pytest.mark.parametrize("first", STOPPING)
async def test_the_first_signal_asks_for_a_stop_and_the_second_forces_it(
    first: signal.Signals, second: signal.Signals
) -> None:
    stop = StopRequest()
    with StopSignals(stop) as signals:
        os.kill(os.getpid(), first)
        await asyncio.wait_for(stop.wait_requested(), 60)
        assert (stop.verb, stop.forced) == (StopVerb.RESTART, False), "one that keeps the sessions"
        os.kill(os.getpid(), second)
        await asyncio.wait_for(stop.wait_forced(), 60)
        assert signals.received is first, "the process ends by the first"


@pytest.mark.parametrize("number", STOPPING)
async def test_the_handlers_of_before_come_back(number: signal.Signals) -> None:
    caught: list[int] = []
    before = signal.signal(number, lambda caught_number, _frame: caught.append(caught_number))
    try:
        with StopSignals(StopRequest()):
            pass
        signal.raise_signal(number)
        assert caught == [number]
    finally:
        signal.signal(number, before)


async def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with StopSignals(stop):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)  # comes after it, so that there is something to wait for
            await asyncio.wait_for(stop.wait_requested(), 60)
            assert not stop.forced
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


async def test_without_a_signal_reraise_returns() -> None:
    with StopSignals(StopRequest()) as signals:
        pass
    signals.reraise()
    assert signals.received is None


# ---- whole processes ----


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_process_ends_by_the_signal_though_its_output_cannot_be_written(stream: str) -> None:
    """A supervisor would report a worker that ended otherwise as one that has not drained."""
    text = f"""
        import signal, sys
        from gateway.base.lifecycle import StopRequest
        from gateway.base.signals import StopSignals

        signals = StopSignals(StopRequest())
        signals.received = signal.SIGTERM
        sys.{stream}.write("in the buffer")
        signals.reraise()
    """
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(text)], stdout=full, stderr=full, check=False, timeout=60,
            env=own_environment(PYTHONUNBUFFERED=""),
        )  # fmt: skip
    assert ended.returncode == -signal.SIGTERM


PROCESS = textwrap.dedent("""
    import asyncio, sys
    from gateway.base.lifecycle import Service, StopRequest
    from gateway.base.signals import StopSignals

    def say(word):
        print(word, flush=True)

    class Part:
        name = "part"

        async def start(self):
            say("starting")
            if "hang-in-start" in sys.argv:
                await asyncio.Event().wait()

        async def stop(self, deadline_ns):
            say("stopping")
            if "hang-in-stop" in sys.argv and not stop.forced:
                await asyncio.Event().wait()
            say("stopped")

    async def main():
        global stop
        stop = StopRequest()
        service = Service([], [Part()], shutdown_timeout_ns=60_000_000_000)
        service.lifecycle.listen(lambda old, new: say(new.name))
        with StopSignals(stop) as signals:
            await service.run(stop)
        return signals

    signals = asyncio.run(main())
    say("reraising")
    signals.reraise()
    say("unreachable")
""")


class Process:
    def __init__(self, *arguments: str, code: str = PROCESS, cwd: Path | None = None) -> None:
        command = [sys.executable, "-c", code, *arguments]
        self._process = subprocess.Popen(
            command, cwd=cwd, env=own_environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.said: list[str] = []
        self._deadline = threading.Timer(60, self._process.kill)  # ends one that hangs, and so a hear() that waits

    def __enter__(self) -> Self:
        self._deadline.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._deadline.cancel()
        with self._process:  # waits, and closes the pipe
            self._process.kill()

    def hear(self, word: str) -> None:
        """Reads until the process says ``word``; its log lines are passed over."""
        self.read(lambda line: line == word, word)

    def see(self, event: str, **fields: object) -> dict[str, Any]:
        """Reads until a log line in JSON has this event and these fields."""
        wanted = {"event": event} | fields
        return dict(json.loads(self.read(lambda line: wanted.items() <= json.loads(line).items(), event)))

    def read(self, is_wanted: Callable[[str], object], what: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.strip())
            if is_wanted(self.said[-1]):
                return self.said[-1]
        pytest.fail(f"the process ended without saying {what!r}: {self.said}")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        self.said += self._process.communicate()[0].split()
        return self._process.returncode


@pytest.mark.parametrize("number", STOPPING)
def test_a_stopped_process_ends_by_its_signal_after_stopping_in_order(number: signal.Signals) -> None:
    with Process() as process:
        process.hear("RUNNING")
        process.signal(number)
        assert process.end() == -number, "the parent sees a death by this signal"
        assert "stopped" in process.said
        assert "unreachable" not in process.said
        assert "Traceback" not in process.said


def test_a_second_signal_ends_a_drain_that_does_not_end() -> None:
    with Process("hang-in-stop") as process:
        process.hear("RUNNING")
        process.signal(signal.SIGTERM)
        process.hear("stopping")
        process.signal(signal.SIGINT)
        assert process.end() == -signal.SIGTERM
        assert process.said[-2:] == ["NOT_RUNNING", "reraising"]


def test_a_signal_during_the_start_stops_what_was_begun() -> None:
    with Process("hang-in-start") as process:
        process.hear("starting")
        process.signal(signal.SIGTERM)
        assert process.end() == -signal.SIGTERM
        assert "stopped" in process.said
        assert "RUNNING" not in process.said


def test_what_tests_start_can_be_interrupted_where_they_themselves_cannot() -> None:
    """Under nohup, in a background job, in some CI: they are started with the signal ignored."""
    started = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    start = f"import tests.conftest, subprocess, sys; subprocess.run([sys.executable, '-c', {started!r}], check=True)"
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        f"os.execv(sys.executable, [sys.executable, '-c', {start!r}])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", ignoring],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr


SIGNALLED_EARLY = """
import os, signal, sys

class Signalled:
    def find_spec(name, *_):
        if name in ("gateway.cli", "gateway.supervisor.supervisor", "gateway.worker.worker"):
            for number in (signal.SIGHUP, signal.SIGUSR2):
                os.kill(os.getpid(), number)

sys.meta_path.insert(0, Signalled)
from gateway.start import main
sys.exit(main())
"""
SETTINGS = """
workers = 1
mqtt.addresses = ["mqtt://127.0.0.1:1"]
kafka.bootstrap_servers = ["127.0.0.1:1"]
http.port = 0
routes = [{ name = "telemetry", filters = ["devices/+/telemetry"], topic = "telemetry" }]
"""


def test_a_signal_that_comes_before_its_handler_waits_for_it(tmp_path: Path) -> None:
    """A reload asked for while the gateway starts ended it. One asked of every process ended the workers."""
    (tmp_path / "gateway.toml").write_text(SETTINGS)
    with Process("run", code=SIGNALLED_EARLY, cwd=tmp_path) as process:
        assert {process.see("operation_asked")["operation"] for _ in range(2)} == {"reload", "restart"}
        worker = 0
        for said in ('"role": "worker"', '"role": "successor"', '"kafka_not_ready".*"retry_in_s"'):  # the successor's
            worker = json.loads(process.read(re.compile(said).search, said)).get("pid", worker)
            for number in (signal.SIGHUP, signal.SIGUSR2):
                os.kill(worker, number)
        process.signal(signal.SIGTERM)
        assert process.see("supervisor_stopped")["clean"]
        assert process.end() == -signal.SIGTERM
    assert not [line for line in process.said if "worker_ended" in line or "restart_failed" in line]
