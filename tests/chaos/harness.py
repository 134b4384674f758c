"""What failure tests share: a gateway process, brokers and load around it, and the account at the end.

The verdict rests on the publishers' own device and sequence numbers alone, read back from Kafka by another client
than the gateway's. ``CHAOS=full`` chooses the long form of each case (``make chaos``), otherwise the short one.
"""

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import KafkaException, Message

from gateway.data_dir.directory import holder
from gateway.local.runtime.process import GuardedProcess
from tests.asking import get
from tests.brokers.reading import read_all
from tests.command_line import GATEWAY, ROOT, own_environment, run_gateway
from tests.toml_text import to_toml
from tests.waiting import DEADLINE_S, wait_until

FULL = os.environ.get("CHAOS") == "full"
in_full_form = pytest.mark.skipif(not FULL, reason="in the full form (CHAOS=full)")


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

    def command(self, *words: str, timeout_s: float = 240.0) -> tuple[int, str]:
        """Run another command of the gateway's, with its settings and environment: exit status, and what it prints."""
        ended = run_gateway(*words, "--config", self._config, timeout_s=timeout_s, **self.environment)
        return ended.returncode, ended.stdout + ended.stderr

    def commanded(self, *words: str) -> str:
        """What another command prints that succeeds."""
        status, said = self.command(*words)
        assert status == 0, said + self.tail()
        return said

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
        argv = [*GATEWAY, "run", "--config", str(self._config)]
        self._process = GuardedProcess(argv, log=self.log_file, env=own_environment(**self.environment), cwd=ROOT)
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

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of its HTTP port. Raises OSError when it does not answer."""
        return get(self.http_port, path)

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
        return int(Path(f"/proc/{self.process.pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024

    def log(self) -> list[dict[str, Any]]:
        """The log lines of the present run; what follows the last line break may be a line half written."""
        *lines, _ = self.log_file.read_bytes()[self._offset :].decode(errors="replace").split("\n")
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


class Beside(ABC):
    """Runs in a thread while its ``with`` block does."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Ends soon after ``_stop`` is set."""


class Looking(Beside):
    """Looks at a gateway now and then, in a thread, while its ``with`` block runs. ``looks``: how often it could."""

    every_s = 1.0

    def __init__(self, gateway: Gateway) -> None:
        super().__init__()
        self._gateway = gateway
        self._began_s = time.monotonic()
        self.looks = 0

    def _run(self) -> None:
        while not self._stop.wait(self.every_s):
            self.try_look()

    def try_look(self) -> None:
        """A look now; none where the gateway does not answer."""
        with contextlib.suppress(OSError, http.client.HTTPException, IndexError, AssertionError, ValueError):
            self.look()
            self.looks += 1

    @abstractmethod
    def look(self) -> None: ...


class Watch(Looking):
    """Checks at the end what it saw. The account must balance at every look, not only at the end: its sums hold between
    any two steps of the loop."""

    every_s = 0.1

    def __init__(self, gateway: Gateway, *, rss_mib: float) -> None:
        super().__init__(gateway)
        self._limit_mib = rss_mib
        self.rss_mib = 0.0
        self.imbalances: list[float] = []

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        super().__exit__(kind, *error)
        print(f"at most {self.rss_mib:.0f} MiB, {self.looks} looks")
        if kind is None:
            assert self.looks > 0
            assert not self.imbalances, f"the account was out of balance: {self.imbalances[:5]}"
            assert self.rss_mib < self._limit_mib, f"{self.rss_mib:.0f} MiB"

    def look(self) -> None:
        self.rss_mib = max(self.rss_mib, self._gateway.rss_mib())
        if imbalance := self._gateway.imbalance():
            self.imbalances.append(imbalance)


def run_to_end(directory: Path, tables: Mapping[str, Any] | str, *, timeout_s: float = 60.0) -> tuple[int, str]:
    """Run ``gateway run`` until it ends by itself: its exit status and what a user reads on stderr."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "gateway.toml"
    config.write_text(tables if isinstance(tables, str) else to_toml({"data_dir": str(directory / "data"), **tables}))
    ended = run_gateway("run", "--config", config, timeout_s=timeout_s)
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
    return json.dumps({"device": device, "seq": number}).ljust(size).encode()


def read_topic(bootstrap: str, topic: str) -> list[list[tuple[str, int]]]:
    """(device, sequence number) of each record, by partition, in order. Reads to the end as it is now; blocks."""

    def identity(message: Message) -> tuple[str, int]:
        document = json.loads(message.value() or b"")
        return document["device"], document["seq"]

    return read_all(bootstrap, topic, identity)


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
