"""The facts that the health of a gateway is judged from. Plain values: no clock, no I/O.

Ages and lengths are nanoseconds up to the moment of the snapshot, without the time in which the event loop stood still.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from config.settings import Settings
from config.values.grammar import nanoseconds
from gateway.base.problem import Problem
from gateway.base.readiness import ReadinessLimits, ReadinessSnapshot

SECOND_NS: Final = 1_000_000_000
MUTE_NS: Final = 5 * SECOND_NS  # no election, collection or slow disk of a healthy broker takes as long
SILENT_NS: Final = (10 * SECOND_NS, 20 * SECOND_NS)  # bounds for twice kafka.request_timeout
WAITING_NS: Final = SECOND_NS  # shorter waits are normal
IDLE_NS: Final = 60 * SECOND_NS
PRODUCE: Final = "produce-latency-high"
END_TO_END: Final = "end-to-end-latency-high"
# The alerts of these names ask for a p99 above them (deploy/prometheus/rules/gateway-kafka.yml).
SLOW_S: Final = {PRODUCE: 1.0, END_TO_END: 2.0}
OBJECTIVE_S: Final = 2.5  # deploy/prometheus/rules/gateway-slo.yml; a bucket's bound


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A Kafka broker.

    ``leads``: the number of partitions in use that it leads. ``silent_ns``: time without acknowledgement while records
    wait for it. ``mute_ns``: how long it has owed an answer; 0 when it owes none. ``written_age_ns``: time since its
    last answer to a batch, a refusal included. ``lost``: partitions that it led when it fell mute and that other
    brokers lead now. ``away_ns``: time since the cluster stopped listing it; 0 while listed. ``accepts``: it accepts
    connections and answers nothing. ``refuses``: it refuses connections. ``throttled_ns``: how much of the last minute
    a quota delayed batches.
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
        return f"{self.id} ({self.host}:{self.port})"

    @property
    def parted(self) -> bool:
        """Whether it stopped in good order: it handed its partitions over, then left the cluster or refuses
        connections."""
        return not self.leads and not self.lost and bool(self.away_ns or self.refuses)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition in use.

    ``silent_ns``: how long records have waited, in memory or spool, without an acknowledgement; 0 while none wait.
    ``led_ns``: how long records have waited for the present leader. ``waited_for``: a mute broker whose replica was in
    sync until recently. ``held``: the gateway pauses, since Kafka refuses its rights or its clock. ``clock_refused``:
    Kafka refuses the present time of this machine. ``dead_letters_refused``: why Kafka refuses a waiting dead letter.
    """

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
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class SpoolView:
    """The spool. ``problem``: why it takes nothing. ``full``: whether the reason is its limit. ``oldest_s``: the age of
    its oldest batch. ``fsync_s``: the median of the last minute's writes; None when there were few."""

    bytes: int
    max_bytes: int
    messages: int = 0
    problem: str | None = None
    full: bool = False
    oldest_s: float = 0.0
    fsync_s: float | None = None


@dataclass(frozen=True, slots=True)
class CredentialView:
    """A certificate or token, of the gateway or of a server. ``left_s``: time until it expires; None when unknown.
    ``failing_ns``: how long requests for a new one have failed."""

    name: str
    kind: Literal["certificate", "server_certificate", "token"]
    left_s: float | None = None
    failing_ns: int = 0


@dataclass(frozen=True, slots=True)
class ProcessView:
    """This process. ``blocked``: how often in the last minute the event loop was late by more than a second;
    ``blocked_ns``: the longest delay. ``memory``: bytes of the container or machine; a limit of 0 is none."""

    blocked: int = 0
    blocked_ns: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    descriptors: int = 0
    descriptor_limit: int = 0


@dataclass(frozen=True, slots=True)
class PaceView:
    """A timed way of messages. ``id``: the problem of a slow one. ``route``: empty for Kafka's answers. ``now`` and
    ``lately``: the share above ``SLOW_S`` in the last 20 s and the last five minutes. ``lasted_ns``: how long the
    share of the last five minutes has been above 1 %."""

    id: str
    route: str
    now: float
    lately: float
    lasted_ns: int = 0


@dataclass(frozen=True, slots=True)
class BudgetView:
    """The messages of the last ``minutes``: those later than ``OBJECTIVE_S``, and all."""

    minutes: int
    late: float
    all: float

    @property
    def share(self) -> float:
        """0 without any."""
        return self.late / self.all if self.all else 0.0


@dataclass(frozen=True, slots=True)
class CpuView:
    """Shares of the last minute. ``waited``: this process waited for a CPU; None where the kernel does not report it.
    ``throttled``: the container was stopped for its quota. ``pressure``: some process of the container or machine
    waited for a CPU."""

    waited: float | None = None
    throttled: float = 0.0
    pressure: float = 0.0


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """Everything known at one moment.

    By session name, lengths: ``disconnected``, ``saturated`` and ``unanswered`` (messages come, SUBACK does not).
    ``overrun``: the most messages unacknowledged beyond the announced window, by session name. ``leaderless``: lengths
    by topic. ``dead_letters``: those of the last 15 minutes. ``said``: problems that others have found (EMQX, the
    canary, a reload). ``kafka_problem``: why Kafka could not be reached at the start. ``ways``, ``budget`` and ``cpu``:
    the speed of messages. ``workers``: how many share the work. ``ten_minutes`` and ``quarter`` (of an hour): counts of
    ``gateway.health.counts``.
    """

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
    """The limits from which a fact is a problem."""

    readiness: ReadinessLimits
    silent_ns: int = SILENT_NS[0]
    mute_ns: int = MUTE_NS

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """``silent_ns``: twice ``kafka.request_timeout``, within bounds, as an election takes half of that."""
        lowest, highest = SILENT_NS
        return cls(
            readiness=ReadinessLimits.from_settings(settings),
            silent_ns=min(max(lowest, 2 * nanoseconds(settings.kafka.request_timeout)), highest),
        )
