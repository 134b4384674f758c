"""The account of a trial's messages and commands: counts, order, latencies. Decides without I/O."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bridge.commands.model import Status
from config.errors import ExitStatus
from gateway.devices.account import Arrival, Tally
from gateway.devices.commanded import CommandAccount, examine_commands

if TYPE_CHECKING:
    from bridge.commands.status_reading import StatusView
    from bridge.dead_letters.reading import Place
    from gateway.tools.trial.cleanup import Leftover


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles in seconds."""

    p50: float
    p99: float
    highest: float


def percentiles(samples_ns: Sequence[int]) -> Percentiles | None:
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
        self.sent_ns = array("q", bytes(8 * messages))  # these by message number; 0: not yet
        self.acknowledged_ns = array("q", bytes(8 * messages))
        self.read_ns = array("q", bytes(8 * messages))
        self.stored_ns = array("q", bytes(8 * messages))
        self.tally: Tally[int] = Tally()
        self.bytes = 0  # key, value and headers of the records read back

    def note_read(self, number: int, size: int, now_ns: int) -> bool:
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
class CommandResult:
    """What became of the commands of one entry. Each should reach its device and end as ``expected``: ``missing`` ones
    did not. ``account`` is by the records in Kafka and the devices' own counts. Latencies begin when the command is
    written to Kafka, and end when the device has it, and when its status is read back."""

    name: str
    qos: int
    expected: str
    wanted: int
    account: CommandAccount
    missing: int
    faults: Mapping[str, int]
    """The missing ones, by what is wrong with them."""
    to_device: Percentiles | None
    to_sent: Percentiles | None
    to_succeeded: Percentiles | None
    not_judged: tuple[str, ...] = ()
    """What the entry has and the trial does not look at, and why."""
    stalled: str = ""
    """What went wrong beside, or why it ended early; empty if it did not."""

    @property
    def exit_status(self) -> ExitStatus:
        if self.missing or self.account.exit_status is ExitStatus.MISSING_MESSAGES:
            return ExitStatus.MISSING_MESSAGES
        return ExitStatus.INCOMPLETE if self.stalled or self.account.written < self.wanted else ExitStatus.OK


class CommandMoments:
    """The times of each command's steps, by its number, in monotonic nanoseconds, and its outcome."""

    def __init__(self, commands: int, *, is_answered: bool) -> None:
        self._wanted = commands
        self._expected = Status.SUCCEEDED if is_answered else Status.SENT
        # By the command's number; times in ns.
        self._written: dict[int, tuple[Place, int]] = {}
        self._received: dict[int, int] = {}
        self._statuses: dict[int, dict[Status, int]] = {}
        self._outcomes: dict[int, StatusView] = {}
        self._told: list[tuple[str, bytes]] = []
        self.copies = 0
        self.answers = 0
        """Those that the MQTT broker has acknowledged."""

    def wrote(self, number: int, place: Place, began_ns: int) -> None:
        self._written[number] = place, began_ns

    def received(self, number: int, now_ns: int) -> None:
        """Note that the device has it, perhaps again."""
        self.copies += number in self._received
        self._received.setdefault(number, now_ns)

    def note_status(self, number: int, status: StatusView, value: bytes, now_ns: int) -> None:
        """Note a status of a command; ``value`` is that of the status record."""
        self._told.append((str(status.record), value))
        self._statuses.setdefault(number, {}).setdefault(status.status, now_ns)
        if status.is_terminal and not status.is_late:
            self._outcomes[number] = status

    @property
    def ended(self) -> int:
        """How many have a last status."""
        return len(self._outcomes)

    def has_ended(self, number: int) -> bool:
        """Whether this one has a last status; true of numbers below 0."""
        return number < 0 or number in self._outcomes

    @property
    def is_complete(self) -> bool:
        """Whether nothing more can come: all have ended, and the device has those that are said to have reached it."""
        return self.ended == self._wanted and all(
            number in self._received for number, status in self._outcomes.items() if status.status is self._expected
        )

    def result(self, name: str, qos: int, not_judged: tuple[str, ...], stalled: str) -> CommandResult:
        account = examine_commands(((str(place), b"") for place, _ in self._written.values()), self._told)
        faults = Counter(fault for number in sorted(self._written) if (fault := self._fault(number)))
        return CommandResult(
            name=name,
            qos=qos,
            expected=str(self._expected),
            wanted=self._wanted,
            account=account.with_devices(received=len(self._received), copies=self.copies, answers=self.answers),
            missing=faults.total(),
            faults=dict(faults),
            to_device=self._since_written(self._received),
            to_sent=self._since_written(self._moments(Status.SENT)),
            to_succeeded=self._since_written(self._moments(Status.SUCCEEDED)),
            not_judged=not_judged,
            stalled=stalled,
        )

    def _fault(self, number: int) -> str:
        """What is wrong with a command; empty if nothing is."""
        outcome = self._outcomes.get(number)
        if outcome is None:
            return "without a last status"
        if outcome.status is not self._expected:
            return f"{outcome.status}: {outcome.reason}" if outcome.reason else str(outcome.status)
        return "" if number in self._received else f"{outcome.status}, and no device has it"

    def _moments(self, status: Status) -> dict[int, int]:
        return {number: found[status] for number, found in self._statuses.items() if status in found}

    def _since_written(self, moments_ns: dict[int, int]) -> Percentiles | None:
        return percentiles(
            [at - self._written[number][1] for number, at in moments_ns.items() if number in self._written]
        )


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
    commands: tuple[CommandResult, ...] = ()
    left_behind: list[Leftover] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def cpu_seconds_per_million(self) -> float | None:
        return None if self.cpu_seconds is None or not self.delivered else self.cpu_seconds * 1e6 / self.delivered

    @property
    def exit_status(self) -> ExitStatus:
        commands = {one.exit_status for one in self.commands}
        if self.missing or ExitStatus.MISSING_MESSAGES in commands:
            return ExitStatus.MISSING_MESSAGES
        if self.left_behind or self.stalled or self.delivered < self.wanted or ExitStatus.INCOMPLETE in commands:
            return ExitStatus.INCOMPLETE
        return ExitStatus.OK
