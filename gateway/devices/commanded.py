"""What became of commands, by their records and the status topic. Decides without I/O."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from config.errors import ExitStatus


@dataclass(frozen=True, slots=True)
class CommandAccount:
    """consumed = finished + waiting + under way, by what Kafka has. The last three are the devices' own counts."""

    written: int = 0
    """Commands in Kafka."""
    finished: Mapping[str, int] = field(default_factory=dict)
    """By their last status."""
    waiting: int = 0
    """Without a status, or with one that says that they were not sent."""
    under_way: int = 0
    contradicting: int = 0
    """Commands with two different last statuses, late answers aside."""
    received: int = 0
    copies: int = 0
    answers: int = 0

    @property
    def open(self) -> int:
        return self.waiting + self.under_way

    @property
    def lost(self) -> int:
        """How many commands succeeded by their statuses although no device received them."""
        return max(0, self.finished.get("succeeded", 0) - self.received)

    @property
    def exit_status(self) -> ExitStatus:
        if self.contradicting or self.lost:
            return ExitStatus.MISSING_MESSAGES
        return ExitStatus.INCOMPLETE if self.open else ExitStatus.OK

    def with_devices(self, *, received: int, copies: int, answers: int) -> CommandAccount:
        """With the devices' own counts."""
        return replace(self, received=received, copies=copies, answers=answers)

    def as_json(self) -> dict[str, Any]:
        return {
            "consumed": self.written,
            "finished": dict(self.finished),
            "waiting": self.waiting,
            "under_way": self.under_way,
            "contradicting": self.contradicting,
            "received_by_devices": self.received,
            "copies": self.copies,
            "answers": self.answers,
        }


def examine_commands(commands: Iterable[tuple[str, bytes]], statuses: Iterable[tuple[str, bytes]]) -> CommandAccount:
    """What became of the commands. Arguments: place and value of every record of both topics."""
    last: dict[str, str | None] = {place: None for place, _ in commands}
    outcomes: dict[str, set[str]] = {}
    for _, value in statuses:
        status = json.loads(value)
        place = status["command"]
        if place in last and not status.get("late"):
            last[place] = status["status"]
            if status["terminal"]:
                outcomes.setdefault(place, set()).add(status["status"])
    unfinished = Counter(status for place, status in last.items() if place not in outcomes)
    waiting = sum(unfinished[status] for status in (None, "accepted", "waiting"))
    return CommandAccount(
        written=len(last),
        finished=dict(sorted(Counter(min(found) for found in outcomes.values()).items())),
        waiting=waiting,
        under_way=unfinished.total() - waiting,
        contradicting=sum(len(found) > 1 for found in outcomes.values()),
    )


def render_commands(account: CommandAccount) -> str:
    """Lines for people about the commands, for below the account of the messages."""
    outcomes = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in account.finished.items())
    rows = [
        ("written to Kafka", account.written, ""),
        ("finished", sum(account.finished.values()), outcomes),
        ("waiting", account.waiting, ""),
        ("under way", account.under_way, ""),
        ("received by the devices", account.received, f"copies {account.copies:,}, answers {account.answers:,}"),
    ]
    width, digits = max(len(label) for label, _, _ in rows), max(len(f"{number:,}") for _, number, _ in rows)
    lines = [f"  {label:<{width}}  {number:>{digits},}  {note}".rstrip() for label, number, note in rows]
    return "\n".join(["What became of the commands to the devices", *lines, _verdict(account)])


def _verdict(account: CommandAccount) -> str:
    """The last line: whether every command has one last status."""
    if account.contradicting:
        return f"CONTRADICTING: {account.contradicting:,} commands have two last statuses."
    if account.lost:
        return f"CONTRADICTING: {account.lost:,} commands are said to be done, and no device received them."
    if account.open:
        return f"NOT FINISHED: {account.open:,} commands."
    return "Every command is finished, and has one last status."
