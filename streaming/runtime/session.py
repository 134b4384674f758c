"""The Spark session of a job, tuned to have its first batch soon and to leave nothing running."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from config.settings import Settings
from streaming import jvm
from streaming.errors import StreamError
from streaming.kafka.failures import cause
from streaming.kafka.options import jvm_options
from streaming.runtime.class_data import ClassData

_LOGGING = Path(__file__).with_name("log4j2.properties")
_END_TIMEOUT_S = 10.0
_RECORDED_END_TIMEOUT_S = 300.0
_STATE = "org.apache.spark.sql.execution.streaming.state"
_ROCKSDB = "spark.sql.streaming.stateStore.rocksdb."
_PYTHON = "spark.pyspark.python"
_JVM_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTOR_OPTIONS = "spark.executor.extraJavaOptions"
_CLASS_PATH = "spark.driver.extraClassPath"
_JVM_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.streaming.metricsEnabled": "false",
    # Every expression made from Python would be given the line that made it, by a walk over the stack on both sides:
    # putting silver's decoding together took 10 CPU seconds instead of 3.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Plans here have one stage or two; re-planning them while they run costs more than it gains.
    "spark.sql.adaptive.enabled": "false",
    # A second batch after each, only to drop old windows: the next batch with data does that as well.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stopTimeout": "5s",
    # Plans that are kept compiled. Silver has some 80, and eight more are other ones in each batch: of 100, Spark's own
    # number, all were lost in turn.
    "spark.sql.codegen.cache.maxEntries": "400",
    "spark.sql.parquet.compression.codec": "zstd",
    # Readers other than Spark do not know its old 96-bit timestamps.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # One file per task and date without sorting the rows by date first; a batch has one date, around midnight two.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    "spark.sql.streaming.stateStore.providerClass": f"{_STATE}.RocksDBStateStoreProvider",
    # One cache and one set of write buffers for all state stores of a process, or each has its own outside the heap.
    f"{_ROCKSDB}boundedMemoryUsage": "true",
    f"{_ROCKSDB}maxMemoryUsageMB": "512",
    # A batch then writes what it changed, not all that has gathered in the write buffers.
    f"{_ROCKSDB}changelogCheckpointing.enabled": "true",
    "spark.executorEnv.MALLOC_ARENA_MAX": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A table's log is read with this many tasks; 50, Delta's own number, take longer to start than to run.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Small files, two a batch, are put together by the batch that finds this many, and what is smaller than a megabyte
    # is taken up again. With Delta's own 50 and 64 MB all of the day so far was written anew while the stream waited.
    "spark.databricks.delta.autoCompact.minNumFiles": "16",
    "spark.databricks.delta.autoCompact.minFileSize": str(1 << 20),
    "spark.databricks.delta.autoCompact.maxFileSize": str(32 << 20),
    # Of a file that is sorted anew, parts are passed over like files.
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    # VACUUM goes by stream.lake.vacuum_after, which has bounds of its own; its log tells how many files it removed.
    # Spark's own number makes ten thousand tasks to list a table of ten files.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "true",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_FIXED = {"spark.sql.session.timeZone": "UTC"}  # not for a user to change: dates and times in the tables are UTC
# Java leaves a method of more than 8,000 bytes to its interpreter for ever. Spark makes one method of all that is done
# with a row, and of silver's decoding it can be longer.
_HUGE = "-XX:-DontCompileHugeMethods"
# Batches have no use for short pauses. G1, the JVM's own choice, took 37 CPU seconds for 2 million records of bronze
# instead of 32. Java takes one collector alone, so a user's replaces this one.
_COLLECTOR = "-XX:+UseParallelGC"
_DRIVER_FLAGS = (
    # Starting Spark runs much code a few thousand times. The thorough compiler (tier 4) took it all for hot: a third of
    # the CPU time until the first batch. Forty times its thresholds leave it to what really is.
    "-XX:+IgnoreUnrecognizedVMOptions -XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=40000",
    "-XX:Tier4CompileThreshold=400000 -XX:Tier4BackEdgeThreshold=2400000",
    _HUGE,
    # Stopped within a batch, a query matches what Python said against a pattern that goes a few calls deeper with each
    # character (Spark's StreamExecution, PROXY_ERROR). With 4 MB the stack overflowed, and Spark never said that the
    # query had ended. Threads take of it what they use.
    "-Xss16m",
)


def session_conf(
    settings: Settings, jars: Sequence[Path], extra: Mapping[str, str], *, submitted: bool
) -> dict[str, str]:
    """Spark's configuration for a job. ``extra`` is the user's and wins, but for what the tables' meaning depends on.
    ``submitted``: spark-submit started this process, so master and jars are its business."""
    master, extra = settings.stream.master, dict(extra)
    conf = {
        **_DEFAULTS,
        # What Python functions run on. Spark would take any python3 of the path, without our packages.
        _PYTHON: os.environ.get("PYSPARK_PYTHON", sys.executable),
        "spark.app.name": f"{settings.instance}-stream",
        "spark.sql.shuffle.partitions": str(settings.stream.shuffle_partitions),
    }
    if not submitted:
        level = "info" if settings.log.level == "debug" else "warn"
        logging = f'"-Dlog4j2.configurationFile={_LOGGING.as_uri()}" -Dgateway.spark.log={level}'
        # The user's come on top of ours, the last of two that contradict each other counts.
        tokens, theirs = jvm_options(settings.kafka), extra.pop(_JVM_OPTIONS, "")
        collector = "" if re.search(r"-XX:\+Use\w+GC\b", theirs) else _COLLECTOR
        conf |= {
            "spark.master": master,
            # Together with RocksDB's 0.5 GB, the JVM's own 0.5 GB and a few hundred MB for each Python worker below
            # 4 GB. The heap grows to it only where a job needs it.
            "spark.driver.memory": "2g",
            _JVM_OPTIONS: " ".join(filter(None, [logging, *_DRIVER_FLAGS, collector, tokens, theirs])),
        }
        if master.startswith("local"):
            # On the class path they need not be copied, as spark.jars would have it.
            conf |= _LOCAL | {_CLASS_PATH: _class_path(jars)}
        else:
            conf[_EXECUTOR_OPTIONS] = " ".join(filter(None, [_HUGE, tokens, extra.pop(_EXECUTOR_OPTIONS, "")]))
            conf["spark.jars"] = ",".join(jar.as_uri() for jar in jars)
    return conf | extra | _FIXED


@dataclass(frozen=True, slots=True)
class Spark:
    """A running session and the JVM behind it, if that is ours."""

    session: SparkSession
    _process: subprocess.Popen[bytes] | None
    _classes: ClassData | None

    @property
    def archive(self) -> Path | None:
        """The class data that the next start like this one maps."""
        return self._classes.archive if self._classes else None

    def tell_when_ended(self, told: Callable[[int], None]) -> None:
        """Calls ``told`` with the JVM's status, from another thread, once the JVM is gone, whoever ended it."""
        if (process := self._process) is not None:
            threading.Thread(target=lambda: told(process.wait()), name="spark-jvm", daemon=True).start()

    def end(self) -> None:
        """Stops the session and waits for the JVM to be gone. Blocks, at the longest a few seconds, minutes if it was
        to write its class data; never raises for a JVM that died already."""
        with suppress(Exception):  # py4j's errors for a JVM that is gone are many
            self.session.stop()
        if self._process is None:
            return
        # pyspark keeps the gateway for the process's next session, and to a JVM that is gone it leads nowhere.
        jvm.forget_gateway()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()  # what Spark's JVM takes as its parent's end
        records = self._classes is not None and self._classes.recording
        try:
            self._process.wait(_RECORDED_END_TIMEOUT_S if records else _END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._classes is not None:
            self._classes.end()


def start_spark(
    settings: Settings, jars: Sequence[Path], extra: Mapping[str, str], *, records_classes: bool = False
) -> Spark:
    """Starts the JVM and a session in it. Blocks for seconds; main thread only. Raises StreamError if that fails.
    ``records_classes``: it writes its class data at its end, where there are none.

    The JVM is in a process session of its own: Ctrl-C, or what a supervisor sends, ends the batch in order by way of
    this process, not the JVM in its middle. It ends with this process, however that ends.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    conf = session_conf(settings, jars, extra, submitted=submitted)
    classes = None if submitted else class_data(conf, jars)
    if classes is not None:
        conf |= class_data_conf(conf, classes, records=records_classes)
    if not submitted:
        if conf["spark.master"].startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # The one for functions in DataFrames is read from here, the one for stateful processors from the property.
        os.environ["PYSPARK_PYTHON"] = conf[_PYTHON]
        # glibc has up to eight arenas for each core, and each keeps what RocksDB's threads gave back to it.
        os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    launch: Any = launch_gateway  # which has no types
    held: list[int] = []
    try:
        with _signals_held(held):  # standard output is for progress lines
            gateway = launch(_spark_conf(conf), {"stdout": sys.stderr.fileno(), "start_new_session": True})
    except (PySparkRuntimeError, OSError) as error:
        java = os.environ.get("JAVA_HOME", "the java on the path")
        raise StreamError(
            f"Spark's JVM did not start; what it said is above. It was to run on {java}: is that a Java 17 or newer,"
            " and is there memory for it?"
        ) from error
    try:
        for number in held[:1]:
            signal.raise_signal(number)
        if submitted:
            told = SparkConf(_jvm=gateway.jvm)  # by spark-submit, which is stronger than our defaults
            conf = {name: it for name, it in conf.items() if name in {**extra, **_FIXED} or not told.contains(name)}
        context: Any = SparkContext(conf=_spark_conf(conf), gateway=gateway)
        return Spark(SparkSession(context), gateway.proc, classes)
    except BaseException as error:
        if gateway.proc is not None:
            gateway.proc.kill()
            gateway.proc.wait()
        if isinstance(error, Py4JError):
            raise StreamError(
                f"Spark could not start with stream.master {settings.stream.master!r}: {cause(str(error))}."
                " Is that a master Spark knows, is it up, and can it reach this machine?"
            ) from error
        raise


def class_data(conf: Mapping[str, str], jars: Sequence[Path]) -> ClassData | None:
    """The archive of Spark's and these jars' classes, beside the jars. None if the class path is another one, if the
    user's JVM options name an archive, or without JAVA_HOME, which ``gateway stream`` sets."""
    said = " ".join([conf.get(_JVM_OPTIONS, ""), *(os.environ.get(name, "") for name in _JVM_VARIABLES)])
    theirs = re.search("-Xshare|SharedArchiveFile|ArchiveClassesAtExit", said)
    java = os.environ.get("JAVA_HOME")
    if not jars or conf.get(_CLASS_PATH) != _class_path(jars) or theirs or not java:
        return None
    spark = Path(os.environ.get("SPARK_HOME", pyspark.__path__[0])).resolve()
    return ClassData(jars[0].parent, Path(java), [*jars, spark / "jars"])


def class_data_conf(conf: Mapping[str, str], classes: ClassData, *, records: bool) -> dict[str, str]:
    """What maps the archive; if there is none and it ``records``, what writes it. To write takes 20 CPU seconds, and
    each start that finds the archive takes 7 less."""
    flags = classes.flags() if records else classes.use_flags()
    return {_JVM_OPTIONS: " ".join([*(f'"{flag}"' for flag in flags), conf[_JVM_OPTIONS]])}


def _class_path(jars: Sequence[Path]) -> str:
    return os.pathsep.join(map(str, jars))


def _spark_conf(conf: Mapping[str, str]) -> SparkConf:
    return SparkConf(loadDefaults=False).setAll([*conf.items()])


@contextmanager
def _signals_held(received: list[int]) -> Iterator[None]:
    """Collects signals in the block instead of acting on them. A handler's exception inside pyspark's
    ``launch_gateway`` would leave a JVM that nobody knows and that stays for ever."""
    numbers = [it for it in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(it) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, lambda got, _: received.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
