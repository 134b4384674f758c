"""The times of renewals. No I/O; times are monotonic nanoseconds from the caller."""

import random
from typing import Protocol

from bridge.backoff import Backoff

_POLL_NS = 5_000_000_000
_SPACING_NS = 10_000_000_000  # between requested fetches: a broker may refuse every token
_RETRY_INITIAL_NS, _RETRY_MAX_NS = 1_000_000_000, 60_000_000_000
_SOONEST_NS = 1_000_000_000  # from a token to the next fetch, however short its life


class Plan(Protocol):
    """The times of attempts, for ``auth.outward.keeper``."""

    def began(self, now_ns: int) -> None:
        """An attempt begins, and covers all requests up to now."""

    def succeeded(self, now_ns: int, expires_at_ns: int | None) -> None:
        """The attempt brought a token, perhaps the same as before."""

    def failed(self, now_ns: int) -> None:
        """The attempt brought no token."""

    def ask(self, now_ns: int) -> None:
        """A reader has no token, or a broker refused it: another one is needed now."""

    def due_ns(self) -> int:
        """When the next attempt begins; the past means at once."""


class PollPlan:
    """For a file, which is cheap to read: every five seconds, and at once on request."""

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
    """For a server: after ``share`` of a token's life, and a random time earlier, so that gateways do not fetch
    together. After a failure the waits grow."""

    def __init__(self, share: float, *, rng: random.Random | None = None) -> None:
        self._share = share
        self._random = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._backoff = Backoff(_RETRY_INITIAL_NS, _RETRY_MAX_NS, rng=self._random)
        self._began_ns = 0
        self._due_ns = 0

    def began(self, now_ns: int) -> None:
        self._began_ns = now_ns

    def succeeded(self, now_ns: int, expires_at_ns: int | None) -> None:
        """The attempt brought a token. The next one is after ``share`` of the token's life."""
        self._backoff.reset()
        assert expires_at_ns is not None, "a fetched token has an end, or is given one"
        # The life counts from the request, because the server's time of the answer is unknown.
        life_ns = expires_at_ns - self._began_ns
        renew_at_ns = self._began_ns + int(life_ns * self._share * self._random.uniform(0.9, 1.0))
        self._due_ns = max(renew_at_ns, now_ns + _SOONEST_NS)

    def failed(self, now_ns: int) -> None:
        self._due_ns = now_ns + self._backoff.next_ns(now_ns)

    def ask(self, now_ns: int) -> None:
        self._due_ns = min(self._due_ns, max(now_ns, self._began_ns + _SPACING_NS))

    def due_ns(self) -> int:
        return self._due_ns
