"""Verdicts of ``gateway doctor`` over Kafka: pure functions over facts."""

from dataclasses import replace
from typing import Any

import pytest

from bridge.kafka.probe import BrokerAddress, Layout, PartitionLayout, ProbeError, Produced
from config.errors import ExitStatus
from gateway.admin.errors import AdminRefusedError, BrokerSilentError
from gateway.admin.model import (
    Answers,
    Broker,
    Cluster,
    Group,
    LogDir,
    Quorum,
    QuorumReplica,
    Reassignment,
    ReplicaLog,
    Unanswered,
)
from gateway.tools.doctor.admin_facts import AdminFacts
from gateway.tools.doctor.broker_verdicts import judge_brokers, places_text
from gateway.tools.doctor.cluster_verdicts import judge_cluster
from gateway.tools.doctor.endpoint import Endpoint, Step
from gateway.tools.doctor.kafka_facts import BrokerFacts, Known
from gateway.tools.doctor.model import Check, Findings, Severity
from gateway.tools.doctor.topic_verdicts import judge_topics
from tests.doctor_looks import settings_of

OK, WARN, FAIL, SKIPPED = Severity.OK, Severity.WARN, Severity.FAIL, Severity.SKIPPED
REACHED = Endpoint("b", 9092, Step(0.001), ("10.0.0.1",), Step(0.001))
REFUSED = "CORRUPT_MESSAGE"
SETTINGS = settings_of(kafka={"security": "SASL_PLAINTEXT", "sasl": {"username": "gw", "password": "s"}})


def layout(*leaders: int, replicas: tuple[int, ...] = (1, 2, 3), in_sync: tuple[int, ...] | None = None) -> Layout:
    """Three brokers; of the topic t one partition for each leader."""
    parts = tuple(
        PartitionLayout(number, leader, replicas, replicas if in_sync is None else in_sync)
        for number, leader in enumerate(leaders)
    )
    return Layout(tuple(BrokerAddress(node, "b", 9090 + node) for node in (1, 2, 3)), {"t": parts}, {})


def known(found: Layout | None = None, **changes: Any) -> Known:
    return Known({"t": "a route's"}, layout(1, 2, 3) if found is None else found, "broker 1", ("t",), **changes)


def broker(node: int = 2, **changes: Any) -> BrokerFacts:
    return BrokerFacts("b", 9090 + node, node, True, endpoint=REACHED, login_s=0.01, **changes)


def judged(one: BrokerFacts, found: Known | None = None) -> dict[str, Check]:
    findings = Findings("kafka")
    judge_brokers(findings, SETTINGS.kafka, found or known(), [one])
    return {check.name: check for check in findings}


def took(*errors: str, seconds: float = 0.01) -> Produced:
    return Produced({("t", number): error for number, error in enumerate(errors)}, seconds)


# --- one broker ------------------------------------------------------------------------------------


def test_a_leader_that_refuses_as_it_must_is_well() -> None:
    checks = judged(broker(produced=took(REFUSED, "INVALID_RECORD")))
    assert [check.severity for check in checks.values()] == [OK] * 4
    assert checks["produce"].facts["partitions"] == 2


@pytest.mark.parametrize(("error", "severity", "status", "says"), [
    ("TOPIC_AUTHORIZATION_FAILED", FAIL, ExitStatus.REFUSED, "user 'gw' write to t/0"),
    ("NOT_ENOUGH_REPLICAS", FAIL, ExitStatus.UNAVAILABLE, "min.insync.replicas"),
    ("KAFKA_STORAGE_ERROR", FAIL, ExitStatus.FAILED, "disk of t/0"),
    ("NOT_LEADER_FOR_PARTITION", WARN, ExitStatus.FAILED, "moving just now"),
    ("", FAIL, ExitStatus.FAILED, "no Apache Kafka"),
    ("POLICY_VIOLATION", FAIL, ExitStatus.FAILED, "POLICY_VIOLATION"),
])  # fmt: skip
def test_what_a_leader_answers_is_told_apart(error: str, severity: Severity, status: ExitStatus, says: str) -> None:
    produce = judged(broker(produced=took(error)))["produce"]
    assert (produce.severity, produce.status) == (severity, status)
    assert says in produce.text
    assert produce.fix


def test_slow_is_neither_well_nor_frozen() -> None:
    assert judged(broker(produced=took(REFUSED, seconds=2.5)))["produce"].facts["state"] == "slow"
    assert judged(replace(broker(), login_s=3.0))["login"].facts["state"] == "slow"


def test_a_frozen_broker_is_named_with_what_stands_still() -> None:
    found = known(layout(2, 2, -1, 1))
    checks = judged(broker(login=ProbeError("no answer", "silent", 5.0)), found)
    login = checks["login"]
    assert login.about == "broker 2 (b:9092)"
    assert login.facts["state"] == "frozen"
    assert "leads 2 partitions of the gateway's topics, which stand still: t/0, 1." in login.text
    assert "1 partition has no leader: t/2." in login.text
    assert "in sync for 1 more partition" in login.text
    assert "not the gateway nor the consumers" in login.fix
    assert checks["produce"].severity is SKIPPED
    assert "login" in checks["produce"].text


def test_a_broker_that_others_have_replaced_holds_nobody_up() -> None:
    text = judged(broker(login=ProbeError("x", "silent", 5.0)), known(layout(1, 3, in_sync=(1, 3))))["login"].text
    assert "None of the gateway's partitions waits for it" in text


@pytest.mark.parametrize(("kind", "status", "says"), [
    ("refused", ExitStatus.REFUSED, "refuses the gateway as 'gw'"),
    ("closed", ExitStatus.UNAVAILABLE, "hangs up"),
    ("token", ExitStatus.UNAVAILABLE, "no token"),
])  # fmt: skip
def test_other_ends_of_a_login(kind: Any, status: ExitStatus, says: str) -> None:
    login = judged(broker(login=ProbeError("why", kind, 0.1)))["login"]
    assert (login.severity, login.status) == (FAIL, status)
    assert says in login.text
    assert "why" in login.text


def test_a_dead_broker_and_one_that_cannot_be_reached() -> None:
    dead = replace(broker(), endpoint=replace(REACHED, tcp=Step(0.001, "refused", "Connection refused")))
    checks = judged(dead)
    assert checks["tcp"].facts["state"] == "dead"
    assert "which stand still: t/1." in checks["tcp"].text
    assert checks["login"].severity is checks["produce"].severity is SKIPPED
    away = replace(broker(), endpoint=replace(REACHED, tcp=Step(5.0, "silent", "no answer within 5 s")))
    assert judged(away)["tcp"].facts["state"] == "unreachable"
    nameless = replace(broker(), endpoint=Endpoint("b", 9092, Step(0.1, "name", "Name or service not known")))
    checks = judged(nameless)
    assert checks["dns"].severity is FAIL
    assert {checks[name].severity for name in ("tcp", "login", "produce")} == {SKIPPED}


def test_a_broker_that_logs_in_and_takes_nothing_is_stalled_and_says_which() -> None:
    silent = ProbeError("x", "silent", 5.0)
    produce = judged(broker(unproduced=silent, stalled=(("t", 1),)))["produce"]
    assert produce.facts == {"state": "stalled", "stalled": ["t/1"]}
    assert "these do not answer: t/1" in produce.text
    everything = judged(broker(unproduced=silent, stalled=(("t", 1),), unasked=(("t", 4),)))["produce"]
    assert "which stand still" in everything.text, "not all could be asked: all that it leads is in question"


def test_a_fenced_broker_that_answers_is_a_warning() -> None:
    login = judged(broker(fenced=True))["login"]
    assert login.severity is WARN
    assert "fenced" in login.text


def test_places_are_shortened() -> None:
    assert places_text([("a", 2), ("a", 1), ("b", 0)]) == "a/1, 2; b/0"
    assert places_text([("a", number) for number in range(20)]).endswith("11 and 8 more")
    assert places_text([(f"t{number}", 0) for number in range(9)]).endswith("and of 3 more topics")


# --- topics ----------------------------------------------------------------------------------------


def topics(found: Known, admin: AdminFacts | None = None, brokers: Any = (), **tables: Any) -> dict[str, Check]:
    findings = Findings("kafka")
    settings = settings_of(**tables) if tables else SETTINGS
    judge_topics(findings, settings, found, admin or minimum("2"), brokers)
    return {check.name: check for check in findings}


def minimum(value: str) -> AdminFacts:
    return AdminFacts(topics={"t": {"min.insync.replicas": value}})


def test_topics_that_are_well() -> None:
    assert {check.severity for check in topics(known(layout(1, 1))).values()} == {OK}


@pytest.mark.parametrize(("error", "create", "severity", "status"), [
    ("UNKNOWN_TOPIC_OR_PARTITION", False, FAIL, ExitStatus.UNAVAILABLE),
    ("UNKNOWN_TOPIC_OR_PARTITION", True, OK, None),
    ("TOPIC_AUTHORIZATION_FAILED", True, FAIL, ExitStatus.REFUSED),
    ("INVALID_TOPIC_EXCEPTION", True, FAIL, ExitStatus.FAILED),
])  # fmt: skip
def test_a_topic_that_is_not_there(error: str, create: bool, severity: Severity, status: ExitStatus | None) -> None:
    found = known(replace(layout(), topics={}, errors={"t": error}))
    check = topics(replace(found, ours=()), kafka={"topics": {"create": create}})["topics"]
    assert check.severity is severity
    assert "t" in check.about
    if status is not None:
        assert check.status is status
    rest = topics(replace(found, ours=()))
    assert rest["leaders"].severity is SKIPPED


def test_a_partition_without_a_leader_and_one_whose_leader_is_silent() -> None:
    alive = layout(1, -1, replicas=(1, 4))
    leaders = topics(known(alive))["leaders"]
    assert leaders.severity is FAIL
    assert leaders.facts == {"partitions": ["t/1"], "brokers": [4]}
    assert "unclean election" in leaders.fix
    silent = broker(2, login=ProbeError("x", "silent", 5.0))
    stalled = topics(known(layout(1, 2)), brokers=[silent])["leaders"]
    assert stalled.facts == {"partitions": ["t/1"], "brokers": [2]}
    assert "broker 2 (b:9092)" in stalled.text


def test_what_is_wrong_with_topics_of_others_is_a_warning() -> None:
    base = layout(1)
    more = (PartitionLayout(0, -1, (1,), ()),)
    checks = topics(known(replace(base, topics={**base.topics, "theirs": more})))
    assert checks["leaders"].severity is checks["replicas"].severity is WARN
    assert "theirs/0" in checks["leaders"].text


def test_replicas_that_are_behind_are_named_by_broker() -> None:
    replicas = topics(known(layout(1, in_sync=(1, 3))))["replicas"]
    assert replicas.severity is WARN
    assert replicas.facts["brokers"] == [2]


def test_copies_against_brokers() -> None:
    assert topics(known(layout(1, replicas=(1,))))["replication"].severity is WARN
    alone = replace(layout(1, replicas=(1,)), brokers=(BrokerAddress(1, "b", 9091),))
    assert topics(known(alone))["replication"].severity is OK


@pytest.mark.parametrize(("value", "in_sync", "severity", "says"), [
    ("2", (1, 2), OK, ""),
    ("2", (1,), FAIL, "t/0"),
    ("3", (1, 2, 3), WARN, "any broker that is away stops"),
    ("1", (1, 2, 3), WARN, "may mean one copy"),
    ("5", (1, 2, 3), OK, ""),  # Kafka takes the number of replicas
])  # fmt: skip
def test_min_insync_against_acks_all(value: str, in_sync: tuple[int, ...], severity: Severity, says: str) -> None:
    check = topics(known(layout(1, in_sync=in_sync)), minimum(value))["min_insync"]
    assert check.severity is severity, check.text
    assert says in check.text


def test_min_insync_that_kafka_does_not_tell_is_skipped_with_its_reason() -> None:
    admin = AdminFacts(problems={"config of topics": AdminRefusedError("No right to see it.")})
    check = topics(known(), admin)["min_insync"]
    assert check.severity is SKIPPED
    assert "No right to see it." in check.text


def test_leaders_out_of_balance() -> None:
    balance = topics(known(layout(*[2] * 10)))["leader_balance"]
    assert balance.severity is WARN
    assert "Broker 1" in balance.text
    assert balance.facts["leading"] == {1: 0, 2: 10, 3: 0}
    away = replace(layout(*[2] * 10), brokers=(BrokerAddress(2, "b", 9092), BrokerAddress(3, "b", 9093)))
    assert topics(known(away))["leader_balance"].severity is OK, "who is away can lead nothing"


def test_without_metadata_all_is_skipped_with_why() -> None:
    nothing = Known({"t": "x"}, why="no broker lets us in (login)")
    checks = topics(nothing)
    assert {check.severity for check in checks.values()} == {SKIPPED}
    assert all("no broker lets us in (login)" in check.text for check in checks.values())


# --- the cluster -----------------------------------------------------------------------------------


def quorum(**changes: Any) -> Quorum:
    voters = tuple(QuorumReplica(node, 100, 0, 0.2, 0.2) for node in (1, 2, 3))
    values: dict[str, Any] = {"leader": 1, "epoch": 7, "high_watermark": 100, "voters": voters, "observers": ()}
    return Quorum(**{**values, "clock_ahead_seconds": -0.3, **changes})


def cluster_facts(**changes: Any) -> AdminFacts:
    found = quorum(**changes.pop("quorum", {}))
    listed = tuple(Broker(node, "b", 9090 + node) for node in (1, 2, 3))
    values: dict[str, Any] = {
        "cluster": Cluster("abc", listed, 1, 30, found),
        "brokers": {n: {"socket.request.max.bytes": "104857600", "auto.create.topics.enable": "false"} for n in (1, 2)},
        "topics": {"t": {"max.message.bytes": "1048588"}},
        "reassignments": (),
        "log_dirs": Answers(
            {1: (LogDir("/data", None, 100 << 30, 50 << 30, (ReplicaLog("t", 0, 1 << 20, 0, False),)),)}
        ),
    }
    return AdminFacts(**{**values, **changes})


def cluster(
    admin: AdminFacts,
    found: Known | None = None,
    *,
    brokers: Any = (),
    groups: tuple[str, ...] = (),
    recorded: str | None = None,
    **tables: Any,
) -> dict[str, Check]:
    findings = Findings("kafka")
    judge_cluster(findings, settings_of(**tables), found or known(), admin, brokers, groups, recorded)
    return {check.name: check for check in findings}


def with_offsets() -> Known:
    base = layout(1)
    return known(replace(base, topics={**base.topics, "__consumer_offsets": base.topics["t"]}))


def test_a_cluster_that_is_well() -> None:
    checks = cluster(cluster_facts(), recorded="abc")
    bad = [check for check in checks.values() if check.severity not in {OK, SKIPPED}]
    assert not bad
    assert checks["controller"].facts == {"controller": 1, "epoch": 7, "cluster_id": "abc"}


def test_a_controller_that_is_away_or_silent() -> None:
    facts = cluster_facts()
    none = replace(facts, cluster=replace(facts.cluster, controller=None, quorum=None, quorum_problem="Nobody said."))
    checks = cluster(none)
    assert checks["controller"].severity is FAIL
    assert "Nobody said." in checks["controller"].text
    assert checks["quorum"].severity is SKIPPED
    silent = broker(1, login=ProbeError("x", "silent", 5.0))
    assert cluster(facts, brokers=[silent])["controller"].severity is FAIL


LAGGING = (*quorum().voters[:2], QuorumReplica(3, 10, 90, 60.0, 60.0))


def disk(*arguments: Any) -> dict[str, Any]:
    return {"log_dirs": Answers({1: (LogDir("/d", *arguments, ()),)})}


@pytest.mark.parametrize(("name", "changes", "severity", "says"), [
    ("quorum", {"quorum": {"voters": LAGGING}}, WARN, "voter 3 is 90 records behind, last seen 60 s ago"),
    ("quorum", {"quorum": {"voters": LAGGING}}, WARN, "one more that fails"),
    ("clock", {"quorum": {"clock_ahead_seconds": 0.5}}, OK, ""),
    ("clock", {"quorum": {"clock_ahead_seconds": 60.0}}, WARN, ""),
    ("clock", {"quorum": {"clock_ahead_seconds": -60.0}}, WARN, ""),
    ("clock", {"quorum": {"clock_ahead_seconds": -4000.0}}, FAIL, ""),
    ("clock", {"quorum": {"clock_ahead_seconds": None}}, SKIPPED, ""),
    ("message_size", {"topics": {"t": {"max.message.bytes": "200000"}}}, WARN, "t: 195.3 KiB"),
    ("auto_create", {"brokers": {1: {"auto.create.topics.enable": "true"}}}, WARN, ""),
    ("log_dirs", disk(None, 100, 50), OK, ""),
    ("log_dirs", disk(None, 100, 10), WARN, ""),
    ("log_dirs", disk(None, 100, 3), FAIL, ""),
    ("log_dirs", disk("KafkaStorageError", None, None), FAIL, ""),
    ("log_dirs", disk(None, None, None), OK, ""),
    ("reassignments", {"reassignments": (Reassignment("t", 1, (1, 2, 4), (4,), (3,)),)}, WARN, "t/1"),
])  # fmt: skip
def test_what_differs_from_a_well_cluster(name: str, changes: dict[str, Any], severity: Severity, says: str) -> None:
    check = cluster(cluster_facts(**changes))[name]
    assert check.severity is severity
    assert says in check.text


def test_another_cluster_than_the_data_directory_s() -> None:
    check = cluster(cluster_facts(), recorded="other")["identity"]
    assert (check.severity, check.status) == (FAIL, ExitStatus.CONFIG)
    assert "other" in check.text


def test_a_broker_takes_a_request_of_the_gateway() -> None:
    def judged(limit: int) -> Check:
        return cluster(cluster_facts(brokers={1: {"socket.request.max.bytes": str(limit)}}))["request_size"]

    check = judged(512 << 10)
    assert (check.severity, check.status) == (FAIL, ExitStatus.CONFIG)
    assert "broker 1 takes 512 KiB" in check.text
    assert judged(2 << 20).severity is OK, "however many partitions it leads"


def test_a_grown_consumer_offsets() -> None:
    def facts(size: int) -> AdminFacts:
        log = ReplicaLog("__consumer_offsets", 3, size, 0, False)
        return cluster_facts(log_dirs=Answers({2: (LogDir("/d", None, None, None, (log,)),)}))

    assert cluster(facts(5 << 20), with_offsets())["consumer_offsets"].severity is OK
    grown = cluster(facts(3 << 30), with_offsets())["consumer_offsets"]
    assert grown.severity is WARN
    assert "broker 2" in grown.text
    assert cluster(facts(5 << 20))["consumer_offsets"].severity is SKIPPED, "there is no such topic"


def test_groups_that_were_asked_for() -> None:
    group = Group("g", "classic", "Stable", "range", 2, 17, 50, ())
    found = cluster(cluster_facts(groups={"g": group}), with_offsets(), groups=("g",))["groups"]
    assert found.severity is OK
    assert "__consumer_offsets/17" in found.text
    hidden = cluster(cluster_facts(groups={"g": group}, unseen={"g": "its topics …: t"}), with_offsets(), groups=("g",))
    assert hidden["groups"].severity is WARN, "nothing is wrong with it, as far as anybody knows"
    assert "is unknown: its topics …: t." in hidden["groups"].text
    problems = {"group g": BrokerSilentError("broker 2 did not answer")}
    silent = cluster(cluster_facts(problems=problems), with_offsets(), groups=("g",))["groups"]
    assert (silent.severity, silent.status) == (FAIL, ExitStatus.UNAVAILABLE)
    assert cluster(cluster_facts(), groups=("g",))["groups"].severity is SKIPPED
    assert cluster(cluster_facts())["groups"].severity is SKIPPED


def test_a_broker_that_does_not_tell_is_not_vouched_for_by_the_others() -> None:
    """A disk that hangs keeps its broker from listing its folders."""
    why = "Broker 2 (b:9092) did not answer within 3 s while others did."
    told = cluster_facts(problems={"config of broker 3": BrokerSilentError("It hangs.")})
    dirs = replace(told.log_dirs, unanswered=(Unanswered(2, "b:9092", why, True),))
    findings = Findings("kafka")
    judge_cluster(findings, settings_of(), known(), replace(told, log_dirs=dirs), (), (), None)
    found = [(one.name, one.severity, one.text) for one in findings]
    assert ("log_dirs", SKIPPED, f"Broker 2 was asked and did not tell: {why}") in found
    for name in ("request_size", "auto_create"):
        assert (name, SKIPPED, "Broker 3 was asked and did not tell: It hangs.") in found
    assert [severity for name, severity, _ in found if name == "log_dirs"] == [SKIPPED, OK]


def test_what_kafka_does_not_tell_is_skipped_and_never_judged() -> None:
    questions = ("cluster", "config of topics", "config of broker 1", "reassignments", "log dirs")
    refused = dict.fromkeys(questions, AdminRefusedError("No right."))
    checks = cluster(AdminFacts(problems=refused), with_offsets())
    assert {check.severity for check in checks.values()} == {SKIPPED}
    told = (
        "controller", "reassignments", "request_size", "message_size", "auto_create", "log_dirs", "consumer_offsets",
    )  # fmt: skip
    assert all("No right." in checks[name].text for name in told)
    assert "none of the gateway's topics" in cluster(cluster_facts(), replace(known(), ours=()))["message_size"].text
