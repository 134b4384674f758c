"""What the service answers on the operator's port: ``/metrics``, ``/healthz``, ``/readyz``, ``/status``."""

from __future__ import annotations

__all__ = ["AuthAnswers", "Health"]

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.base.lifecycle import State
from gateway.http.answers import Answer, json_answer, metrics_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.auth_service.metrics import AuthMetrics
    from gateway.base.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True)
class Health:
    """The service at one moment. ``problems``: sentences; with one of them it is not ready. ``facts``: what /status
    says besides."""

    problems: tuple[str, ...]
    facts: dict[str, object]


class AuthAnswers:
    """Implements ``gateway.http.answers.Answers``. ``health`` is read in the event loop and must not block."""

    def __init__(self, metrics: AuthMetrics, lifecycle: Lifecycle, health: Callable[[], Health]) -> None:
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._health = health

    async def answer(self, path: str, accept: str) -> Answer:
        """As Answers says; does not wait for anything."""
        state = self._lifecycle.state
        seconds = self._lifecycle.in_state_ns // 1_000_000_000
        match path:
            case "/metrics":
                return metrics_answer(self._metrics, accept)
            case "/healthz":
                # That this is answered is the check: it runs in the event loop that answers EMQX.
                return json_answer({"alive": True, "state": state.name, "in_state_seconds": seconds})
            case "/readyz":
                reasons = self._reasons(self._health())
                return json_answer({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)
            case "/status":
                health = self._health()
                reasons = self._reasons(health)
                return json_answer(
                    {
                        "state": state.name,
                        "in_state_seconds": seconds,
                        "ready": not reasons,
                        "reasons": reasons,
                        **health.facts,
                    }
                )
            case _:
                return Answer(404, "text/plain; charset=utf-8", "There is no such path.\n")

    def _reasons(self, health: Health) -> list[str]:
        state = self._lifecycle.state
        if state is State.RUNNING:
            return list(health.problems)
        return [f"The service is in state {state.name}, not RUNNING.", *health.problems]
