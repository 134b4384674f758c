"""The decision behind ``/readyz``: would a message that arrives now reach Kafka in time? Pure: a snapshot goes in, an
answer comes out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from config.errors import sentence
from config.numbers import some
from config.settings import Settings
from config.values.grammar import nanoseconds
from gateway.base.lifecycle import State


@dataclass(frozen=True, slots=True)
class SessionView:
    """One MQTT session. ``subscribed``: every filter granted by a SUBACK of the present connection. ``problem``: the
    last failure. ``window``: messages the broker sends it unacknowledged.
    """

    name: str
    connected: bool
    subscribed: bool
    unacked: int = 0
    problem: str | None = None
    client_id: str = ""
    window: int = 0


@dataclass(frozen=True, slots=True)
class TopicView:
    """One routed Kafka topic in the latest metadata. No partitions: the topic does not exist. ``used``: over how many
    of them messages are spread; None before the first one. ``silent``: partitions for which records wait, in memory or
    on disk, and for how many nanoseconds none was acknowledged.
    """

    name: str
    partitions: int
    leaderless: tuple[int, ...] = ()
    problem: str | None = None
    used: int | None = None
    silent: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadinessSnapshot:
    """What the worker knows at one moment. Ages are nanoseconds up to that moment.

    ``metadata_age_ns`` is None until Kafka has answered a metadata request in this life; a failed refresh does not
    renew it. ``topics`` are the routed ones: those fixed in the settings, and those of a template that were made so
    far. ``oldest_unacked_age_ns`` is the age of the oldest message received and not yet settled; None when there is
    none. ``stopped_routes`` are sentences about routes that hold their messages.
    """

    state: State
    sessions: tuple[SessionView, ...]
    metadata_age_ns: int | None
    topics: tuple[TopicView, ...]
    oldest_unacked_age_ns: int | None
    stopped_routes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadinessLimits:
    """Beyond these ages the answer is no."""

    overdue_after_ns: int
    metadata_stale_after_ns: int

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """``http.overdue_after``; and metadata that missed two refreshes and one request time-out (7 s by default)."""
        return cls(
            overdue_after_ns=nanoseconds(settings.http.overdue_after),
            metadata_stale_after_ns=nanoseconds(2 * settings.kafka.metadata_max_age + settings.kafka.request_timeout),
        )


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer: ``reasons`` are sentences saying what is missing, empty exactly when ready."""

    reasons: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether to send traffic, or to count this worker as there."""
        return not self.reasons


def decide(snapshot: ReadinessSnapshot, limits: ReadinessLimits) -> Readiness:
    """Ready only if a message arriving now is expected to be subscribed to, written and acknowledged in time."""
    return Readiness(
        (
            *_about_state(snapshot.state),
            *_about_sessions(snapshot.sessions),
            *_about_kafka(snapshot, limits),
            *snapshot.stopped_routes,
            *_about_age(snapshot, limits),
        )
    )


def _about_state(state: State) -> Iterator[str]:
    """The reason against readiness in every state but RUNNING."""
    match state:
        case State.RUNNING:
            return
        case State.NOT_RUNNING:
            yield "The worker is not running."
        case State.STARTING:
            yield "The worker is starting."
        case State.RECOVERY:
            yield "The worker is still delivering what its last life left behind."
        case State.PENDING_CONTROLLED_SHUTDOWN | State.SHUTTING_DOWN:
            yield "The worker is stopping."


def _about_sessions(sessions: tuple[SessionView, ...]) -> Iterator[str]:
    """Reasons against readiness: no session, or one that is not subscribed."""
    if not sessions:
        yield "There is no MQTT session."
    for session in sessions:
        because = f": {session.problem}" if session.problem else ""
        if not session.connected:
            yield sentence(f"MQTT session {session.name} is not connected{because}")
        elif not session.subscribed:
            yield sentence(
                f"MQTT session {session.name} is connected, but its subscriptions are not granted yet{because}"
            )


def _about_kafka(snapshot: ReadinessSnapshot, limits: ReadinessLimits) -> Iterator[str]:
    """Reasons against readiness: no metadata, topics that cannot take records, partitions that do not answer."""
    age_ns = snapshot.metadata_age_ns
    if age_ns is None:
        yield (
            "Kafka has not answered a metadata request since the start; check kafka.bootstrap_servers and whether the"
            " brokers run."
        )
        return
    if age_ns > limits.metadata_stale_after_ns:
        yield (
            f"Kafka's metadata is {_seconds(age_ns)} old and could not be refreshed"
            f" (limit {_seconds(limits.metadata_stale_after_ns)}); the brokers do not answer."
        )
    for topic in snapshot.topics:
        if topic.problem:
            yield f"Kafka topic {topic.name} cannot be used: {topic.problem.rstrip('.')}."
        elif not topic.partitions:
            yield f"Kafka topic {topic.name} does not exist; create it, or set kafka.topics.create."
        elif topic.leaderless:
            yield (
                f"Kafka topic {topic.name} has no leader for {len(topic.leaderless)} of {topic.partitions} partitions"
                f" ({some(topic.leaderless)})."
            )
        elif late := [(number, age_ns) for number, age_ns in topic.silent if age_ns > limits.overdue_after_ns]:
            # Also while the spool takes the messages: leaders can be known and metadata fresh where nobody writes.
            yield (
                f"Kafka has acknowledged nothing for {_seconds(max(age_ns for _, age_ns in late))} on {len(late)} of"
                f" {topic.partitions} partitions of topic {topic.name} ({some(number for number, _ in late)}),"
                " while records wait."
            )


def _about_age(snapshot: ReadinessSnapshot, limits: ReadinessLimits) -> Iterator[str]:
    """Why the oldest message that waits for Kafka makes the worker unready."""
    age_ns = snapshot.oldest_unacked_age_ns
    if age_ns is not None and age_ns > limits.overdue_after_ns:
        yield (
            f"The oldest message has waited {_seconds(age_ns)} for Kafka's acknowledgement, longer than"
            f" http.overdue_after ({_seconds(limits.overdue_after_ns)})."
        )


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.1f} s"
