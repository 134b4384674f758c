"""The audit of changes: a line of JSON before each action, and one after it.

An action whose first line cannot be written is not done. The first line has the former and the wanted state. The second
one, with the same ``id``, has the outcome. Without a second line the process died in between, and Kafka may have made
the change.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gateway.admin.errors import AdminError
from gateway.base.moments import moment_ms
from gateway.base.process.running_user import running_user

if TYPE_CHECKING:
    from config.settings import Settings


class AuditError(AdminError):
    """The audit cannot be written. The sentence says whether something was changed."""


class AuditLog:
    """Appends to a file that several processes may share. ``command`` is for example "gateway topics apply"."""

    def __init__(self, path: Path, command: str, cluster: str) -> None:
        self.path = path
        self._command = command
        self._cluster = cluster

    @classmethod
    def of(cls, settings: Settings, command: str, cluster: str) -> AuditLog:
        """The audit in ``admin.audit_file``, by default ``admin.log`` in ``data_dir``."""
        return cls(settings.admin.audit_file or settings.data_dir / "admin.log", command, cluster)

    def begin(self, action: str, what: str, before: Any, wanted: Any) -> Entry:
        """Write the intended change, and return the entry for its outcome. Blocks for an fsync.

        Raises AuditError; then the change must not be made."""
        entry = Entry(self, uuid.uuid4().hex, {"action": action, "what": what})
        try:
            self._append(entry.id, "intent", entry.head | {"before": before, "wanted": wanted})
        except OSError as error:
            raise AuditError(
                f"Nothing was changed: the audit of {what} cannot be written to {self.path.absolute()} "
                f"({error.strerror or error}). Check that file and its folder, or name another in admin.audit_file."
            ) from error
        return entry

    def finish(self, entry: Entry, result: str, after: Any) -> None:
        """Write the outcome of a change: ``result`` in words, and the state after it. Raises AuditError."""
        try:
            self._append(entry.id, "outcome", entry.head | {"result": result, "after": after})
        except OSError as error:
            raise AuditError(
                f"{entry.head['what']}: {result}. This outcome could not be written to {self.path.absolute()} "
                f"({error.strerror or error}), which has the intent alone. Free space there, and note the outcome."
            ) from error

    def _append(self, change_id: str, phase: Literal["intent", "outcome"], facts: dict[str, Any]) -> None:
        """Append a line, durably: the intended change or its outcome. Raises OSError."""
        document = {
            "time": moment_ms(time.time_ns() // 1_000_000),
            "id": change_id,
            "phase": phase,
            "user": running_user(),
            "host": socket.gethostname(),
            "command": self._command,
            "cluster": self._cluster,
            **facts,
        }
        line = (json.dumps(document, ensure_ascii=False) + "\n").encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A single append, so that lines of two processes do not mix.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError("the disk took only a part of the line")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Entry:
    """A change under way. Its outcome is noted once."""

    def __init__(self, log: AuditLog, change_id: str, head: dict[str, Any]) -> None:
        self._log = log
        self.id = change_id
        self.head = head

    def done(self, after: Any = None) -> None:
        """Note success. Raises AuditError if that cannot be written."""
        self._log.finish(self, "done", after)

    def failed(self, error: Exception, *, unknown: bool = False) -> None:
        """Note a failure; with ``unknown`` the change may have been made."""
        said = f"unknown, it may have been done: {error}" if unknown else f"not done: {error}"
        self._log.finish(self, said, None)
