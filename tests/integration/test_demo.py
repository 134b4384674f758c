"""The demo as people run it: real brokers, the account on standard output, and nothing left running at the end."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from streaming.lake.delta_files import read_rows
from tests.integration.streaming_support import offsets_in

DEADLINE_S = 240.0  # for a whole run on a machine that is busy with other tests
INTEGERS = ("published", "acknowledged", "received", "kafka", "silver", "duplicates", "missing", "pending")
FLOWING = "messages flow; Ctrl-C ends"

pytestmark = pytest.mark.slow


class RunningDemo:
    """A ``gateway demo`` process, with its temporary files in a folder of its own."""

    def __init__(self, temporary: Path, *options: str) -> None:
        self.temporary = temporary
        temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway.cli.main", "demo", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(temporary), "GATEWAY_INSTANCE": "not-for-the-demo"},
            start_new_session=True,
        )
        self.told: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._seen: dict[int, psutil.Process] = {}

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, text: str) -> None:
        """Until standard error says ``text``; notes which processes there are by then."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"the demo did not say {text!r} in time. It said:\n" + "\n".join(self.told))
            if line is None:
                pytest.fail(f"the demo ended without saying {text!r}. It said:\n" + "\n".join(self.told))
            self.told.append(line)
            if text in line:
                self.note_processes()
                return

    def note_processes(self) -> None:
        for process in psutil.Process(self.process.pid).children(recursive=True):
            self._seen[process.pid] = process

    def finish(self) -> tuple[int, str]:
        """The exit status and what was on standard output."""
        assert self.process.stdout is not None
        status = self.process.wait(DEADLINE_S)
        out = self.process.stdout.read()  # a line: it fits the pipe
        self._reader.join(10)
        while not self._lines.empty():
            self.told.append(self._lines.get() or "")
        return status, out

    def find(self, words: str) -> psutil.Process:
        """The one process of this demo whose command line has ``words``."""
        found = self._with_words(words)
        assert len(found) == 1, found
        return found[0]

    def wait_for_process(self, words: str) -> None:
        """Until a process of this demo has ``words`` in its command line."""
        deadline = time.monotonic() + DEADLINE_S
        while not self._with_words(words):
            assert time.monotonic() < deadline, f"no process with {words!r} came up"
            time.sleep(0.1)

    def _with_words(self, words: str) -> list[psutil.Process]:
        self.note_processes()
        found = []
        for process in self._seen.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                if words in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def assert_nothing_left(self, within_s: float = DEADLINE_S) -> None:
        """No process of this demo runs and no file of it lies about; after a kill its guards may take a moment."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            running = [p for p in self._seen.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
            files = [path.name for path in self.temporary.iterdir() if not path.name.startswith("gateway-ports-")]
            if not running and not files:
                return
            time.sleep(0.1)
        pytest.fail(f"left running: {running}; left behind: {files}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                self._reader.join(10)
                stream.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    running: list[RunningDemo] = []

    def starter(*options: str) -> RunningDemo:
        running.append(RunningDemo(tmp_path / "temporary", *options))
        return running[-1]

    yield starter
    for demo in running:
        demo.end()


def check_account(out: str) -> dict[str, Any]:
    account: dict[str, Any] = json.loads(out)
    assert out.count("\n") == 1, "exactly one JSON object on one line"
    assert set(account) == {
        *INTEGERS, "seconds", "latency_p50_ms", "latency_p99_ms", "late", "standstills", "commands", "loop",
    }  # fmt: skip
    commands = account["commands"]
    assert commands["consumed"] == sum(commands["finished"].values()) + commands["waiting"] + commands["under_way"]
    # One whose answer takes longer than its answer_timeout was received, and has not succeeded.
    assert commands["finished"].get("succeeded", 0) <= commands["received_by_devices"] <= commands["consumed"]
    for key in INTEGERS:
        assert type(account[key]) is int, key
    assert account["missing"] == 0
    assert account["published"] == account["acknowledged"] > 0
    for stage in ("received", "kafka", "silver"):
        assert account[stage] >= account["acknowledged"], stage
    assert 0 <= account["latency_p50_ms"] <= account["latency_p99_ms"]
    return account


def test_an_alert_of_spark_leads_to_a_command_and_what_is_kept_can_be_counted_again(start: Any, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    demo = start("--duration", "600", "--devices", "12", "--keep", str(kept))
    demo.wait_for("Spark: oslo-thermostat-0001 measures voltage")
    demo.wait_for("oslo-thermostat-0001 is told to recalibrate.")
    demo.wait_for("oslo-thermostat-0001: ")  # its end, whatever that is
    assert "oslo-thermostat-0001: succeeded, " in demo.told[-1], "\n".join(demo.told)
    assert demo.find("streaming.run all").environ()["GATEWAY_SHUTDOWN_TIMEOUT"] == "95s", "or a busy one has no report"
    demo.process.send_signal(signal.SIGINT)
    status, out = demo.finish()
    told = "\n".join(demo.told)
    assert status == 0, told
    account = check_account(out)
    demo.assert_nothing_left()
    assert "Missing: 0." in told
    assert account["published"] > 200
    assert account["commands"]["finished"]["succeeded"] > 50
    check_loop(account["loop"])
    assert "What Spark's alerts led to" in told
    check_kept(kept, account)
    assert f"Report, with plots: {kept / 'demo-report.html'}" in told


def check_loop(loop: dict[str, Any]) -> None:
    """The device with the fault was told, and measures right again."""
    assert loop["faulty"] == "oslo-thermostat-0001"
    alert = next(one for one in loop["alerts"] if one["device"] == loop["faulty"])
    assert alert["status"] == "succeeded"
    assert alert["measured_ms"] < alert["alerted_ms"] <= alert["commanded_ms"] <= alert["finished_ms"]
    assert alert["value"] > 1.4 * alert["usual"]
    assert all(volts < 1.2 * alert["usual"] for volts in alert["after"]), "it measures right again"


def check_kept(kept: Path, account: dict[str, Any]) -> None:
    """The tables and the report's page say what the account says."""
    rows = read_rows(str(kept / "lake" / "silver"), ["device", "seq"])
    bronze = read_rows(str(kept / "lake" / "bronze"), ["partition", "offset"]).to_pylist()
    assert 0 < len(bronze) <= account["kafka"], "the end waits for silver, and not for bronze"
    assert all(offsets == list(range(len(offsets))) for offsets in offsets_in(bronze).values())
    assert rows.num_rows == account["silver"]
    counted = Counter(zip(rows["device"].to_pylist(), rows["seq"].to_pylist(), strict=True))
    assert len(counted) + account["duplicates"] == account["silver"]
    assert len(counted) == account["published"]
    text = (kept / "demo-report.html").read_text()
    assert f"<dt>readings</dt><dd>{account['silver']:,}</dd>" in text
    assert text.count("<svg") >= 2, "throughput and lateness, drawn"
    assert {path.name for path in kept.iterdir()} >= {"gateway.toml", "gateway.log", "spark.log", "kafka"}


def test_with_faults_the_gateway_loses_nothing_and_the_plain_bridge_beside_it_does(start: Any) -> None:
    demo = start("--chaos", "--no-spark", "--duration", "20")
    demo.wait_for(FLOWING)
    status, out = demo.finish()
    told = "\n".join(demo.told)
    assert status == 0, told
    assert out.count("\n") == 1
    account = json.loads(out)
    assert account["seconds"] >= 20.0
    chaos, commands = account["chaos"], account["commands"]
    assert sum(commands["finished"].values()) == commands["consumed"] > 100
    assert commands["contradicting"] == 0
    assert account["missing"] == 0
    assert account["kafka"] - account["duplicates"] == account["published"] == account["acknowledged"] > 2000
    assert [fault["fault"] for fault in chaos["faults"]] == ["bridges_killed", "kafka_frozen", "bridges_killed"]
    (first_kill, freeze, second_kill) = chaos["faults"]
    assert freeze["at_s"] < second_kill["at_s"] < freeze["at_s"] + freeze["lasted_s"]
    assert first_kill["lasted_s"] > 0.0
    spool = chaos["spool"]
    held = [messages for _, messages, _ in spool["samples"]]
    assert held[0] == held[-1] == spool["left_messages"] == 0, "it rises from nothing and drains to nothing"
    assert max(held) == spool["most_messages"] > 50
    plain = chaos["plain_bridge"]
    assert plain["missing"] > 50, "what it had acknowledged for seconds was in its memory when it was killed"
    assert plain["kafka"] - plain["duplicates"] + plain["missing"] == account["published"]
    assert f"PLAIN BRIDGE LOST {plain['missing']:,} messages" in told
    assert "Missing: 0." in told
    assert "in the order it sent them" in told
    demo.assert_nothing_left()


def test_kill_9_while_kafka_is_frozen_leaves_nothing_running(start: Any) -> None:
    """The gateway's worker is its supervisor's child, and would go on draining for 28 s after that one's end."""
    demo = start("--chaos", "--no-spark", "--duration", "20")
    demo.wait_for("fault: Kafka frozen")
    demo.process.kill()
    demo.assert_nothing_left(within_s=25.0)


def test_two_ctrl_c_end_at_once(start: Any) -> None:
    demo = start("--no-spark", "--duration", "600")
    demo.wait_for(FLOWING)
    demo.find("gateway.cli.main run --config").suspend()  # or the end may be there before the second one
    demo.process.send_signal(signal.SIGINT)
    demo.wait_for("Ending in order")
    demo.process.send_signal(signal.SIGINT)
    status, out = demo.finish()
    assert (status, out) == (130, ""), "\n".join(demo.told)
    assert any("Ended at once" in line for line in demo.told)
    demo.assert_nothing_left()


@pytest.mark.parametrize(("moment", "number"), [(FLOWING, signal.SIGHUP), ("a real broker is starting", signal.SIGINT)])
def test_a_closed_terminal_or_a_ctrl_c_while_it_starts_end_it_at_once(start: Any, moment: str, number: int) -> None:
    demo = start("--no-spark", "--duration", "600")
    demo.wait_for(moment)
    demo.process.send_signal(number)
    status, out = demo.finish()
    assert (status, out) == (130, ""), "\n".join(demo.told)
    demo.assert_nothing_left()


def test_kill_9_leaves_nothing_running(start: Any) -> None:
    """Spark's Java is the hard part: it is our child's child, and nobody tells it."""
    demo = start("--auth", "--duration", "600")
    demo.wait_for(FLOWING)
    demo.wait_for_process("org.apache.spark.deploy.SparkSubmit")
    demo.process.kill()
    demo.assert_nothing_left()


def test_a_gateway_that_dies_is_told_with_the_end_of_its_log(start: Any) -> None:
    demo = start("--no-spark", "--duration", "600")
    demo.wait_for(FLOWING)
    demo.find("gateway.cli.main run --config").kill()
    status, out = demo.finish()
    assert (status, out) == (69, ""), "\n".join(demo.told)
    assert any("The gateway ended with status -9" in line for line in demo.told)
    demo.assert_nothing_left()
