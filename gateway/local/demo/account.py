"""What became of every message, by the devices' own names and sequence numbers. Decides without I/O.

The devices say what they published and what was acknowledged to them (:class:`~gateway.devices.outbox.DeviceLedger`);
each stage behind the gateway is read back into a :class:`~gateway.devices.account.Tally`. What was acknowledged must be
in every stage. Duplicates are allowed (delivery is at least once) and counted. So is what arrived behind a later
message of its device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from config.errors import ExitStatus

if TYPE_CHECKING:
    from gateway.devices.account import Tally
    from gateway.devices.outbox import DeviceLedger

_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage measured against the devices' account. ``records = found + duplicates + foreign``."""

    name: str
    records: int
    found: int
    """Different messages of our devices that are here, acknowledged or not."""
    duplicates: int
    """Records of a message beyond its first."""
    foreign: int
    """Records that are no message of our devices, unreadable ones included."""
    missing: int
    """Messages that were acknowledged to their device and are not here."""
    reordered: int | None
    """First occurrences behind a later message of their device; None where what is read has no order."""
    examples: tuple[tuple[str, int], ...] = ()
    """A few of the missing, as device and sequence number."""
    unread: int = 0
    """Records that this stage had not come to read when it was counted: what is missing may be among them."""

    @property
    def lost(self) -> int:
        """Missing, and not only not read yet."""
        return max(0, self.missing - self.unread)


@dataclass(frozen=True, slots=True)
class Account:
    """The whole run. ``received`` is the gateway's own count, which knows no device: it may hold repetitions."""

    devices: int
    published: int
    acknowledged: int
    received: int
    unheard: int
    """Acknowledged by the MQTT broker while it had no subscriber."""
    stages: tuple[Stage, ...] = field(default=())
    killed: bool = False
    """Whether the gateway was killed. Its count then lacks the messages received just before. Only the stages behind
    it can tell what is missing."""
    wanted: int = 0
    """How many devices there were to be; 0: as many as published."""

    @property
    def missing_at_gateway(self) -> int:
        return 0 if self.killed else max(0, self.acknowledged - self.received)

    @property
    def missing(self) -> int:
        """Missing at the worst stage."""
        return max((self.missing_at_gateway, *(stage.lost for stage in self.stages)))

    @property
    def pending(self) -> int:
        """Not in every stage yet, since one of them has not read that far; nothing says that they are lost."""
        return max((stage.missing - stage.lost for stage in self.stages), default=0)

    @property
    def duplicates(self) -> int:
        """Duplicates at the stage that has most of them."""
        return max((stage.duplicates for stage in self.stages), default=0)

    @property
    def exit_status(self) -> ExitStatus:
        if self.missing:
            return ExitStatus.MISSING_MESSAGES
        if self.pending:
            return ExitStatus.INCOMPLETE
        return ExitStatus.OK if self.acknowledged else ExitStatus.FAILED

    def as_json(self) -> dict[str, int]:
        """The numbers by their documented keys: ``published`` … ``missing``, and each stage's records by its name."""
        return {
            "published": self.published,
            "acknowledged": self.acknowledged,
            "received": self.received,
            **{stage.name: stage.records for stage in self.stages},
            "duplicates": self.duplicates,
            "missing": self.missing,
            "pending": self.pending,
        }


def examine(name: str, tally: Tally[str], ledger: Mapping[str, DeviceLedger], *, ordered: bool) -> Stage:
    """Measures what a stage holds against what the devices say; every record is accounted for in the result.

    ``ordered`` says whether the order it was read in is the order it came in.
    """
    found = missing = 0
    examples: list[tuple[str, int]] = []
    for device, entry in ledger.items():
        if device in tally.seen:
            found += tally.seen[device].found(entry.published)
        absent = tally.missing(device, entry.published, entry.has_acknowledged)
        missing += len(absent)
        examples.extend((device, number) for number in absent[: _EXAMPLES - len(examples)])
    duplicates = sum(
        count
        for (device, number), count in tally.copies.items()
        if device in ledger and number < ledger[device].published
    )
    foreign = tally.records - found - duplicates
    reordered = tally.reordered if ordered else None
    return Stage(name, tally.records, found, duplicates, foreign, missing, reordered, tuple(examples))


def render(account: Account, names: Mapping[str, str]) -> str:
    """The account for people, several lines. ``names`` says what a stage is called, by its name."""
    rows = [
        (f"published by {_devices(account)}", account.published, ""),
        ("acknowledged to the devices", account.acknowledged, _open_note(account)),
        ("received by the gateway", account.received, _received_note(account)),
        *((f"in {names[s.name]}", s.records, _stage_note(s)) for s in account.stages),
    ]
    width = max(len(label) for label, _, _ in rows)
    digits = max(len(f"{number:,}") for _, number, _ in rows)
    lines = [f"  {label:<{width}}  {number:>{digits},}  {note}".rstrip() for label, number, note in rows]
    return "\n".join(["What became of the messages", *lines, *_verdict(account, names)])


def _verdict(account: Account, names: Mapping[str, str]) -> list[str]:
    """The lines below the numbers; the last says what is missing, not yet read, or that all got through."""
    if account.acknowledged == 0:
        return ["No message was acknowledged to its device, so nothing was shown."]
    lines = [
        f"  missing in {names[stage.name]}, for example: "
        + ", ".join(f"{device} number {number}" for device, number in stage.examples)
        for stage in account.stages
        if stage.examples and stage.lost
    ]
    if account.unheard:
        lines.append(
            f"  {account.unheard:,} were acknowledged by the MQTT broker while nobody was subscribed:"
            " the gateway was not connected at that moment."
        )
    if account.killed and any(stage.found and stage.reordered == 0 for stage in account.stages):
        lines.append("  Each device's messages came into Kafka in the order it sent them.")
    if account.missing:
        return [*lines, f"MISSING: {account.missing:,} acknowledged messages did not get through."]
    if account.pending:
        where = next(names[stage.name] for stage in account.stages if stage.missing)
        return [
            *lines,
            f"NOT YET IN {where.upper()}: {account.pending:,} messages. They were not read in time; nothing is lost.",
        ]
    return [*lines, "Missing: 0. Every message that was acknowledged to its device got through."]


def _devices(account: Account) -> str:
    if account.wanted > account.devices:
        return f"{account.devices:,} of {account.wanted:,} devices"
    return f"{account.devices:,} devices"


def _received_note(account: Account) -> str:
    if account.killed:
        return "(its own count; kills cut it short)"
    return f"missing {account.missing_at_gateway:,}"


def _open_note(account: Account) -> str:
    still_open = account.published - account.acknowledged
    return f"{still_open:,} not acknowledged when the devices stopped" if still_open else ""


def _stage_note(stage: Stage) -> str:
    notes = [f"missing {stage.lost:,}", f"duplicates {stage.duplicates:,}"]
    if stage.missing > stage.lost:
        notes.insert(0, f"not yet {stage.missing - stage.lost:,}")
    if stage.reordered:
        notes.append(f"behind a later one of their device {stage.reordered:,}")
    if stage.foreign:
        notes.append(f"not from these devices {stage.foreign:,}")
    return ", ".join(notes)
