"""A circuit breaker of a backend. It decides from events and the time, without I/O."""

import random
from enum import IntEnum
from typing import Final, NewType

from bridge.backoff import Backoff

Ticket = NewType("Ticket", int)
"""Permission to ask one question. Its outcome is reported with it."""

FAILURES: Final = 3
"""Failures in a row that open the breaker. One failure may be chance, such as a query during a vacuum. With more than
three, further logins would wait for a whole time-out."""

RETRY_INITIAL_NS: Final = 250_000_000
RETRY_MAX_NS: Final = 5_000_000_000
"""The first and the longest wait between two probes. Logins work again 5 s after the backend at the latest."""


class BreakerState(IntEnum):
    """What the breaker does with a question. The number is the metric's value."""

    CLOSED = 0  # the question is asked
    HALF_OPEN = 1  # the question is refused; one probe is under way
    OPEN = 2  # the question is refused until the next probe is due


class Breaker:
    """Closed: questions pass. After ``failures`` in a row the breaker opens, and refuses questions until a probe
    succeeds.

    Each question takes a ticket with :meth:`admit` and returns it with :meth:`succeeded`, :meth:`failed` or
    :meth:`dropped`. An outcome counts for the period of its ticket. Example: thirty questions wait on a frozen server,
    and the first three time-outs open the breaker. The other twenty-seven time-outs do not count against the probe that
    is then under way.

    Times are integer nanoseconds of a monotonic clock. Not thread-safe: one event loop owns it.
    """

    __slots__ = ("_backoff", "_failures_max", "_period", "failures", "retry_at_ns", "state")

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
        self.state = BreakerState.CLOSED
        self.failures = 0  # in a row, probes included
        self._period = 0  # grows with every change of state
        self.retry_at_ns = 0  # when the next probe is due, while the breaker is open

    def admit(self) -> Ticket | None:
        """Permission to ask an ordinary question, or None: refuse it."""
        return Ticket(self._period) if self.state is BreakerState.CLOSED else None

    def admit_probe(self, now_ns: int) -> Ticket | None:
        """Permission to probe an open breaker's backend, or None: the breaker is closed, no probe is due, or one is
        under way."""
        if self.state is not BreakerState.OPEN or now_ns < self.retry_at_ns:
            return None
        self._enter(BreakerState.HALF_OPEN)
        return Ticket(self._period)

    def holds(self, ticket: Ticket) -> bool:
        """Whether a question that was admitted earlier, and waited for a connection, may still be asked."""
        return ticket == self._period

    def succeeded(self, ticket: Ticket, now_ns: int) -> bool:
        """Report an answer of any kind. True if it closed the breaker."""
        if ticket != self._period:
            return False
        self.failures = 0
        if self.state is BreakerState.CLOSED:
            return False
        self._backoff.started(now_ns)
        self._enter(BreakerState.CLOSED)
        return True

    def failed(self, ticket: Ticket, now_ns: int) -> bool:
        """Report a failure or time-out. True if it opened the breaker; a failed probe opens it again."""
        if ticket != self._period:
            return False
        self.failures += 1
        if self.state is BreakerState.CLOSED and self.failures < self._failures_max:
            return False
        self._open(now_ns)
        return True

    def dropped(self, ticket: Ticket, now_ns: int) -> None:
        """Report a question without an outcome. A dropped probe is due again after a wait."""
        if ticket == self._period and self.state is BreakerState.HALF_OPEN:
            self._open(now_ns)

    def trip(self, now_ns: int) -> None:
        """Open the breaker without failures in a row: the first look at the backend, at the start, failed."""
        if self.state is BreakerState.CLOSED:
            self.failures += 1
            self._open(now_ns)

    def _open(self, now_ns: int) -> None:
        self.retry_at_ns = now_ns + self._backoff.next_ns(now_ns)
        self._enter(BreakerState.OPEN)

    def _enter(self, state: BreakerState) -> None:
        self.state = state
        self._period += 1
