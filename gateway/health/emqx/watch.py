"""The watch of this worker's sessions in EMQX, every ``emqx.interval``, with an account of EMQX's losses.

Each worker looks at its own client ids: one question of a few kilobytes, whatever the number of sessions. So it needs
no supervisor, and the metrics stay with their sessions. EMQX's counts at the last look are kept in the data directory,
so losses during the worker's absence are counted afterwards.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import structlog

from bridge.waiting import end_tasks
from config.error_words import words
from config.errors import ConfigError, forget_frames
from config.settings import EmqxSettings
from gateway.base.lookout_metrics import REASONS
from gateway.base.metrics import Metrics
from gateway.base.moments import moment
from gateway.base.problem import Problem
from gateway.data_dir import durable
from gateway.data_dir.lost_sessions import LostSessions
from gateway.health.emqx.api import EmqxApi, EmqxApiError
from gateway.health.emqx.cluster import ClusterView, cluster_problem, look_at_cluster
from gateway.health.emqx.losses import Marks, SessionLosses
from gateway.health.emqx.model import EmqxClient
from gateway.health.emqx.problems import emqx_problems, said_of_counts

log = structlog.get_logger("emqx")

_FORMAT: Final = 1
_FIRST_LOOK_S: Final = 5.0  # the start does not wait for the HTTP client's import
_NO_SUBSCRIBERS: Final = "messages.dropped.no_subscribers"
_BESIDE: Final = ("delivery.dropped", _NO_SUBSCRIBERS)  # may grow when a session is lost
_NONE: Final = EmqxClient("", connected=False)  # stands for a session that EMQX does not have


class EmqxWatch:
    """A component of the service; belongs to the event loop's thread. A failure is a line in the log and a problem, and
    never affects messages.

    ``sessions`` are the names and client ids of ``worker``; ``path`` is the file with the counts of the last look.
    Worker 0 also counts losses outside sessions. ``own_unheard`` counts the gateway's own messages without a
    subscriber.
    """

    name: Final = "emqx watch"

    def __init__(
        self,
        settings: EmqxSettings,
        sessions: Sequence[tuple[str, str]],  # name and client id
        metrics: Metrics,
        path: Path,  # the file that keeps the counts for the next worker
        *,
        worker: int = 0,
        lost: LostSessions | None = None,  # explained by EMQX's counts
        own_unheard: Callable[[], int] = lambda: 0,  # the gateway's own messages without a subscriber
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._settings = settings
        self._api = EmqxApi(settings)
        self._names = list(sessions)
        self._metrics = metrics
        self._path = path
        self._worker = worker
        self._lost = lost
        self._own_unheard = own_unheard
        self._own_seen = 0  # of the gateway's own, those that were taken off
        self._clock_ms = clock_ms
        self._sessions: list[SessionLosses] = []
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._looked_ms = 0  # since 1970; 0: never
        self._failed_looks = 0  # in a row
        self._failure = ""
        self._cluster = ClusterView()
        self._unheard: int | None = None  # messages without a subscriber, at the last look
        self._counts: dict[str, int] = {}  # EMQX's, at the last look with all sessions connected
        metrics.emqx_watched.child().value = 1

    async def start(self) -> None:
        """Begin to look. It reads the slot's file, so the worker must have the slot."""
        since_ms = self._clock_ms()
        kept, looked_ms = self._load()
        self._sessions = [
            SessionLosses(name, client_id, since_ms=since_ms, marks=kept.get(client_id), looked_ms=looked_ms)
            for name, client_id in self._names
        ]
        self._task = asyncio.create_task(self._run(), name="emqx watch")

    async def stop(self, deadline_ns: int) -> None:  # noqa: ARG002 - two fsyncs at most
        """End the looks, keep the last one's counts, and set its metrics to 0."""
        task, self._task = self._task, None  # a reload and the end of the worker may stop it at once
        if task is None:
            return
        await end_tasks(task)
        if self._writing is not None:  # the slot's next worker writes the same file
            await asyncio.wait([self._writing])
        if self._looked_ms:
            await self._keep()  # the time of the last look: the next worker counts drops after it
        self._metrics.emqx_up.child().value = 0  # after a reload ends it, its last figures would stay
        self._metrics.emqx_dead_members.child().value = 0
        for session in self._sessions:
            self._show(session.name, None)

    async def _run(self) -> None:
        """Look once in each interval, for good."""
        interval_s = self._settings.interval.total_seconds()
        await asyncio.sleep(min(_FIRST_LOOK_S, interval_s))
        while True:
            began_s = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, began_s + interval_s - time.monotonic()))

    async def look(self) -> None:
        """Ask EMQX once, and note its answer. Raises nothing."""
        try:
            clients = await self._api.clients(session.client_id for session in self._sessions)
            counts = await self._api.metrics()
            cluster = await look_at_cluster(self._api) if self._worker == 0 else ClusterView()
        except (EmqxApiError, ConfigError) as error:
            self._failed_to_look(error)
            return
        except Exception as error:  # a defect here must not end the worker
            log.exception("emqx_look_broken", repeat_key="emqx_look_broken")
            self._failed_to_look(error)
            return
        if self._failed_looks or not self._looked_ms:
            log.info("emqx_watched", url=self._settings.url, sessions=len(clients))
        self._failed_looks, self._failure = 0, ""
        self._note_cluster(cluster)
        self._looked_ms = now_ms = self._clock_ms()
        before = [session.marks for session in self._sessions]
        for session in self._sessions:
            self._take(session, session.look(clients.get(session.client_id), now_ms), now_ms)
        if self._worker == 0:
            self._count_unheard(counts)
        counts_changed = self._explain_lost(counts)
        self._metrics.emqx_up.child().value = 1
        if counts_changed or before != [session.marks for session in self._sessions]:
            await self._keep()

    def _failed_to_look(self, error: Exception) -> None:
        """Note a failed look; log it unless the one before failed for the same reason."""
        forget_frames(error)
        self._note_cluster(ClusterView())  # not judged
        self._metrics.emqx_up.child().value = 0
        trouble = error.trouble if isinstance(error, EmqxApiError) else "answer"
        self._metrics.emqx_look_failures.child(trouble).value += 1
        if not self._failed_looks or self._failure != str(error):
            log.warning(
                "emqx_not_watched",
                error=str(error),
                consequence="messages that EMQX drops are not counted meanwhile; messages flow",
            )
        self._failed_looks += 1
        self._failure = str(error)

    def _note_cluster(self, view: ClusterView) -> None:
        """Keep the view, and log the first dead members."""
        before, self._cluster = self._cluster, view
        self._metrics.emqx_dead_members.child().value = view.dead or 0
        if view.dead and not before.dead:
            log.error(
                "emqx_members_dead",
                nodes=view.stopped,
                members=view.dead,
                consequence="their share of new messages is lost, although publishers have an acknowledgement",
            )

    def _take(self, session: SessionLosses, new: dict[Any, int], now_ms: int) -> None:
        """Show a session's last look; count its ``new`` losses by reason and log the first of an episode."""
        name = session.name
        self._show(name, session.client)
        for reason, count in new.items():
            self._metrics.emqx_dropped.child(name, reason).value += count
            episode = session.episode(reason, now_ms)
            if episode is not None and episode.count == count:  # the episode's first loss; metrics have the others
                log.error(
                    "emqx_dropped",
                    session=name,
                    client_id=session.client_id,
                    reason=reason,
                    messages=count,
                    consequence="the devices have an acknowledgement; the gateway never received these messages",
                )

    def _show(self, name: str, client: EmqxClient | None) -> None:
        """Set a session's metrics; to 0 without a client."""
        metrics, client = self._metrics, client or _NONE
        metrics.emqx_queue_length.child(name).value = client.mqueue_len
        metrics.emqx_queue_limit.child(name).value = client.mqueue_max
        metrics.emqx_inflight.child(name).value = client.inflight_cnt
        metrics.emqx_inflight_limit.child(name).value = client.inflight_max

    def _count_unheard(self, counts: dict[str, int]) -> None:
        """Count messages for which nobody subscribed, without the gateway's own."""
        if (now := counts.get(_NO_SUBSCRIBERS)) is None:
            return
        before, self._unheard = self._unheard, now
        own = self._own_unheard()
        if before is None:
            self._own_seen = own
            return
        grown = now - before if now >= before else now
        # The gateway's own status messages are retained, so none is lost without a subscriber.
        ours = min(grown, own - self._own_seen)
        self._own_seen += ours
        self._metrics.emqx_no_subscribers.child().value += grown - ours

    def _explain_lost(self, counts: dict[str, int]) -> bool:
        """Explain lost sessions with EMQX's counters. Returns whether the counts to keep have changed."""
        counts = {name: count for name, count in counts.items() if name.startswith(_BESIDE)}
        lost = self._lost
        if lost is None:
            return False
        if lost.unexplained():
            lost.explain(said_of_counts(self._counts, counts))
        if lost.away():
            return False  # drops until the session is back belong to its absence
        before, self._counts = self._counts, counts
        return before != counts

    # --- the file with EMQX's counts ------------------------------------------------------------------------------

    def _load(self) -> tuple[dict[str, Marks], int | None]:
        """An earlier worker's counts by client id, and their time, None if unknown."""
        try:
            document = json.loads(self._path.read_bytes())
            if document["version"] != _FORMAT:
                return {}, None
            self._counts = {str(name): int(count) for name, count in document.get("counts", {}).items()}
            marks = {client_id: Marks.parse(values) for client_id, values in document["sessions"].items()}
            return marks, int(document["looked_ms"])
        except FileNotFoundError:
            return {}, None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning(
                "emqx_counts_not_read",
                file=str(self._path),
                error=words(error),
                consequence="messages that EMQX dropped during this worker's absence are not counted",
            )
            return {}, None

    async def _keep(self) -> None:
        """Write the last look's counts for the next worker of the slot."""
        sessions = {one.client_id: asdict(one.marks) for one in self._sessions if one.marks is not None}
        document = {"version": _FORMAT, "looked_ms": self._looked_ms, "sessions": sessions, "counts": self._counts}
        text = json.dumps(document, indent=1) + "\n"
        self._writing = asyncio.ensure_future(asyncio.to_thread(durable.write, self._path, text))
        try:
            await asyncio.shield(self._writing)
        except OSError as error:
            log.warning("emqx_counts_not_kept", file=str(self._path), error=words(error), repeat_key="emqx_counts")

    # --- problems and facts -------------------------------------------------------------------------------------------

    def problems(self) -> tuple[Problem, ...]:
        """The cluster's problem, and those of this worker's sessions."""
        cluster = cluster_problem(self._cluster)
        return (() if cluster is None else (cluster,)) + tuple(
            emqx_problems(
                self._sessions,
                self._clock_ms(),
                subject=f"worker {self._worker}",
                failed_looks=self._failed_looks,
                failure=self._failure,
            )
        )

    def facts(self) -> dict[str, object]:
        """For /status. Does not block."""
        return {
            "url": self._settings.url,
            "up": bool(self._looked_ms) and not self._failed_looks,
            "error": self._failure or None,
            "looked_at": _moment(self._looked_ms),
            "stopped_nodes": list(self._cluster.stopped),
            "dead_members": self._cluster.dead,
            "dropped": sum(sum(session.lost.values()) for session in self._sessions),
            "sessions": [_facts(session) for session in self._sessions],
        }


def _facts(session: SessionLosses) -> dict[str, object]:
    """A session's part of /status."""
    client = session.client or _NONE
    return {
        "session": session.name,
        "client_id": session.client_id,
        "known": session.client is not None,
        "connected": client.connected,
        "queue_length": client.mqueue_len,
        "queue_limit": client.mqueue_max,
        "inflight": client.inflight_cnt,
        "inflight_limit": client.inflight_max,
        "dropped": {reason: session.lost[reason] for reason in REASONS},
        "dropped_by_emqx": client.mqueue_dropped,
        "since": _moment(client.session_ms),
    }


def _moment(unix_ms: int) -> str | None:
    return moment(unix_ms / 1000) if unix_ms else None
