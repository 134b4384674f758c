"""One thing that is wrong, as the page, /status and the log tell of it."""

from __future__ import annotations

__all__ = ["Problem", "Severity"]

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``id`` is its heading in the runbook, ``subject`` what tells it from others of its kind
    (a broker, a topic, a route), ``text`` a sentence that names it, ``check`` what to look at or to do first."""

    id: str
    severity: Severity
    text: str
    check: str
    subject: str = ""

    def as_dict(self) -> dict[str, str]:
        """Ready for JSON."""
        return {
            "id": self.id,
            "severity": self.severity,
            "subject": self.subject,
            "text": self.text,
            "check": self.check,
        }
