"""The problems of a worker, worst first, from a snapshot. Pure.

/status, the status page and ``gateway doctor`` show this list. It agrees with readiness: whatever keeps /readyz red for
long is a problem here. A start, a restart of one broker and a short break of an MQTT connection are not long.
"""

from collections.abc import Iterator
from typing import Final

from gateway.base.lifecycle import State
from gateway.base.problem import Problem, Severity
from gateway.health.counts import count_problems
from gateway.health.kafka import kafka_problems
from gateway.health.measured import certificate_expires, descriptors_low, disk_slow
from gateway.health.model import SECOND_NS, HealthLimits, HealthSnapshot
from gateway.health.pace_verdicts import pace_problems

DISCONNECTED_NS: Final = 5 * SECOND_NS
DISCONNECTED_CRITICAL_NS: Final = 30 * SECOND_NS
SUBACK_NS: Final = 60 * SECOND_NS
SATURATED_NS: Final = 60 * SECOND_NS
FILLING: Final = 0.8  # of the spool
NEARLY: Final = 0.9
BLOCKED_TIMES: Final = 3  # in a minute; the machine may cause one
BLOCKED_NS: Final = 5 * SECOND_NS  # a sixth of the usual keepalive, a third of what EMQX waits for a blocked client
ORPHANS_NS: Final = 300 * SECOND_NS
TOKEN_FAILING_NS: Final = 60 * SECOND_NS

_TAKING: Final = frozenset({State.RECOVERY, State.RUNNING})  # earlier states have no sessions
_ORDER: Final = (
    "ledger-imbalance",
    "kafka-unreachable",
    "broker-silent",
    "partition-leaderless",
    "partition-silent",
    "acl-refused",
    "clock",
)


def problems(snapshot: HealthSnapshot, limits: HealthLimits) -> tuple[Problem, ...]:
    """The present problems, worst first; empty while all is well."""
    state = snapshot.readiness.state
    found = [*_about_ledger(snapshot)]
    if state is not State.NOT_RUNNING:
        found += kafka_problems(snapshot, limits)
        found += _about_topics(snapshot)
        found += _about_age(snapshot, limits)
        found += _about_spool(snapshot)
        found += _about_process(snapshot)
        found += _about_credentials(snapshot)
        found += _about_dead_letters(snapshot)
        found += pace_problems(snapshot)
        found += count_problems(snapshot)
    if state in _TAKING:
        found += _about_sessions(snapshot)
    found += snapshot.said
    return tuple(sorted(found, key=_rank))


def _rank(problem: Problem) -> tuple[int, int, str, str]:
    place = _ORDER.index(problem.id) if problem.id in _ORDER else len(_ORDER)
    return (int(problem.severity != "critical"), place, problem.id, problem.subject)


def _about_ledger(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """Messages that the ledger counts in no term, or twice."""
    count = snapshot.imbalance
    if count:
        what = f"{count} messages are missing" if count > 0 else f"{-count} messages were counted twice"
        text = f"The ledger does not balance: {what}."
        check = "This is a defect. Save log and /status, run gateway verify, and report it."
        yield Problem("ledger-imbalance", "critical", text, check)


def _about_topics(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """Topics that are refused, missing or unusable. None before Kafka has answered."""
    if snapshot.readiness.metadata_age_ns is None:
        return
    refused = set(snapshot.refused_topics)
    for topic in snapshot.readiness.topics:
        if topic.name in refused:
            why = (topic.problem or "no right to see it").rstrip(".")
            text = f"Kafka does not let the gateway write to topic {topic.name}: {why}."
            check = "Grant the gateway's user Describe and Write on it; the held messages are then delivered."
            yield Problem("acl-refused", "critical", text, check, topic.name)
        elif not topic.partitions:
            text = f"Kafka topic {topic.name} does not exist, but a route writes to it."
            check = "Create it (gateway topics plan, gateway topics apply), or set kafka.topics.create."
            yield Problem("topic-missing", "critical", text, check, topic.name)
        elif topic.problem and not _said_of_partitions(topic.name, snapshot):
            text = f"Kafka topic {topic.name} cannot be used: {topic.problem.rstrip('.')}."
            check = "gateway topics describe shows its present state."
            yield Problem("topic-unusable", "critical", text, check, topic.name)


def _said_of_partitions(topic: str, snapshot: HealthSnapshot) -> bool:
    """Whether its partitions have the problem, which is reported once they are silent."""
    return any(p.topic == topic and p.trouble for p in snapshot.partitions)


def _about_age(snapshot: HealthSnapshot, limits: HealthLimits) -> Iterator[Problem]:
    """Messages that wait too long, and routes that stopped."""
    age_ns = snapshot.readiness.oldest_unacked_age_ns
    if age_ns is not None and age_ns > limits.readiness.overdue_after_ns:
        allowed_s = limits.readiness.overdue_after_ns / 1e9
        text = (
            f"The oldest message has waited {age_ns / 1e9:.0f} s to be acknowledged to MQTT, longer than"
            f" http.overdue_after ({allowed_s:g} s)."
        )
        check = "The other problems here name the cause: a silent partition, a stopped route, a full spool."
        yield Problem("oldest-unacked-too-old", "critical", text, check)
    for sentence in snapshot.readiness.stopped_routes:
        check = "gateway dlq list shows the reasons. Repair the devices or the route; it then continues by itself."
        subject = sentence.split("'")[1] if sentence.count("'") > 1 else ""
        yield Problem("route-stopped", "critical", sentence, check, subject)


def _about_sessions(snapshot: HealthSnapshot) -> Iterator[Problem]:
    if snapshot.readiness.state is State.RUNNING and not snapshot.readiness.sessions:
        yield Problem(
            "mqtt-disconnected",
            "warning",
            "There is no MQTT session: this worker receives nothing.",
            "mqtt.sessions; a worker that is retired drains, and ends by itself.",
        )
    for session in snapshot.readiness.sessions:
        if session.name in snapshot.unanswered:
            waited_ns = snapshot.unanswered[session.name]
            if waited_ns >= SUBACK_NS:
                text = (
                    f"MQTT session {session.name} ({session.client_id}) has had no SUBACK for {waited_ns / 1e9:.0f} s:"
                    " the broker sends the session's queue first."
                )
                check = (
                    "Nothing is lost: messages go to Kafka. With buffer-full, Kafka is too slow. If it lasts, see the"
                    " broker's log: it does not answer SUBSCRIBE."
                )
                yield Problem("suback-late", "warning", text, check, f"session {session.name}")
            continue
        lasted_ns = snapshot.disconnected.get(session.name, 0)
        if session.subscribed or lasted_ns < DISCONNECTED_NS:
            continue
        severity: Severity = "critical" if lasted_ns >= DISCONNECTED_CRITICAL_NS else "warning"
        because = f": {session.problem.rstrip('.')}" if session.problem else ""
        end = "" if because.endswith(("?", "!")) else "."
        what = "has no subscriptions" if session.connected else "is not connected"
        text = f"MQTT session {session.name} ({session.client_id}) {what} for {lasted_ns / 1e9:.0f} s{because}{end}"
        check = "EMQX queues 1000 messages for it by default, then drops. gateway doctor tests each address."
        yield Problem("mqtt-disconnected", severity, text, check, f"session {session.name}")
    long = [name for name, lasted_ns in snapshot.saturated.items() if lasted_ns >= SATURATED_NS]
    if long:
        names = ", ".join(sorted(long))
        text = f"The window of MQTT session {names} has been full for a minute: EMQX queues the rest."
        slow = snapshot.spool is not None and snapshot.spool.fsync_s is not None and disk_slow(snapshot.spool.fsync_s)
        first = "The disk of data_dir first (disk-slow)" if slow else "Kafka's latency first"
        check = (
            f"{first}; then a larger window (mqtt.receive_maximum and EMQX's mqtt.max_inflight), more sessions or"
            " workers."
        )
        yield Problem("window-saturated", "warning", text, check)
    if snapshot.overrun:
        names = ", ".join(sorted(snapshot.overrun))
        most = max(snapshot.overrun.values())
        text = (
            f"The broker had {most} messages unacknowledged on MQTT session {names}, more than the window that the"
            " gateway announced (mqtt.receive_maximum) allows."
        )
        check = (
            "mosquitto before 2.0.13 does so after a broken connection, and repeats acknowledged messages: Kafka gets"
            " duplicates. gateway doctor --only mqtt shows the version; use a later one."
        )
        yield Problem("window-overrun", "warning", text, check)
    if snapshot.orphans and snapshot.readiness.state is State.RUNNING:
        troubled = [f"{client_id} ({problem})" for client_id, problem in snapshot.orphans if problem]
        if troubled or snapshot.in_state_ns >= ORPHANS_NS:
            names = ", ".join((troubled or [client_id for client_id, _ in snapshot.orphans])[:5])
            text = f"{len(snapshot.orphans)} MQTT sessions of earlier settings are not drained yet: {names}."
            check = "Nothing else reads their messages. Check that mqtt.addresses and the credentials still fit them."
            yield Problem("orphan-sessions", "warning", text, check)


def _about_spool(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """A slow disk; a spool that is full, broken or filling."""
    spool = snapshot.spool
    if spool is None:
        return
    if spool.fsync_s is not None and (slow := disk_slow(spool.fsync_s)):
        yield slow
    held = f"{spool.messages} messages, {spool.bytes / 1e6:.1f} of {spool.max_bytes / 1e6:.1f} MB"
    if spool.problem is not None and spool.full:
        text = f"The spool is full ({held}): the gateway acknowledges only what Kafka takes."
        check = "Repair Kafka. If the disk has room, raise spool.max_bytes (gateway reload)."
        yield Problem("spool-full", "critical", text, check)
    elif spool.problem is not None:
        text = f"The spool's disk fails: {spool.problem.rstrip('.')}. Messages that it refuses wait in EMQX."
        check = "Check the disk of data_dir: space, errors, rights. Do not delete the spool: it has the only copy."
        yield Problem("spool-broken", "critical", text, check)
    elif spool.max_bytes and spool.bytes >= FILLING * spool.max_bytes:
        text = f"The spool is filling: {held}."
        check = "Repair Kafka. When the spool is full, EMQX's queues fill and then drop messages."
        yield Problem("spool-filling", "warning", text, check)


def _about_dead_letters(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """The dead letters of the last quarter of an hour."""
    count = snapshot.dead_letters
    if count:
        last = f" The last one: {snapshot.last_dead_letter.rstrip('.')}." if snapshot.last_dead_letter else ""
        became = "message became a dead letter" if count == 1 else "messages became dead letters"
        text = f"{count} {became} in the last 15 minutes.{last}"
        check = "gateway dlq list shows them; after the repair, gateway dlq replay sends them."
        yield Problem("dead-letters", "warning", text, check)


def _about_process(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """Event loop, memory, buffer and descriptors at their limits."""
    process = snapshot.process
    if process.blocked >= BLOCKED_TIMES or process.blocked_ns >= BLOCKED_NS:
        text = (
            f"The event loop stood still {process.blocked} times in a minute, up to {process.blocked_ns / 1e9:.1f} s."
            " Keepalives and acknowledgements waited."
        )
        check = "With cpu-starved: more CPU. Otherwise a slow interceptor (gateway_intercept_seconds)."
        yield Problem("event-loop-blocked", "warning", text, check)
    limit = process.memory_limit_bytes
    if limit and process.memory_bytes >= NEARLY * limit:
        used = f"{process.memory_bytes / 1e6:.0f} MB of {limit / 1e6:.0f} MB"
        text = f"{used} of memory are in use. At the limit the kernel kills the process."
        check = "flow.memory_bytes and about 60 MiB for each worker must fit within the limit."
        yield Problem("memory-high", "warning", text, check)
    if snapshot.buffer_limit_bytes and snapshot.buffer_bytes >= NEARLY * snapshot.buffer_limit_bytes:
        used = f"{snapshot.buffer_bytes / 1e6:.0f} of {snapshot.buffer_limit_bytes / 1e6:.0f} MB (flow.memory_bytes)"
        text = f"Records in memory take {used}: reading from MQTT pauses."
        check = (
            "Kafka takes less than MQTT sends: see the other problems and gateway_kafka_produce_seconds; add workers."
        )
        yield Problem("buffer-full", "warning", text, check)
    if low := descriptors_low(process.descriptors, process.descriptor_limit):
        yield low


def _about_credentials(snapshot: HealthSnapshot) -> Iterator[Problem]:
    """Certificates that expire soon, and sources that have given no token for some time."""
    for credential in snapshot.credentials:
        left_s = credential.left_s
        if credential.kind != "token" and left_s is not None:
            expires = certificate_expires(credential.name, left_s, is_ours=credential.kind == "certificate")
            if expires is not None:
                yield expires
        if credential.kind == "token" and credential.failing_ns >= TOKEN_FAILING_NS:
            expired = left_s is not None and left_s <= 0
            text = f"For {credential.failing_ns / 1e9:.0f} s there has been no new token for {credential.name}"
            text += ", and the last one has expired." if expired else "; the last one is used until it expires."
            check = "Check the identity provider and the client's secret; the log's token_failed has its answer."
            yield Problem("token-failing", "critical" if expired else "warning", text, check, credential.name)
