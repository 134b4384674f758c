"""The account of what was changed: a line of JSON before each action, and one after it.

An action whose line cannot be written is not done. The line before says what is wanted and how it was; the line after,
with the same ``id``, what became of it: without one, the process died in between, and Kafka may have done it or not.
"""

from __future__ import annotations

__all__ = ["AuditError", "AuditLog", "Entry"]

import json
import os
import socket
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gateway.admin.errors import AdminError
from gateway.base.running_user import running_user

if TYPE_CHECKING:
    from pathlib import Path

    from config.settings import Settings


class AuditError(AdminError):
    """The account cannot be written; nothing was done, or what was done says the sentence."""


class AuditLog:
    """Appends to one file; several processes may. ``command`` is what was typed ("gateway topics apply")."""

    def __init__(self, path: Path, command: str, cluster: str) -> None:
        self.path = path
        self._command = command
        self._cluster = cluster

    @classmethod
    def of(cls, settings: Settings, command: str, cluster: str) -> AuditLog:
        """The file that ``admin.audit_file`` names, ``admin.log`` in ``data_dir`` by default."""
        return cls(settings.admin.audit_file or settings.data_dir / "admin.log", command, cluster)

    def begin(self, action: str, what: str, before: Any, wanted: Any) -> Entry:
        """Write what is about to be done, and return what its outcome is written with. Raises AuditError, and the
        action must not be done then. Blocks for an fsync."""
        entry = Entry(self, uuid.uuid4().hex, {"action": action, "what": what})
        try:
            self._append(entry.id, "intent", entry.head | {"before": before, "wanted": wanted})
        except OSError as error:
            raise AuditError(
                f"Nothing was done: {what} would have to be written to {self.path.absolute()} first, and that failed "
                f"({error.strerror or error}). Check that file and its folder, or name another in admin.audit_file."
            ) from error
        return entry

    def finish(self, entry: Entry, result: str, after: Any) -> None:
        try:
            self._append(entry.id, "outcome", entry.head | {"result": result, "after": after})
        except OSError as error:
            raise AuditError(
                f"{entry.head['what']}: {result}. This could not be written to {self.path.absolute()} "
                f"({error.strerror or error}); the line before it could. Make room there, and note it down."
            ) from error

    def _append(self, number: str, phase: str, facts: dict[str, Any]) -> None:
        document = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "id": number,
            "phase": phase,
            "user": running_user(),
            "host": socket.gethostname(),
            "command": self._command,
            "cluster": self._cluster,
            **facts,
        }
        line = (json.dumps(document, ensure_ascii=False) + "\n").encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # One write at the end of the file: lines of two processes do not mix.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError("the disk took only a part of the line")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Entry:
    """An action under way; to be finished once."""

    def __init__(self, log: AuditLog, number: str, head: dict[str, Any]) -> None:
        self._log = log
        self.id = number
        self.head = head

    def done(self, after: Any = None) -> None:
        """It was done. Raises AuditError when that cannot be written."""
        self._log.finish(self, "done", after)

    def failed(self, error: Exception, *, unknown: bool = False) -> None:
        """It was not done; or, with ``unknown``, nobody knows."""
        said = f"unknown, it may have been done: {error}" if unknown else f"not done: {error}"
        self._log.finish(self, said, None)
