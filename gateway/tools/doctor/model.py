"""What a check says, and what a whole examination comes to."""

from __future__ import annotations

__all__ = ["GROUPS", "Check", "Findings", "Report", "Severity", "exit_status"]

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from config.errors import ExitStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GROUPS: Final[Mapping[str, str]] = {
    "config": "settings and credentials",
    "running": "running gateway",
    "host": "this machine",
    "mqtt": "MQTT",
    "emqx": "EMQX, by its REST API",
    "kafka": "Kafka",
}
"""The groups in the order they are shown, each with its heading."""


class Severity(StrEnum):
    """The words are what tables and JSON say."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report.

    ``name`` is stable, for machines (``tls``); ``about`` the address, broker or topic that it looked at, empty for the
    whole. ``text`` is a sentence with what was measured, or why it was skipped; ``fix`` what to do, empty where nothing
    is. ``status`` is what a FAIL ends the command with. ``facts`` are the measured values, for JSON; never a secret.
    """

    group: str
    name: str
    severity: Severity
    text: str
    about: str = ""
    fix: str = ""
    status: ExitStatus = ExitStatus.FAILED
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` has it."""
        return {
            "group": self.group,
            "name": self.name,
            "about": self.about or None,
            "severity": self.severity.value,
            "text": self.text,
            "fix": self.fix or None,
            "facts": dict(self.facts),
        }


class Findings(list[Check]):
    """The checks of one group as they are made: what was found stays when the rest runs out of time."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def ok(self, name: str, text: str, about: str = "", **facts: Any) -> None:
        self.append(Check(group=self.group, name=name, severity=Severity.OK, text=text, about=about, facts=facts))

    def warn(self, name: str, text: str, fix: str, about: str = "", **facts: Any) -> None:
        self.append(
            Check(group=self.group, name=name, severity=Severity.WARN, text=text, fix=fix, about=about, facts=facts)
        )

    def fail(
        self, name: str, text: str, fix: str, about: str = "", status: ExitStatus = ExitStatus.FAILED, **facts: Any
    ) -> None:
        self.append(
            Check(
                group=self.group,
                name=name,
                severity=Severity.FAIL,
                text=text,
                fix=fix,
                about=about,
                status=status,
                facts=facts,
            )
        )

    def skip(self, name: str, because: str, about: str = "") -> None:
        self.append(Check(group=self.group, name=name, severity=Severity.SKIPPED, text=because, about=about))


@dataclass(frozen=True, slots=True)
class Report:
    """All checks in the order of GROUPS, and how long they took."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each severity, 0 included."""
        counted = Counter(check.severity for check in self.checks)
        return {severity.value: counted[severity] for severity in Severity}

    @property
    def worst_first(self) -> list[Check]:
        """What needs somebody: every FAIL, then every warning, each in its order."""
        wanted = (Severity.FAIL, Severity.WARN)
        return [check for severity in wanted for check in self.checks if check.severity is severity]


# What makes the others moot comes first: with wrong settings nothing else means much, refused is seen only where
# something answers, and what does not answer hides what it would say.
_PRECEDENCE: Final = (ExitStatus.CONFIG, ExitStatus.REFUSED, ExitStatus.UNAVAILABLE)


def exit_status(checks: Iterable[Check], *, strict: bool = False) -> ExitStatus:
    """OK without a FAIL (``strict``: and without a warning), else the status of the FAIL that comes first in: bad
    settings, refused, unreachable, anything else."""
    checks = list(checks)
    failed = {check.status for check in checks if check.severity is Severity.FAIL}
    for status in _PRECEDENCE:
        if status in failed:
            return status
    if failed or (strict and any(check.severity is Severity.WARN for check in checks)):
        return ExitStatus.FAILED
    return ExitStatus.OK
