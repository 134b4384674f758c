"""What became of a trial's messages: counts, order, latencies. Decides without I/O."""

from __future__ import annotations

__all__ = ["Percentiles", "Tally", "TrialResult", "percentiles"]

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from config.errors import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.tools.trial.cleanup import Leftover


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Seconds."""

    p50: float
    p99: float
    highest: float


def percentiles(samples_ns: Sequence[int]) -> Percentiles | None:
    """Of differences in nanoseconds; None of nothing."""
    if not samples_ns:
        return None
    ordered = sorted(samples_ns)
    last = len(ordered) - 1
    p50, p99 = (ordered[min(last, int(share * len(ordered)))] for share in (0.5, 0.99))
    return Percentiles(p50 / 1e9, p99 / 1e9, ordered[-1] / 1e9)


class Tally:
    """One entry for each message number. Times are monotonic nanoseconds, 0 for what has not happened."""

    def __init__(self, messages: int, devices: int) -> None:
        self._devices = devices
        self.sent_ns = array("q", bytes(8 * messages))
        self.acknowledged_ns = array("q", bytes(8 * messages))
        self.read_ns = array("q", bytes(8 * messages))
        self.stored_ns = array("q", bytes(8 * messages))
        self.read = 0  # different ones
        self.duplicates = 0
        self.reordered = 0
        self.bytes = 0  # key, value and headers of the records read back
        self._highest = array("q", [-1] * devices)

    def found(self, number: int, size: int, now_ns: int) -> None:
        """A record of message ``number`` was read back, in the order of its partition."""
        if not 0 <= number < len(self.sent_ns):
            return
        self.bytes += size
        if self.read_ns[number]:
            self.duplicates += 1
            return
        self.read_ns[number] = now_ns
        self.read += 1
        device = number % self._devices
        if number < self._highest[device]:
            self.reordered += 1
        else:
            self._highest[device] = number

    def missing(self) -> list[int]:
        """Numbers that the broker acknowledged to the publisher, and that were not read back."""
        return [n for n, at_ns in enumerate(self.acknowledged_ns) if at_ns and not self.read_ns[n]]

    def since_sent(self, moments_ns: Sequence[int]) -> list[int]:
        """How long after the publishing, for each message that has such a moment."""
        return [at - sent for at, sent in zip(moments_ns, self.sent_ns, strict=True) if at and sent]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The account. All counts are messages, ``duplicates`` records beyond the first of a message; latencies from the
    moment the publisher wrote the message. ``missing``: acknowledged to the publisher (with QoS 0: sent), and not read
    back."""

    run: str
    qos: int
    size: int
    kafka_topic: str
    wanted: int
    sent: int
    acknowledged: int
    delivered: int
    missing: int
    duplicates: int
    out_of_order: int
    seconds: float
    messages_per_second: float
    mqtt_acknowledged: Percentiles | None
    kafka_acknowledged: Percentiles | None
    read_back: Percentiles | None
    published_bytes: int
    """PUBLISH packets, as the publisher wrote them."""
    record_bytes: int
    """Keys, values and headers of the records, uncompressed."""
    batch_bytes: int
    """Batches as the gateway sent them to Kafka, compressed."""
    cpu_seconds: float | None
    """Of the gateway's worker, while messages flowed."""
    reconnects: int
    stalled: str = ""
    """Why not all was sent or waited for; empty when it was."""
    missing_examples: tuple[int, ...] = ()
    left_behind: list[Leftover] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def cpu_seconds_per_million(self) -> float | None:
        return None if self.cpu_seconds is None or not self.delivered else self.cpu_seconds * 1e6 / self.delivered

    @property
    def exit_status(self) -> ExitStatus:
        if self.missing:
            return ExitStatus.MISSING_MESSAGES
        if self.left_behind or self.stalled or self.sent < self.wanted:
            return ExitStatus.INCOMPLETE
        return ExitStatus.OK
