"""What commands and a running gateway leave for each other in the data directory: a request, and reports of what was
done. Both are small JSON files, written whole; the signal that goes with a request is what makes it heard.

``who`` is the process's name there: ``supervisor``, or ``worker-0`` for one that runs without.
"""

from __future__ import annotations

__all__ = ["Operation", "Outcome", "Reports", "ask", "read_outcome", "take_request"]

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from config.errors import GatewayError
from gateway.base.reload_plan import Wish

if TYPE_CHECKING:
    from pathlib import Path

Operation = Literal["restart", "reload", "roll", "stop"]

_FRESH_S: Final = 10.0  # a request of which nobody was told in that time is a dead command's


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last of one kind of operation: the ``count``-th of this process; ``ok`` is None while it runs.

    ``request`` is the number of the wish that it was done for, ``details`` what there is to say beside."""

    count: int = 0
    ok: bool | None = None
    sentence: str = ""
    request: int = 0
    details: dict[str, Any] = field(default_factory=dict)


class Reports:
    """The reports of this process. A file that cannot be written is no reason to do nothing, so nothing is raised."""

    def __init__(self, directory: Path, who: str) -> None:
        self._file = directory / f"{who}.json"
        self._outcomes: dict[Operation, Outcome] = {}

    def begin(self, operation: Operation, request: int = 0) -> None:
        """An operation has begun."""
        self._write(operation, Outcome(self._outcomes.get(operation, Outcome()).count + 1, request=request))

    def finish(self, operation: Operation, problem: str | None, done: str, **details: Any) -> None:
        """It has ended: with a problem, or as ``done`` says."""
        now = self._outcomes.get(operation, Outcome())
        self._write(operation, Outcome(now.count, problem is None, problem or done, now.request, details))

    def _write(self, operation: Operation, outcome: Outcome) -> None:
        self._outcomes[operation] = outcome
        report = {"pid": os.getpid(), "operations": {name: asdict(one) for name, one in self._outcomes.items()}}
        draft = self._file.with_suffix(".new")
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
            # What differs between two configurations is for those alone who may read them: us, and root.
            _write_new(draft, report, 0o600)
            draft.replace(self._file)


def read_outcome(directory: Path, who: str, pid: int, operation: Operation) -> Outcome:
    """What process ``pid`` last reported of an operation; a count of 0 when it has not done it."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        report = json.loads((directory / f"{who}.json").read_text())
        if report["pid"] == pid:
            return Outcome(**report["operations"][operation])
    return Outcome()


def ask(directory: Path, who: str, wish: Wish) -> None:
    """Put a wish where the process finds it when it gets the signal, which is the caller's to send. Raises
    GatewayError while another command's is there."""
    file = directory / f"{who}.request.json"
    draft = directory / f"{who}.request.{os.getpid()}"
    draft.unlink(missing_ok=True)  # of a command with our number that was killed
    try:
        # Readable to all: root may ask, and the gateway be another user. It tells nothing.
        _write_new(draft, {"at": time.time(), **asdict(wish)}, 0o644)
        with contextlib.suppress(FileNotFoundError):
            if abs(time.time() - file.stat().st_mtime) > _FRESH_S:
                file.unlink()
        os.link(draft, file)  # fails where one is: two commands at once
    except FileExistsError:
        raise GatewayError("Another command is just asking the gateway for something; try again.") from None
    finally:
        draft.unlink(missing_ok=True)


def _write_new(file: Path, document: dict[str, Any], mode: int) -> None:
    """A file that was not there. Whoever may write the folder could have put a link in its place, to have root, who
    asks, write elsewhere: then FileExistsError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as out:
        out.write(json.dumps(document) + "\n")


def take_request(directory: Path, who: str) -> Wish:
    """The wish that goes with the signal that has come; a bare one when it came without."""
    file = directory / f"{who}.request.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        text = file.read_text()
        file.unlink()
        request = json.loads(text)
        at = request.pop("at")
        if abs(time.time() - at) <= _FRESH_S:
            return Wish(**request)
    return Wish()
