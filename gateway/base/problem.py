"""One problem, as the page, /status and the log show it."""

from dataclasses import dataclass
from typing import Any, Literal, Self

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``id`` is its heading in the runbook. ``subject`` tells it from others with the same id (a broker, a
    topic, a route). ``text`` is a sentence that names it, ``check`` what to check or to do first."""

    id: str
    severity: Severity
    text: str
    check: str
    subject: str = ""

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """A problem as /status has it, of this version or another. Its subject is part of its text."""
        severity: Severity = "critical" if document.get("severity") == "critical" else "warning"
        text, check = str(document.get("text", "")), str(document.get("check") or "")
        return cls(str(document.get("id", "problem")), severity, text, check)

    def as_dict(self) -> dict[str, str]:
        return {
            "id": self.id,
            "severity": self.severity,
            "subject": self.subject,
            "text": self.text,
            "check": self.check,
        }
