"""What an import makes: settings of ours, and what of the other bridge's has no counterpart in them."""

from __future__ import annotations

__all__ = ["Finding", "ImportError_", "Imported", "Severity"]

from dataclasses import dataclass, field
from typing import Any, Literal

from config.errors import ExitStatus, GatewayError

Severity = Literal["lost", "differs", "check", "note"]
"""``lost``: no counterpart, somebody has to decide; ``differs``: done here in another way; ``check``: a value that only
you know; ``note``: nothing to do."""


class ImportError_(GatewayError):  # noqa: N801, N818 - Python has the name without the underscore
    """A file that cannot be imported."""

    exit_status = ExitStatus.CONFIG


@dataclass(frozen=True, slots=True)
class Finding:
    """``what`` stands in the source, ``consequence`` is what that means here, ``way_out`` what to do (may be empty)."""

    severity: Severity
    what: str
    consequence: str
    way_out: str = ""


@dataclass(slots=True)
class Imported:
    """``settings`` are nested tables as a TOML file has them. ``comments`` stand above a table or an array's item, by
    its path with dots (``routes.0``). No secret is in any of it."""

    settings: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, list[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def find(self, severity: Severity, what: str, consequence: str, way_out: str = "") -> None:
        """Note a finding, once."""
        one = Finding(severity, what, consequence, way_out)
        if one not in self.findings:
            self.findings.append(one)

    def put(self, path: str, value: Any) -> None:
        """Set what stands at a path with dots."""
        *tables, name = path.split(".")
        table = self.settings
        for step in tables:
            table = table.setdefault(step, {})
        table[name] = value

    def password(self, path: str, file: str, *, masked: str = "") -> None:
        """A secret's place: the file that is to hold it. ``masked`` says how the source shows it, if it does not."""
        self.put(f"{path}_file", file)
        where = (
            f"The source shows it as {masked}, so it cannot be taken over. " if masked else "Secrets are not printed. "
        )
        self.find(
            "check", f"{path}", f"{where}The settings name a file that does not exist yet.", f"Write it into {file}."
        )

    def comment(self, path: str, text: str) -> None:
        """A line above a table."""
        self.comments.setdefault(path, []).append(" ".join(text.split()))  # a line end in it would begin a setting
