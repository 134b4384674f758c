"""What failure tests share: a gateway process, brokers and load around it, and the account at the end.

The verdict rests on the publishers' own device and sequence numbers alone, read back from Kafka by another client
than the gateway's. ``CHAOS=full`` chooses the long form of each case (``make chaos``), otherwise the short one.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from gateway.data_dir.identity import holder
from gateway.local.runtime.process import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FULL = os.environ.get("CHAOS") == "full"
in_full_form = pytest.mark.skipif(not FULL, reason="in the full form (CHAOS=full)")
ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
POLL_S = 0.02


def wait_until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Poll a condition of another process; AssertionError naming ``what`` when it does not come."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}"
        time.sleep(POLL_S)


def to_toml(table: Mapping[str, Any], path: str = "") -> str:
    """Nested mappings as TOML; lists of mappings become arrays of tables."""
    lines, tables = [], []
    for key, value in table.items():
        if isinstance(value, dict):
            tables.append(f"[{path}{key}]\n{to_toml(value, f'{path}{key}.')}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            tables += [f"[[{path}{key}]]\n{to_toml(item, f'{path}{key}.')}" for item in value]
        else:
            lines.append(f"{key} = {json.dumps(value)}\n")  # JSON's scalars and lists are TOML's
    return "".join(lines) + "\n".join(tables)


class Gateway:
    """``gateway run`` on settings written to a file; it cannot outlive this process.

    ``tables`` are the settings but for the instance's own; the HTTP port is reserved by the caller. Starting it again
    after an end keeps settings and data directory, as a supervisor would.
    """

    def __init__(self, directory: Path, http_port: int, tables: Mapping[str, Any]) -> None:
        self._directory = directory
        self.http_port = http_port
        self._process: GuardedProcess | None = None
        self.log_file = directory / "gateway.log"
        self._offset = 0
        self.environment: dict[str, str] = {}  # beside the tests' own
        self._config = directory / "gateway.toml"
        self._data = directory / "data"
        settings = {
            "workers": 0,  # one process, which is what most failures are done to
            "data_dir": str(directory / "data"),
            "http": {"port": http_port},
            "log": {"format": "json"},
        }
        directory.mkdir(parents=True, exist_ok=True)
        self._tables: dict[str, Any] = {**settings, **tables}
        self.configure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is not None:
            self._process.kill()
        for number in range(16):  # workers whose supervisor was killed would drain first
            pid = holder(self._data, number)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def configure(self, **tables: Any) -> None:
        """Write the settings, changed by ``tables``: whole values, and tables key by key. Nobody is told."""
        for name, table in tables.items():
            self._tables[name] = {**self._tables.get(name, {}), **table} if isinstance(table, dict) else table
        self._config.write_text(to_toml(self._tables))

    def command(self, *words: str, timeout_s: float = 60.0) -> tuple[int, str]:
        """Run another command of the gateway's on the same settings: its exit status, and what it prints."""
        argv = [sys.executable, "-m", "gateway.cli.main", *words, "--config", str(self._config)]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT)
        return ended.returncode, ended.stdout + ended.stderr

    @property
    def process(self) -> GuardedProcess:
        assert self._process is not None, "not started"
        return self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def start(self, *, ready: bool = True) -> None:
        """Start it; with ``ready``, return when /readyz says so."""
        self._offset = self.log_file.stat().st_size if self.log_file.exists() else 0
        argv = [sys.executable, "-m", "gateway.cli.main", "run", "--config", str(self._config)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
        self._process = GuardedProcess(argv, log=self.log_file, env=environment | self.environment, cwd=ROOT)
        if ready:
            self.wait_ready()

    def wait_ready(self, deadline_s: float = DEADLINE_S) -> None:
        def ready() -> bool:
            assert self.alive, f"the gateway ended with {self.process.returncode}:\n{self.tail()}"
            return self.ready()

        wait_until(ready, f"the gateway is ready; {self.tail()}", deadline_s)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()

    def terminate(self) -> None:
        """SIGTERM, and return at once."""
        self.process.signal(signal.SIGTERM)

    def stop(self, deadline_s: float = 40.0) -> int:
        """SIGTERM, and wait for the end; the exit status, negative for a signal."""
        self.terminate()
        return self.process.wait(deadline_s)

    # --- what it says ---

    @property
    def port(self) -> int:
        """Its HTTP port."""
        return self.http_port

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of its HTTP port. Raises OSError when it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def reasons(self) -> list[str]:
        """Why /readyz is red; empty when it is green. AssertionError when it does not answer."""
        try:
            status, body = self.get("/readyz")
        except (OSError, http.client.HTTPException) as error:
            raise AssertionError(f"/readyz does not answer: {error!r}") from error
        document = json.loads(body)
        assert (status == 200) is document["ready"] is (not document["reasons"])
        return list(document["reasons"])

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/status")[1]))

    def problems(self) -> list[dict[str, str]]:
        """What /status says is wrong, but for a want of CPU: that is true of a machine which runs the tests."""
        return [problem for problem in self.status()["problems"] if problem["id"] != "cpu-starved"]

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        status, body = self.get("/metrics")
        assert status == 200
        samples = [line for line in body.splitlines() if line.partition("{")[0].partition(" ")[0] == name]
        assert samples, f"/metrics has no {name}"
        return sum(float(line.rpartition(" ")[2]) for line in samples)

    def samples(self, name: str) -> dict[str, float]:
        """A metric's samples by the text of their labels."""
        found = {}
        for line in self.get("/metrics")[1].splitlines():
            labelled, _, value = line.rpartition(" ")
            if labelled.partition("{")[0] == name:
                found[labelled.removeprefix(name)] = float(value)
        return found

    def pids(self) -> list[int | None]:
        """The workers' processes, under a supervisor; None for one that is away."""
        return [worker["pid"] for worker in self.status()["workers"]]

    def imbalance(self) -> float:
        return self.metric("gateway_ledger_imbalance")

    def rss_mib(self) -> float:
        """Resident memory now."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024

    def log(self) -> list[dict[str, Any]]:
        """The log lines of the present run."""
        lines = self.log_file.read_bytes()[self._offset :].decode(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log() if line.get("event") == name]

    def tail(self, lines: int = 12) -> str:
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "its log ends:\n" + "\n".join(text.splitlines()[-lines:])

    def running(self) -> bool:
        """Whether its sessions are there, whatever Kafka does."""
        try:
            return bool(self.status()["state"] == "RUNNING")
        except (OSError, http.client.HTTPException):
            return False

    def settled(self) -> bool:
        """Whether nothing is in flight: every message received is in Kafka and acknowledged."""
        status = self.status()
        return not status["unacked"] and not status["ledger"]["in_flight"]


class Watch:
    """Looks at a gateway ten times a second while its ``with`` block runs, and checks at the end what it saw.

    The account must balance at every look, not only at the end: its sums hold between any two steps of the loop.
    """

    def __init__(self, gateway: Gateway, *, rss_mib: float) -> None:
        self._gateway = gateway
        self._limit_mib = rss_mib
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch")
        self.rss_mib = 0.0
        self.looks = 0
        self.imbalances: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._stop.set()
        self._thread.join()
        print(f"at most {self.rss_mib:.0f} MiB, {self.looks} looks")
        if kind is None:
            assert self.looks > 0
            assert not self.imbalances, f"the account was out of balance: {self.imbalances[:5]}"
            assert self.rss_mib < self._limit_mib, f"{self.rss_mib:.0f} MiB"

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            with contextlib.suppress(OSError, http.client.HTTPException, IndexError, AssertionError):
                self.rss_mib = max(self.rss_mib, self._gateway.rss_mib())
                imbalance = self._gateway.imbalance()
                self.looks += 1
                if imbalance:
                    self.imbalances.append(imbalance)


class ProblemWatch:
    """Asks /status what is wrong, twice a second, while its ``with`` block runs. ``critical`` is what it said so."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="problems")
        self.looks = 0
        self.critical: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.5):
            with contextlib.suppress(OSError, http.client.HTTPException):
                found = self._gateway.problems()
                self.looks += 1
                self.critical += (problem["text"] for problem in found if problem["severity"] == "critical")


def run_to_end(directory: Path, tables: Mapping[str, Any] | str, *, timeout_s: float = 60.0) -> tuple[int, str]:
    """Run ``gateway run`` until it ends by itself: its exit status and what a user reads on stderr."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "gateway.toml"
    config.write_text(tables if isinstance(tables, str) else to_toml({"data_dir": str(directory / "data"), **tables}))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    ended = subprocess.run(
        [sys.executable, "-m", "gateway.cli.main", "run", "--config", str(config)],
        capture_output=True, text=True, timeout=timeout_s, check=False, cwd=ROOT, env=environment,
    )  # fmt: skip
    return ended.returncode, ended.stderr


# --- the account ---


@dataclass
class Account:
    """What became of the devices' messages. ``copies`` counts every record beyond a message's first."""

    published: int
    found: int
    copies: int
    missing: list[tuple[str, int]]
    out_of_order: list[str]  # first occurrences that came after a later one of their device
    strangers: list[tuple[str, int]] = field(default_factory=list)  # found, but never published

    def __str__(self) -> str:
        return (
            f"published {self.published}, in Kafka {self.found}, duplicates {self.copies}, missing "
            f"{len(self.missing)} {self.missing[:5]}, out of order {len(self.out_of_order)} {self.out_of_order[:3]}"
        )


def payload(device: str, number: int, size: int = 60) -> bytes:
    """A telemetry message with its identity, some 60 bytes or more."""
    text = json.dumps({"device": device, "seq": number})
    return text.ljust(size).encode()


def read_topic(bootstrap: str, topic: str) -> list[list[tuple[str, int]]]:
    """(device, sequence number) of each record, by partition, in order. Reads to the end as it is now; blocks."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "account", "enable.auto.commit": False, "check.crcs": True}
    )
    partitions: list[list[tuple[str, int]]] = []
    try:
        described = consumer.list_topics(topic, timeout=20).topics[topic]
        if described.error is not None:
            raise KafkaException(described.error)
        ends = {}
        for number in described.partitions:
            _, ends[number] = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=20)
        partitions = [[] for _ in ends]
        left = {number for number, end in ends.items() if end > 0}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        deadline = time.monotonic() + DEADLINE_S
        while left:
            assert time.monotonic() < deadline, f"Kafka did not give {topic} to its end"
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                number, offset, value = message.partition(), message.offset(), message.value()
                assert number is not None
                assert offset is not None
                if value is not None:
                    document = json.loads(value)
                    partitions[number].append((document["device"], document["seq"]))
                if offset >= ends[number] - 1:
                    left.discard(number)
    finally:
        consumer.close()
    return partitions


def settle_account(published: Mapping[str, int], partitions: Iterable[list[tuple[str, int]]]) -> Account:
    """Compare what devices had acknowledged (device to how many, from 0) with what Kafka has.

    Keys are devices' topics, so all of a device is in one partition, and order there is order of the device.
    """
    seen: dict[tuple[str, int], int] = defaultdict(int)
    highest: dict[str, int] = {}
    out_of_order = []
    for partition in partitions:
        for device, number in partition:
            seen[device, number] += 1
            if seen[device, number] == 1:
                if number < highest.get(device, -1):
                    out_of_order.append(f"{device}: {number} after {highest[device]}")
                highest[device] = max(number, highest.get(device, -1))
    expected = {(device, number) for device, count in published.items() for number in range(count)}
    return Account(
        sum(published.values()), len(seen), sum(seen.values()) - len(seen), sorted(expected - seen.keys()),
        out_of_order, sorted(seen.keys() - expected),
    )  # fmt: skip


def account(bootstrap: str, topic: str, published: Mapping[str, int], *, deadline_s: float = DEADLINE_S) -> Account:
    """The account as soon as nothing is missing, or as it is at the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        found = settle_account(published, read_topic(bootstrap, topic))
        if not found.missing or time.monotonic() > end:
            return found
        with contextlib.suppress(KafkaException):
            time.sleep(0.3)
