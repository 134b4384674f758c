"""A standalone Spark cluster out of pyspark's own jars: a master and a worker on loopback ports."""

from __future__ import annotations

__all__ = ["SparkCluster"]

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

    The worker offers ``cores`` and 1 GB, and runs Python functions with our packages, as a node with our image would.
    """

    def __init__(self, folder: Path, *, cores: int = 2) -> None:
        self._folder, self._cores = folder, cores
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            reservation = reserve_ports(2)
            port, web = reservation.ports
            self.url, self._web = f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{web}/json/"
            reservation.release()
            self._start(stack, "Master", "--port", str(port), "--webui-port", str(web))
            wait_for("Spark's master answers", self.state)
            scratch = self._folder / "work"
            worker = ["--webui-port", "0", "--cores", str(self._cores), "--memory", "1g", "--work-dir", str(scratch)]
            self._start(stack, "Worker", *worker, self.url)
            wait_for("Spark's worker is known to the master", lambda: self._alive() == 1)
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

    def _alive(self) -> int:
        return int((self.state() or {}).get("aliveworkers", 0))

    def _start(self, stack: contextlib.ExitStack, kind: str, *words: str) -> None:
        small = {"SPARK_HOME": str(_HOME), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _JVM}
        main = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        process = GuardedProcess(
            [_HOME / "bin" / "spark-class", main, "--host", "127.0.0.1", *words],
            log=self._folder / f"spark-{kind.lower()}.log",
            env=environment() | small,
            cwd=self._folder,
        )
        stack.callback(process.terminate, 10)
