"""The command line of a job: settings on top, the job's process instead of this one, Spark's configuration."""

import dataclasses
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from config.errors import ExitStatus
from config.settings import LogSettings, Settings, StreamSettings
from gateway.cli.main import main
from streaming import options
from streaming.decoding.faults import BadRecord
from streaming.errors import DataLossError, KafkaRefusedError, KafkaUnavailableError, StreamError
from streaming.kafka.failures import cause, explain
from streaming.progress import Event
from streaming.run import stages
from streaming.runtime.class_data import ClassData
from streaming.runtime.session import class_data, class_data_conf, session_conf
from streaming.silver.schema import FIXED, QUARANTINE
from tests.command_line import Cli


def test_several_jobs_are_chosen_by_name_and_started_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert options.process_arguments("all", []).jobs == options.LAKE_JOBS
    assert options.process_arguments("all", ["--jobs", "gold, silver"]).jobs == ("silver", "gold")
    with pytest.raises(SystemExit):
        options.process_arguments("all", ["--jobs", "silver,golden"])
    assert "no such job: golden" in capsys.readouterr().err


def test_what_reads_silver_begins_when_silver_has_ended() -> None:
    jobs = ["bronze", "silver", "gold"]
    assert stages(jobs, available_now=False) == [jobs]
    assert stages(jobs, available_now=True) == [["bronze", "silver"], ["gold"]]
    assert stages(["gold"], available_now=True) == [["gold"]]


def test_the_command_line_is_stronger_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[stream]\ntopics = ["old"]\nmaster = "local[1]"\ntrigger = "9s"\n')
    words = ["--config", str(file), "--master", "local[2]", "--topic", "new", "--available-now"]
    stream = options.load_settings(options.process_arguments("silver", words)).stream
    assert stream.master == "local[2]"
    assert stream.topics == ("new",)
    assert stream.available_now
    assert stream.trigger == timedelta(seconds=9)


def test_properties_of_spark_are_split_at_the_first_equals_sign() -> None:
    told = options.process_arguments("silver", ["--conf", "spark.a=b=c", "--conf", "spark.d="])
    assert dict(told.conf) == {"spark.a": "b=c", "spark.d": ""}


@pytest.mark.parametrize("pair", ["spark.driver.memory", "driver.memory=2g", "=2g", ""])
def test_what_is_no_property_of_spark_is_refused(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options.process_arguments("silver", ["--conf", pair])
    assert "spark.NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("words", [
    ("stream", "silver", "--topic", "telemetry", "--conf", "spark.a=b=c", "--available-now"),
    ("stream", "forget", "oslo meter", "--conf", "spark.a=b", "--dry-run"),
], ids=["job", "tool"])  # fmt: skip
def test_the_command_becomes_the_process_of_a_job_or_a_tool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    started: dict[str, Any] = {}

    class Java:
        def spark_home(self) -> Path:
            return tmp_path / "java"

    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        started.update(path=path, command=command, environment=environment)
        raise SystemExit(0)

    monkeypatch.setattr("os.execve", execve)
    monkeypatch.setattr("gateway.local.runtime.jars.resolve", lambda bundle: [Path(f"/{bundle}/a.jar"), Path("/b.jar")])
    monkeypatch.setattr("gateway.local.runtime.java.ensure_java", Java)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([*words])
    assert started["path"] == sys.executable
    jars = f"/spark/a.jar{os.pathsep}/b.jar"
    assert started["command"] == [sys.executable, "-P", "-m", "streaming.run", *words[1:], "--jars", jars]
    assert started["environment"]["JAVA_HOME"] == str(tmp_path / "java")
    assert (Path(started["environment"]["PYTHONPATH"].split(os.pathsep)[0]) / "streaming" / "run.py").exists()


def test_bad_settings_are_told_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, cli: Cli, tmp_path: Path
) -> None:
    monkeypatch.setattr("gateway.local.runtime.jars.resolve", lambda _bundle: pytest.fail("jars were fetched"))
    file = tmp_path / "gateway.toml"
    file.write_text("[stream]\nwindoe = 3\n")
    assert "windoe" in cli("stream", "silver", "--config", str(file), status=78).err


def conf(settings: Settings | None = None, extra: dict[str, str] | None = None, **changes: Any) -> dict[str, str]:
    jars = [Path("/jars/a.jar"), Path("/jars/b c.jar")]
    return session_conf(settings or Settings(), jars, extra or {}, **{"submitted": False, **changes})


def test_on_this_machine_the_jars_are_on_the_class_path_and_nothing_listens_outside() -> None:
    local = conf()
    assert local["spark.master"] == "local[2]"
    assert local["spark.driver.extraClassPath"] == f"/jars/a.jar{os.pathsep}/jars/b c.jar"
    assert "spark.jars" not in local
    assert local["spark.driver.bindAddress"] == local["spark.driver.host"] == "127.0.0.1"


def test_a_cluster_is_sent_the_jars() -> None:
    remote = conf(Settings(stream=StreamSettings(master="spark://host:7077")))
    assert remote["spark.master"] == "spark://host:7077"
    assert remote["spark.jars"] == "file:///jars/a.jar,file:///jars/b%20c.jar"
    assert "spark.driver.bindAddress" not in remote


def test_spark_submit_keeps_its_own_master_jars_and_jvm_options() -> None:
    names = conf(submitted=True).keys()
    assert not names & {"spark.master", "spark.jars", "spark.driver.extraClassPath", "spark.driver.extraJavaOptions"}


def test_memory_is_bounded_in_the_heap_and_outside() -> None:
    local = conf()
    assert local["spark.driver.memory"] == "2g"
    rocksdb = "spark.sql.streaming.stateStore.rocksdb."
    assert (local[f"{rocksdb}boundedMemoryUsage"], local[f"{rocksdb}maxMemoryUsageMB"]) == ("true", "512")
    assert conf(extra={"spark.driver.memory": "3g"})["spark.driver.memory"] == "3g"
    assert "spark.driver.memory" not in conf(submitted=True), "that JVM is running already"


def test_a_collector_of_ones_own_replaces_ours() -> None:
    options = "spark.driver.extraJavaOptions"
    assert "-XX:+UseParallelGC" in conf()[options]
    for mine in ("-XX:+UseG1GC", "-Xss1m -XX:+UseZGC"):
        said = conf(extra={options: mine})[options]
        assert "UseParallelGC" not in said, "Java ends at two"
        assert said.endswith(mine)
    assert "-XX:+UseParallelGC" in conf(extra={options: "-Xss1m"})[options]


def test_long_methods_are_compiled_wherever_rows_are_decoded() -> None:
    told, executor = "-XX:-DontCompileHugeMethods", "spark.executor.extraJavaOptions"
    assert told in conf()["spark.driver.extraJavaOptions"].split()
    remote = conf(Settings(stream=StreamSettings(master="spark://host:7077")), {executor: "-Xss1m"})
    assert remote[executor].split() == [told, "-Xss1m"]


def test_class_data_are_for_our_own_class_path_and_leave_a_users_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAVA_HOME", "/java")
    jars = [Path("/jars/a.jar"), Path("/jars/b c.jar")]
    assert class_data(conf(), jars) is not None
    assert class_data(conf(Settings(stream=StreamSettings(master="spark://host:7077"))), jars) is None
    assert class_data(conf(extra={"spark.driver.extraClassPath": "/mine.jar"}), jars) is None
    for mine in ("-Xshare:off", "-XX:SharedArchiveFile=/mine", "-XX:ArchiveClassesAtExit=/mine"):
        assert class_data(conf(extra={"spark.driver.extraJavaOptions": mine}), jars) is None, "Java ends at two"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xshare:off")
    assert class_data(conf(), jars) is None


def test_class_data_are_written_when_told_and_mapped_when_there(tmp_path: Path) -> None:
    options = "spark.driver.extraJavaOptions"
    writer, reader = (ClassData(tmp_path / "a b", tmp_path / "java", [tmp_path / "a.jar"]) for _ in range(2))
    assert class_data_conf(conf(), reader, records=False) == {options: conf()[options]}, "nobody waits for it unasked"
    told = class_data_conf(conf(), writer, records=True)[options]
    (draft,) = re.findall('"-XX:ArchiveClassesAtExit=(.*?)"', told)
    Path(draft).write_text("what a JVM writes")
    writer.end()
    (archive,) = (tmp_path / "a b").glob("*.jsa")
    assert class_data_conf(conf(), reader, records=True) == {
        options: f'"-XX:SharedArchiveFile={archive}" {conf()[options]}'
    }


def test_python_functions_run_on_this_python_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert conf()["spark.pyspark.python"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/other/python")
    assert conf()["spark.pyspark.python"] == "/opt/other/python"
    assert conf(extra={"spark.pyspark.python": "/mine"})["spark.pyspark.python"] == "/mine"


def test_settings_reach_spark() -> None:
    assert conf(Settings(stream=StreamSettings(shuffle_partitions=7)))["spark.sql.shuffle.partitions"] == "7"
    assert "-Dgateway.spark.log=warn" in conf()["spark.driver.extraJavaOptions"]
    assert "-Dgateway.spark.log=info" in conf(Settings(log=LogSettings(level="debug")))["spark.driver.extraJavaOptions"]


def test_jvm_options_of_a_user_are_added_to_ours() -> None:
    both = conf(extra={"spark.driver.extraJavaOptions": "-Xss4m"})["spark.driver.extraJavaOptions"]
    assert "log4j2.properties" in both
    assert "-Xss16m" in both, "a stop within a batch would overflow the stack"
    assert both.endswith(" -Xss4m")


def test_a_users_properties_win_but_times_stay_utc() -> None:
    mine = conf(extra={"spark.ui.enabled": "true", "spark.sql.session.timeZone": "Europe/Oslo"})
    assert mine["spark.ui.enabled"] == "true"
    assert mine["spark.sql.session.timeZone"] == "UTC"


FAILURES = [
    ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic",
        KafkaUnavailableError, "gateway topics list shows which do. Is stream.topics"),
    ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.", KafkaUnavailableError,
     "advertised.listeners"),
    ("org.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed", KafkaRefusedError,
     "kafka.sasl"),
    ("org.apache.kafka.common.errors.SslAuthenticationException: SSL handshake failed", KafkaRefusedError, "kafka.tls"),
    ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [t]",
     KafkaRefusedError, "Read and Describe"),
    ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", DataLossError, "--allow-data-loss"),
    ("java.io.IOException: No space left on device", StreamError, "full disk"),
    ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple jobs detected for 4.", StreamError,
     "at the same checkpoint"),
    ("java.lang.IllegalStateException: something new", StreamError, "something new"),
]  # fmt: skip


PYTHON_IN_JAVA = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
TRACES = {
    PYTHON_IN_JAVA + "ValueError: something of ours\n": "ValueError: something of ours",
    PYTHON_IN_JAVA
    + "py4j.protocol.Py4JJavaError: An error occurred while calling o484.parquet.\n"
    + ": org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/a\n\tat a.b.C\n": (
        "org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/a"
    ),
    "a.b.Outer: it failed\n\tat a.b.C\nCaused by: a.b.Middle: for\n\t... 3 more\nCaused by: a.b.Inner: this.\n\tat d": (
        "a.b.Inner: this"
    ),
    "[ERROR.CLASS] one line": "[ERROR.CLASS] one line",
    "": "",
}


@pytest.mark.parametrize(("text", "says"), TRACES.items())
def test_of_a_trace_the_line_is_told_that_it_began_with(text: str, says: str) -> None:
    assert cause(text) == says


@pytest.mark.parametrize(("text", "kind", "says"), FAILURES, ids=[kind.__name__ + says for _, kind, says in FAILURES])
def test_a_failure_of_spark_or_kafka_becomes_a_sentence(text: str, kind: type[StreamError], says: str) -> None:
    failure = RuntimeError(f"{text}\n=== Streaming Query ===\nIdentifier: silver\nTimeoutException SaslAuthentication")
    error = explain("silver", failure, Settings(stream=StreamSettings(topics=("t",))))
    assert type(error) is kind
    assert says in str(error)
    assert "Streaming Query" not in str(error)
    assert error.query == "silver"
    assert error.__cause__ is failure


def test_an_error_of_ours_out_of_a_batch_comes_back_whole() -> None:
    sentence = "Kafka no longer has t/0 offsets 50 to 79 (deleted). " + "Nothing was stepped over. " * 40
    trace = f"Traceback (most recent call last):\n  File x\nstreaming.errors.DataLossError: {sentence}\n\n\tat y"
    error = explain("bronze", RuntimeError(trace), Settings(stream=StreamSettings(topics=("t",))))
    assert type(error) is DataLossError
    assert str(error) == sentence.strip()


def test_the_page_tells_of_every_column_reason_and_event() -> None:
    page = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text()
    columns = {*FIXED.names, *QUARANTINE.names}
    names = columns | set(BadRecord) | {kind.event for kind in get_args(Event)}
    for kind in get_args(Event):
        names |= {field.name for field in dataclasses.fields(kind)}
    missing = sorted(name for name in names if f"`{name}`" not in page)
    assert not missing, f"docs/streaming.md does not tell of {', '.join(missing)}"


@pytest.mark.parametrize(("words", "says"), [
    (("forget", ""), "a device has a name"),
    (("silver", "--report", "/dev/null/page.html"), "cannot be written: name a file in a folder"),
    (("report", "--output", "/"), "'/' cannot be written"),
    (("replay", "--limit", "0"), "'0' is no whole number from 1 on"),
    (("backfill", "--from", "2026-11-20", "--to", "2026-11-21", "--max-days", "two"), "'two' is no whole number"),
])  # fmt: skip
def test_words_that_a_tool_cannot_use_are_told(words: tuple[str, ...], says: str, cli: Cli) -> None:
    assert says in " ".join(cli("stream", *words, status=ExitStatus.USAGE).err.split())
