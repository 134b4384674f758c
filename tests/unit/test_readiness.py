"""Ready only if a message arriving now would be subscribed to, written and acknowledged in time; else it says why."""

from dataclasses import replace
from datetime import timedelta

import pytest

from config.settings import HttpSettings, KafkaSettings, Settings
from gateway.base.lifecycle import State
from gateway.base.readiness import ReadinessLimits, ReadinessSnapshot, SessionView, TopicView, decide

SECOND_NS = 1_000_000_000
LIMITS = ReadinessLimits(overdue_after_ns=30 * SECOND_NS, metadata_stale_after_ns=7 * SECOND_NS)
GOOD = ReadinessSnapshot(
    state=State.RUNNING,
    sessions=(SessionView("0", connected=True, subscribed=True), SessionView("1", connected=True, subscribed=True)),
    metadata_age_ns=SECOND_NS,
    topics=(TopicView("telemetry", partitions=12), TopicView("gateway-dead-letters", partitions=1)),
    oldest_unacked_age_ns=None,
)


@pytest.mark.parametrize(
    "snapshot",
    [GOOD, replace(GOOD, metadata_age_ns=7 * SECOND_NS, oldest_unacked_age_ns=30 * SECOND_NS)],
    ids=["everything in place", "ages at their limits"],
)
def test_ready_gives_no_reasons(snapshot: ReadinessSnapshot) -> None:
    readiness = decide(snapshot, LIMITS)
    assert readiness.ready
    assert readiness.reasons == ()


AWAY = SessionView("0", connected=False, subscribed=False)
CASES = [
    ("a fresh start with Kafka dead", replace(GOOD, metadata_age_ns=None, topics=()),
        [("Kafka has not answered a metadata request since the start; check kafka.bootstrap_servers and whether"
            " the brokers run.")]),
    ("Kafka dead since", replace(GOOD, metadata_age_ns=7 * SECOND_NS + 1),
        ["Kafka's metadata is 7.0 s old and could not be refreshed (limit 7.0 s); the brokers do not answer."]),
    ("a stopped route", replace(GOOD, stopped_routes=("Route 'telemetry' is stopped: why, and how it goes on.",)),
        ["Route 'telemetry' is stopped: why, and how it goes on."]),
    ("a missing topic", replace(GOOD, topics=(TopicView("telemetry", partitions=0),)),
        ["Kafka topic telemetry does not exist; create it, or set kafka.topics.create."]),
    ("partitions without leader",
        replace(GOOD, topics=(TopicView("telemetry", partitions=12, leaderless=(0, 3, 4, 5, 6, 7)),)),
        ["Kafka topic telemetry has no leader for 6 of 12 partitions (0, 3, 4, 5, 6, 7)."]),
    ("partitions that take nothing",
        replace(GOOD, topics=(TopicView("t", 12, silent=((3, 31 * SECOND_NS), (4, 40 * SECOND_NS), (5, 1))),)),
        ["Kafka has acknowledged nothing for 40.0 s on 2 of 12 partitions of topic t (3, 4), while records wait."]),
    ("a topic Kafka refuses",
        replace(GOOD, topics=(TopicView("telemetry", partitions=0, problem="not authorised to describe it"),)),
        ["Kafka topic telemetry cannot be used: not authorised to describe it."]),
    ("a session that is away",
        replace(GOOD, sessions=(replace(AWAY, problem="bad user name or password"), GOOD.sessions[1])),
        ["MQTT session 0 is not connected: bad user name or password."]),
    ("a reason that is whole sentences", replace(GOOD, sessions=(replace(AWAY, problem="No. Check the rules."),)),
        ["MQTT session 0 is not connected: No. Check the rules."]),
    ("a reason that asks", replace(GOOD, sessions=(replace(AWAY, problem="Is it an MQTT broker?"),)),
        ["MQTT session 0 is not connected: Is it an MQTT broker?"]),
    ("a session without subscriptions", replace(GOOD, sessions=(SessionView("0", connected=True, subscribed=False),)),
        ["MQTT session 0 is connected, but its subscriptions are not granted yet."]),
    ("no session at all", replace(GOOD, sessions=()), ["There is no MQTT session."]),
    ("an overdue message", replace(GOOD, oldest_unacked_age_ns=30 * SECOND_NS + 1),
        ["The oldest message has waited 30.0 s for Kafka's acknowledgement, longer than http.overdue_after (30.0 s)."]),
    ("a stopped worker", replace(GOOD, state=State.NOT_RUNNING), ["The worker is not running."]),
    ("a starting worker", replace(GOOD, state=State.STARTING), ["The worker is starting."]),
    ("a worker that replays", replace(GOOD, state=State.RECOVERY),
        ["The worker is still delivering what its last life left behind."]),
    ("a draining worker", replace(GOOD, state=State.PENDING_CONTROLLED_SHUTDOWN), ["The worker is stopping."]),
    ("a closing worker", replace(GOOD, state=State.SHUTTING_DOWN), ["The worker is stopping."]),
]  # fmt: skip


@pytest.mark.parametrize(("snapshot", "reasons"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_one_thing_wrong_is_not_ready_and_is_named(snapshot: ReadinessSnapshot, reasons: list[str]) -> None:
    readiness = decide(snapshot, LIMITS)
    assert not readiness.ready
    assert list(readiness.reasons) == reasons


def test_all_reasons_are_given_together() -> None:
    assert len(decide(ReadinessSnapshot(State.STARTING, (), None, (), 31 * SECOND_NS), LIMITS).reasons) == 4


def test_the_limits_follow_the_settings() -> None:
    settings = Settings(
        http=HttpSettings(overdue_after=timedelta(seconds=2.5)),
        kafka=KafkaSettings(metadata_max_age=timedelta(milliseconds=1500), request_timeout=timedelta(seconds=4)),
    )
    assert ReadinessLimits.from_settings(settings) == ReadinessLimits(
        overdue_after_ns=2_500_000_000, metadata_stale_after_ns=7_000_000_000
    )
