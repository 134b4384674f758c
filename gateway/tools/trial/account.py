"""The account of a trial's messages: counts, order, latencies. Decides without I/O."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from config.errors import ExitStatus
from gateway.devices.account import Arrival, Tally

if TYPE_CHECKING:
    from gateway.tools.trial.cleanup import Leftover


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in seconds."""

    p50: float
    p99: float
    highest: float


def percentiles(samples_ns: Sequence[int]) -> Percentiles | None:
    """The percentiles of times in nanoseconds; None without any."""
    if not samples_ns:
        return None
    ordered = sorted(samples_ns)
    last = len(ordered) - 1
    p50, p99 = (ordered[min(last, int(share * len(ordered)))] for share in (0.5, 0.99))
    return Percentiles(p50 / 1e9, p99 / 1e9, ordered[-1] / 1e9)


class Moments:
    """The times of each message's steps, by its number, in monotonic nanoseconds; 0 for a step that has not happened.

    ``tally`` counts the records that were read back, by device and the device's number."""

    def __init__(self, messages: int, devices: int) -> None:
        self._devices = devices
        self.sent_ns = array("q", bytes(8 * messages))
        self.acknowledged_ns = array("q", bytes(8 * messages))
        self.read_ns = array("q", bytes(8 * messages))
        self.stored_ns = array("q", bytes(8 * messages))
        self.tally: Tally[int] = Tally()
        self.bytes = 0  # key, value and headers of the records read back

    def found(self, number: int, size: int, now_ns: int) -> bool:
        """Note a record of message ``number``, read in the order of its partition. Returns whether it is the first."""
        if not 0 <= number < len(self.read_ns):
            return False
        self.bytes += size
        if self.tally.add(number % self._devices, number // self._devices) is Arrival.COPY:
            return False
        self.read_ns[number] = now_ns
        return True

    def missing(self) -> list[int]:
        """Numbers of messages that were acknowledged to the publisher and not read back."""
        messages, devices = len(self.acknowledged_ns), self._devices
        return sorted(
            own * devices + device
            for device in range(devices)
            for own in self.tally.missing(
                device,
                (messages - device + devices - 1) // devices,
                lambda own, device=device: bool(self.acknowledged_ns[own * devices + device]),  # type: ignore[misc]
            )
        )

    def since_sent(self, moments_ns: Sequence[int]) -> list[int]:
        """Times since the publishing, for all messages with such a moment."""
        return [at - sent for at, sent in zip(moments_ns, self.sent_ns, strict=True) if at and sent]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The account. Counts are of messages; ``duplicates`` are records beyond the first of a message. Latencies begin
    when the publisher writes the message. ``missing``: acknowledged to the publisher (QoS 0: sent), and not read
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
    """Bytes of PUBLISH packets from the publisher."""
    record_bytes: int
    """Bytes of keys, values and headers of the records, uncompressed."""
    batch_bytes: int
    """Bytes of the gateway's batches to Kafka, compressed."""
    cpu_seconds: float | None
    """CPU time of the gateway's worker while messages flowed."""
    reconnects: int
    stalled: str = ""
    """Why the trial ended early; empty if it did not."""
    untried: str = ""
    """What the settings have and the trial does not try, as a sentence."""
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
