"""What a worker answers to ``/metrics``, ``/healthz``, ``/readyz`` and ``/status``, whoever carries the question.

Alone, its own HTTP port asks; under a supervisor, that asks each of its workers over their channels.
"""

from __future__ import annotations

__all__ = ["PATHS", "Answer", "Answers", "WorkerAnswers", "json_answer", "metrics_answer"]

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from gateway.base.readiness import Readiness, ReadinessLimits, decide

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.ledger import Ledger
    from config.settings import Settings
    from gateway.base.instruments import MetricSet
    from gateway.base.lifecycle import Lifecycle
    from gateway.base.metrics import Metrics
    from gateway.base.readiness import ReadinessSnapshot

PATHS: Final = ("/metrics", "/healthz", "/readyz", "/status")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: status, Content-Type, body."""

    status: int
    type: str
    body: str


class Answers(Protocol):
    """Who knows the answers."""

    async def answer(self, path: str, accept: str) -> Answer:
        """The answer to one of PATHS; ``accept`` is the request's header, which chooses the format of metrics."""


def json_answer(document: dict[str, object], *, status: int = 200) -> Answer:
    """A JSON document as an answer."""
    return Answer(status, "application/json; charset=utf-8", json.dumps(document, ensure_ascii=False) + "\n")


def metrics_answer(metrics: MetricSet, accept: str) -> Answer:
    """All metrics of a set, in the format that a scraper's Accept header asks for."""
    from prometheus_client.exposition import choose_encoder

    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version in the Accept header that is none
        encode, content_type = choose_encoder("")
    return Answer(200, content_type, encode(metrics).decode())


class WorkerAnswers:
    """One worker's. Everything is read in the event loop when a question comes; ``snapshot`` and ``facts`` (what
    else /status is to say) must not block."""

    def __init__(
        self,
        settings: Settings,
        *,
        metrics: Metrics,
        lifecycle: Lifecycle,
        ledger: Ledger,
        snapshot: Callable[[], ReadinessSnapshot],
        facts: Callable[[], dict[str, object]] = dict,
    ) -> None:
        self._limits = ReadinessLimits.from_settings(settings)
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._ledger = ledger
        self._snapshot = snapshot
        self._facts = facts

    def adopt(self, settings: Settings) -> None:
        """Judge by other limits from now on."""
        self._limits = ReadinessLimits.from_settings(settings)

    async def answer(self, path: str, accept: str) -> Answer:
        """As Answers says; does not wait for anything."""
        match path:
            case "/metrics":
                return metrics_answer(self._metrics, accept)
            case "/healthz":
                return self._answer_health()
            case "/readyz":
                return self._answer_readiness()
            case "/status":
                return self._answer_status()
            case _:
                return Answer(404, "text/plain; charset=utf-8", "There is no such path.\n")

    def _answer_health(self) -> Answer:
        """That this is answered is the check: it runs in the event loop that carries the messages."""
        state = self._lifecycle.state.name
        seconds = self._lifecycle.in_state_ns // 1_000_000_000
        return json_answer({"alive": True, "state": state, "in_state_seconds": seconds})

    def _readiness(self) -> Readiness:
        return decide(self._snapshot(), self._limits)

    def _answer_readiness(self) -> Answer:
        readiness = self._readiness()
        return json_answer(
            {"ready": readiness.ready, "reasons": readiness.reasons}, status=200 if readiness.ready else 503
        )

    def _answer_status(self) -> Answer:
        snapshot = self._snapshot()
        readiness = decide(snapshot, self._limits)
        oldest_ns = snapshot.oldest_unacked_age_ns
        return json_answer(
            {
                "state": snapshot.state.name,
                "since": _moment(time.time_ns() - self._lifecycle.in_state_ns),
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
        )


def _moment(unix_ns: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_ns // 1_000_000_000))
