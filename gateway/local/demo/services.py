"""The servers of the demo: Kafka, the MQTT broker, the gateway and the Spark job, each started, watched and stopped.

With faults the gateway runs under its supervisor, whose worker can then be killed, and Kafka can be frozen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.waiting import end_tasks
from config.error_words import words
from config.errors import ExitStatus, GatewayError
from gateway.local.demo.background import in_thread
from gateway.local.demo.options import TOPIC, gateway_toml
from gateway.local.demo.show.scrape import WorkerFacts, get, read_counts, read_worker
from gateway.local.demo.show.spark_events import LineTail, SparkEvents
from gateway.local.demo.show.state import DemoState, GatewayCounts, GatewayLives, Step, StepState
from gateway.local.embedded.kafka import KafkaCluster
from gateway.local.embedded.mqtt import MqttBroker
from gateway.local.runtime.cache import cache_directory, format_bytes
from gateway.local.runtime.jars import Bundle, pending_bytes, resolve
from gateway.local.runtime.java import ensure_java, pending_java_bytes
from gateway.local.runtime.ports import reserve_ports
from gateway.local.runtime.process import GuardedProcess, last_lines

if TYPE_CHECKING:
    from gateway.local.demo.access import DemoAccess
    from gateway.local.demo.show.view import View
    from gateway.local.runtime.progress import Download, ProgressCallback

_READY_S = 60.0
_GATEWAY_STOP_S = 40.0  # its own shutdown_timeout is 25 s
_SPARK_BATCH_S = 95.0  # 90 for a last batch of Spark on busy cores, without whose end there is no report; 5 for the end
_SPARK_STOP_S = _SPARK_BATCH_S + 60.0  # the report is drawn in it
_POLL_S = 0.1
_GUARD_S = 10.0
_SPARK_CONF = {
    # The JVM compiles lightly: a demo ends before the time that a thorough compiler takes is won back. Its room for
    # code is 48 MB then, which four jobs fill; it stops compiling when it is full.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m",
    # Nor does Spark compile its plans. Batches are small: to the first answered alert, the demo took 99 to 105 CPU
    # seconds instead of 126.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_JOBS = ["--jobs", "bronze,silver,gold,anomalies", *(f"--conf={name}={value}" for name, value in _SPARK_CONF.items())]
_OURSELVES = [sys.executable, "-m", "gateway.cli.main"]
_KEPT = ("GATEWAY_CACHE", "GATEWAY_MAVEN_MIRROR")  # where jars come from and are kept; no settings
_BUNDLE_STEPS: dict[Bundle, str] = {"kafka": "kafka", "hivemq": "mqtt", "spark": "spark"}


class DemoError(GatewayError):
    """The demo cannot go on; the message says which part ended, and shows the end of its log."""

    exit_status = ExitStatus.UNAVAILABLE


class Services:
    """Everything that runs beside the devices. One asyncio task uses it; what blocks runs in threads.

    ``make_root`` gives the folder for this run's data, on first use: from then on the guards of the gateway and of
    Spark remove it if we are killed (unless it is to be kept).
    """

    def __init__(
        self,
        state: DemoState,
        view: View,
        make_root: Callable[[], Path],
        *,
        keep: bool,
        access: DemoAccess | None = None,
    ) -> None:
        self._state = state
        self._view = view
        self._make_root = make_root
        self._keep = keep
        self._access = access
        self._root: Path | None = None
        self._kafka: KafkaCluster | None = None
        self._mqtt: MqttBroker | None = None
        self._gateway: GuardedProcess | None = None
        self._spark: GuardedProcess | None = None
        self._spark_lines: LineTail | None = None
        self._spark_jars: asyncio.Task[None] | None = None
        self._lives = GatewayLives()
        self._abandonable: list[Callable[[], bool]] = []
        """Says of each broker whether its guard would clean up after it now."""
        self._reserved = reserve_ports(1)
        self.spark_events = SparkEvents(TOPIC)
        for key, label in (("kafka", "Kafka"), ("mqtt", "MQTT broker"), ("gateway", "gateway"), ("devices", "devices")):
            state.steps[key] = Step(label)
        if state.with_spark:
            state.steps["spark"] = Step("Spark")
        if state.chaos is not None:
            state.steps["plain"] = Step("plain bridge")

    @property
    def root(self) -> Path:
        if self._root is None:
            self._root = self._make_root()
        return self._root

    @property
    def report(self) -> Path:
        """The page with plots: in the kept folder or, since the demo's own is removed, in the cache."""
        return (self.root if self._keep else cache_directory()) / "demo-report.html"

    @property
    def bootstrap(self) -> str:
        assert self._kafka is not None
        return self._kafka.bootstrap

    @property
    def mqtt_port(self) -> int:
        assert self._mqtt is not None
        return self._mqtt.port

    # ── start ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def announce_downloads(self) -> None:
        """Says what will be fetched before anything is, and how much."""
        bundles: list[Bundle] = ["kafka", "hivemq", *(["spark"] if self._state.with_spark else [])]  # type: ignore[list-item]
        parts = [(self._state.steps[_BUNDLE_STEPS[bundle]].label, pending_bytes(bundle)) for bundle in bundles]
        parts.append(("Java", pending_java_bytes()))
        wanted = [f"{label} {format_bytes(size)}" for label, size in parts if size]
        if wanted:
            total = format_bytes(sum(size for _, size in parts))
            self._view.warn(
                f"To be downloaded, this first time only: {total} ({', '.join(wanted)}), into {cache_directory()}"
            )

    async def start_brokers(self) -> None:
        """Starts Kafka and the MQTT broker at the same time, and fetches Spark's jars meanwhile."""
        await in_thread(lambda: ensure_java(self._progress("kafka")))  # once, before all of them want it
        if self._state.with_spark:
            self._spark_jars = asyncio.create_task(self._fetch_spark_jars())
        async with asyncio.TaskGroup() as group:
            group.create_task(self._start_kafka())
            group.create_task(self._start_mqtt())

    async def _start_kafka(self) -> None:
        begun_s = time.monotonic()
        self._now("kafka", StepState.WORKING, "a real broker is starting")
        directory = self.root / "kafka" if self._keep else None
        self._kafka = cluster = KafkaCluster(directory=directory, progress=self._progress("kafka"))
        await self._start_broker("kafka", self._kafka.start, lambda: cluster.alive(1))
        self._ready("kafka", self._kafka.bootstrap, begun_s)

    async def _start_mqtt(self) -> None:
        begun_s = time.monotonic()
        self._now("mqtt", StepState.WORKING, "a real broker is starting")
        access = None if self._access is None else self._access.process.service
        self._mqtt = broker = MqttBroker(access=access, progress=self._progress("mqtt"))
        await self._start_broker("mqtt", self._mqtt.start, lambda: broker.alive)
        self._ready("mqtt", f"127.0.0.1:{self._mqtt.port}", begun_s)

    async def _start_broker(self, key: str, start: Callable[[], None], alive: Callable[[], bool]) -> None:
        """Runs ``start`` in a thread. :meth:`abandon` waits until it has ended, or a process or download is alive."""
        over = threading.Event()
        step = self._state.steps[key]
        self._abandonable.append(lambda: over.is_set() or alive() or step.share is not None)

        def work() -> None:
            try:
                start()
            finally:
                over.set()

        await in_thread(work)

    async def _fetch_spark_jars(self) -> None:
        await in_thread(lambda: resolve("spark", self._progress("spark")))
        step = self._state.steps["spark"]
        step.share, step.detail = None, "starts when messages flow"

    async def start_gateway(self) -> None:
        """Starts ``gateway run`` and returns when it says that it is ready."""
        begun_s = time.monotonic()
        self._now("gateway", StepState.WORKING, "starting")
        http_port = self._reserved.ports[0]
        config = self.root / "gateway.toml"
        supervised = self._state.chaos is not None
        config.write_text(
            gateway_toml(
                self.root,
                mqtt_port=self.mqtt_port,
                bootstrap=self.bootstrap,
                http_port=http_port,
                supervised=supervised,
                password_file=None if self._access is None else self._access.process.gateway_password_file,
            ),
            encoding="utf-8",
        )
        # A worker outlives its supervisor for as long as it drains.
        command = [*_OURSELVES, "run", "--config", str(config)]
        self._gateway = self._guarded(command, "gateway.log", {}, sweep=supervised)
        while await get(http_port, "/readyz") is None:
            self.check()
            if time.monotonic() - begun_s > _READY_S:
                raise DemoError(f"The gateway is not ready after {_READY_S:g} s.{self._tail(self._gateway)}")
            await asyncio.sleep(_POLL_S)
        self._ready("gateway", f"http://127.0.0.1:{http_port}/metrics", begun_s)

    async def start_spark(self) -> None:
        """Starts ``gateway stream all``; :meth:`read_spark` tells when it is up."""
        if self._spark_jars is not None:
            await self._spark_jars
        self._now("spark", StepState.WORKING, "starting while messages already flow")
        progress = self.root / "spark-progress.jsonl"
        settings = ["--config", str(self.root / "gateway.toml"), "--report", str(self.report)]
        self.report.unlink(missing_ok=True)
        command = [*_OURSELVES, "stream", "all", *_JOBS, *settings]
        # The guard gives a process one file for both of its outputs; the shell takes the progress lines out of it.
        shell = ["/bin/sh", "-c", 'exec "$@" >"$0"', str(progress)]
        environment = {**self._spark_scratch(), "GATEWAY_SHUTDOWN_TIMEOUT": f"{_SPARK_BATCH_S:g}s"}
        self._spark = self._guarded([*shell, *command], "spark.log", environment, sweep=True)
        self._spark_lines = LineTail(progress)

    # ── watch ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Raises DemoError when a server has ended by itself."""
        for key, process in (("gateway", self._gateway), ("spark", self._spark)):
            if process is not None and process.returncode is not None:
                self._state.steps[key].state = StepState.FAILED
                said = f" It says: {self.spark_events.failure}" if key == "spark" and self.spark_events.failure else ""
                hint = " (--no-spark runs the demo without it)" if key == "spark" else ""
                label = "The gateway" if key == "gateway" else "The Spark job"
                raise DemoError(f"{label} ended with status {process.returncode}{hint}.{said}{self._tail(process)}")
        if self._spark_jars is not None and self._spark_jars.done() and not self._spark_jars.cancelled():
            self._spark_jars.result()
        if self._kafka is not None and self._state.steps["kafka"].state is StepState.READY and not self._kafka.alive(1):
            raise DemoError("The Kafka broker ended by itself. Is the machine short of memory?")
        if self._mqtt is not None and self._state.steps["mqtt"].state is StepState.READY and not self._mqtt.alive:
            raise DemoError("The MQTT broker ended by itself. Is the machine short of memory?")

    async def read_gateway(self) -> GatewayCounts | None:
        """The gateway's metrics now; None if it does not answer (it is busy, or gone: :meth:`check` tells)."""
        page = await get(self._reserved.ports[0], "/metrics")
        counts = None if page is None else read_counts(page)
        return self._lives.total(counts) if counts is not None and counts.up else None

    def read_spark(self) -> None:
        """Reads the lines that the Spark job has printed since the last call."""
        if self._spark_lines is None:
            return
        self.spark_events.feed(self._spark_lines.read())
        self._state.spark, now_s = self.spark_events.counts, time.monotonic()
        self._state.spark_moments.note(self._state.spark, now_s, now_s)
        step = self._state.steps["spark"]
        if step.state is StepState.WORKING and self.spark_events.startup_s is not None:
            self._now("spark", StepState.READY, f"running after {self.spark_events.startup_s:.1f} s")

    # ── faults ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def kill_worker(self) -> int:
        """Kills the gateway's worker process (SIGKILL), returns its pid. The supervisor lives, and starts another."""
        await self.read_gateway()  # its counts die with it: have them as late as can be
        facts = await self._worker()
        if facts is None or facts.pid is None:
            raise DemoError("The gateway's supervisor does not tell the process of its worker.")
        os.kill(facts.pid, signal.SIGKILL)
        self._state.steps["gateway"].trouble = "killed (kill -9); its supervisor starts another worker"
        return facts.pid

    async def worker_serves(self, *, other_than: int) -> bool:
        """Whether another worker than that one has all of its MQTT sessions."""
        facts = await self._worker()
        if facts is None or facts.pid == other_than or not facts.serves:
            return False
        self._state.steps["gateway"].trouble = ""
        return True

    async def _worker(self) -> WorkerFacts | None:
        """What the supervisor says of its one worker; None if it does not answer."""
        status = await get(self._reserved.ports[0], "/status")
        return None if status is None else read_worker(status)

    async def freeze_kafka(self) -> None:
        """Stops the broker's process (SIGSTOP): connections stay open and nothing answers."""
        assert self._kafka is not None
        self._state.steps["kafka"].trouble = "frozen (SIGSTOP): connections stay open, and nothing answers"
        await in_thread(self._kafka.freeze)

    async def thaw_kafka(self) -> None:
        """Lets it go on. Safe to call when it was not frozen."""
        if self._kafka is not None:
            await in_thread(self._kafka.thaw)
            self._state.steps["kafka"].trouble = ""

    # ── stop ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop_gateway(self) -> None:
        """Lets the gateway drain (SIGTERM), and notes whether it acknowledged everything it had taken in."""
        process = self._gateway
        assert process is not None
        self._gateway = None
        await in_thread(lambda: process.terminate(_GATEWAY_STOP_S))
        drained = process.returncode in (0, -signal.SIGTERM)  # it ends by the signal it was stopped with
        self._now("gateway", StepState.STOPPED, "drained" if drained else f"not drained, status {process.returncode}")

    async def stop_spark(self) -> None:
        """Ends the Spark job in order, which then writes its report."""
        process, self._spark = self._spark, None
        if process is not None:
            await in_thread(lambda: process.terminate(_SPARK_STOP_S))
            self.read_spark()
            shutil.rmtree(self.root / "tmp", ignore_errors=True)
            self._now("spark", StepState.STOPPED, f"{self._state.spark.rows:,} rows written")

    async def stop_mqtt(self) -> None:
        broker, self._mqtt = self._mqtt, None
        if broker is not None:
            self._copy_log(broker.log_file)
            await in_thread(broker.stop)
            self._now("mqtt", StepState.STOPPED)

    async def stop_kafka(self) -> None:
        cluster, self._kafka = self._kafka, None
        if cluster is not None:
            self._state.steps["kafka"].state = StepState.STOPPED
            self._copy_log(cluster.log_file(), "kafka.log")
            await in_thread(cluster.stop)
            self._now("kafka", StepState.STOPPED)

    def _copy_log(self, log: Path, name: str | None = None) -> None:
        """Beside those of the other parts; a broker's own goes with the broker."""
        with contextlib.suppress(OSError):
            shutil.copyfile(log, self.root / (name or log.name))

    def save_logs(self) -> Path | None:
        """Put the logs where they stay, in the place of those of the last run that found something; None when that
        cannot be done."""
        folder = cache_directory() / "demo-logs"
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for file in [*self.root.glob("*.log"), *self.root.glob("*.jsonl")]:
                shutil.copy(file, folder)
        except OSError as error:
            self._view.warn(f"The logs could not be kept: {words(error)}.")
            return None
        return folder

    async def abandon(self) -> None:
        """Ends at once what still runs. The brokers' own guards end them with this process, and remove their files.

        A broker that is just starting has its guard a moment after its files, so we stay for that moment.
        """
        patience_s = time.monotonic() + _GUARD_S
        while not all(may_leave() for may_leave in self._abandonable):
            if time.monotonic() > patience_s:
                break
            await asyncio.sleep(0.02)
        await end_tasks(self._spark_jars)
        for process in (self._gateway, self._spark):
            if process is not None:
                process.kill()
        self._reserved.release()

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _guarded(self, argv: list[str], log: str, extra: Mapping[str, str], *, sweep: bool) -> GuardedProcess:
        environment = {**_environment(), **extra}
        remove = [] if self._keep else [self.root]
        return GuardedProcess(argv, log=self.root / log, env=environment, remove=remove, sweep=sweep)

    def _spark_scratch(self) -> dict[str, str]:
        """The environment that keeps all temporary files of Spark, Python's and Java's, in this run's folder: in the
        system's they would stay if Spark is killed with us."""
        scratch = self.root / "tmp"
        scratch.mkdir()
        options = f'{os.environ.get("SPARK_SUBMIT_OPTS", "")} -Djava.io.tmpdir="{scratch}"'.strip()
        return {"TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "SPARK_SUBMIT_OPTS": options}

    def _progress(self, key: str) -> ProgressCallback:
        """Shows a download in the step of this key."""
        step = self._state.steps[key]

        def draw(event: Download) -> None:  # on the thread that downloads
            size = format_bytes(event.total_bytes)
            if event.finished:
                step.share, step.detail = None, f"{size} downloaded"
                self._view.note(f"{event.label}: {size} downloaded")
                return
            if event.done_bytes == 0:
                self._view.note(f"{event.label}: downloading {size}")
            step.share, step.detail = (
                min(1.0, event.done_bytes / max(1, event.total_bytes)),
                f"of {size}, {event.label}",
            )

        return draw

    def _now(self, key: str, state: StepState, detail: str = "") -> None:
        self._view.note(self._state.steps[key].now(state, detail))

    def _ready(self, key: str, where: str, begun_s: float) -> None:
        self._now(key, StepState.READY, f"{where}, up after {time.monotonic() - begun_s:.1f} s")

    @staticmethod
    def _tail(process: GuardedProcess) -> str:
        return f" The end of its log:\n{last_lines(process.log.read_bytes())}"


def _environment() -> dict[str, str]:
    """Ours, without settings of a real gateway that may be around: this run's file says everything."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_") or name in _KEPT}
