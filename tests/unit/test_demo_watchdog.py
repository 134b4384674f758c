"""The demo names the part that stands still, says what came late, and shows counts of one moment."""

from dataclasses import replace
from typing import Any

import pytest

from config.errors import ExitStatus
from gateway.local.demo.account import Account, Stage, render
from gateway.local.demo.result import DemoResult
from gateway.local.demo.show.state import DemoState, GatewayCounts, SparkCounts, WitnessCounts
from gateway.local.demo.show.view import status_line
from gateway.local.demo.show.watchdog import Standstill, Watchdog, lateness

NAMES = {"kafka": "Kafka", "silver": "silver"}


class Run:
    """A run on a clock that the test moves; each second every part takes what there is, but for those that stand."""

    def __init__(self, rate: float = 200.0) -> None:
        self.now_s = 1000.0
        self.state = DemoState(devices=200, with_spark=True, duration_s=600.0, flow_started_s=self.now_s, connected=200)
        self.state.spark = SparkCounts(started=True)
        self.rate = round(rate)
        self.watchdog = Watchdog(rate)
        self.said: list[Standstill] = []

    def go(self, seconds: int, *, stands: str = "") -> None:
        state = self.state
        for _ in range(seconds):
            self.now_s += 1
            if stands != "devices" and state.flow_ended_s is None:
                state.published += self.rate
            if stands != "acknowledgements":
                state.acknowledged = state.published
            if stands != "mqtt":
                state.gateway = GatewayCounts(received=state.acknowledged)
            if stands != "gateway":
                state.witness = WitnessCounts(ends={0: state.gateway.received})
            if stands != "spark":
                state.spark = SparkCounts(
                    started=True, rows=state.witness.in_kafka, offsets={0: state.witness.in_kafka}
                )
            changed = self.watchdog.look(state, self.now_s)
            if changed is not None:
                self.said.append(replace(changed))


@pytest.mark.parametrize(("stage", "words"), [
    ("devices", "The devices publish nothing: 200 of 200 are connected."),
    ("acknowledgements", "The MQTT broker acknowledges nothing"),
    ("mqtt", "The MQTT broker gives the gateway nothing: it has 2,200 messages for it"),
    ("gateway", "Nothing gets from the gateway to Kafka"),
])  # fmt: skip
def test_the_part_that_stands_is_named_and_its_end_as_well(stage: str, words: str) -> None:
    run = Run()
    run.go(20)
    run.go(9, stands=stage)
    assert run.said == []
    run.go(40, stands=stage)
    run.go(5)
    begun, ended = run.said
    assert begun.text.startswith(words)
    assert (begun.stage, begun.seconds) == (stage, None)
    assert ended.seconds == pytest.approx(49, abs=2)
    assert [one.stage for one in run.watchdog.found] == [stage], "those behind it only wait"


def test_a_gateway_that_does_not_answer_is_said_to_be_that() -> None:
    run = Run()
    run.go(20)
    run.state.gateway_answers = False
    run.go(15, stands="mqtt")
    assert [one.text.partition(":")[0] for one in run.said] == ["The gateway does not answer"]


def test_spark_is_given_more_time() -> None:
    run = Run()
    run.go(80, stands="spark")
    assert run.said == []
    run.go(20, stands="spark")
    assert run.said[0].text.startswith("Spark writes nothing")


def test_few_messages_are_no_standstill() -> None:
    """One in twenty seconds: most of the time nothing happens anywhere."""
    run = Run(rate=0.05)
    for _ in range(10):
        run.state.published += 1
        run.go(1, stands="mqtt")
        run.go(19)
    assert run.said == []


def test_devices_that_were_told_to_stop_do_not_stand() -> None:
    run = Run()
    run.go(5)
    run.state.flow_ended_s = run.now_s
    run.go(60)
    assert run.said == []
    assert run.watchdog.found == []


def test_lateness_is_a_finding() -> None:
    assert lateness(31_000, 50_000).startswith("LATE: half of the messages took longer than 31.0 s")
    assert lateness(20, 6_000).startswith("LATE: one message in a hundred")
    assert lateness(20, 300) == lateness(None, None) == ""


def test_findings_stand_beside_the_account() -> None:
    account = Account(2, 7, 7, 7, 0)
    still = Standstill("mqtt", 3.0, "The MQTT broker gives the gateway nothing.", 48.0)
    result = DemoResult(account, 60.0, 31_000, 50_000, late="LATE: x.", standstills=(still,))
    assert result.findings() == [
        "STOOD STILL: The MQTT broker gives the gateway nothing. From second 3 on, for 48 s.",
        "LATE: x.",
    ]
    said = result.as_json()
    assert said["late"] is True
    assert said["standstills"] == [{"stage": "mqtt", "at_s": 3.0, "seconds": 48.0}]


# --- one snapshot ---


def test_no_part_has_more_than_the_one_before_it_had() -> None:
    """The devices tell twice a second, the gateway is asked in between: its answer is newer than theirs."""
    state = DemoState(devices=200, with_spark=True, duration_s=60.0)
    for at_s, published in ((10.0, 2_600), (10.5, 2_643)):
        state.published = state.acknowledged = published
        state.fleet_moments.note((published, published), at_s, at_s)
    for begun_s, received in ((10.1, 2_610), (10.7, 2_680)):
        state.gateway = GatewayCounts(received=received)
        state.gateway_moments.note(state.gateway, begun_s, begun_s + 0.05)
    for at_s, in_kafka in ((10.05, 2_604), (10.8, 2_690)):
        state.witness = WitnessCounts(ends={0: in_kafka})
        state.witness_moments.note(state.witness, at_s, at_s)
    for at_s, rows in ((10.0, 2_500), (10.9, 2_620)):
        state.spark = SparkCounts(started=True, rows=rows, offsets={0: rows})
        state.spark_moments.note(state.spark, at_s, at_s)
    shown = state.shown()
    assert (shown.published, shown.gateway.received, shown.witness.in_kafka) == (2_643, 2_610, 2_604)
    assert shown.spark.rows == 2_500
    assert "Spark wrote 2,500 rows, 104 behind" in status_line(state)
    assert "published 2,643" in status_line(state)
    assert "in Kafka 2,604" in status_line(state)


# --- a slow Spark is no loss ---


def silver(**changes: Any) -> Stage:
    return Stage(
        "silver",
        **{"records": 0, "found": 0, "duplicates": 0, "foreign": 0, "missing": 0, "reordered": None, **changes},
    )


def test_what_spark_has_not_read_yet_is_not_lost() -> None:
    """It had not even started: 11,467 messages are in Kafka, and in no table."""
    kafka = Stage("kafka", 11_467, 11_467, 0, 0, 0, 0)
    late = silver(missing=11_467, unread=11_467, examples=(("pump", 0),))
    account = Account(116, 11_467, 11_467, 11_467, 0, (kafka, late), wanted=200)
    assert (account.missing, account.pending, account.exit_status) == (0, 11_467, ExitStatus.INCOMPLETE)
    text = render(account, NAMES)
    assert "published by 116 of 200 devices" in text
    assert "NOT YET IN SILVER: 11,467 messages." in text
    assert "MISSING" not in text
    assert "for example" not in text


def test_what_is_missing_beyond_that_is_lost() -> None:
    account = Account(2, 100, 100, 100, 0, (silver(records=60, found=60, missing=40, unread=30),))
    assert (account.missing, account.pending, account.exit_status) == (10, 30, ExitStatus.MISSING_MESSAGES)
