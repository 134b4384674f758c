"""A check, and the report of all checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from config.errors import ExitStatus

if TYPE_CHECKING:
    from gateway.base.problem import Problem

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
    """The severity of a check, with the words of tables and JSON."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report.

    ``name`` is stable, for machines (``tls``). ``about`` is the checked address, broker or topic, empty for the whole.
    ``text`` is a sentence with the measurements, or the reason for a skip; ``fix`` is the remedy, empty without one.
    ``status`` is the exit status of a FAIL. ``facts`` are the measured values, for JSON; never a secret.
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
    """The checks of one group so far. They are kept if the others run out of time."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def of(self, name: str, about: str = "", **facts: Any) -> Verdict:
        """A check without its verdict. ``facts`` belong to any verdict."""
        return Verdict(self, name, about, facts)

    def skip(self, names: Iterable[str], because: str, about: str = "") -> None:
        for name in names:
            self.of(name, about).skip(because)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Adds its check to ``findings`` when a method is called."""

    findings: Findings
    name: str
    about: str
    facts: Mapping[str, Any]

    def ok(self, text: str, **facts: Any) -> None:
        self._add(Severity.OK, text, facts)

    def warn(self, text: str, fix: str, **facts: Any) -> None:
        self._add(Severity.WARN, text, facts, fix)

    def fail(self, text: str, fix: str, status: ExitStatus = ExitStatus.FAILED, **facts: Any) -> None:
        self._add(Severity.FAIL, text, facts, fix, status)

    def problem(self, problem: Problem, status: ExitStatus = ExitStatus.FAILED, **facts: Any) -> None:
        """A verdict that is also a problem of a worker's health, in the same words."""
        severity = Severity.FAIL if problem.severity == "critical" else Severity.WARN
        self._add(severity, problem.text, facts, f"{problem.check} (docs/runbook.md#{problem.id})".strip(), status)

    def skip(self, because: str) -> None:
        self._add(Severity.SKIPPED, because, {})

    def _add(
        self, severity: Severity, text: str, facts: Mapping[str, Any], fix: str = "",
        status: ExitStatus = ExitStatus.FAILED,
    ) -> None:  # fmt: skip
        facts = {} if severity is Severity.SKIPPED else {**self.facts, **facts}
        one = Check(
            group=self.findings.group, name=self.name, severity=severity, text=text, about=self.about, fix=fix,
            status=status, facts=facts,
        )  # fmt: skip
        self.findings.append(one)


@dataclass(frozen=True, slots=True)
class Report:
    """All checks in the order of GROUPS, and their duration."""

    checks: tuple[Check, ...]
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of checks by severity, including 0."""
        counted = Counter(check.severity for check in self.checks)
        return {severity.value: counted[severity] for severity in Severity}

    @property
    def worst_first(self) -> list[Check]:
        """All FAILs, then all warnings, each in order."""
        wanted = (Severity.FAIL, Severity.WARN)
        return [check for severity in wanted for check in self.checks if check.severity is severity]


# Statuses that make others meaningless come first: wrong settings, then refused (which needs an answer), then
# unreachable (which hides a refusal).
_PRECEDENCE: Final = (ExitStatus.CONFIG, ExitStatus.REFUSED, ExitStatus.UNAVAILABLE)


def exit_status(checks: Iterable[Check], *, strict: bool = False) -> ExitStatus:
    """OK without a FAIL (with ``strict`` also without a warning), else the first status of: bad settings, refused,
    unreachable, anything else."""
    checks = list(checks)
    failed = {check.status for check in checks if check.severity is Severity.FAIL}
    for status in _PRECEDENCE:
        if status in failed:
            return status
    if failed or (strict and any(check.severity is Severity.WARN for check in checks)):
        return ExitStatus.FAILED
    return ExitStatus.OK
