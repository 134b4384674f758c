"""Whether a backend is worth asking: a circuit breaker that decides from events and the time, without I/O."""

from __future__ import annotations

__all__ = ["RETRY_INITIAL_NS", "Breaker", "BreakerState", "Ticket"]

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NewType

from bridge.backoff import Backoff

if TYPE_CHECKING:
    import random

Ticket = NewType("Ticket", int)
"""The leave to ask one question; its outcome is reported with it."""

FAILURES: Final = 3
"""Failures in a row that open the breaker. One may be a query that met a vacuum; a third costs the next logins a
whole time-out each, for nothing."""

RETRY_INITIAL_NS: Final = 250_000_000
RETRY_MAX_NS: Final = 5_000_000_000
"""The first and the longest wait between two probes. Five seconds is how much later than the backend the logins are
back; a probe is one small question, so no server minds it that often."""


class BreakerState(IntEnum):
    """What is done with a question. The number is the metric's value."""

    CLOSED = 0  # it is asked
    HALF_OPEN = 1  # it is refused at once, while one probe is under way
    OPEN = 2  # it is refused at once, until the next probe is due


class Breaker:
    """Closed: questions pass. After ``failures`` in a row it opens, and refuses them until a probe has succeeded.

    Each question takes a ticket with :meth:`admit` and hands it back with :meth:`succeeded`, :meth:`failed` or
    :meth:`dropped`. An outcome counts for the period that its ticket was given in: when thirty questions wait on a
    server that froze, the first three time-outs open the breaker, and the other twenty-seven say nothing about the
    probe that is under way when they come.

    Times are integer nanoseconds of a monotonic clock. Not thread-safe: one event loop owns it.
    """

    __slots__ = ("_backoff", "_failures", "_failures_max", "_period", "_retry_at_ns", "_state")

    def __init__(
        self,
        *,
        failures: int = FAILURES,
        retry_initial_ns: int = RETRY_INITIAL_NS,
        retry_max_ns: int = RETRY_MAX_NS,
        rng: random.Random | None = None,
    ) -> None:
        """Raises ValueError unless failures ≥ 1 and 0 < retry_initial_ns ≤ retry_max_ns."""
        if failures < 1:
            raise ValueError(f"a breaker opens after one failure at least, not {failures}")
        self._failures_max = failures
        self._backoff = Backoff(retry_initial_ns, retry_max_ns, rng=rng)
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._period = 0  # grows with every change of state
        self._retry_at_ns = 0

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def failures(self) -> int:
        """Failures in a row, probes included; 0 after a success."""
        return self._failures

    @property
    def retry_at_ns(self) -> int:
        """When the next probe is due. Means something only while the breaker is open."""
        return self._retry_at_ns

    def admit(self) -> Ticket | None:
        """The leave to ask an ordinary question, or None: refuse it at once."""
        return Ticket(self._period) if self._state is BreakerState.CLOSED else None

    def admit_probe(self, now_ns: int) -> Ticket | None:
        """The leave to probe an open breaker's backend, or None: it is closed, not due, or being probed already."""
        if self._state is not BreakerState.OPEN or now_ns < self._retry_at_ns:
            return None
        self._enter(BreakerState.HALF_OPEN)
        return Ticket(self._period)

    def holds(self, ticket: Ticket) -> bool:
        """Whether a question is still worth asking that was admitted a while ago and has waited for a connection."""
        return ticket == self._period

    def succeeded(self, ticket: Ticket, now_ns: int) -> bool:
        """The backend has answered, whatever it said. True when that closed the breaker."""
        if ticket != self._period:
            return False
        self._failures = 0
        if self._state is BreakerState.CLOSED:
            return False
        self._backoff.started(now_ns)
        self._enter(BreakerState.CLOSED)
        return True

    def failed(self, ticket: Ticket, now_ns: int) -> bool:
        """It has not answered, or not in time. True when that opened the breaker (a failed probe opens it again)."""
        if ticket != self._period:
            return False
        self._failures += 1
        if self._state is BreakerState.CLOSED and self._failures < self._failures_max:
            return False
        self._open(now_ns)
        return True

    def dropped(self, ticket: Ticket, now_ns: int) -> None:
        """The question was given up before anything could be seen. A probe that was is due again after a wait."""
        if ticket == self._period and self._state is BreakerState.HALF_OPEN:
            self._open(now_ns)

    def trip(self, now_ns: int) -> None:
        """Open it now, without failures in a row: the first look at the backend, at the start, found it down."""
        if self._state is BreakerState.CLOSED:
            self._failures += 1
            self._open(now_ns)

    def _open(self, now_ns: int) -> None:
        self._retry_at_ns = now_ns + self._backoff.next_ns(now_ns)
        self._enter(BreakerState.OPEN)

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._period += 1
