"""A Spark job as a process of the benchmark: what it prints, and the CPU of it and all its children."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from gateway.local.runtime.jars import resolve
from gateway.local.runtime.java import ensure_java
from streaming.progress import BatchEvent, Event, StartedEvent, parse
from tests.bench.account import cpu_of_each, tree
from tests.bench.processes import BenchError, stop
from tests.toml_text import to_toml

_ROOT: Final = Path(__file__).resolve().parents[2]
_LOG_END: Final = 1500
_STOP_S: Final = 60.0
_LOOK_S: Final = 0.25
_SIGCHLD: Final = 1 << signal.SIGCHLD - 1


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that read what there was and ended. CPU is user plus system time of its Python, its JVM and whatever they
    started: ``start_cpu_s`` until its queries had begun, ``cpu_s`` from there to the end of the last process.
    ``warm_rows`` and ``warm_cpu_s``: the same of what came behind the first half of the rows, when the JVM had compiled
    what it runs. ``memory_mib``: of all of them together, as it was at most when a batch had ended; pages that they
    share count once.
    """

    rows: int
    start_cpu_s: float
    cpu_s: float
    seconds: float
    first_batch_s: float
    warm_rows: int
    warm_cpu_s: float
    memory_mib: float


class Unwaited:
    """CPU of the processes of a tree that nobody waits for, so that no other process has it in its account: Spark's
    Python workers, whose daemon ignores SIGCHLD. A thread looks at them until the end of the ``with``; the last
    ``_LOOK_S`` of a process are missing."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ns: dict[int, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join()

    def __contains__(self, pid: int) -> bool:
        return pid in self._ns

    def total_s(self) -> float:
        """Of those that have ended, too."""
        return sum(self._ns.values()) / 1e9

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_S):
            for parent in filter(_ignores_ends, tree(self._pid)):
                with contextlib.suppress(ProcessLookupError):
                    self._ns |= {child: ns for child, ns in cpu_of_each(parent).items() if child != parent}


def _ignores_ends(pid: int) -> bool:
    """Whether a process ignores the ends of its children (SIGCHLD)."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) & _SIGCHLD)
    return False


class SparkJob:
    """``streaming.NAME`` with these settings; a context manager that leaves nothing running."""

    def __init__(self, name: str, directory: Path, settings: Mapping[str, object], *words: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "gateway.toml"
        file.write_text(to_toml(settings))
        self._log = directory / f"{name}.log"
        jars = os.pathsep.join(map(str, resolve("spark")))
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "JAVA_HOME": str(ensure_java().spark_home()), "PYTHONPATH": path}
        command = [sys.executable, "-m", "tests.bench.spark_subject", name, "--config", str(file), "--jars", jars]
        self._began_s = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *words], cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if not self._ended:
            stop(self._process, _STOP_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def next_event(self) -> Event:
        """The next line it prints. Blocks; raises BenchError when it has ended instead."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if event := parse(line):
                return event
        raise BenchError(f"the job ended too early; its log ends {self._log_end()}")

    def finish(self, warm_after: int = 0) -> Finished:
        """Waits until it has read what there is and has ended. Raises BenchError if it fails. ``warm_after``: rows, and
        a batch ends with them."""
        start_cpu_s = first_batch_s = memory_mib = 0.0
        rows = warm_from = 0
        warm_since_s = 0.0
        assert self._process.stdout is not None
        with Unwaited(self._process.pid) as unwaited:
            for line in self._process.stdout:
                match parse(line):
                    case StartedEvent():
                        start_cpu_s = self._cpu_s(unwaited)
                    case BatchEvent() as batch:
                        first_batch_s = first_batch_s or time.monotonic() - self._began_s
                        rows += batch.rows
                        memory_mib = max(memory_mib, self.memory_mib())
                        if not warm_from and rows >= warm_after:
                            warm_from, warm_since_s = rows, self._cpu_s(unwaited)
                    case _:
                        pass
        _pid, status, usage = os.wait4(self._process.pid, 0)  # with the CPU of all that it waited for
        self._ended = True
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode:
            raise BenchError(f"the job ended with status {self._process.returncode}; its log ends {self._log_end()}")
        cpu_s = usage.ru_utime + usage.ru_stime + unwaited.total_s()
        return Finished(
            rows=rows,
            start_cpu_s=start_cpu_s,
            cpu_s=cpu_s - start_cpu_s,
            seconds=time.monotonic() - self._began_s,
            first_batch_s=first_batch_s,
            warm_rows=rows - warm_from,
            warm_cpu_s=cpu_s - warm_since_s,
            memory_mib=memory_mib,
        )

    def memory_mib(self) -> float:
        """Of the process tree, now."""
        return self._total(lambda process: process.memory_full_info().pss / (1 << 20))

    def _cpu_s(self, unwaited: Unwaited) -> float:
        """Of the process tree, so far."""
        # User, system, and theirs whom it has waited for.
        return unwaited.total_s() + self._total(
            lambda process: 0.0 if process.pid in unwaited else sum(process.cpu_times()[:4])
        )

    def _total(self, part: Callable[[psutil.Process], float]) -> float:
        this = psutil.Process(self._process.pid)
        total = 0.0
        for process in (this, *this.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += part(process)
        return total

    def _log_end(self) -> str:
        return repr(self._log.read_text(errors="replace")[-_LOG_END:])
