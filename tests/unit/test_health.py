"""What is wrong is named, and nothing is said that is not so: not in a quiet hour, a start, a stop, an election."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import KafkaSettings, Settings
from gateway.base.lifecycle import State
from gateway.base.problem import Problem
from gateway.base.readiness import ReadinessLimits, ReadinessSnapshot, SessionView, TopicView, decide
from gateway.health.kafka import broker_health, broker_silence_ns, partition_health
from gateway.health.model import (
    BrokerView,
    CredentialView,
    HealthLimits,
    HealthSnapshot,
    PartitionView,
    ProcessView,
    SpoolView,
)
from gateway.health.verdicts import problems

S = 1_000_000_000
LIMITS = HealthLimits(ReadinessLimits(overdue_after_ns=30 * S, metadata_stale_after_ns=7 * S))
SESSIONS = (
    SessionView("0", connected=True, subscribed=True, client_id="gw-0-0", window=1000),
    SessionView("1", connected=True, subscribed=True, client_id="gw-0-1", window=1000),
)
READY = ReadinessSnapshot(State.RUNNING, SESSIONS, S, (TopicView("orders", 6),), None)
BROKERS = tuple(BrokerView(number, f"kafka-{number}", 9092, connected=True) for number in (1, 2, 3))


def partition(number: int, leader: int | None, *copies: int, topic: str = "orders", **more: object) -> PartitionView:
    replicas = copies or (1, 2, 3)
    return replace(PartitionView(topic, number, leader, replicas, replicas, last_ack_age_ns=S), **more)  # type: ignore[arg-type]


PARTITIONS = tuple(partition(number, number % 3 + 1) for number in range(6))
WELL = HealthSnapshot(READY, brokers=BROKERS, partitions=PARTITIONS, kafka_addresses=("kafka-1:9092",))


def the_one(snapshot: HealthSnapshot) -> Problem:
    found = problems(snapshot, LIMITS)
    assert len(found) == 1, [problem.text for problem in found]
    return found[0]


def with_broker(number: int, **changes: object) -> tuple[BrokerView, ...]:
    return tuple(replace(b, **changes) if b.id == number else b for b in BROKERS)  # type: ignore[arg-type]


def stuck(leader: int, seconds: float, **more: object) -> tuple[PartitionView, ...]:
    """Records wait for what a broker leads."""
    changes = {"waiting": 7, "silent_ns": int(seconds * S), "last_ack_age_ns": int(seconds * S), **more}
    return tuple(replace(p, **changes) if p.leader == leader else p for p in PARTITIONS)  # type: ignore[arg-type]


def test_a_slow_disk_is_said_and_a_full_window_s_advice_begins_with_it() -> None:
    slow = replace(WELL, spool=SpoolView(5, 100, 3, fsync_s=3.0))
    problem = the_one(slow)
    assert (problem.id, problem.severity) == ("disk-slow", "warning")
    assert "3.0 s" in problem.text
    found = {one.id: one for one in problems(replace(slow, saturated={"0": 61 * S}), LIMITS)}
    assert found["window-saturated"].check.startswith("The disk of data_dir first")
    assert problems(replace(WELL, spool=SpoolView(5, 100, 3, fsync_s=0.01)), LIMITS) == ()
    assert the_one(replace(WELL, saturated={"0": 61 * S})).check.startswith("Kafka's latency first")


# --- brokers and partitions ---


def test_a_frozen_broker_is_named_with_the_partitions_that_wait_for_it() -> None:
    snapshot = replace(WELL, brokers=with_broker(2, mute_ns=6 * S, accepts=True), partitions=stuck(2, 6))
    problem = the_one(snapshot)
    assert (problem.id, problem.severity, problem.subject) == ("broker-silent", "critical", "broker 2")
    assert problem.text == (
        "Broker 2 (kafka-2:9092) has not answered for 6 s, but accepts connections: it is frozen, or nearly so."
        " 14 records wait for 2 partitions that it leads: orders/1, orders/4."
    )
    assert "If it is frozen, restart it. Do not restart the gateway" in problem.check


def test_of_a_broker_that_does_not_run_nobody_is_told_that_it_may_be_frozen() -> None:
    dead = with_broker(2, mute_ns=6 * S, refuses=True)
    for partitions in (stuck(2, 6), WELL.partitions):  # critical, and a warning
        problem = the_one(replace(WELL, brokers=dead, partitions=partitions))
        assert "its process does not run" in problem.text
        assert problem.check.startswith("Start that broker; its log says why it ended. Do not restart the gateway")
    gone = the_one(replace(WELL, brokers=with_broker(2, mute_ns=6 * S, connected=False), partitions=stuck(2, 6)))
    assert "frozen" not in gone.text + gone.check
    assert "start the broker if it does not run" in gone.check


def test_with_a_spool_the_partition_is_silent_all_the_same() -> None:
    partitions = stuck(2, 9, waiting=0, spooled=500, spooling=True)
    snapshot = replace(WELL, brokers=with_broker(2, mute_ns=9 * S), partitions=partitions)
    assert "1000 records wait for 2 partitions that it leads: orders/1, orders/4" in the_one(snapshot).text
    brokers = {broker.id: broker for broker in snapshot.brokers}
    assert [partition_health(p, brokers, LIMITS) for p in partitions] == ["ok", "silent", "ok", "ok", "silent", "ok"]


def test_a_frozen_broker_whose_partitions_have_moved_is_a_warning() -> None:
    brokers = with_broker(2, mute_ns=40 * S, away_ns=35 * S, lost=("orders/1", "orders/4"))
    moved = tuple(replace(p, leader=1, in_sync=(1, 3)) if p.leader == 2 else p for p in PARTITIONS)
    problem = the_one(replace(WELL, brokers=brokers, partitions=moved))
    assert (problem.id, problem.severity) == ("broker-unreachable", "warning")
    assert "Broker 2 (kafka-2:9092)" in problem.text
    assert "Other brokers lead its partitions now (orders/1, orders/4)" in problem.text
    assert broker_health(brokers[1], LIMITS) == "unreachable"


def test_a_broker_that_left_before_the_start_is_known_by_its_replicas() -> None:
    """The metric showed it as down, and the page was green."""
    left = tuple(replace(p, leader=1, in_sync=(1, 2)) for p in PARTITIONS[:2])
    snapshot = replace(WELL, brokers=BROKERS[:2], partitions=left, in_state_ns=60 * S)
    problem = the_one(snapshot)
    assert (problem.id, problem.severity, problem.subject) == ("broker-unreachable", "warning", "broker 3")
    assert "orders/0, orders/1" in problem.text
    assert not problems(replace(snapshot, in_state_ns=59 * S), LIMITS), "it may be restarting"


def test_partitions_without_leader_are_named_with_the_brokers_that_are_away() -> None:
    topics = (TopicView("orders", 6, leaderless=(1, 4)),)
    partitions = tuple(partition(p.partition, None, 2) if p.leader == 2 else p for p in PARTITIONS)
    brokers = with_broker(2, away_ns=20 * S, connected=False)
    snapshot = replace(
        WELL, readiness=replace(READY, topics=topics), brokers=brokers, partitions=partitions,
        leaderless={"orders": 20 * S},
    )  # fmt: skip
    problem = the_one(snapshot)
    assert (problem.id, problem.severity) == ("partition-leaderless", "critical")
    assert "For 20 s no broker has led orders/1, orders/4" in problem.text
    assert "down: 2 (kafka-2:9092)" in problem.text


def test_a_partition_without_leader_makes_its_mute_broker_silent_here_and_for_the_alert_alike() -> None:
    """Kafka 4 lists no copy as in sync once the last one is gone. The alert looks at what ``broker_silence_ns`` says:
    with nothing for it GatewayBrokerUnreachable fires, whatever the page says."""
    brokers = with_broker(2, mute_ns=31 * S)
    for silent_ns, said in ((30 * S, "broker-silent"), (0, "broker-unreachable")):
        alone = partition(1, None, 2, in_sync=(), waiting=7 * bool(silent_ns), silent_ns=silent_ns)
        problem = the_one(replace(WELL, brokers=brokers, partitions=(alone,)))
        assert (problem.id, problem.subject) == (said, "broker 2")
        assert "No broker leads orders/1" in problem.text
        assert broker_silence_ns(2, (alone,), {2}) == silent_ns
        assert broker_silence_ns(1, (alone,), {2}) == 0


def test_a_new_leader_is_not_to_blame_for_the_silence_of_the_one_before() -> None:
    moved = stuck(1, 25, led_ns=2 * S)
    assert problems(replace(WELL, partitions=moved), LIMITS) == ()
    assert broker_silence_ns(1, moved, ()) == 2 * S
    assert the_one(replace(WELL, partitions=stuck(1, 40, led_ns=17 * S))).id in {"broker-silent", "partition-silent"}


def test_a_kafka_that_nobody_answers_for_is_one_problem() -> None:
    mute = tuple(replace(broker, mute_ns=9 * S) for broker in BROKERS)
    everywhere = tuple(replace(p, waiting=3, silent_ns=9 * S) for p in PARTITIONS)
    snapshot = replace(WELL, readiness=replace(READY, metadata_age_ns=9 * S), brokers=mute, partitions=everywhere)
    problem = the_one(snapshot)
    assert (problem.id, problem.severity) == ("kafka-unreachable", "critical")
    assert all(f"{n} (kafka-{n}:9092)" in problem.text for n in (1, 2, 3))
    why = "certificate verify failed: certificate has expired"
    snapshot = replace(snapshot, brokers=tuple(replace(broker, problem=why) for broker in mute))
    assert the_one(snapshot).text.endswith(f"Last error: {why}.")


def test_a_start_that_kafka_does_not_answer_is_said_after_a_while() -> None:
    starting = replace(READY, state=State.STARTING, metadata_age_ns=None, sessions=(), topics=())
    snapshot = replace(WELL, readiness=starting, brokers=(), partitions=(), in_state_ns=3 * S)
    assert problems(snapshot, LIMITS) == ()
    snapshot = replace(snapshot, in_state_ns=12 * S)
    assert "kafka-1:9092" in the_one(snapshot).text
    assert the_one(replace(snapshot, kafka_problem="The login was refused.")).text.endswith(" The login was refused.")


def test_rights_that_are_missing_are_said_of_the_topic_alone() -> None:
    topics = (TopicView("orders", 6, problem="Kafka refused Write"),)
    partitions = stuck(1, 40, held=True, trouble="Kafka refused Write")
    snapshot = replace(WELL, readiness=replace(READY, topics=topics), partitions=partitions, refused_topics=("orders",))
    problem = the_one(snapshot)
    assert (problem.id, problem.subject) == ("acl-refused", "orders")
    assert partition_health(partitions[0], {}, LIMITS) == "held"


@pytest.mark.parametrize(("view", "colour"), [
    (partition(0, 1), "ok"),
    (partition(0, 1, last_ack_age_ns=None), "idle"),
    (partition(0, 1, last_ack_age_ns=61 * S), "idle"),
    (partition(0, 1, waiting=1, last_ack_age_ns=61 * S), "ok"),
    (partition(0, 1, waiting=1, silent_ns=2 * S), "waiting"),
    (partition(0, 1, waiting=1, silent_ns=9 * S), "waiting"),
    (partition(0, 1, waiting=1, silent_ns=10 * S), "silent"),
    (partition(0, 2, waiting=1, silent_ns=5 * S), "silent"),
    (partition(0, 1, 1, 2, waiting=1, silent_ns=5 * S), "silent"),
    (partition(0, None, waiting=1, silent_ns=50 * S), "leaderless"),
    (partition(0, 1, spooled=5, spooling=True, silent_ns=2 * S), "spooling"),
])  # fmt: skip
def test_a_partition_has_one_colour(view: PartitionView, colour: str) -> None:
    brokers = {1: BROKERS[0], 2: replace(BROKERS[1], mute_ns=6 * S)}
    if view.in_sync == (1, 2, 3) and view.leader == 1:
        brokers[2] = BROKERS[1]
    assert partition_health(view, brokers, LIMITS) == colour


def test_limits_follow_the_request_timeout_within_bounds() -> None:
    def silent_s(seconds: int) -> float:
        kafka = KafkaSettings(request_timeout=timedelta(seconds=seconds))
        return HealthLimits.from_settings(Settings(kafka=kafka)).silent_ns / S

    assert [silent_s(seconds) for seconds in (1, 5, 7, 30)] == [10, 10, 14, 20]


# --- the rest ---

GB = 1_000_000_000
CASES = [
    ("a clock that kafka refuses blames no broker", {"partitions": stuck(1, 40, held=True, clock_refused=True)},
        "clock", "critical", "orders/0, orders/3 … message.timestamp.after.max.ms"),
    ("a frozen broker for which nothing waits", {"brokers": with_broker(3, mute_ns=20 * S)},
        "broker-unreachable", "warning", "It leads orders/2, orders/5. Nothing waits yet"),
    ("those whose replica is frozen are laid at its door and not at their leaders",
        {"brokers": with_broker(2, mute_ns=7 * S),
         "partitions": tuple(replace(p, waiting=3, silent_ns=7 * S) for p in PARTITIONS)},
        "broker-silent", "critical", "broker 2 … orders/0, orders/2, orders/3, orders/5 wait too"),
    ("a broker that answers questions and acknowledges nothing",
        {"brokers": with_broker(1, written_age_ns=15 * S), "partitions": stuck(1, 15)}, "broker-silent", "critical",
        "broker 1 … answers requests, but has acknowledged nothing for 15 s … orders/0, orders/3"),
    ("one silent partition of a broker that acknowledges others",
        {"brokers": with_broker(1, written_age_ns=S // 10),
         "partitions": (replace(PARTITIONS[0], waiting=9, silent_ns=12 * S), *PARTITIONS[1:])},
        "partition-silent", "critical", "orders/0 … broker 1 (kafka-1:9092), which leads it, answers"),
    ("what kafka says about a partition", {"partitions": stuck(3, 12, trouble="NOT_ENOUGH_REPLICAS: too few")},
        "partition-silent", "critical",
        "For 12 s Kafka has taken nothing for orders/2, orders/5: NOT_ENOUGH_REPLICAS: too few."),
    ("a session that is away", {"disconnected": {"0": 6 * S}}, "mqtt-disconnected", "warning", "gw-0-0"),
    ("a session that stays away", {"disconnected": {"0": 31 * S}}, "mqtt-disconnected", "critical", "for 31 s"),
    ("a full window", {"saturated": {"1": 61 * S}}, "window-saturated", "warning", "session 1"),
    ("a late SUBACK", {"unanswered": {"0": 61 * S}, "disconnected": {"0": 61 * S}}, "suback-late", "warning", "61 s"),
    ("a window overrun", {"overrun": {"0": 36_931, "1": 5}}, "window-overrun", "warning", "36931 messages"),
    ("a spool that fills", {"spool": SpoolView(900, 1000, 5)}, "spool-filling", "warning", "5 messages"),
    ("a full spool", {"spool": SpoolView(999, 1000, 5, "it is full", True)}, "spool-full", "critical",
        "acknowledges only"),
    ("a broken spool", {"spool": SpoolView(9, 1000, 5, "No space left")}, "spool-broken", "critical", "No space left"),
    ("dead letters", {"dead_letters": 3, "last_dead_letter": "too_large"}, "dead-letters", "warning", "too_large"),
    ("an account that is off", {"imbalance": 2}, "ledger-imbalance", "critical", "2 messages are missing"),
    ("an account off the other way", {"imbalance": -2}, "ledger-imbalance", "critical", "counted twice"),
    ("a blocked loop", {"process": ProcessView(blocked=3, blocked_ns=2 * S)}, "event-loop-blocked", "warning", "2.0 s"),
    ("little memory", {"process": ProcessView(memory_bytes=95, memory_limit_bytes=100)}, "memory-high", "warning",
        "kernel"),
    ("a full buffer", {"buffer_bytes": GB, "buffer_limit_bytes": GB}, "buffer-full", "warning", "flow.memory_bytes"),
    ("few descriptors", {"process": ProcessView(descriptors=90, descriptor_limit=100)}, "descriptors-low", "warning",
        "90 of 100"),
    ("orphans", {"orphans": (("gw-0-7", "not authorised"),)}, "orphan-sessions", "warning", "gw-0-7 (not authorised)"),
    ("a certificate", {"credentials": (CredentialView("mqtt.tls.certificate_file", "certificate", 5 * 86_400.0),)},
        "certificate-expires", "warning", "expires in 5.0 days"),
    ("an expired certificate", {"credentials": (CredentialView("mqtt.tls.certificate_file", "certificate", -5.0),)},
        "certificate-expires", "critical", "has expired"),
    ("a broker's certificate",
        {"credentials": (CredentialView("the MQTT broker", "server_certificate", 5 * 86_400.0),)},
        "server-certificate-expires", "warning", "certificate of the MQTT broker expires in 5.0 days"),
    ("a broker's certificate, nearly",
        {"credentials": (CredentialView("a Kafka broker", "server_certificate", 1.9 * 86_400.0),)},
        "server-certificate-expires", "critical", "a Kafka broker"),
    ("a token that is not renewed", {"credentials": (CredentialView("kafka.sasl.token", "token", 100.0, 90 * S),)},
        "token-failing", "warning", "kafka.sasl.token"),
    ("a token that has expired", {"credentials": (CredentialView("kafka.sasl.token", "token", -1.0, 90 * S),)},
        "token-failing", "critical", "expired"),
    ("an old message", {"readiness": replace(READY, oldest_unacked_age_ns=40 * S)}, "oldest-unacked-too-old",
        "critical", "40 s"),
    ("a stopped route", {"readiness": replace(READY, stopped_routes=("Route 'hot' is stopped: why.",))},
        "route-stopped", "critical", "hot\nRoute 'hot' is stopped: why."),
    ("what others found", {"said": (Problem("canary-failing", "critical", "x", "y"),)}, "canary-failing", "critical",
        "x"),
]  # fmt: skip


@pytest.mark.parametrize(("_what", "changes", "kind", "severity", "words"), CASES, ids=[case[0] for case in CASES])
def test_what_is_wrong_is_told(_what: str, changes: Mapping[str, object], kind: str, severity: str, words: str) -> None:
    snapshot = replace(WELL, **changes)  # type: ignore[arg-type]
    if snapshot.disconnected:
        away = replace(SESSIONS[0], connected=False, subscribed=False)
        snapshot = replace(snapshot, readiness=replace(READY, sessions=(away, SESSIONS[1])))
    problem = the_one(snapshot)
    assert (problem.id, problem.severity) == (kind, severity)
    for word in words.split(" … "):
        assert word in f"{problem.subject}\n{problem.text}\n{problem.check}"
    assert problem.text.endswith((".", "x"))
    assert problem.check


def test_the_worst_comes_first() -> None:
    snapshot = replace(WELL, dead_letters=1, brokers=with_broker(2, mute_ns=6 * S), partitions=stuck(2, 6), imbalance=1)
    found = [problem.id for problem in problems(snapshot, LIMITS)]
    assert found == ["ledger-imbalance", "broker-silent", "dead-letters"]


# --- nothing false ---

MOMENTS = st.integers(0, 3 * S)
AWAY = tuple(replace(session, connected=False, subscribed=False) for session in SESSIONS)


@st.composite
def healthy(draw: st.DrawFn) -> HealthSnapshot:
    """A busy or idle gateway in which every answer comes within three seconds."""
    brokers = tuple(replace(b, mute_ns=draw(MOMENTS), written_age_ns=draw(st.integers(0, 10_000 * S))) for b in BROKERS)
    partitions = tuple(
        replace(
            p, waiting=draw(st.integers(0, 10_000)), silent_ns=draw(MOMENTS),
            last_ack_age_ns=draw(st.none() | st.integers(0, 10_000 * S)), spooled=draw(st.integers(0, 10)),
        )
        for p in PARTITIONS
    )  # fmt: skip
    readiness = replace(
        READY,
        metadata_age_ns=draw(st.integers(0, 7 * S)),
        oldest_unacked_age_ns=draw(st.none() | st.integers(0, 30 * S)),
    )
    return replace(
        WELL, readiness=readiness, brokers=brokers, partitions=partitions, in_state_ns=draw(st.integers(0, 10**15)),
        saturated={"0": draw(st.integers(0, 59 * S))}, spool=draw(st.none() | st.just(SpoolView(10, 1000, 1))),
        process=ProcessView(blocked=draw(st.integers(0, 2)), blocked_ns=2 * S, memory_bytes=50, memory_limit_bytes=100),
    )  # fmt: skip


@given(healthy())
def test_nothing_is_said_in_a_quiet_hour(snapshot: HealthSnapshot) -> None:
    assert problems(snapshot, LIMITS) == ()


@given(healthy(), st.integers(0, 10 * S - 1), st.booleans(), st.sampled_from([State.STARTING, State.RECOVERY]))
def test_nothing_is_said_in_a_start(snapshot: HealthSnapshot, in_state_ns: int, answered: bool, state: State) -> None:
    readiness = replace(snapshot.readiness, state=state, sessions=AWAY)
    if not answered:
        readiness = replace(readiness, metadata_age_ns=None, topics=())
    starting = replace(
        snapshot,
        readiness=readiness,
        in_state_ns=in_state_ns,
        disconnected=dict.fromkeys(("0", "1"), in_state_ns if state is State.STARTING else min(in_state_ns, 4 * S)),
    )
    assert problems(starting, LIMITS) == ()


@given(healthy(), st.sampled_from([State.PENDING_CONTROLLED_SHUTDOWN, State.SHUTTING_DOWN]), st.integers(0, 60 * S))
def test_nothing_is_said_in_a_stop(snapshot: HealthSnapshot, state: State, away_ns: int) -> None:
    readiness = replace(snapshot.readiness, state=state, sessions=AWAY)
    stopping = replace(snapshot, readiness=readiness, disconnected=dict.fromkeys(("0", "1"), away_ns))
    assert problems(stopping, LIMITS) == ()


@given(st.integers(1, 3), st.integers(0, 50), st.integers(0, 4), st.booleans())
def test_nothing_is_said_of_a_broker_restarting_well(restarted: int, second: int, gap_s: int, refuses: bool) -> None:
    """It hands its partitions on, leaves, is away for up to a minute, and comes back; elections take some seconds."""
    others = [number for number in (1, 2, 3) if number != restarted]
    silent_ns = min(second, gap_s) * S
    brokers = with_broker(
        restarted, mute_ns=second * S, away_ns=second * S, connected=False, refuses=refuses, problem="closed"
    )
    partitions = tuple(
        replace(
            p, leader=None if silent_ns and second < gap_s else others[p.partition % 2], in_sync=tuple(others),
            waiting=5, silent_ns=silent_ns if second < gap_s else 0,
        )
        for p in PARTITIONS
    )  # fmt: skip
    leaderless = (1,) if silent_ns and second < gap_s else ()
    snapshot = replace(
        WELL, readiness=replace(READY, topics=(TopicView("orders", 6, leaderless=leaderless),)), brokers=brokers,
        partitions=partitions, leaderless={"orders": silent_ns} if leaderless else {},
    )  # fmt: skip
    assert problems(snapshot, LIMITS) == ()


# --- the outage ---


@given(
    frozen=st.integers(1, 3),
    layout=st.lists(st.permutations([1, 2, 3]), min_size=1, max_size=20),
    copies=st.integers(1, 3),
    moved_s=st.integers(3, 40),
    spool=st.booleans(),
    data=st.data(),
)
def test_a_frozen_broker_is_named_with_its_partitions_within_thirty_seconds_and_nobody_else_is(
    frozen: int, layout: list[list[int]], copies: int, moved_s: int, spool: bool, data: st.DataObject
) -> None:
    """Leaders move when the cluster has noticed, if there is another copy; until then whatever has one on it waits."""
    busy = data.draw(st.lists(st.booleans(), min_size=len(layout), max_size=len(layout)))
    mine = [n for n, nodes in enumerate(layout) if nodes[0] == frozen and busy[n]]
    for second in range(5, 60):
        moved = second >= moved_s
        partitions = []
        for number, nodes in enumerate(layout):
            replicas = tuple(nodes[:copies])
            rest = tuple(node for node in replicas if node != frozen)
            leader: int | None = rest[0] if moved and rest else replicas[0]
            if moved and not rest:
                leader = None
            waits = frozen in replicas and busy[number] and not (moved and rest)
            partitions.append(
                PartitionView(
                    "orders",
                    number,
                    leader,
                    replicas,
                    rest if moved and rest else replicas,
                    waiting=9 if waits and not spool else 0,
                    spooled=9 if waits and spool else 0,
                    silent_ns=second * S if waits else 0,
                    spooling=waits and spool,
                    last_ack_age_ns=second * S if waits else S // 10,
                )
            )
        led_now = {p.name for p in partitions if p.leader == frozen}
        without = tuple(p.partition for p in partitions if p.leader is None)
        topics = (TopicView("orders", len(layout), leaderless=without),)
        lost = tuple(f"orders/{n}" for n, nodes in enumerate(layout) if nodes[0] == frozen)
        brokers = tuple(
            replace(
                broker,
                mute_ns=second * S if broker.id == frozen else 0,
                written_age_ns=(second if broker.id == frozen else 6) * S,
                lost=tuple(name for name in lost if name not in led_now) if broker.id == frozen else (),
            )
            for broker in BROKERS
        )
        snapshot = replace(
            WELL, readiness=replace(READY, topics=topics), brokers=brokers, partitions=tuple(partitions),
            leaderless={"orders": (second - moved_s) * S} if without else {},
        )  # fmt: skip
        found = problems(snapshot, LIMITS)
        about = [problem for problem in found if problem.subject == f"broker {frozen}"]
        assert len(about) == 1, [problem.text for problem in found]
        assert f"Broker {frozen} (kafka-{frozen}:9092)" in about[0].text
        shown = mine[:12] if len(lost) <= 12 else []
        assert all(f"orders/{number}" in about[0].text for number in shown), about[0].text
        assert all(problem is about[0] or problem.id == "partition-leaderless" for problem in found)
        assert (about[0].severity == "critical") is any(p.silent_ns for p in partitions)
        assert "messages flow" not in about[0].text or not without


# --- and readiness ---


@given(st.data())
def test_what_keeps_a_running_worker_unready_for_long_is_a_problem(data: st.DataObject) -> None:
    sessions = tuple(
        replace(
            session,
            connected=data.draw(st.booleans()),
            subscribed=data.draw(st.booleans()),
            problem="connection refused",
        )
        for session in SESSIONS
    )
    sessions = tuple(replace(s, subscribed=s.subscribed and s.connected) for s in sessions)
    topic = TopicView(
        "orders",
        data.draw(st.sampled_from([0, 6])),
        data.draw(st.sampled_from([(), (1,), (1, 4)])),
        data.draw(st.sampled_from([None, "it was made anew"])),
    )
    readiness = ReadinessSnapshot(
        State.RUNNING,
        data.draw(st.sampled_from([sessions, ()])),
        data.draw(st.sampled_from([None, S, 20 * S])),
        (topic,),
        data.draw(st.sampled_from([None, S, 31 * S])),
        data.draw(st.sampled_from([(), ("Route 'x' is stopped.",)])),
    )
    snapshot = replace(
        WELL,
        readiness=readiness,
        in_state_ns=60 * S,
        disconnected={s.name: 60 * S for s in readiness.sessions if not s.subscribed},
        leaderless={"orders": 60 * S} if topic.leaderless else {},
    )
    found = problems(snapshot, LIMITS)
    assert bool(found) is not decide(readiness, LIMITS.readiness).ready
    retiring = len(found) == 1 and not readiness.sessions  # it drains, and takes nothing
    assert any(problem.severity == "critical" for problem in found) is (bool(found) and not retiring)


# --- whose silence it is ---


def test_the_silence_of_a_partition_is_laid_at_one_broker_s_door() -> None:
    """Batches wait for a copy on the frozen broker 2: those who lead them, and wait with us, are not to blame."""
    waiting = (
        partition(0, 1, waiting=1, silent_ns=30 * S),
        partition(1, 2, waiting=1, silent_ns=25 * S),
        partition(2, 3, 3, waiting=1, silent_ns=12 * S),
    )
    assert broker_silence_ns(1, waiting, {2}) == 0
    assert broker_silence_ns(2, waiting, {2}) == 30 * S, "also where it only has a copy"
    assert broker_silence_ns(3, waiting, {2}) == 12 * S, "which no copy elsewhere explains"
    assert broker_silence_ns(1, waiting, ()) == 30 * S
    put_out = tuple(replace(p, in_sync=(1, 3), waited_for=2) for p in waiting)
    assert broker_silence_ns(1, put_out, {2}) == 0, "it is sent again just now"
    assert broker_silence_ns(2, put_out, {2}) == 30 * S
    explained = [replace(p, trouble="fewer copies in sync than min.insync.replicas asks for") for p in waiting]
    assert broker_silence_ns(1, explained, ()) == 0, "it answers, and says why not"
    assert broker_silence_ns(1, [replace(waiting[0], held=True)], ()) == 0


def test_a_leader_is_not_accused_the_moment_that_the_frozen_copy_is_put_out() -> None:
    """What waited for it for half a minute is sent again, and is acknowledged a moment later."""
    brokers = with_broker(2, mute_ns=31 * S, accepts=True)
    partitions = tuple(
        replace(p, in_sync=(1, 3), waited_for=None if p.leader == 2 else 2, waiting=5, silent_ns=30 * S)
        for p in PARTITIONS
    )
    problem = the_one(replace(WELL, brokers=brokers, partitions=partitions))
    assert (problem.id, problem.subject) == ("broker-silent", "broker 2")
    hanging = tuple(replace(p, waited_for=None) for p in partitions)
    accused = {found.subject for found in problems(replace(WELL, brokers=brokers, partitions=hanging), LIMITS)}
    assert accused == {"broker 1", "broker 2", "broker 3"}, "who still takes nothing has a trouble of its own"
