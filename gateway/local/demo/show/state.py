"""What the demo knows of itself at a moment; the views draw it, the stages write it. No I/O, no clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from gateway.local.demo.chaos import ChaosState


class StepState(Enum):
    WAITING = "waiting"
    WORKING = "working"
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class Step:
    """One part of the demo: what it is called, how far it is and what it says."""

    label: str
    state: StepState = StepState.WAITING
    detail: str = ""
    share: float | None = None
    """How much of a download is done, from 0 to 1; None while nothing is downloaded."""
    trouble: str = ""
    """What was done to it, for as long as it lasts."""

    def now(self, state: StepState, detail: str = "") -> str:
        """Sets how far this part is. Returns the line that says so."""
        self.state, self.detail, self.share = state, detail, None
        said = ", ".join(filter(None, ("stopped" if state is StepState.STOPPED else "", detail)))
        return f"{self.label}: {said}"


class Rate:
    """Events per second over the last seconds, from a running total."""

    def __init__(self, over_s: float = 5.0) -> None:
        self._over_s = over_s
        self._points: deque[tuple[float, int]] = deque()

    def update(self, now_s: float, total: int) -> None:
        points = self._points
        points.append((now_s, total))
        while len(points) > 2 and points[1][0] <= now_s - self._over_s:
            points.popleft()

    def per_second(self) -> float:
        """The total's growth per second over the kept looks; 0 until there are two."""
        if len(self._points) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        return max(0, last - first) / (last_s - first_s) if last_s > first_s else 0.0


@dataclass(frozen=True, slots=True)
class GatewayCounts:
    """The gateway's own metrics, those the demo shows."""

    received: int = 0
    """Telemetry messages; one that was delivered again counts again."""
    acknowledged: int = 0
    unacked: int = 0
    in_flight: int = 0
    redelivered: int = 0
    imbalance: int = 0
    dead_letters: int = 0
    spool_messages: int = 0
    spool_bytes: int = 0
    restarts: int = 0
    """How often the supervisor had to start the worker again."""
    up: bool = True
    """Whether the worker answered. If not, the rest are zeros that mean nothing."""


class GatewayLives:
    """The counts of a gateway whose worker is killed and started again: counters begin at 0 in each life.

    What a worker took in between the last look and its death is in no sum.
    """

    def __init__(self) -> None:
        self._before = GatewayCounts()
        self._last = GatewayCounts()

    def total(self, counts: GatewayCounts) -> GatewayCounts:
        """Counters summed over all lives, other numbers as they are. ``counts``: those of a worker that answered."""
        if counts.restarts != self._last.restarts:
            self._before = self._sum(self._last)
        self._last = counts
        return self._sum(counts)

    def _sum(self, counts: GatewayCounts) -> GatewayCounts:
        return replace(counts, **{name: getattr(counts, name) + getattr(self._before, name) for name in _COUNTERS})


_COUNTERS = ("received", "acknowledged", "redelivered", "dead_letters")


@dataclass(frozen=True, slots=True)
class WitnessCounts:
    """What an independent consumer of the Kafka topic saw."""

    read: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    """Where each partition ended when it was last read."""
    recent_p50_ms: int | None = None
    recent_p99_ms: int | None = None
    p50_ms: int | None = None
    p99_ms: int | None = None
    distinct: int | None = None
    """How many different messages it read; None unless it was asked to tell them apart."""

    @property
    def in_kafka(self) -> int:
        return sum(self.ends.values())


@dataclass(frozen=True, slots=True)
class Window:
    """A window of the table gold, of one device type."""

    start_ms: int
    end_ms: int
    type: str
    messages: int
    means: Mapping[str, float]
    """Of each signal that the window has."""


@dataclass(frozen=True, slots=True)
class SparkCounts:
    """What the Spark job says of itself."""

    started: bool = False
    batches: int = 0
    """Micro-batches of silver, written and committed."""
    rows: int = 0
    quarantined: int = 0
    batch_ms: int | None = None
    """How long the last micro-batch took."""
    offsets: dict[int, int] = field(default_factory=dict)
    """Up to where each partition is committed to silver."""
    gold_batches: int = 0
    """How often gold has changed."""

    def lag(self, ends: Mapping[int, int]) -> int:
        """Records in Kafka that are not in silver yet."""
        return sum(max(0, end - self.offsets.get(partition, 0)) for partition, end in ends.items())


@dataclass(frozen=True, slots=True)
class Shown:
    """The counts of all parts at one moment: none has more than the one before it had."""

    published: int
    acknowledged: int
    gateway: GatewayCounts
    witness: WitnessCounts
    spark: SparkCounts


T = TypeVar("T")


class Moments(Generic[T]):
    """The last counts of a part, each with the time before which and the time after which it was read."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, T]] = deque(maxlen=40)

    def note(self, value: T, begun_s: float, ended_s: float) -> None:
        """Adds a count that was read between these moments."""
        self._seen.append((begun_s, ended_s, value))

    def until(self, moment_s: float) -> tuple[float, T] | None:
        """The newest count read by that moment, after the time when its reading began. Without one the oldest; None
        without any."""
        if not self._seen:
            return None
        found = next((one for one in reversed(self._seen) if one[1] <= moment_s), self._seen[0])
        return found[0], found[2]


@dataclass(slots=True)
class DemoState:
    """Everything the views draw. One asyncio task writes it; ``Step`` details are also written by start-up threads."""

    devices: int
    with_spark: bool
    duration_s: float
    chaos: ChaosState | None = None
    """What ``--chaos`` does and finds; None without it."""
    headline: str = "starting"
    steps: dict[str, Step] = field(default_factory=dict)
    flow_started_s: float | None = None
    flow_ended_s: float | None = None
    gateway_answers: bool = True
    """Whether it did when it was asked last."""
    drained: bool = False
    """The gateway has taken in everything that there was for it."""
    catching_up: bool = False
    """Everything is in Kafka, and Spark is waited for."""
    connected: int = 0
    published: int = 0
    acknowledged: int = 0
    device_error: str = ""
    commands: int = 0
    command_copies: int = 0
    command_answers: int = 0
    gateway: GatewayCounts = field(default_factory=GatewayCounts)
    witness: WitnessCounts = field(default_factory=WitnessCounts)
    spark: SparkCounts = field(default_factory=SparkCounts)
    windows: tuple[Window, ...] = ()
    """The latest windows of gold, newest first and by device type within a window."""
    fleet_moments: Moments[tuple[int, int]] = field(default_factory=Moments)
    gateway_moments: Moments[GatewayCounts] = field(default_factory=Moments)
    witness_moments: Moments[WitnessCounts] = field(default_factory=Moments)
    spark_moments: Moments[SparkCounts] = field(default_factory=Moments)
    published_rate: Rate = field(default_factory=Rate)
    acknowledged_rate: Rate = field(default_factory=Rate)
    received_rate: Rate = field(default_factory=Rate)
    kafka_rate: Rate = field(default_factory=Rate)
    spark_rate: Rate = field(default_factory=lambda: Rate(15.0))

    def update_rates(self, now_s: float) -> None:
        """Takes the present totals into the rates; call it once per refresh."""
        self.published_rate.update(now_s, self.published)
        self.acknowledged_rate.update(now_s, self.acknowledged)
        self.received_rate.update(now_s, self.gateway.received)
        self.kafka_rate.update(now_s, self.witness.in_kafka)
        self.spark_rate.update(now_s, self.spark.rows)

    def shown(self) -> Shown:
        """Counts that can be compared, from the devices to Spark. Each part's were read before those of the part before
        it, so no part seems to have more than it got."""
        published, acknowledged = self.published, self.acknowledged
        gateway, witness, spark = self.gateway, self.witness, self.spark
        at_s = math.inf
        if (fleet := self.fleet_moments.until(at_s)) is not None:
            at_s, (published, acknowledged) = fleet
        if (counts := self.gateway_moments.until(at_s)) is not None:
            at_s, gateway = counts
        if (seen := self.witness_moments.until(at_s)) is not None:
            at_s, witness = seen
        if (written := self.spark_moments.until(at_s)) is not None:
            spark = written[1]
        return Shown(published, acknowledged, gateway, witness, spark)

    def flow_seconds_at(self, moment_s: float) -> float:
        """How long messages had been flowing at a moment."""
        return 0.0 if self.flow_started_s is None else max(0.0, moment_s - self.flow_started_s)

    def flow_seconds(self, now_s: float) -> float:
        """How long messages have been flowing (or did)."""
        if self.flow_started_s is None:
            return 0.0
        return (self.flow_ended_s or now_s) - self.flow_started_s
