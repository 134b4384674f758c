"""What there is to say of the settings in force: on /status, and of a reload to whoever asked for it."""

from __future__ import annotations

__all__ = ["ConfigState", "details_of", "say", "status_of"]

import time
from typing import TYPE_CHECKING, Any

from config.errors import ExitStatus
from config.loading.live import changes
from gateway.base.moments import moment
from gateway.base.problem import Problem

if TYPE_CHECKING:
    from pathlib import Path

    from config.loading.load import Loaded
    from config.settings import Settings
    from gateway.base.reload_plan import Plan, Wish


class ConfigState:
    """When the settings in force were read, from which file, and how the last attempt to change them ended."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._loaded_s = time.time()
        self._last: dict[str, object] | None = None

    def took(self, file: Path | None) -> None:
        """Other settings are in force now."""
        self._file = file
        self._loaded_s = time.time()

    def reloaded(self, problem: str | None) -> None:
        """A reload has ended."""
        self._last = {"at": moment(time.time()), "ok": problem is None, "problem": problem}

    @property
    def problem(self) -> str | None:
        """Why the last reload failed; None if it did not, or there was none."""
        return None if self._last is None or self._last["ok"] else str(self._last["problem"])

    def problems(self) -> tuple[Problem, ...]:
        """That the settings in force are not those of the file, while that is so."""
        if self.problem is None:
            return ()
        text = f"The last reload failed, so older settings are in force: {self.problem}"
        check = "correct the settings and run `gateway reload`; --dry-run tells first whether they can be taken"
        return (Problem("config-reload-failed", "warning", text, check),)

    def as_dict(self) -> dict[str, object]:
        """The member ``config`` of /status."""
        file = None if self._file is None else str(self._file.absolute())
        return {"loaded_at": moment(self._loaded_s), "file": file, "last_reload": self._last}


def details_of(now: Settings, loaded: Loaded, wish: Wish) -> dict[str, Any]:
    """For the one who asked: which file was read, and every difference. Holds no secret."""
    file = None if loaded.file is None else str(loaded.file.absolute())
    found = changes(now, loaded.settings, loaded.provenance)
    return {"file": file, "dry_run": wish.dry_run, "changes": [change.as_dict() for change in found]}


def say(plan: Plan, wish: Wish, workers: int) -> str:
    """What was done, in a sentence."""
    count = len(plan.changes) - len(plan.waiting)
    who = "the running worker" if workers == 1 else f"all {workers} running workers"
    settings = f"{count} change{'s' * (count != 1)}"
    if wish.dry_run:
        text = f"Nothing was changed; {settings} could be taken by {who}."
    elif not plan.changes:
        text = "No setting has changed; files that interceptors name were read again."
    elif count:
        text = f"{settings} taken by {who}, no session disconnected."
    else:
        text = "Nothing could be taken."
    if plan.waiting:
        names = ", ".join(dict.fromkeys(change.path for change in plan.waiting))
        text += f" These need `gateway restart --reload`: {names}."
    return text


def status_of(plan: Plan, wish: Wish) -> int:
    """The exit status that goes with ``say``."""
    if not plan.waiting:
        return int(ExitStatus.OK)
    return int(ExitStatus.INCOMPLETE if wish.partial or wish.dry_run else ExitStatus.CONFIG)
