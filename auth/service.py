"""The service that EMQX asks: who may connect (``auth.logins.logins``), and who may publish and subscribe where
(``auth.logins.accesses``). No HTTP here; everything belongs to one event loop.
"""

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Final

import structlog

from auth.errors import BackendDownError
from auth.logins.accesses import Accesses
from auth.logins.chain import Chain
from auth.logins.counts import Counts
from auth.logins.events import Events
from auth.logins.lockouts import LockedNow
from auth.logins.logins import Logins
from auth.ports import AccessStore
from bridge.waiting import end_tasks
from config.tables.auth import AuthSettings

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("auth")

_REFRESH_S: Final = 0.1  # between two checks of the database for changes; a check takes some 5 µs
_SWEEP_NS: Final = 1_000_000_000  # between two sweeps of expired entries


class AccessService:
    """Decides, from the settings, the built-in database and the chain. Implements ``auth.ports.AccessDecisions``.

    ``store`` is open; ``start`` and ``close`` start and close the chain too. ``clock`` is monotonic, in nanoseconds,
    ``wall`` in Unix seconds.
    """

    def __init__(
        self,
        settings: AuthSettings,
        store: AccessStore,
        chain: Chain,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,  # Unix seconds
    ) -> None:
        self.counts: Final[Counts] = chain.counts
        self.chain: Final = chain
        self._store = store
        self._events = Events(self.counts, clock)
        self.logins: Final = Logins(settings, store, chain, self._events, clock, wall)
        self.login_at_once = self.logins.login_at_once
        self.login = self.logins.login
        self.backend_down = self.logins.backend_down
        self.authorise = Accesses(settings, store, self.counts, self._events, wall).authorise
        self._down_result = settings.backend_down
        self._now_ns = clock
        self._swept_ns = 0
        self._refreshing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the backends and begin to watch the database. Raises ConfigError; a backend that is down is no error."""
        await self.chain.start()
        self.refresh()
        self._refreshing = asyncio.get_running_loop().create_task(self._keep_refreshing(), name="auth refresh")

    async def close(self) -> None:
        """End what is under way and close the backends. Never raises."""
        await end_tasks(self._refreshing)
        await self.logins.close()
        await self.chain.close()

    def refresh(self) -> bool:
        """Check the database and the backends for changes, and drop expired entries. Returns whether the database has
        changed. Called ten times a second after ``start``; a call is cheap."""
        try:
            changed = self._store.refresh()
        except BackendDownError as error:
            self._events.store_failed(error)
            changed = False
        else:
            self._events.store_works()
        self.chain.watch()
        now_ns = self._now_ns()
        if now_ns - self._swept_ns >= _SWEEP_NS:
            self._swept_ns = now_ns
            self.logins.sweep()
        return changed

    def present_lock_outs(self, limit: int) -> list[LockedNow]:
        """The lock-outs that last, ``limit`` of them at most."""
        return list(itertools.islice(self.logins.lockouts.locked_now(self._now_ns()), limit))

    def check(self) -> list[str]:
        """Sentences about faults of the database and the backends; empty when the service is ready."""
        problems = []
        if self._store.problem:
            problems.append(f"The built-in database cannot be read: {self._store.problem}")
        for one in self.chain.authenticators:
            if one.up or one.name == "database":  # the database's fault is in the list already
                continue
            problem = getattr(one, "problem", "") or f"Check auth.{one.name}, and what it asks."
            problems.append(
                f"The backend {one.name} of auth.chain does not answer: logins that are not in the cache get "
                f"{self._down_result} (auth.backend_down). {problem}"
            )
        return problems

    async def _keep_refreshing(self) -> None:
        """Refresh ten times a second, for good."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            try:
                self.refresh()
            except Exception:  # noqa: BLE001 - a defect must not end the checks
                _log.exception("auth_defect", at="refresh", repeat_key="refresh")
