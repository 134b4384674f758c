"""Files between commands and a running gateway in the data directory: a request, and reports of what was done. Both
are small JSON files, written whole. A signal tells the gateway to read the request.

``who`` is the process's name there: ``supervisor``, or ``worker-0`` without one.
"""

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from config.errors import GatewayError
from gateway.base.reload_plan import Wish

Operation = Literal["restart", "reload", "roll", "stop"]

_KEPT: Final = 8  # outcomes of requests
_FRESH_S: Final = 10.0  # an older request is of a command that was killed before its signal


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last of one kind of operation: the ``count``-th of this process; ``ok`` is None while it runs.

    ``request`` is the number of its wish, ``details`` are further facts."""

    count: int = 0
    ok: bool | None = None
    sentence: str = ""
    request: int = 0
    details: dict[str, Any] = field(default_factory=dict)


class Reports:
    """The reports of this process. Raises nothing: an unwritable file must not prevent an operation."""

    def __init__(self, directory: Path, who: str) -> None:
        self._file = directory / f"{who}.json"
        self._outcomes: dict[Operation, Outcome] = {}
        self._requested: dict[int, Outcome] = {}  # by request: another operation may follow before its command looks

    def begin(self, operation: Operation, request: int = 0) -> None:
        self._write(operation, Outcome(self._outcomes.get(operation, Outcome()).count + 1, request=request))

    def finish(self, operation: Operation, problem: str | None, done: str, **details: Any) -> None:
        """An operation has ended: with a problem, or as the sentence ``done`` says."""
        now = self._outcomes.get(operation, Outcome())
        self._write(operation, Outcome(now.count, problem is None, problem or done, now.request, details))

    def _write(self, operation: Operation, outcome: Outcome) -> None:
        """Keep an outcome and rewrite the file; remove the file when that fails."""
        self._outcomes[operation] = outcome
        if outcome.request:
            self._requested = dict([*(self._requested | {outcome.request: outcome}).items()][-_KEPT:])
        report = {
            "pid": os.getpid(),
            "operations": {name: asdict(one) for name, one in self._outcomes.items()},
            "requests": {number: asdict(one) for number, one in self._requested.items()},
        }
        draft = self._file.with_suffix(".new")
        try:
            draft.unlink(missing_ok=True)
            # The differences between two configurations are readable only to our user and root.
            _write_new(draft, report, 0o600)
            draft.replace(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)  # it says that the operation runs, and a command would wait for ever


def read_outcome(directory: Path, who: str, pid: int, operation: Operation, request: int = 0) -> Outcome:
    """What process ``pid`` last reported of an operation: with ``request``, of that one while it is kept. An empty
    Outcome, with a count of 0, when it has reported none."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        report = json.loads((directory / f"{who}.json").read_text())
        if report["pid"] == pid:
            # A process of an older version reports no requests.
            return Outcome(**(report.get("requests", {}).get(str(request)) or report["operations"][operation]))
    return Outcome()


def is_busy(directory: Path, who: str, pid: int) -> bool:
    """Whether process ``pid`` reports an operation under way."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        report = json.loads((directory / f"{who}.json").read_text())
        return report["pid"] == pid and any(one["ok"] is None for one in report["operations"].values())
    return False


def ask(directory: Path, who: str, wish: Wish) -> None:
    """Write a wish for the process to read when it gets the signal, which the caller sends. Raises GatewayError while
    another command's wish is there."""
    file = directory / f"{who}.request.json"
    draft = directory / f"{who}.request.{os.getpid()}"
    draft.unlink(missing_ok=True)  # of a killed command with our process id
    try:
        # Readable to all: root may ask, and the gateway may run as another user. It holds no secret.
        _write_new(draft, {"at": time.time(), **asdict(wish)}, 0o644)
        with contextlib.suppress(FileNotFoundError):
            if abs(time.time() - file.stat().st_mtime) > _FRESH_S:
                file.unlink()
        os.link(draft, file)  # fails if there is one: two commands at once
    except FileExistsError:
        raise GatewayError("Another command is just asking the gateway for something; try again.") from None
    finally:
        draft.unlink(missing_ok=True)


def _write_new(file: Path, document: dict[str, Any], mode: int) -> None:
    """Creates a new file. With a link in its place, a user with rights on the folder could make root write elsewhere:
    then FileExistsError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as out:
        out.write(json.dumps(document) + "\n")


def take_request(directory: Path, who: str) -> Wish:
    """The wish of the received signal; a default one for a signal without."""
    file = directory / f"{who}.request.json"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        text = file.read_text()
        file.unlink()
        request = json.loads(text)
        at = request.pop("at")
        if abs(time.time() - at) <= _FRESH_S:
            return Wish(**request)
    return Wish()
