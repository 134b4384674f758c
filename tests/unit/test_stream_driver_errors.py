"""How a job's driver ends: when Spark refuses something, and by signals."""

import argparse
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.clientserver import JavaClient, JavaParameters, PythonParameters
from pyspark import SparkContext
from pyspark.errors import AnalysisException

from config.errors import ExitStatus
from config.settings import Settings
from streaming import jvm, options, run
from streaming.errors import KafkaUnavailableError
from streaming.runtime import reach


class _Refusal(AnalysisException):
    """As pyspark's: its text is the JVM's."""

    def __init__(self, jvm_lives: Callable[[], bool]) -> None:
        super().__init__("refused")
        self._jvm_lives = jvm_lives

    def __str__(self) -> str:
        if not self._jvm_lives():
            raise ConnectionRefusedError
        return "there is no such table"


@pytest.fixture
def end_of_jvm(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A driver without Spark, Kafka and signals. Empty while its JVM lives."""
    ended: list[str] = []
    told = argparse.Namespace(jars="", conf=[], allow_data_loss=False, jobs=("silver", "anomalies"), report=None)
    spark = SimpleNamespace(session=None, tell_when_ended=lambda _tell: None, end=lambda: ended.append("ended"))
    for place, name, played in (
        (options, "process_arguments", lambda *_: told),
        (options, "load_settings", lambda _: Settings()),
        (reach, "require_kafka", lambda *_: None),
        (reach, "require_master", lambda *_: None),
        (run, "serve", lambda *_: None),
        (run, "start_spark", lambda *_: spark),
    ):
        monkeypatch.setattr(place, name, played)
    monkeypatch.setattr(run, "ensure_topic", lambda *_: None)
    monkeypatch.setattr(run, "stages", lambda *_, **_more: [["silver"], ["anomalies"]])
    monkeypatch.setattr(run._Signals, "install", lambda _: None)
    return ended


def test_the_text_of_a_refusal_is_told_though_the_jvm_has_ended(
    end_of_jvm: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any) -> None:
        raise _Refusal(lambda: not end_of_jvm)

    monkeypatch.setattr(run, "run_queries", refused)
    with pytest.raises(AnalysisException) as raised:
        run.main(["all"])
    assert raised.value.__notes__ == ["there is no such table"]
    assert "there is no such table" in capsys.readouterr().out


def test_what_a_later_stage_lacks_ends_all_before_the_first(
    end_of_jvm: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topic of alerts, which the second stage writes to, was missed when silver had read hours of records."""

    def missing(_spark: object, _settings: object, topic: str, setting: str) -> None:
        raise KafkaUnavailableError(f"no topic {topic!r}, which {setting} names")

    monkeypatch.setattr(run, "ensure_topic", missing)
    monkeypatch.setattr(run, "run_queries", lambda *_: pytest.fail("a stage began"))
    assert run.main(["all"]) == ExitStatus.UNAVAILABLE
    assert "no topic 'anomalies', which stream.anomalies.topic names" in " ".join(capsys.readouterr().err.split())
    assert end_of_jvm


def test_a_signal_waits_for_batches_alone() -> None:
    """One more while the report is drawn ends at once, and the first says how the process has ended."""
    signals = run._Signals()
    with pytest.raises(run._StopAtOnce):
        signals._handle(signal.SIGINT, None)
    signals = run._Signals()
    signals.let_finish = True
    signals._handle(signal.SIGTERM, None)
    assert signals.mailbox.get_nowait() is signal.SIGTERM
    signals.let_finish = False
    with pytest.raises(run._StopAtOnce):
        signals._handle(signal.SIGINT, None)
    assert signals.first is signal.SIGTERM


def test_a_jvm_that_is_gone_is_told_nothing_of_dropped_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may drop an object of the JVM at any moment, and py4j logs a traceback if it cannot tell the JVM."""
    told: list[str] = []
    client = JavaClient(JavaParameters(), PythonParameters())
    monkeypatch.setattr(client, "send_command", told.append)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(_gateway_client=client))
    monkeypatch.setattr(SparkContext, "_jvm", client)
    client.garbage_collect_object("o7", enqueue=False)
    jvm.forget_gateway()
    client.garbage_collect_object("o8", enqueue=False)
    assert [("o7" in one, "o8" in one) for one in told] == [(True, False)]
    assert SparkContext._gateway is SparkContext._jvm is None
