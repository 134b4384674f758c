"""Verdicts over each Kafka broker: reachable, login accepted, batches accepted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from config.errors import ExitStatus, sentence
from config.numbers import many, some
from gateway.tools.doctor.endpoint_verdicts import SLOW_S, judge_endpoint
from gateway.tools.doctor.wording import milliseconds

if TYPE_CHECKING:
    from bridge.kafka.probe import ProbeError
    from config.settings import KafkaSettings
    from gateway.tools.doctor.kafka_facts import BrokerFacts, Known, Place
    from gateway.tools.doctor.model import Findings

_REFUSED_AS_WANTED: Final = {"CORRUPT_MESSAGE", "INVALID_RECORD"}
_MOVED: Final = {
    "NOT_LEADER_FOR_PARTITION",
    "NOT_LEADER_OR_FOLLOWER",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "FENCED_LEADER_EPOCH",
}
_TOO_FEW: Final = {"NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"}
_RIGHTS: Final = {"TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"}
_DISK: Final = {"KAFKA_STORAGE_ERROR"}


def judge_brokers(findings: Findings, settings: KafkaSettings, known: Known, brokers: Iterable[BrokerFacts]) -> None:
    """Judge each broker's connection, login and produce requests; what lies behind a failed step is skipped."""
    for broker in brokers:
        listed = "kafka.bootstrap_servers" if broker.bootstrap else "advertised.listeners of the broker"
        assert broker.endpoint is not None
        because = judge_endpoint(
            findings,
            broker.name,
            broker.endpoint,
            listed,
            encrypted=settings.security.endswith("SSL"),
            table="kafka.tls",
            consequence=_consequence(known, broker),
        )
        if because:
            findings.skip(("login", "produce"), f"Not tried: {because}.", broker.name)
        elif not _judge_login(findings, settings, known, broker):
            findings.of("produce", broker.name).skip("Not tried: the gateway is not let in (login).")
        else:
            _judge_produce(findings, settings, known, broker)


def silent_nodes(brokers: Iterable[BrokerFacts]) -> dict[int, BrokerFacts]:
    """By number the brokers that do not answer at all, or not to produce requests."""
    return {
        one.node: one
        for one in brokers
        if one.node is not None
        and (not one.answers or (one.unproduced is not None and one.unproduced.kind == "silent"))
    }


def places_text(places: Iterable[Place]) -> str:
    """The first few as ``telemetry/0, 3, 7; ledger/1``."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in places:
        by_topic.setdefault(topic, []).append(number)
    texts = [f"{topic}/{some(sorted(numbers), 12)}" for topic, numbers in by_topic.items()]
    return "; ".join(texts[:6]) + (f"; and of {len(texts) - 6} more topics" if len(texts) > 6 else "")


def _consequence(known: Known, broker: BrokerFacts) -> str:
    """Sentences about the gateway's partitions that wait for a broker; empty if none do."""
    layout, node = known.layout, broker.node
    if layout is None or node is None:
        return ""
    ours = [(topic, one) for topic in known.ours for one in layout.topics.get(topic, ())]
    led = [(topic, one.number) for topic, one in ours if one.leader == node]
    orphaned = [(topic, one.number) for topic, one in ours if one.leader < 0 and node in one.replicas]
    waiting = [(topic, one.number) for topic, one in ours if one.leader not in {-1, node} and node in one.in_sync]
    text = ""
    if led:
        text += (
            f" It leads {many(len(led), 'partition')} of the gateway's topics, which stand still: {places_text(led)}."
        )
    if orphaned:
        have = "has" if len(orphaned) == 1 else "have"
        text += f" Without it {many(len(orphaned), 'partition')} {have} no leader: {places_text(orphaned)}."
    if waiting:
        text += (
            f" It still counts as in sync for {many(len(waiting), 'more partition')}, which wait for it at acks=all "
            f"until it is dropped (replica.lag.time.max.ms): {places_text(waiting)}."
        )
    if not text:
        text = " None of the gateway's partitions waits for it now: others lead them."
    return text


def _judge_login(findings: Findings, settings: KafkaSettings, known: Known, broker: BrokerFacts) -> bool:
    """Returns whether the broker lets the gateway in."""
    who = "" if settings.sasl is None or settings.sasl.username is None else f" as {settings.sasl.username!r}"
    trouble, check = broker.login, findings.of("login", broker.name)
    if trouble is None:
        text = f"Logged in{who} in {milliseconds(broker.login_s)}."
        if broker.login_s > SLOW_S:
            check.warn(
                f"{text} A broker that is well takes milliseconds: this one is slow.",
                "Look at its load, its garbage collection and its disks.",
                seconds=broker.login_s,
                state="slow",
            )
        elif broker.fenced:
            check.warn(
                f"{text} But the cluster does not count on it: it is fenced, for the controller does not hear from it.",
                "Look at its log: it is starting, stopping, or cannot reach the controllers.",
                state="fenced",
            )
        else:
            check.ok(text, seconds=broker.login_s)
        return True
    _fail_login(findings, settings, broker, trouble, _consequence(known, broker), who)
    return False


def _fail_login(
    findings: Findings, settings: KafkaSettings, broker: BrokerFacts, trouble: ProbeError, consequence: str, who: str
) -> None:
    """The verdict on a login that failed. ``consequence`` and ``who`` are parts of its sentences, or empty."""
    status, state = ExitStatus.UNAVAILABLE, str(trouble.kind)
    if trouble.kind == "silent":
        text = (
            f"It takes connections and answers nothing, within {milliseconds(trouble.seconds)}: it is frozen, not "
            f"dead.{consequence}"
        )
        fix = (
            "Restart this broker, not the gateway nor the consumers. Before: jstack of its process, its log's last "
            "lines and its disks, which say why."
        )
        state = "frozen"
    elif trouble.kind == "refused":
        text = f"It refuses the gateway{who}: {trouble}."
        fix = "Check kafka.sasl (mechanism, username, password or token) against this broker's users."
        status = ExitStatus.REFUSED
    elif trouble.kind == "token":
        text, fix = f"There is no token to show to it: {trouble}", "See kafka.sasl.token and its source."
    else:
        text = f"It takes the connection and hangs up: {trouble}.{consequence}"
        fix = (
            f"Is this the port of its {settings.security} listener (kafka.security)? Its log says what it took us for."
        )
    findings.of("login", broker.name).fail(text, fix, status=status, state=state, seconds=trouble.seconds)


def _judge_produce(findings: Findings, settings: KafkaSettings, known: Known, broker: BrokerFacts) -> None:
    """By the answers to batches with a wrong checksum, which a healthy leader refuses."""
    check = findings.of("produce", broker.name)
    if broker.unproduced is not None:
        _fail_produce(findings, broker, broker.unproduced, _consequence(known, broker))
        return
    if broker.produced is None:
        why = known.why and f" ({known.why})"
        check.skip(f"Not tried: it leads none of the gateway's partitions{why}.")
        return
    answers, seconds = broker.produced.answers, broker.produced.seconds
    by_error: dict[str, list[Place]] = {}
    for place, error in sorted(answers.items()):
        by_error.setdefault(error, []).append(place)
    well = sum(len(places) for error, places in by_error.items() if error in _REFUSED_AS_WANTED)
    for error, places in by_error.items():
        if error not in _REFUSED_AS_WANTED:
            _judge_answer(findings, settings, broker.name, error, places)
    if not well:
        return
    text = f"Takes records for {many(well, 'partition')} that it leads, in {milliseconds(seconds)}."
    if seconds > SLOW_S:
        check.warn(
            f"{text} An ordinary answer takes milliseconds: it is slow.",
            "Look at its disks and request queue (RequestQueueTimeMs, RequestHandlerAvgIdlePercent).",
            seconds=seconds,
            state="slow",
            partitions=well,
        )
    else:
        check.ok(text, seconds=seconds, partitions=well)


def _fail_produce(findings: Findings, broker: BrokerFacts, trouble: ProbeError, consequence: str) -> None:
    """The verdict where no answer came. ``consequence`` ends its sentence, unless the stalled partitions are known."""
    check = findings.of("produce", broker.name)
    if trouble.kind != "silent":
        check.fail(
            f"It let the gateway in and hung up on a produce request: {trouble}.{consequence}",
            "See its log. A request above its socket.request.max.bytes, or a proxy between, can do that.",
            status=ExitStatus.UNAVAILABLE,
            state="closed",
        )
        return
    only = ""
    if broker.stalled and not broker.unasked:
        only = f" Asked one by one, these do not answer: {places_text(broker.stalled)}."
    check.fail(
        f"It answers logins and not produce requests, within {milliseconds(trouble.seconds)}: its request "
        f"threads or a disk stand still.{only or consequence}",
        "Restart this broker, not the gateway nor the consumers. Before: jstack of its process and its disks, which "
        "say why.",
        status=ExitStatus.UNAVAILABLE,
        state="stalled",
        stalled=[f"{topic}/{number}" for topic, number in broker.stalled],
    )


def _judge_answer(findings: Findings, settings: KafkaSettings, about: str, error: str, places: list[Place]) -> None:
    """The verdict on partitions that answered a produce request with this error; without one they took the batch."""
    check = findings.of("produce", about)
    where, status = places_text(places), ExitStatus.FAILED
    if error in _RIGHTS:
        who = "the gateway" if settings.sasl is None else f"user {settings.sasl.username!r}"
        text = f"Kafka does not let {who} write to {where} ({error})."
        fix = "Give it the right: kafka-acls --add --allow-principal User:… --operation Write --topic …"
        status = ExitStatus.REFUSED
    elif error in _TOO_FEW:
        text = f"Fewer replicas are in sync than min.insync.replicas asks for: nothing can be written to {where}."
        fix = "Bring the brokers back that hold the other replicas; do not lower min.insync.replicas first."
        status = ExitStatus.UNAVAILABLE
    elif error in _DISK:
        text = f"It cannot write to the disk of {where} ({error})."
        fix = "Look at its disks (full, read-only, broken) and its log; then restart it."
    elif error in _MOVED:
        check.warn(
            f"It does not lead {where} any more ({error}): leaders are moving just now.",
            "Run doctor again in some seconds; if it stays so, this broker's metadata are old: restart it.",
            error=error,
        )
        return
    elif not error:
        text = f"It took a batch with a wrong checksum for {where}: it is no Apache Kafka, or does not check."
        fix = "Each run may leave a broken record there: use --only for the other groups."
    else:
        text = f"It refuses records for {where}: {sentence(str(error))}"
        fix = "See its log for the reason."
    check.fail(text, fix, status=status, error=error, partitions=len(places))
