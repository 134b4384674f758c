"""Verdicts over the gateway's topics: existence, leaders, replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from config.errors import ExitStatus, sentence
from config.numbers import many, some
from gateway.admin.leadership import leadership_of
from gateway.health.measured import leaderless
from gateway.tools.doctor.broker_verdicts import places_text, silent_nodes

if TYPE_CHECKING:
    from bridge.kafka.probe import Layout, PartitionLayout
    from config.settings import Settings
    from gateway.tools.doctor.admin_facts import AdminFacts
    from gateway.tools.doctor.kafka_facts import BrokerFacts, Known, Place
    from gateway.tools.doctor.model import Findings

NAMES: Final = ("topics", "leaders", "replicas", "replication", "min_insync", "leader_balance")
_OUT_OF_BALANCE: Final = 0.1  # Kafka's own limit, leader.imbalance.per.broker.percentage


def judge_topics(
    findings: Findings, settings: Settings, known: Known, admin: AdminFacts, brokers: Sequence[BrokerFacts]
) -> None:
    layout = known.layout
    if layout is None:
        findings.skip(NAMES, f"Not tried: {known.why}.")
        return
    _judge_presence(findings, settings, known, layout)
    ours = [(topic, one) for topic in known.ours for one in layout.topics[topic]]
    if not ours:
        findings.skip(NAMES[1:], "Not tried: none of the gateway's topics is there (topics).")
        return
    _judge_leaders(findings, ours, layout, silent_nodes(brokers))
    _judge_in_sync(findings, ours, layout)
    _judge_replication(findings, ours, layout)
    _judge_minimum(findings, ours, layout, admin)
    _judge_balance(findings, layout)


def _judge_presence(findings: Findings, settings: Settings, known: Known, layout: Layout) -> None:
    create, described = settings.kafka.topics.create, True
    for topic, error in sorted(layout.errors.items()):
        if topic not in known.wanted:
            continue
        described = False
        use = known.wanted[topic]
        if error == "TOPIC_AUTHORIZATION_FAILED":
            who = "the gateway" if settings.kafka.sasl is None else f"user {settings.kafka.sasl.username!r}"
            findings.of("topics", topic).fail(
                f"Kafka does not let {who} see topic {topic} ({use}).",
                f"Give it the rights: kafka-acls --add --allow-principal User:… --operation Describe --operation Write "
                f"--topic {topic}",
                status=ExitStatus.REFUSED,
                error=error,
            )
        elif error == "UNKNOWN_TOPIC_OR_PARTITION" and create:
            findings.of("topics", topic).ok(
                f"{topic} ({use}) is not there yet; the gateway makes it (kafka.topics.create)."
            )
        elif error == "UNKNOWN_TOPIC_OR_PARTITION":
            findings.of("topics", topic).fail(
                f"Topic {topic} ({use}) is not there, and kafka.topics.create is off: the gateway will not start.",
                "Make it (gateway topics apply), or set kafka.topics.create = true.",
                status=ExitStatus.UNAVAILABLE,
            )
        else:
            findings.of("topics", topic).fail(
                f"Kafka does not describe topic {topic} ({use}): {sentence(str(error))}", "Check its name."
            )
    count = sum(len(layout.topics[topic]) for topic in known.ours)
    if known.ours and described:
        findings.of("topics").ok(
            f"{many(len(known.ours), 'topic')} with {many(count, 'partition')}: {some(known.ours)}.",
            topics=list(known.ours),
            partitions=count,
        )
    elif not known.wanted and not known.ours:
        findings.of("topics").skip("There are no routes, so no topics.")


def _judge_leaders(
    findings: Findings, ours: list[tuple[str, PartitionLayout]], layout: Layout, silent: Mapping[int, BrokerFacts]
) -> None:
    """``silent``: the brokers that do not answer, by number."""
    check = findings.of("leaders")
    unled = [(topic, one) for topic, one in ours if one.leader < 0]
    stalled = [(topic, one) for topic, one in ours if one.leader in silent]
    if unled:
        _fail_leaderless(findings, unled, {broker.node for broker in layout.brokers} - set(silent))
    if stalled:
        names = sorted({silent[one.leader].name for _, one in stalled})
        check.fail(
            f"{many(len(stalled), 'partition')} of the gateway {'has' if len(stalled) == 1 else 'have'} a leader that "
            f"does not answer, {some(names)}; what goes there waits in the spool: {_text(stalled)}.",
            "Restart that broker: others lead its partitions as soon as the controller misses it. Not the gateway, nor "
            "the consumers.",
            status=ExitStatus.UNAVAILABLE,
            partitions=_names(stalled),
            brokers=sorted({one.leader for _, one in stalled}),
        )
    if unled or stalled:
        return
    elsewhere = _others(layout, {topic for topic, _ in ours}, lambda one: one.leader < 0)
    if elsewhere:
        check.warn(
            f"The gateway's partitions all have leaders; of other topics {many(len(elsewhere), 'partition')} "
            f"{'has' if len(elsewhere) == 1 else 'have'} none: {places_text(elsewhere)}.",
            "See gateway cluster describe: brokers are down.",
        )
    else:
        check.ok(f"All {len(ours)} partitions of the gateway have a leader that answers.")


def _fail_leaderless(findings: Findings, unled: list[tuple[str, PartitionLayout]], alive: set[int]) -> None:
    """``alive``: numbers of the brokers that answer."""
    gone = sorted({node for _, one in unled for node in one.replicas if node not in alive})
    problem = leaderless(
        _text(unled),
        len(unled),
        [f"broker {node}" for node in gone],
        subject="",
        lasted_s=None,
        severity="critical",
    )
    findings.of("leaders").problem(problem, status=ExitStatus.UNAVAILABLE, partitions=_names(unled), brokers=gone)


def _text(partitions: list[tuple[str, PartitionLayout]]) -> str:
    return places_text((topic, one.number) for topic, one in partitions)


def _names(partitions: list[tuple[str, PartitionLayout]]) -> list[str]:
    return [f"{topic}/{one.number}" for topic, one in partitions]


def _judge_in_sync(findings: Findings, ours: list[tuple[str, PartitionLayout]], layout: Layout) -> None:
    check = findings.of("replicas")
    behind = [(topic, one) for topic, one in ours if len(one.in_sync) < len(one.replicas)]
    missing = sorted({node for _, one in behind for node in set(one.replicas) - set(one.in_sync)})
    if behind:
        check.warn(
            f"{len(behind)} of {many(len(ours), 'partition')} are under-replicated; broker {some(missing)} is not in "
            f"sync: {_text(behind)}.",
            f"Look at broker {some(missing)}: it is away, frozen, or too slow to follow (disk, network).",
            partitions=_names(behind),
            brokers=missing,
            offline=sorted({node for _, one in behind for node in one.offline}),
        )
        return
    elsewhere = _others(layout, {topic for topic, _ in ours}, lambda one: len(one.in_sync) < len(one.replicas))
    if elsewhere:
        check.warn(
            f"The gateway's replicas are all in sync; {many(len(elsewhere), 'partition')} of other topics are "
            f"under-replicated: {places_text(elsewhere)}.",
            "See gateway cluster describe: a broker is away or does not keep up.",
        )
    else:
        check.ok(f"All replicas of {len(ours)} partitions are in sync; none is offline.")


def _others(layout: Layout, ours: set[str], chosen: Callable[[PartitionLayout], bool]) -> list[Place]:
    """The partitions of other topics than ours for which ``chosen`` is true."""
    return [
        (topic, one.number)
        for topic, partitions in sorted(layout.topics.items())
        if topic not in ours
        for one in partitions
        if chosen(one)
    ]


def _judge_replication(findings: Findings, ours: list[tuple[str, PartitionLayout]], layout: Layout) -> None:
    check = findings.of("replication")
    brokers = len(layout.brokers)
    single = sorted({topic for topic, one in ours if len(one.replicas) == 1})
    least = min(len(one.replicas) for _, one in ours)
    if brokers == 1 and least == 1:
        check.ok("One broker, one copy of each partition: nothing outlives it, as is to be expected.")
    elif single:
        check.warn(
            f"{some(single)}: one copy of each partition, though there are {brokers} brokers. Losing the broker loses "
            "the records, and while it is away nothing can be written there.",
            "Reassign to 3 replicas (kafka-reassign-partitions), and set kafka.topics.replication for new ones.",
            topics=single,
        )
    else:
        check.ok(f"At least {least} copies of each partition on {brokers} brokers.", least=least)


def _judge_minimum(
    findings: Findings, ours: list[tuple[str, PartitionLayout]], layout: Layout, admin: AdminFacts
) -> None:
    check = findings.of("min_insync")
    minimum: dict[str, int] = {}
    for topic, config in admin.topics.items():
        if config.get("min.insync.replicas", "").isdigit():
            minimum[topic] = int(config["min.insync.replicas"])
    if not minimum:
        why = admin.problems.get("config of topics")
        check.skip(f"Kafka does not tell the topics' settings: {why or 'they have none'}")
        return
    # If replicas are fewer, Kafka uses their number; brokers before 3.x refuse, which the probe shows.
    under = [
        (t, one.number)
        for t, one in ours
        if one.leader >= 0 and len(one.in_sync) < min(minimum.get(t, 1), len(one.replicas))
    ]
    alive = {broker.node for broker in layout.brokers}
    tight = sorted({t for t, one in ours if minimum.get(t, 1) == len(one.replicas) > 1})
    weak = sorted({t for t, one in ours if minimum.get(t, 1) == 1 and len(one.replicas) > 1})
    if under:
        away = sorted({n for t, one in ours if (t, one.number) in under for n in one.replicas if n not in alive})
        check.fail(
            "Fewer replicas are in sync than min.insync.replicas asks for, and with acks=all nothing is written: "
            f"{places_text(under)}.",
            f"Bring {'broker ' + some(away) if away else 'the missing replicas'} back; lower min.insync.replicas only "
            "as the last way out.",
            status=ExitStatus.UNAVAILABLE,
            partitions=[f"{topic}/{number}" for topic, number in under],
        )
    elif tight:
        check.warn(
            f"{some(tight)}: min.insync.replicas is as many as there are replicas, so any broker that is away stops "
            "writing.",
            "Set it to one less than the replication: 2 of 3.",
            topics=tight,
        )
    elif weak:
        check.warn(
            f"{some(weak)}: min.insync.replicas is 1, so acks=all may mean one copy when the others are behind, and "
            "its broker's loss takes acknowledged records with it.",
            "Set min.insync.replicas = 2 where there are 3 replicas.",
            topics=weak,
        )
    else:
        check.ok(
            f"min.insync.replicas is {'/'.join(str(one) for one in sorted(set(minimum.values())))}, and as many are in "
            "sync everywhere."
        )


def _judge_balance(findings: Findings, layout: Layout) -> None:
    check = findings.of("leader_balance")
    led = ((one.leader, one.replicas) for partitions in layout.topics.values() for one in partitions)
    rows = leadership_of(led, {broker.node for broker in layout.brokers})
    leading = {row.broker: row.leads for row in rows}
    worst = max(rows, key=lambda row: row.imbalance, default=None)
    if worst is not None and worst.imbalance > _OUT_OF_BALANCE:
        check.warn(
            f"Broker {worst.broker} leads {worst.elsewhere} fewer than the {worst.preferred} partitions it is "
            f"preferred for ({worst.imbalance:.0%}); the others carry them. After a restart that lasts until a "
            "preferred election (auto.leader.rebalance.enable: 5 minutes).",
            "gateway leaders elect",
            leading=leading,
        )
    else:
        shares = ", ".join(f"broker {node}: {count}" for node, count in leading.items())
        check.ok(f"Partitions led: {shares}.", leading=leading)
