"""What the health of a gateway is judged from, and what a judgement looks like. Plain values: no clock, no I/O.

Ages and lengths are nanoseconds up to the moment of the snapshot. What the event loop itself stood still is taken off
before: then nobody could have read an answer.
"""

from __future__ import annotations

__all__ = [
    "END_TO_END",
    "OBJECTIVE_S",
    "PRODUCE",
    "SLOW_S",
    "BrokerView",
    "BudgetView",
    "CpuView",
    "CredentialView",
    "HealthLimits",
    "HealthSnapshot",
    "PaceView",
    "PartitionView",
    "ProcessView",
    "SpoolView",
]

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Self

from gateway.base.readiness import ReadinessLimits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from config.settings import Settings
    from gateway.base.problem import Problem
    from gateway.base.readiness import ReadinessSnapshot


SECOND_NS: Final = 1_000_000_000
MUTE_NS: Final = 5 * SECOND_NS  # no election, collection or slow disk of a healthy broker takes as long
SILENT_NS: Final = (10 * SECOND_NS, 20 * SECOND_NS)  # bounds of what follows from kafka.request_timeout
WAITING_NS: Final = SECOND_NS  # below: on its way
IDLE_NS: Final = 60 * SECOND_NS
SLOW_DISK_S: Final = 0.25  # for a write of the spool; a disk that is well takes a hundredth of that
PRODUCE: Final = "produce-latency-high"
END_TO_END: Final = "end-to-end-latency-high"
# The alerts of these names ask for a p99 above them (deploy/prometheus/rules/gateway-kafka.yml).
SLOW_S: Final = {PRODUCE: 1.0, END_TO_END: 2.0}
OBJECTIVE_S: Final = 2.5  # deploy/prometheus/rules/gateway-slo.yml; a bucket's bound


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A Kafka broker. ``leads``: partitions in use. ``mute_ns``: for how long it has owed an answer, 0 when it owes
    none. ``written_age_ns``: since it last answered to a batch, be it no. ``lost``: partitions that were its own when
    it fell mute, and are led by others now. ``away_ns``: since the cluster stopped listing it; 0 while it does.
    ``accepts``: it takes connections, and says nothing on them; ``refuses``: it takes none. ``throttled_ns``: for how
    much of the last minute it has wanted no batches, a quota being used up.
    """

    id: int
    host: str
    port: int
    leads: int = 0
    waiting: int = 0
    last_ack_age_ns: int | None = None
    silent_ns: int = 0
    mute_ns: int = 0
    written_age_ns: int | None = None
    lost: tuple[str, ...] = ()
    away_ns: int = 0
    connected: bool = False
    refuses: bool = False
    accepts: bool = False
    problem: str | None = None
    throttled_ns: int = 0

    @property
    def name(self) -> str:
        """As sentences say it."""
        return f"{self.id} ({self.host}:{self.port})"

    @property
    def parted(self) -> bool:
        """Whether it went in good order: it handed its partitions over first, and has left the cluster or its machine
        says that nobody listens there."""
        return not self.leads and not self.lost and bool(self.away_ns or self.refuses)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition in use. ``silent_ns``: how long records have waited for it without any acknowledgement, wherever they
    wait (memory or spool); 0 while none wait. ``waited_for``: a mute broker that has a copy, and was in sync until a
    moment ago. ``held``: Kafka refuses our rights or our clock, so that
    it is left alone for a moment, or not even to be seen. ``clock_refused``: it refuses the present as our clock has
    it. ``dead_letters_refused``: why it does not take a dead letter, which waits. ``led_ns``: how long records have
    waited for the present leader: it is not to blame for the silence of the one before."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    waiting: int = 0
    waiting_bytes: int = 0
    spooled: int = 0
    last_ack_age_ns: int | None = None
    silent_ns: int = 0
    spooling: bool = False
    held: bool = False
    clock_refused: bool = False
    dead_letters_refused: str = ""
    led_ns: int = 3600 * SECOND_NS
    trouble: str | None = None
    waited_for: int | None = None

    @property
    def name(self) -> str:
        """As sentences say it."""
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class SpoolView:
    """The spool. ``problem`` says why it takes nothing; ``full`` that this is for want of room; ``oldest_s`` is the age
    of its oldest batch. ``fsync_s``: what half of the last minute's writes took at most; None where there were few."""

    bytes: int
    max_bytes: int
    messages: int = 0
    problem: str | None = None
    full: bool = False
    oldest_s: float = 0.0
    fsync_s: float | None = None

    @property
    def slow(self) -> bool:
        """Whether its disk is."""
        return self.fsync_s is not None and self.fsync_s > SLOW_DISK_S


@dataclass(frozen=True, slots=True)
class CredentialView:
    """Something that is shown to prove who we are, or who the servers are. ``left_s``: until it expires; None when
    nobody can tell. ``failing_ns``: for how long there has been no newer one although one was asked for."""

    name: str
    kind: Literal["certificate", "server_certificate", "token"]
    left_s: float | None = None
    failing_ns: int = 0


@dataclass(frozen=True, slots=True)
class ProcessView:
    """This process. ``blocked``: times in the last minute that the event loop was late by more than a second, and
    ``blocked_ns`` the longest of them. ``memory``: bytes the container or machine counts, and allows (0: no limit)."""

    blocked: int = 0
    blocked_ns: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    descriptors: int = 0
    descriptor_limit: int = 0


@dataclass(frozen=True, slots=True)
class PaceView:
    """A way that is timed. ``id`` is the problem that it makes when it is slow, ``route`` empty for Kafka's answers.
    ``now`` and ``lately``: the share above ``SLOW_S`` within the last 20 s and the last five minutes. ``lasted_ns``:
    for how long more than one in a hundred of the last five minutes has been above it."""

    id: str
    route: str
    now: float
    lately: float
    lasted_ns: int = 0


@dataclass(frozen=True, slots=True)
class BudgetView:
    """Messages later than ``OBJECTIVE_S``, and all, within so many minutes."""

    minutes: int
    late: float
    all: float

    @property
    def share(self) -> float:
        """0 without any."""
        return self.late / self.all if self.all else 0.0


@dataclass(frozen=True, slots=True)
class CpuView:
    """Shares of the last minute: this process was ready and had no CPU (``waited``; None where the kernel does not
    tell), its container was stopped for its quota (``throttled``), somebody in it, or on the machine, had no CPU
    (``pressure``)."""

    waited: float | None = None
    throttled: float = 0.0
    pressure: float = 0.0


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """Everything known at one moment. ``disconnected``, ``saturated`` and ``unanswered`` (messages come, SUBACK does
    not) are session name to length; ``overrun`` is session name to the most messages that were unacknowledged beyond
    what we announced; ``leaderless`` topic to length. ``dead_letters`` counts those of the last quarter of an hour.
    ``said`` are problems that others have found (EMQX, the canary, a reload), judged already. ``kafka_problem``: why
    Kafka could not be reached at the start. ``ways``, ``budget`` and ``cpu`` say how fast messages go through,
    ``workers`` how many share the work; ``ten_minutes`` and ``quarter`` (of an hour) what has been counted meanwhile
    (``gateway.health.counts``)."""

    readiness: ReadinessSnapshot
    in_state_ns: int = 3600 * SECOND_NS
    kafka_addresses: tuple[str, ...] = ()
    kafka_problem: str | None = None
    brokers: tuple[BrokerView, ...] = ()
    partitions: tuple[PartitionView, ...] = ()
    refused_topics: tuple[str, ...] = ()
    disconnected: dict[str, int] = field(default_factory=dict)
    saturated: dict[str, int] = field(default_factory=dict)
    unanswered: dict[str, int] = field(default_factory=dict)
    overrun: dict[str, int] = field(default_factory=dict)
    leaderless: dict[str, int] = field(default_factory=dict)
    buffer_bytes: int = 0
    buffer_limit_bytes: int = 0
    spool: SpoolView | None = None
    dead_letters: int = 0
    last_dead_letter: str = ""
    imbalance: int = 0
    orphans: tuple[tuple[str, str | None], ...] = ()
    credentials: tuple[CredentialView, ...] = ()
    process: ProcessView = ProcessView()
    ways: tuple[PaceView, ...] = ()
    budget: tuple[BudgetView, ...] = ()
    cpu: CpuView = field(default_factory=CpuView)
    workers: int = 1
    ten_minutes: Mapping[str, float] = field(default_factory=dict)
    quarter: Mapping[str, float] = field(default_factory=dict)
    failing_ns: int = 0
    intervals_waiting: int = 0
    half_closed: int = 0
    said: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """From when on something is a problem."""

    readiness: ReadinessLimits
    silent_ns: int = SILENT_NS[0]
    mute_ns: int = MUTE_NS

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """``silent_ns``: two answers may stay out for as long as ``kafka.request_timeout`` before a partition whose
        leader is well is called silent: an election takes half of that."""
        lowest, highest = SILENT_NS
        return cls(
            readiness=ReadinessLimits.from_settings(settings),
            silent_ns=min(max(lowest, 2 * _ns(settings.kafka.request_timeout)), highest),
        )


def _ns(length: timedelta) -> int:
    return round(length.total_seconds() * 1e9)
