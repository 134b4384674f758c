"""A standalone Spark cluster out of pyspark's own jars: a master and workers on loopback ports."""

import contextlib
import json
import urllib.request
from pathlib import Path
from typing import Any, Self

import pyspark

from gateway.local.runtime.ports import reserve_ports
from gateway.local.runtime.process import GuardedProcess
from tests.integration.job_process import environment, wait_for

_HOME = Path(pyspark.__file__).parent
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss512k"


class SparkCluster:
    """Runs while its ``with`` block does, and cannot outlive this process. ``folder`` gets its logs and scratch files.

    Each worker offers a core and 1 GB, and runs Python functions with our packages, as a node with our image would.
    """

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self._folder, self._count = folder, workers
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            reservation = reserve_ports(2)
            stack.callback(reservation.release)
            port, web = reservation.ports
            self.url, self._web = f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{web}/json/"
            self._start(stack, "Master", "--port", str(port), "--webui-port", str(web))
            wait_for("Spark's master answers", self.state)
            words = ["--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / "work")]
            self._workers = [self._start(stack, "Worker", *words, self.url) for _ in range(self._count)]
            wait_for("Spark's workers are known to the master", lambda: self.alive() == self._count)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def state(self) -> dict[str, Any] | None:
        """What the master says of workers and applications; None while it does not answer."""
        try:
            with urllib.request.urlopen(self._web, timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):  # it answers with a page before it has all of its addresses
            return None

    def alive(self) -> int:
        """How many workers the master has."""
        return int((self.state() or {}).get("aliveworkers", 0))

    def kill_worker(self) -> None:
        """Ends a worker with its executor, as a node that loses power would."""
        self._workers[0].kill()

    def _start(self, stack: contextlib.ExitStack, kind: str, *words: str) -> GuardedProcess:
        small = {"SPARK_HOME": str(_HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _JVM}
        main = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        process = GuardedProcess(
            [_HOME / "bin" / "spark-class", main, "--host", "127.0.0.1", *words],
            log=self._folder / f"spark-{kind.lower()}.log",
            env=environment() | small,
            cwd=self._folder,
        )
        stack.callback(process.terminate, 10)
        return process
