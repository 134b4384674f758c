"""A Spark job as a process of its own, for tests that kill it, stop it, or read what it prints."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from gateway.local.runtime.jars import resolve
from gateway.local.runtime.java import ensure_java
from streaming.progress import Event, parse
from tests import spark

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
QUICK = [f"--conf={name}={value}" for name, value in spark.QUICK.items()]
PATIENCE_S = 600.0  # a start is 10 s of an idle machine; two cores that others share have taken ten times as long


def wait_for(what: str, condition: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T:
    """What ``condition`` returns as soon as that is true; fails when it does not become true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)
    return found


def environment() -> dict[str, str]:
    java = ensure_java().spark_home()
    return {**os.environ, "JAVA_HOME": str(java), "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}


class JobProcess:
    """``python -m streaming.run NAME`` with these words, its lines and its errors in files of ``folder``."""

    def __init__(self, folder: Path, *words: str, name: str) -> None:
        number = len(list(folder.glob("job-*.out")))
        self.out, self.err = folder / f"job-{number}.out", folder / f"job-{number}.err"
        jars = os.pathsep.join(map(str, resolve("spark")))
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "streaming.run", name, "--jars", jars, *QUICK, *words],
                stdout=out,
                stderr=err,
                cwd=folder,
                env=environment(),
            )
        self._family: set[psutil.Process] = set()

    def events(self) -> list[Event]:
        """What it has said so far, whole lines only."""
        lines = self.out.read_text().split("\n")[:-1]
        return [event for event in map(parse, lines) if event]

    def family(self) -> set[psutil.Process]:
        """It and all processes it was ever seen to have started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            this = psutil.Process(self._process.pid)
            self._family |= {this, *this.children(recursive=True)}
        return self._family

    def jvm(self) -> psutil.Process | None:
        for one in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):  # scripts that start it are soon gone
                if one.is_running() and one.name() == "java":
                    return one
        return None

    def send(self, number: signal.Signals) -> None:
        self.family()
        self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it and its JVM at the same moment, as a machine that loses power would."""
        for one in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self._process.wait()

    def wait(self) -> int:
        """Its exit status, once it and everything it started are gone."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            self.family()  # the JVM has to be known by the time its parent is gone
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(0.5)
                break
            assert time.monotonic() < deadline_s, f"the job did not end within {PATIENCE_S:g} s:\n{self.log()}"
        wait_for("the job's JVM is gone", lambda: not any(one.is_running() for one in self._family))
        return status

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def log(self) -> str:
        return self.err.read_text()
