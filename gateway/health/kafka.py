"""What is wrong between us and Kafka: which broker, which partitions, and who of them is to blame.

A partition stands still for one of four reasons, and only one of them is its leader's:

- its leader is mute: it owes an answer, and gives none to anybody;
- a follower is mute: with acks=all the leader waits for each in-sync replica, until the cluster has put the mute one
  out (``broker.session.timeout.ms``, ``replica.lag.time.max.ms``). Every partition that has a copy there stands still;
- the leader answers questions, but nothing to batches: its disk hangs, or its request handlers do;
- the leader says why (too few replicas, no rights).
"""

from __future__ import annotations

__all__ = ["broker_health", "broker_silence_ns", "kafka_problems", "partition_health"]

from typing import TYPE_CHECKING, Final

from gateway.base.problem import Problem
from gateway.health.model import IDLE_NS, SECOND_NS, WAITING_NS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from gateway.base.problem import Severity
    from gateway.health.model import BrokerView, HealthLimits, HealthSnapshot, PartitionView

STARTED_NS: Final = 10 * SECOND_NS  # a Kafka that lives answers a start in a tenth of that
RESTART_NS: Final = 60 * SECOND_NS  # a broker that left in good order and is back within that was restarted
LEADERLESS_NS: Final = 5 * SECOND_NS
LEADERLESS_CRITICAL_NS: Final = 12 * SECOND_NS  # elections are over by then
THROTTLED_NS: Final = 6 * SECOND_NS  # of a minute: below that a quota only smooths what comes
NAMED: Final = 12  # partitions in a sentence
SAID: Final = 2  # reasons in a sentence


def partition_health(partition: PartitionView, brokers: Mapping[int, BrokerView], limits: HealthLimits) -> str:
    """One word for a partition's colour."""
    if partition.held:
        return "held"
    if partition.leader is None:
        return "leaderless"
    if partition.silent_ns >= limits.silent_ns or (
        partition.silent_ns >= limits.mute_ns and _mute_copy(partition, brokers, limits) is not None
    ):
        return "silent"
    if partition.spooling or partition.spooled:
        return "spooling"
    if partition.silent_ns >= WAITING_NS:
        return "waiting"
    idle = partition.last_ack_age_ns is None or partition.last_ack_age_ns > IDLE_NS
    return "idle" if idle and not partition.waiting else "ok"


def broker_health(broker: BrokerView, limits: HealthLimits) -> str:
    """One word for a broker's colour."""
    if broker.mute_ns >= limits.mute_ns:
        return "silent" if broker.waiting else "unreachable"
    if broker.silent_ns >= limits.silent_ns:
        return "silent"
    idle = broker.last_ack_age_ns is None or broker.last_ack_age_ns > IDLE_NS
    return "idle" if idle and not broker.waiting else "ok"


def broker_silence_ns(broker: int, partitions: Iterable[PartitionView], mute: Collection[int]) -> int:
    """For how long partitions have waited in vain that a broker is to blame for. ``mute``: brokers that owe an answer.

    A mute one is to blame for what it leads, for what waits for the copy on it, and for what nobody leads and has a
    copy on it (Kafka does not say which of the copies may lead). Another for what it leads, but for
    partitions that wait for a mute copy elsewhere, and those of which it says why it does not take them.
    """
    if broker in mute:
        blamed = [
            p.silent_ns for p in partitions if p.leader == broker or _waits_for(p, broker) or _stranded(p, broker)
        ]
    else:
        led = [p for p in partitions if p.leader == broker and not p.held and not p.trouble and p.waited_for is None]
        blamed = [min(p.silent_ns, p.led_ns) for p in led if not any(copy in mute for copy in p.in_sync)]
    return max(blamed, default=0)


def kafka_problems(snapshot: HealthSnapshot, limits: HealthLimits) -> Iterator[Problem]:
    """The problems with Kafka, in no order."""
    unreachable = _unreachable(snapshot, limits)
    if unreachable is not None:
        yield unreachable
        return
    if snapshot.readiness.metadata_age_ns is None:
        return  # a start
    yield from _about_clock(snapshot)
    yield from _about_dead_letters(snapshot)
    brokers = {broker.id: broker for broker in snapshot.brokers}
    refused = set(snapshot.refused_topics)
    blamed: set[tuple[str, int]] = set()
    for broker in snapshot.brokers:
        if broker.mute_ns >= limits.mute_ns:
            yield from _about_mute(broker, snapshot.partitions, limits, blamed)
    left = [p for p in snapshot.partitions if (p.topic, p.partition) not in blamed and p.topic not in refused]
    yield from _about_leaders(left, brokers, limits)
    yield from _about_leaderless(snapshot, brokers)
    yield from _about_quotas(snapshot)


def _unreachable(snapshot: HealthSnapshot, limits: HealthLimits) -> Problem | None:
    age_ns = snapshot.readiness.metadata_age_ns
    check = (
        "Look whether the brokers run, and whether this machine reaches their addresses: gateway doctor. Do not restart"
        " the gateway: it goes on by itself when Kafka does."
    )
    if age_ns is None:
        if snapshot.in_state_ns < STARTED_NS:
            return None
        why = f" {snapshot.kafka_problem}" if snapshot.kafka_problem else ""
        text = f"Kafka has not answered since the start; asked were {', '.join(snapshot.kafka_addresses)}.{why}"
        return Problem("kafka-unreachable", "critical", text, check)
    if age_ns <= limits.readiness.metadata_stale_after_ns:
        return None
    names = ", ".join(broker.name for broker in snapshot.brokers if not broker.away_ns)
    said = dict.fromkeys(broker.problem.rstrip(".") for broker in snapshot.brokers if broker.problem)
    why = f" When it was tried last: {'; '.join([*said][:SAID])}." if said else ""
    text = f"No Kafka broker has answered for {_seconds(age_ns)}: {names or ', '.join(snapshot.kafka_addresses)}.{why}"
    return Problem("kafka-unreachable", "critical", text, check)


def _about_dead_letters(snapshot: HealthSnapshot) -> Iterator[Problem]:
    refused = [partition for partition in snapshot.partitions if partition.dead_letters_refused]
    if refused:
        text = (
            f"Kafka refuses dead letters for {_names(refused)}, and {_wait(refused)}:"
            f" {refused[0].dead_letters_refused.rstrip('.')}."
        )
        check = (
            "Look at the settings of that topic (gateway topics describe): max.message.bytes, and cleanup.policy, which"
            " has to be delete. What waits goes on by itself."
        )
        yield Problem("dead-letters-refused", "critical", text, check)


def _about_clock(snapshot: HealthSnapshot) -> Iterator[Problem]:
    refusing = [partition for partition in snapshot.partitions if partition.clock_refused]
    if refusing:
        text = (
            f"Kafka refuses the present time by this machine's clock for {_plural(refusing)}: {_names(refusing)}."
            f" {_wait(refusing)}, in the spool where it is on."
        )
        check = (
            "Compare the clocks of this machine and of the brokers (timedatectl, chronyc tracking) and correct the"
            " wrong one: what waits is stamped with the present then, and goes on by itself. If both are right, look"
            " at the topic's message.timestamp.after.max.ms and message.timestamp.before.max.ms."
        )
        yield Problem("clock", "critical", text, check)


# --- a broker that gives no answer at all ---------------------------------------------------------


def _about_mute(
    broker: BrokerView, partitions: Iterable[PartitionView], limits: HealthLimits, blamed: set[tuple[str, int]]
) -> Iterator[Problem]:
    led = [p for p in partitions if p.leader == broker.id]
    stuck = [p for p in led if p.silent_ns >= WAITING_NS]
    behind = [
        p
        for p in partitions
        if p.leader != broker.id and _waits_for(p, broker.id) and p.silent_ns >= limits.mute_ns and not p.held
    ]
    stranded = [p for p in partitions if _stranded(p, broker.id)]
    unwritten = any(p.silent_ns for p in stranded)
    without = {p.name for p in stranded}
    moved = tuple(name for name in broker.lost if name not in without)
    blamed.update((p.topic, p.partition) for p in (*led, *behind))
    if broker.parted and not (led or behind or stranded) and max(broker.away_ns, broker.mute_ns) < RESTART_NS:
        return
    how = _how(broker)
    subject = f"broker {broker.id}"
    if stuck or behind or unwritten:
        parts = [f"Broker {broker.name} has not answered for {_seconds(broker.mute_ns)}{how}."]
        if stuck:
            parts.append(f"{_wait(stuck)} for {_plural(stuck)} that it leads: {_names(stuck)}.")
        if stranded:
            waiting = f", and {_wait(stranded)}" if unwritten else ""
            have = "has" if len(stranded) == 1 else "have"
            parts.append(f"Nobody leads {_names(stranded)}, which {have} a copy on it{waiting}.")
        if moved:
            parts.append(f"Others lead {_some(moved)} by now.")
        if behind:
            also = (
                "stands still as well: its leader waits"
                if len(behind) == 1
                else "stand still as well: their leaders wait"
            )
            parts.append(f"{_names(behind)} {also} for the copy on it (acks=all).")
        yield Problem("broker-silent", "critical", " ".join(parts), _advice(broker), subject)
        return
    if stranded:
        then = (
            f"Nobody leads {_names(stranded)}, with a copy on it, and nothing waits now; what comes for them will wait."
        )
    elif led:
        then = f"It leads {_names(led)}, for which nothing waits now; what comes for them will wait."
    elif moved:
        then = f"Others lead its partitions by now ({_some(moved)}), and messages flow; one copy of each is missing."
    else:
        then = "It leads nothing of ours."
    text = f"Broker {broker.name} has not answered for {_seconds(broker.mute_ns)}{how}. {then}"
    yield Problem("broker-unreachable", "warning", text, _advice(broker), subject)


def _advice(broker: BrokerView) -> str:
    if broker.refuses:
        then = "Start that broker; its log says why it ended."
    elif broker.accepts or broker.connected:
        then = "Look at that broker's process, log and disk, and at the network between. When it is frozen, restart it."
    else:
        then = (
            "Look whether that broker's machine runs, and at the network between; start the broker if it does not run."
        )
    return f"{then} Do not restart the gateway or the consumers, which changes nothing."


def _how(broker: BrokerView) -> str:
    if broker.refuses:
        return ": connections to it are refused, so its process does not run"
    if broker.accepts:
        return ", though it takes connections: it is frozen, or nearly so"
    if broker.connected:
        return ", though the connection to it stands: it is frozen, or cut off without a word"
    if broker.problem:
        return f": {broker.problem.rstrip('.')}"
    return ""


# --- a broker that answers ------------------------------------------------------------------------


def _about_leaders(
    partitions: Iterable[PartitionView], brokers: Mapping[int, BrokerView], limits: HealthLimits
) -> Iterator[Problem]:
    waiting: dict[int, list[PartitionView]] = {}
    for partition in partitions:
        if partition.leader is not None and min(partition.silent_ns, partition.led_ns) > 0:
            waiting.setdefault(partition.leader, []).append(partition)
    for leader, found in waiting.items():
        silent = [
            p for p in found if min(p.silent_ns, p.led_ns) >= limits.silent_ns and not p.held and p.waited_for is None
        ]
        if not silent:
            continue
        broker = brokers.get(leader)
        name = broker.name if broker is not None else str(leader)
        longest_ns = max(p.silent_ns for p in silent)
        troubles = sorted({p.trouble for p in silent if p.trouble})
        if troubles:
            text = f"For {_seconds(longest_ns)} Kafka has taken nothing for {_names(silent)}: {'; '.join(troubles)}."
            yield Problem("partition-silent", "critical", text, _REPLICAS, _names(silent, 3))
        elif len(silent) == len(found) and broker is not None and _owes(broker, limits):
            text = (
                f"Broker {name} answers questions, but has acknowledged nothing for {_seconds(longest_ns)}:"
                f" {_wait(silent)} for {_plural(silent)} that it leads: {_names(silent)}."
            )
            yield Problem("broker-silent", "critical", text, _HANGS, f"broker {leader}")
        else:
            text = (
                f"For {_seconds(longest_ns)} nothing has been acknowledged for {_names(silent)}, while records wait;"
                f" broker {name}, which leads {'it' if len(silent) == 1 else 'them'}, answers."
            )
            yield Problem("partition-silent", "critical", text, _REPLICAS, _names(silent, 3))


_HANGS: Final = (
    "Its disk or its request handlers hang: look at its log, its disk and its sockets in CLOSE_WAIT. Restart that one"
    " broker; restarting the gateway or the consumers changes nothing."
)
_REPLICAS: Final = (
    "Look at the partition's replicas: gateway topics describe TOPIC. Is one of them down, or are fewer in sync than"
    " min.insync.replicas asks for? Do not restart the gateway."
)


def _owes(broker: BrokerView, limits: HealthLimits) -> bool:
    """Whether it has answered to no batch at all for as long."""
    return broker.written_age_ns is None or broker.written_age_ns >= limits.silent_ns


# --- no leader ------------------------------------------------------------------------------------


def _about_leaderless(snapshot: HealthSnapshot, brokers: Mapping[int, BrokerView]) -> Iterator[Problem]:
    homes = {(p.topic, p.partition): p.replicas for p in snapshot.partitions}
    for topic in snapshot.readiness.topics:
        lasted_ns = snapshot.leaderless.get(topic.name, 0)
        if not topic.leaderless or lasted_ns < LEADERLESS_NS:
            continue
        there = {broker.id for broker in brokers.values() if not broker.away_ns}
        away = sorted({n for number in topic.leaderless for n in homes.get((topic.name, number), ())} - there)
        names = [brokers[number].name if number in brokers else str(number) for number in away]
        where = f" The brokers with their copies are away: {', '.join(names)}." if names else ""
        text = (
            f"For {_seconds(lasted_ns)} nobody has led {_numbers(topic.name, topic.leaderless)}: what comes for"
            f" {'it' if len(topic.leaderless) == 1 else 'them'} waits.{where}"
        )
        severity: Severity = "critical" if lasted_ns >= LEADERLESS_CRITICAL_NS else "warning"
        check = (
            "Bring the brokers back that have a copy: gateway topics describe, gateway leaders show. An unclean"
            " election would lose records: the last way out only."
        )
        yield Problem("partition-leaderless", severity, text, check, topic.name)


# --- quotas ---------------------------------------------------------------------------------------


def _about_quotas(snapshot: HealthSnapshot) -> Iterator[Problem]:
    for broker in snapshot.brokers:
        if broker.throttled_ns < THROTTLED_NS:
            continue
        led = [p for p in snapshot.partitions if p.leader == broker.id]
        text = (
            f"Broker {broker.name} told the gateway to wait for {_seconds(broker.throttled_ns)} of the last minute: a"
            f" quota is used up. {_wait(led)} for the partitions that it leads."
        )
        check = (
            "Raise the quota of the gateway's user or client id (producer_byte_rate, request_percentage):"
            " kafka-configs.sh --describe --entity-type users. The broker is well; do not restart it."
        )
        yield Problem("kafka-throttled", "warning", text, check, f"broker {broker.id}")


# --- words ----------------------------------------------------------------------------------------


def _waits_for(partition: PartitionView, broker: int) -> bool:
    """Whether a partition waits for the copy on a broker that is mute, or waited for it until it was put out."""
    return broker in partition.in_sync or broker == partition.waited_for


def _stranded(partition: PartitionView, broker: int) -> bool:
    """Whether nobody leads a partition that has a copy on a broker."""
    return partition.leader is None and broker in partition.replicas


def _mute_copy(partition: PartitionView, brokers: Mapping[int, BrokerView], limits: HealthLimits) -> int | None:
    """A broker that is mute and that the partition waits for."""
    for number in (partition.leader, *partition.in_sync):
        broker = brokers.get(number) if number is not None else None
        if broker is not None and broker.mute_ns >= limits.mute_ns:
            return broker.id
    return None


def _names(partitions: Iterable[PartitionView], most: int = NAMED) -> str:
    return _some(tuple(partition.name for partition in partitions), most)


def _numbers(topic: str, numbers: tuple[int, ...]) -> str:
    return _some(tuple(f"{topic}/{number}" for number in numbers))


def _some(names: tuple[str, ...], most: int = NAMED) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _plural(partitions: list[PartitionView]) -> str:
    return "the partition" if len(partitions) == 1 else f"{len(partitions)} partitions"


def _wait(partitions: Iterable[PartitionView]) -> str:
    count = sum(partition.waiting + partition.spooled for partition in partitions)
    return "1 record waits" if count == 1 else f"{count} records wait"


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.0f} s"
