"""Answers on the operator's port: ``/metrics``, ``/healthz``, ``/readyz``, ``/status``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.base.lifecycle import State
from gateway.http.answers import ServiceAnswers

if TYPE_CHECKING:
    from gateway.auth_service.metrics import AuthMetrics
    from gateway.base.lifecycle import Lifecycle

LOCK_OUTS_SHOWN: Final = 1000
"""Most lock-outs in /status, which `gateway auth explain` reads."""


@dataclass(frozen=True, slots=True)
class Health:
    """The service at one moment. It is not ready while ``problems`` has a sentence. ``facts`` are the rest of
    /status."""

    problems: tuple[str, ...]
    facts: dict[str, object]


class AuthAnswers(ServiceAnswers):
    """``health`` is read in the event loop and must not block."""

    def __init__(self, metrics: AuthMetrics, lifecycle: Lifecycle, health: Callable[[], Health]) -> None:
        import prometheus_client.exposition  # noqa: F401 - or the first scrape would hold up the event loop for it

        super().__init__(metrics, lifecycle)
        self._health = health

    async def reasons(self) -> list[str]:
        return self._reasons(self._health())

    async def status(self) -> dict[str, object]:
        health = self._health()
        reasons = self._reasons(health)
        return {**self.health(), "ready": not reasons, "reasons": reasons, **health.facts}

    def _reasons(self, health: Health) -> list[str]:
        state = self._lifecycle.state
        if state is State.RUNNING:
            return list(health.problems)
        return [f"The service is in state {state.name}, not RUNNING.", *health.problems]
