"""How long to wait: before the next attempt (exponential, capped, jittered, and forgotten after a stable time), and for
others that wait on our behalf."""

from __future__ import annotations

__all__ = ["Backoff", "broker_timeout_ms"]

import random

_BROKER_SHARE = 0.8


class Backoff:
    """Waits that double from ``initial_ns`` to at most ``max_ns``, each spread by ± ``jitter`` of itself.

    The spread holds at the cap too (the middle is lowered, no wait is longer than ``max_ns``): a thousand gateways
    that lost the same broker must not come back in the same instant. Pure: the caller passes monotonic nanoseconds
    and does the waiting. One task owns it.

    ``started()`` marks the moment an attempt succeeded. What then held for ``stable_after_ns`` starts again from
    ``initial_ns``; what broke sooner goes on where it was, so that a session which is kicked after each connect does
    not hammer the broker.
    """

    __slots__ = (
        "_attempts",
        "_doublings_max",
        "_initial_ns",
        "_jitter",
        "_middle_max_ns",
        "_random",
        "_stable_after_ns",
        "_started_ns",
    )

    def __init__(
        self,
        initial_ns: int,
        max_ns: int,
        jitter: float = 0.2,
        *,
        stable_after_ns: int = 60_000_000_000,
        rng: random.Random | None = None,
    ) -> None:
        """Raises ValueError unless 0 < initial_ns ≤ max_ns and 0 ≤ jitter < 1. ``rng`` makes the waits repeatable in
        tests."""
        if not 0 < initial_ns <= max_ns:
            raise ValueError(f"a backoff needs 0 < initial_ns <= max_ns, not {initial_ns} and {max_ns}")
        if not 0 <= jitter < 1:
            raise ValueError(f"a backoff's jitter is a share from 0 to below 1, not {jitter}")
        self._initial_ns = initial_ns
        self._middle_max_ns = int(max_ns / (1 + jitter))
        self._doublings_max = (max_ns // initial_ns).bit_length()
        self._jitter = jitter
        self._stable_after_ns = stable_after_ns
        self._random = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._attempts = 0
        self._started_ns: int | None = None

    @property
    def attempts(self) -> int:
        """How many waits were given since the last reset."""
        return self._attempts

    def started(self, now_ns: int) -> None:
        """The attempt succeeded at ``now_ns``; whether it lasts is seen at the next failure."""
        self._started_ns = now_ns

    def next_ns(self, now_ns: int) -> int:
        """How long to wait before the next attempt, in nanoseconds, after a failure at ``now_ns``."""
        if self._started_ns is not None and now_ns - self._started_ns >= self._stable_after_ns:
            self._attempts = 0
        self._started_ns = None
        # The shift is bounded, or the number would grow for as long as a broker is away.
        middle_ns = min(self._initial_ns << min(self._attempts, self._doublings_max), self._middle_max_ns)
        self._attempts += 1
        return max(1, int(middle_ns * self._random.uniform(1 - self._jitter, 1 + self._jitter)))

    def reset(self) -> None:
        """Start again from ``initial_ns`` (the operator asked for a reconnect, the settings changed)."""
        self._attempts = 0
        self._started_ns = None


def broker_timeout_ms(patience_s: float) -> int:
    """How long a broker may wait for others on behalf of a request that is waited for so long. It ends first: it says
    what is missing then, where the client's time-out would only say that it is silent, and cost the connection."""
    return int(patience_s * 1000 * _BROKER_SHARE)
