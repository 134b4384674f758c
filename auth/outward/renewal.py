"""When to look for the next token. Pure: monotonic nanoseconds come in, moments go out."""

from __future__ import annotations

__all__ = ["Plan", "PollPlan", "RenewalPlan"]

import random
from typing import Protocol

from bridge.backoff import Backoff

_POLL_NS = 5_000_000_000
_SPACING_NS = 10_000_000_000  # between fetches that are asked for: a broker may refuse every token there is
_RETRY_INITIAL_NS, _RETRY_MAX_NS = 1_000_000_000, 60_000_000_000
_SOONEST_NS = 1_000_000_000  # after a token came, however short its life is


class Plan(Protocol):
    """What ``auth.outward.keeper`` asks."""

    def began(self, now_ns: int) -> None:
        """An attempt begins; what was asked for is being done."""

    def succeeded(self, now_ns: int, expires_at_ns: int | None) -> None:
        """It brought a token, which may be the same as before."""

    def failed(self, now_ns: int) -> None:
        """It brought none."""

    def ask(self, now_ns: int) -> None:
        """Somebody has no token, or one that a broker has refused: another is wanted before its time."""

    def due_ns(self) -> int:
        """When the next attempt begins; the past means at once."""


class PollPlan:
    """For a file, which costs nothing to look at: every five seconds, and at once when asked."""

    def __init__(self) -> None:
        self._due_ns = 0

    def began(self, now_ns: int) -> None:
        self._due_ns = now_ns + _POLL_NS

    def succeeded(self, now_ns: int, expires_at_ns: int | None) -> None:
        """Nothing follows from it."""

    def failed(self, now_ns: int) -> None:
        """Nothing follows from it."""

    def ask(self, now_ns: int) -> None:
        self._due_ns = now_ns

    def due_ns(self) -> int:
        return self._due_ns


class RenewalPlan:
    """For a server: when ``share`` of a token's life is over, a little earlier by chance, so that many gateways do not
    come at once; after a failure with growing waits."""

    def __init__(self, share: float, *, rng: random.Random | None = None) -> None:
        self._share = share
        self._random = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._backoff = Backoff(_RETRY_INITIAL_NS, _RETRY_MAX_NS, rng=self._random)
        self._began_ns = 0
        self._due_ns = 0

    def began(self, now_ns: int) -> None:
        self._began_ns = now_ns

    def succeeded(self, now_ns: int, expires_at_ns: int | None) -> None:
        self._backoff.reset()
        assert expires_at_ns is not None, "a fetched token has an end, or is given one"
        # Its life counts from when it was asked for: how long the answer took, nobody knows.
        life_ns = expires_at_ns - self._began_ns
        renew_at_ns = self._began_ns + int(life_ns * self._share * self._random.uniform(0.9, 1.0))
        self._due_ns = max(renew_at_ns, now_ns + _SOONEST_NS)

    def failed(self, now_ns: int) -> None:
        self._due_ns = now_ns + self._backoff.next_ns(now_ns)

    def ask(self, now_ns: int) -> None:
        self._due_ns = min(self._due_ns, max(now_ns, self._began_ns + _SPACING_NS))

    def due_ns(self) -> int:
        return self._due_ns
