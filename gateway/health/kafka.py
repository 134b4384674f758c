"""Problems between the gateway and Kafka: which brokers, which partitions, and the cause.

A partition acknowledges nothing for one of four reasons:

- its leader is mute: it answers no request at all;
- a follower is mute: with acks=all the leader waits for every in-sync replica, until the cluster removes the mute one
  (``broker.session.timeout.ms``, ``replica.lag.time.max.ms``). Every partition with a replica there waits;
- the leader answers requests for metadata, but no batches: its disk or its request handlers hang;
- the leader refuses batches and says why (too few replicas, no rights).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from config.numbers import some
from gateway.base.problem import Problem
from gateway.health.measured import leaderless
from gateway.health.model import IDLE_NS, SECOND_NS, WAITING_NS, BrokerView, HealthLimits, HealthSnapshot, PartitionView

STARTED_NS: Final = 10 * SECOND_NS  # a healthy Kafka answers a start in a tenth of that
RESTART_NS: Final = 60 * SECOND_NS  # a shorter stop in good order is a restart
LEADERLESS_NS: Final = 5 * SECOND_NS
LEADERLESS_CRITICAL_NS: Final = 12 * SECOND_NS  # elections are over by then
THROTTLED_NS: Final = 6 * SECOND_NS  # of a minute; shorter delays only smooth the flow
NAMED: Final = 12  # partitions in a sentence
SAID: Final = 2  # reasons in a sentence


def partition_health(partition: PartitionView, brokers: Mapping[int, BrokerView], limits: HealthLimits) -> str:
    """A word for /status: held, leaderless, silent, spooling, waiting, idle or ok."""
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
    """A word for /status: silent, unreachable, idle or ok."""
    if broker.mute_ns >= limits.mute_ns:
        return "silent" if broker.waiting else "unreachable"
    if broker.silent_ns >= limits.silent_ns:
        return "silent"
    idle = broker.last_ack_age_ns is None or broker.last_ack_age_ns > IDLE_NS
    return "idle" if idle and not broker.waiting else "ok"


def broker_silence_ns(broker: int, partitions: Iterable[PartitionView], mute: Collection[int]) -> int:
    """How long partitions have waited because of a broker. ``mute``: brokers that owe an answer.

    A mute broker is the cause for partitions that it leads, that wait for its replica, or that have a replica there and
    no leader. Another broker is the cause for partitions that it leads, unless they wait for a mute replica or it says
    why it refuses their batches.
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
    if snapshot.in_state_ns >= RESTART_NS:
        yield from _about_unlisted(snapshot.partitions, brokers)
    yield from _about_quotas(snapshot)


def _unreachable(snapshot: HealthSnapshot, limits: HealthLimits) -> Problem | None:
    """The problem that no broker answers, or None."""
    age_ns = snapshot.readiness.metadata_age_ns
    check = (
        "Check that the brokers run and that this machine reaches their addresses: gateway doctor. Do not restart the"
        " gateway: it continues when Kafka does."
    )
    if age_ns is None:
        if snapshot.in_state_ns < STARTED_NS:
            return None
        why = f" {snapshot.kafka_problem}" if snapshot.kafka_problem else ""
        text = f"Kafka has not answered since the start; asked: {', '.join(snapshot.kafka_addresses)}.{why}"
        return Problem("kafka-unreachable", "critical", text, check)
    if age_ns <= limits.readiness.metadata_stale_after_ns:
        return None
    names = ", ".join(broker.name for broker in snapshot.brokers if not broker.away_ns)
    said = dict.fromkeys(broker.problem.rstrip(".") for broker in snapshot.brokers if broker.problem)
    why = f" Last error: {'; '.join([*said][:SAID])}." if said else ""
    text = f"No Kafka broker has answered for {_seconds(age_ns)}: {names or ', '.join(snapshot.kafka_addresses)}.{why}"
    return Problem("kafka-unreachable", "critical", text, check)


def _about_dead_letters(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """Dead letters that Kafka refuses."""
    refused = [partition for partition in snapshot.partitions if partition.dead_letters_refused]
    if refused:
        text = (
            f"Kafka refuses dead letters for {_names(refused)}, and {_wait(refused)}:"
            f" {refused[0].dead_letters_refused.rstrip('.')}."
        )
        check = (
            "Check that topic's settings (gateway topics describe): max.message.bytes, and cleanup.policy (delete)."
            " Waiting dead letters are then written."
        )
        yield Problem("dead-letters-refused", "critical", text, check)


def _about_clock(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """Partitions for which Kafka refuses this machine's time."""
    refusing = [partition for partition in snapshot.partitions if partition.clock_refused]
    if refusing:
        text = (
            f"Kafka refuses the present time of this machine for {_plural(refusing)}: {_names(refusing)}."
            f" {_wait(refusing)}, in the spool if it is on."
        )
        check = (
            "Compare the clocks of this machine and of the brokers (timedatectl, chronyc tracking) and correct the"
            " wrong one: waiting records then get the present time and are delivered. If both are right, check the"
            " topic's message.timestamp.after.max.ms and message.timestamp.before.max.ms."
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
            parts.append(f"No broker leads {_names(stranded)}, which {have} a replica on it{waiting}.")
        if moved:
            parts.append(f"Other brokers lead {some(moved, NAMED)} now.")
        if behind:
            also = "waits too: its leader needs" if len(behind) == 1 else "wait too: their leaders need"
            parts.append(f"{_names(behind)} {also} the replica on it (acks=all).")
        yield Problem("broker-silent", "critical", " ".join(parts), _advice(broker), subject)
        return
    if stranded:
        then = f"No broker leads {_names(stranded)}, with a replica on it. Nothing waits yet; new messages will."
    elif led:
        then = f"It leads {_names(led)}. Nothing waits yet; new messages will."
    elif moved:
        then = f"Other brokers lead its partitions now ({some(moved, NAMED)}), and messages flow; each lacks a replica."
    else:
        then = "It leads no partition of the gateway."
    text = f"Broker {broker.name} has not answered for {_seconds(broker.mute_ns)}{how}. {then}"
    yield Problem("broker-unreachable", "warning", text, _advice(broker), subject)


def _about_unlisted(partitions: Iterable[PartitionView], brokers: Mapping[int, BrokerView]) -> Iterator[Problem]:
    """Brokers that left the cluster before this process began: only their replicas name them."""
    absent: dict[int, list[PartitionView]] = {}
    for partition in partitions:
        for number in set(partition.replicas) - brokers.keys():
            absent.setdefault(number, []).append(partition)
    for number, lacking in sorted(absent.items()):
        text = (
            f"Broker {number} has not been in the cluster since the gateway's start; no copy on it of {_names(lacking)}"
            " is up to date."
        )
        check = "Start that broker, or move its replicas to another. Do not restart the gateway: that repairs nothing."
        yield Problem("broker-unreachable", "warning", text, check, f"broker {number}")


def _advice(broker: BrokerView) -> str:
    """What to check on a mute broker."""
    if broker.refuses:
        then = "Start that broker; its log says why it ended."
    elif broker.accepts or broker.connected:
        then = "Check that broker's process, log, disk and network. If it is frozen, restart it."
    else:
        then = "Check that broker's machine and network; start the broker if it does not run."
    return f"{then} Do not restart the gateway or the consumers: that repairs nothing."


def _how(broker: BrokerView) -> str:
    """What is known of a mute broker, to follow "has not answered for 5 s"; may be empty."""
    if broker.refuses:
        return ": connections to it are refused, so its process does not run"
    if broker.accepts:
        return ", but accepts connections: it is frozen, or nearly so"
    if broker.connected:
        return ", but its connection is open: it is frozen, or disconnected"
    if broker.problem:
        return f": {broker.problem.rstrip('.')}"
    return ""


# --- a broker that answers ------------------------------------------------------------------------


def _about_leaders(
    partitions: Iterable[PartitionView], brokers: Mapping[int, BrokerView], limits: HealthLimits
) -> Iterator[Problem]:
    """Partitions whose leader answers, but acknowledges nothing: a problem for each leader."""
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
                f"Broker {name} answers requests, but has acknowledged nothing for {_seconds(longest_ns)}:"
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
    "Its disk or its request handlers hang: check its log, its disk and its sockets in CLOSE_WAIT. Restart that one"
    " broker; restarting the gateway or the consumers changes nothing."
)
_REPLICAS: Final = (
    "Check the partition's replicas (gateway topics describe TOPIC): one is down, or fewer are in sync than"
    " min.insync.replicas. Do not restart the gateway."
)


def _owes(broker: BrokerView, limits: HealthLimits) -> bool:
    """Whether the broker has answered no batch for that long."""
    return broker.written_age_ns is None or broker.written_age_ns >= limits.silent_ns


# --- no leader ------------------------------------------------------------------------------------


def _about_leaderless(snapshot: HealthSnapshot, brokers: Mapping[int, BrokerView]) -> Iterator[Problem]:
    """A problem for each topic that has had partitions without a leader for some time."""
    homes = {(p.topic, p.partition): p.replicas for p in snapshot.partitions}
    for topic in snapshot.readiness.topics:
        lasted_ns = snapshot.leaderless.get(topic.name, 0)
        if not topic.leaderless or lasted_ns < LEADERLESS_NS:
            continue
        there = {broker.id for broker in brokers.values() if not broker.away_ns}
        away = sorted({n for number in topic.leaderless for n in homes.get((topic.name, number), ())} - there)
        names = [brokers[number].name if number in brokers else str(number) for number in away]
        yield leaderless(
            some((f"{topic.name}/{number}" for number in topic.leaderless), NAMED),
            len(topic.leaderless),
            names,
            subject=topic.name,
            lasted_s=lasted_ns / 1e9,
            severity="critical" if lasted_ns >= LEADERLESS_CRITICAL_NS else "warning",
        )


# --- quotas ---------------------------------------------------------------------------------------


def _about_quotas(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """Brokers whose quota delayed batches."""
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
            " kafka-configs.sh --describe --entity-type users. The broker is healthy; do not restart it."
        )
        yield Problem("kafka-throttled", "warning", text, check, f"broker {broker.id}")


# --- words ----------------------------------------------------------------------------------------


def _waits_for(partition: PartitionView, broker: int) -> bool:
    """Whether a partition waits for a mute broker's replica, or waited until the replica was removed."""
    return broker in partition.in_sync or broker == partition.waited_for


def _stranded(partition: PartitionView, broker: int) -> bool:
    """Whether a partition with a replica on the broker has no leader."""
    return partition.leader is None and broker in partition.replicas


def _mute_copy(partition: PartitionView, brokers: Mapping[int, BrokerView], limits: HealthLimits) -> int | None:
    """The first broker with an in-sync replica, the leader before others, that owes an answer; None without one."""
    for number in (partition.leader, *partition.in_sync):
        broker = brokers.get(number) if number is not None else None
        if broker is not None and broker.mute_ns >= limits.mute_ns:
            return broker.id
    return None


def _names(partitions: Iterable[PartitionView], most: int = NAMED) -> str:
    return some((partition.name for partition in partitions), most)


def _plural(partitions: list[PartitionView]) -> str:
    return "the partition" if len(partitions) == 1 else f"{len(partitions)} partitions"


def _wait(partitions: Iterable[PartitionView]) -> str:
    count = sum(partition.waiting + partition.spooled for partition in partitions)
    return "1 record waits" if count == 1 else f"{count} records wait"


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.0f} s"
