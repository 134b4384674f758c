"""``gateway auth serve``: makes, starts, watches and stops the parts of the service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from auth.hashing import Hasher
from auth.logins.chain import make_chain
from auth.logins.counts import Counts
from auth.service import AccessService
from auth.store.store import Store, database_path
from bridge.waiting import end_tasks
from config.values.grammar import nanoseconds
from gateway.auth_service.metrics import AuthMetrics
from gateway.auth_service.operator import LOCK_OUTS_SHOWN, AuthAnswers, Health
from gateway.auth_service.server import AuthServer
from gateway.base.instruments import EventLoopProbe
from gateway.base.lifecycle import Lifecycle, Service, State, Step, StopRequest
from gateway.base.process import memory
from gateway.base.signals import StopSignals
from gateway.http.server import HttpServer
from gateway.http.tls import TlsContext

if TYPE_CHECKING:
    from config.settings import Settings

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("auth")

_LOOK_S: Final = 2.0  # between two checks of the files, a few stat calls each


class AuthProcess:
    """All parts of the process, made from settings; ``service`` runs them. Make it inside the running event loop.
    Raises ConfigError for unusable settings and files.

    Order of the start: the operator's port first, so that a hanging start can be examined; then the database and the
    backends; EMQX's port last, when every question can be answered. A stop has the reverse order.

    ``make_server`` lets measurements replace the decision by a constant answer.
    """

    def __init__(self, settings: Settings, make_server: type[AuthServer] = AuthServer) -> None:
        auth = settings.auth
        self.settings = settings
        tls = None if auth.tls is None else TlsContext(auth.tls)
        self.metrics = AuthMetrics(auth)
        self.store = Store(database_path(settings))
        self.hasher = Hasher(auth.hashing)
        chain = make_chain(auth, self.store, self.hasher, Counts(auth.chain))
        self.access = AccessService(auth, self.store, chain)
        self.metrics.watch_counts(self.access.counts)
        self.metrics.watch_chain(chain)
        self.metrics.watch_hasher(self.hasher)
        self.server = make_server(
            auth, self.access, self.metrics, context=None if tls is None else (lambda: tls.context)
        )
        lifecycle = Lifecycle()
        self.operator = HttpServer(
            settings.http.model_copy(update={"host": auth.operator_host, "port": auth.operator_port}),
            AuthAnswers(self.metrics, lifecycle, self.health),
            names=("auth.operator_host", "auth.operator_port"),
        )
        probe = EventLoopProbe(self.metrics.event_loop_delay.child())
        files = _Files(tls, self.server, self.metrics)
        self.service = Service(
            (self.operator, probe, Step("auth_decisions", self._open_decisions, self._close_decisions), files),
            (self.server,),
            shutdown_timeout_ns=nanoseconds(settings.shutdown_timeout),
            lifecycle=lifecycle,
        )
        lifecycle.listen(self._on_state)

    async def _open_decisions(self) -> None:
        """Opens the database, which blocks for some milliseconds, then the backends. Raises StoreError, ConfigError."""
        missing = not self.store.path.exists()
        self.store.open()
        if missing:  # as when its disk is not mounted: nothing else would say that bans and rules are gone
            _log.warning(
                "auth_database_made",
                database=str(self.store.path),
                consequence="it has no users, rules, tenants and bans; is its disk mounted?",
            )
        await self.access.start()

    async def _close_decisions(self, deadline_ns: int) -> None:  # noqa: ARG002 - each of them bounds itself
        """Closes the backends, writes pending changes to the database, and ends the threads."""
        try:
            await self.access.close()
        finally:
            self.hasher.close()
            await asyncio.to_thread(self.store.close)

    def health(self) -> Health:
        """The service's present health, for /readyz and /status."""
        auth = self.settings.auth
        problems = self.access.check()
        if self.hasher.waiting >= auth.hashing.queue:
            problems.append(
                f"{self.hasher.waiting} password hashes wait, as many as auth.hashing.queue allows: further logins "
                f"with passwords get {auth.backend_down} (auth.backend_down). Raise auth.hashing.threads, or run "
                "several instances of the service."
            )
        chain = self.access.chain
        down = chain.down()
        return Health(
            tuple(problems),
            {
                "chain": [{"backend": one.name, "up": one.name not in down} for one in chain.authenticators],
                "backend_down": auth.backend_down,
                "logins_remembered": self.access.counts.cache_entries,
                "locked_out": self.access.counts.locked,
                "lock_outs": [
                    {
                        "kind": one.kind,
                        "name": one.name,
                        "address": one.address,
                        "seconds": one.left_ns // 1_000_000_000,
                    }
                    for one in self.access.present_lock_outs(LOCK_OUTS_SHOWN)
                ],
                "hashes_waiting": self.hasher.waiting,
            },
        )

    def _on_state(self, _old: State, new: State) -> None:
        """Once running, freeze loaded objects and log where the service listens."""
        if new is State.RUNNING:
            memory.freeze_loaded_objects()
            auth = self.settings.auth
            _log.info(
                "auth_ready",
                url=self.server.url,
                operator_url=self.operator.url,
                chain=list(auth.chain),
                database=str(self.store.path),
                bearer=auth.shared_secret is not None,
                client_certificate=auth.tls is not None and auth.tls.client_ca_file is not None,
            )


class _Files:
    """The component that notices changes of certificates and of the shared secret."""

    name: Final = "auth_files"

    def __init__(self, tls: TlsContext | None, server: AuthServer, metrics: AuthMetrics) -> None:
        self._tls = tls
        self._server = server
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="auth files")

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - there is nothing to wait for
        await end_tasks(self._task)

    async def _run(self) -> None:
        """Look for changed files for good."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                self._look()
            except Exception:  # noqa: BLE001 - the next look may find what this one did not
                _log.exception("auth_defect", at="files", repeat_key="files")

    def _look(self) -> None:
        self._server.renew_secret()
        if self._tls is not None and (done := self._tls.refresh()) is not None:
            self._metrics.reloads.child("tls", "success" if done else "failure").value += 1


async def run_auth(settings: Settings) -> StopSignals:
    """Run the service until a signal or a failure ends it. Raises the failure."""
    stop = StopRequest()
    signals = StopSignals(stop)
    with signals:
        report = await AuthProcess(settings).service.run(stop)
    _log.info("auth_stopped", clean=report.clean)
    return signals
