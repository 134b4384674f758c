"""A worker's answers to ``/metrics``, ``/healthz``, ``/readyz`` and ``/status``.

Without a supervisor, the worker's own HTTP port asks. A supervisor asks each of its workers over their channels.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.base.moments import moment
from gateway.base.readiness import ReadinessLimits, ReadinessSnapshot, decide

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from bridge.ledger import Ledger
    from config.settings import Settings
    from gateway.base.instruments import MetricSet
    from gateway.base.lifecycle import Lifecycle
    from gateway.base.metrics import Metrics

PATHS: Final = ("/metrics", "/healthz", "/readyz", "/status")
TEXT_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"  # a type of /metrics that every scraper takes


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: status, Content-Type, body."""

    status: int
    type: str
    body: str


def json_answer(document: dict[str, object], *, status: int = 200) -> Answer:
    return Answer(status, "application/json; charset=utf-8", json.dumps(document, ensure_ascii=False) + "\n")


def metrics_encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """What makes a text of metrics in the format that a scraper's Accept header asks for, and its Content-Type."""
    from prometheus_client.exposition import choose_encoder

    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version in the Accept header that is none
        return choose_encoder("")


class Answers(ABC):
    """What a process answers on PATHS: its parts, of which an answer is made here."""

    async def answer(self, path: str, accept: str) -> Answer:
        """The answer to one of PATHS; ``accept`` is the request's header, which chooses the format of metrics."""
        match path:
            case "/metrics":
                return await self.metrics(accept)
            case "/healthz":
                # The answer itself is the check: it comes from the event loop that does the work.
                return json_answer({"alive": True, **self.health()})
            case "/readyz":
                reasons = await self.reasons()
                return json_answer({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)
            case "/status":
                return json_answer(await self.status())
            case _:
                return Answer(404, "text/plain; charset=utf-8", "There is no such path.\n")

    @abstractmethod
    async def metrics(self, accept: str) -> Answer: ...

    @abstractmethod
    def health(self) -> dict[str, object]: ...

    @abstractmethod
    async def reasons(self) -> Sequence[str]:
        """Why it is not ready; empty if it is."""

    @abstractmethod
    async def status(self) -> dict[str, object]: ...


class ServiceAnswers(Answers):
    """The answers of a process with metrics and a life cycle of its own. Nothing waits."""

    def __init__(self, metrics: MetricSet, lifecycle: Lifecycle) -> None:
        self._metrics = metrics
        self._lifecycle = lifecycle

    async def metrics(self, accept: str) -> Answer:
        encode, content_type = metrics_encoder(accept)
        return Answer(200, content_type, encode(self._metrics).decode())

    def health(self) -> dict[str, object]:
        seconds = self._lifecycle.in_state_ns // 1_000_000_000
        return {"state": self._lifecycle.state.name, "in_state_seconds": seconds}


class WorkerAnswers(ServiceAnswers):
    """The answers of one worker, read in the event loop when a question comes.

    ``snapshot`` and ``facts`` (the further members of /status) must not block.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        metrics: Metrics,
        lifecycle: Lifecycle,
        ledger: Ledger,
        snapshot: Callable[[], ReadinessSnapshot],
        facts: Callable[[], dict[str, object]] = dict,  # further fields of /status
    ) -> None:
        super().__init__(metrics, lifecycle)
        self._limits = ReadinessLimits.from_settings(settings)
        self._ledger = ledger
        self._snapshot = snapshot
        self._facts = facts

    def adopt(self, settings: Settings) -> None:
        """Use other limits from now on."""
        self._limits = ReadinessLimits.from_settings(settings)

    async def reasons(self) -> Sequence[str]:
        return decide(self._snapshot(), self._limits).reasons

    async def status(self) -> dict[str, object]:
        """The document of /status."""
        snapshot = self._snapshot()
        readiness = decide(snapshot, self._limits)
        oldest_ns = snapshot.oldest_unacked_age_ns
        return {
            "state": snapshot.state.name,
            "since": moment((time.time_ns() - self._lifecycle.in_state_ns) / 1e9),
            **self._facts(),
            "ready": readiness.ready,
            "reasons": readiness.reasons,
            "unacked": sum(session.unacked for session in snapshot.sessions),
            "oldest_unacked_age_seconds": None if oldest_ns is None else oldest_ns / 1e9,
            "sessions": [
                {
                    "session": session.name,
                    "client_id": session.client_id,
                    "connected": session.connected,
                    "subscribed": session.subscribed,
                    "unacked": session.unacked,
                    "window": session.window,
                    "problem": session.problem,
                }
                for session in snapshot.sessions
            ],
            "topics": [
                {
                    "topic": topic.name,
                    "partitions": topic.partitions,
                    "used": topic.used,
                    "leaderless": topic.leaderless,
                    "problem": topic.problem,
                }
                for topic in snapshot.topics
            ],
            "ledger": self._ledger.snapshot().as_dict(),
        }
