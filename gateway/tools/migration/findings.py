"""The result of an import: settings, and findings about parts without a counterpart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from config.errors import ExitStatus, GatewayError

Severity = Literal["lost", "differs", "check", "note"]
"""``lost``: no counterpart, needs a decision; ``differs``: works differently here; ``check``: a value that only the
user knows; ``note``: nothing to do."""


ACKS: Final = (
    "Records count as written here when all in-sync replicas have them, always: safer, and some milliseconds slower. "
    "There is no setting for less."
)
"""The consequence of fewer acknowledgements in the source."""


class ImportError_(GatewayError):  # noqa: N801, N818 - Python has the name without the underscore
    """A file that cannot be imported."""

    exit_status = ExitStatus.CONFIG


@dataclass(frozen=True, slots=True)
class Finding:
    """``what`` is the part of the source, ``consequence`` its effect here, ``way_out`` the remedy (may be empty)."""

    severity: Severity
    what: str
    consequence: str
    way_out: str = ""


@dataclass(slots=True)
class Imported:
    """``settings`` are nested tables as in a TOML file. ``comments`` are lines above a table or an array's item, by its
    path with dots (``routes.0``). Neither has a secret."""

    settings: dict[str, Any] = field(default_factory=dict)
    comments: dict[str, list[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def note(self, severity: Severity, what: str, consequence: str, way_out: str = "") -> None:
        one = Finding(severity, what, consequence, way_out)
        if one not in self.findings:
            self.findings.append(one)

    def put(self, path: str, value: Any) -> None:
        *tables, name = path.split(".")
        table = self.settings
        for step in tables:
            table = table.setdefault(step, {})
        table[name] = value

    def password(self, path: str, file: str, *, masked: str = "") -> None:
        """Name a file for a secret. ``masked`` is the source's text in its place, if it is hidden."""
        self.put(f"{path}_file", file)
        why = f"The source shows it as {masked}, so it cannot be taken over." if masked else "Secrets are not printed."
        self.note("check", path, f"{why} The settings name a file that does not exist yet.", f"Write it into {file}.")

    def comment(self, path: str, text: str) -> None:
        # On one line, because the next line would be a setting, and without what TOML allows nowhere.
        plain = "".join(letter if letter.isprintable() else " " for letter in text)
        self.comments.setdefault(path, []).append(" ".join(plain.split()))
