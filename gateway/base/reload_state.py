"""What there is to say of the settings in force: on /status, and of a reload to whoever asked for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config.errors import ConfigError, ExitStatus
from config.loading.live import changes, remedy
from config.numbers import many
from gateway.base.instruments import MetricSet, gauge
from gateway.base.moments import moment
from gateway.base.problem import Problem

if TYPE_CHECKING:
    from config.loading.load import Loaded
    from config.settings import Settings
    from gateway.base.reload_plan import Plan, Wish


class ReloadMetrics(MetricSet):
    """Metrics of the last reload: of the supervisor, else of the worker."""

    # fmt: off
    reload_success = gauge("gateway_config_reload_success",
        "0 if the last reload failed and older settings are in use, else 1.",
        "the settings that the log's reload_failed names",
        unit="success")
    last_reload = gauge("gateway_config_last_reload_timestamp_seconds",
        "Time at which the present settings were read.",
        "none",
        unit="seconds")
    # fmt: on

    def __init__(self, label_values: Mapping[str, Sequence[str]]) -> None:
        super().__init__(label_values)
        self.watch_config(ConfigState(None))

    def watch_config(self, config: ConfigState) -> None:
        """Show the last reload of this process's own settings."""
        self.reload_success.watch(lambda: int(config.problem is None))
        self.last_reload.watch(lambda: config.loaded_s)


class ConfigState:
    """When the settings in force were read, from which file, and how the last attempt to change them ended."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self.loaded_s = time.time()
        self._last: dict[str, object] | None = None

    def took(self, file: Path | None) -> None:
        """Other settings are in force now."""
        self._file = file
        self.loaded_s = time.time()

    def ended(self, wish: Wish, problem: str | None) -> None:
        """A reload has ended. A dry run leaves nothing behind."""
        if not wish.dry_run:
            self._last = {"at": moment(time.time()), "ok": problem is None, "problem": problem}

    async def reload(
        self,
        wish: Wish,
        load: Callable[[], Loaded],
        now: Settings,
        workers: int,
        use: Callable[[Settings], Awaitable[tuple[str | None, list[str]]]],
    ) -> tuple[str | None, str, dict[str, Any]]:
        """Read the settings again, and have ``use`` apply those that the wish allows to so many workers.

        ``load`` blocks, and raises ConfigError. ``use`` returns the reason of a failure or None, and remarks for the
        operator; with a dry run it changes nothing. Returns the problem or None, a sentence on what was done, and
        further facts without secrets: the file, every difference, the exit status.
        """
        from gateway.base.reload_plan import plan_reload  # with config's loading, which a worker does not need before

        details: dict[str, Any] = {"status": int(ExitStatus.CONFIG)}
        try:
            loaded = await asyncio.to_thread(load)
            found = [change.as_dict() for change in changes(now, loaded.settings, loaded.provenance)]
            details |= {"file": _absolute(loaded.file), "dry_run": wish.dry_run, "changes": found}
            plan = plan_reload(now, loaded, wish)
        except ConfigError as error:
            return str(error), "", details
        problem, remarks = await use(plan.settings)
        details["remarks"] = [*loaded.warnings, *remarks]
        if problem is not None:
            return f"The settings stay as they were: {problem}", "", details | {"status": int(ExitStatus.FAILED)}
        if not wish.dry_run:
            self.took(loaded.file)
        return None, _say(plan, wish, workers), details | {"status": _status_of(plan, wish)}

    @property
    def problem(self) -> str | None:
        """Why the last reload failed; None if it did not, or there was none."""
        return None if self._last is None or self._last["ok"] else str(self._last["problem"])

    def problems(self) -> tuple[Problem, ...]:
        """The problem ``config-reload-failed`` while the last reload failed; nothing otherwise."""
        if self.problem is None:
            return ()
        text = f"The last reload failed, so older settings are in force: {self.problem}"
        check = "correct the settings and run `gateway reload`; --dry-run checks them first"
        return (Problem("config-reload-failed", "warning", text, check),)

    def as_dict(self) -> dict[str, object]:
        """The member ``config`` of /status."""
        return {"loaded_at": moment(self.loaded_s), "file": _absolute(self._file), "last_reload": self._last}


def _absolute(file: Path | None) -> str | None:
    return None if file is None else str(file.absolute())


def _say(plan: Plan, wish: Wish, workers: int) -> str:
    """The sentence about what a reload did, or about what a dry run found."""
    count = len(plan.changes) - len(plan.waiting)
    who = "the running worker" if workers == 1 else f"all {workers} running workers"
    settings = many(count, "change")
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
        text += f" These need {remedy(plan.waiting, plan.settings.workers)}: {names}."
    return text


def _status_of(plan: Plan, wish: Wish) -> int:
    """The exit status that goes with ``_say``."""
    if not plan.waiting:
        return int(ExitStatus.OK)
    return int(ExitStatus.INCOMPLETE if wish.partial or wish.dry_run else ExitStatus.CONFIG)
