"""Pauses before the next attempt (exponential, capped, spread), and time-outs that brokers get.

``KafkaPauses`` has the pauses of batches and producers. The start, the look at topics, the ledger topic and the canary
have a ``Backoff`` of their own, 10 s at most."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from config.settings import KafkaSettings

_BROKER_SHARE = 0.8
_JITTER: Final = 0.2


def pause_ns(number: int, first_ns: int, longest_ns: int, jitter: float, rng: random.Random) -> int:
    """The pause after ``number`` others: twice as long each time, at most ``longest_ns``, spread by ± ``jitter``.

    The spread holds at the longest too, whose middle is lowered for it."""
    # The shift is bounded, or the number would grow for as long as a broker is away.
    doublings = min(number, (longest_ns // first_ns).bit_length())
    middle_ns = min(first_ns << doublings, int(longest_ns / (1 + jitter)))
    return max(1, int(middle_ns * rng.uniform(1 - jitter, 1 + jitter)))


@dataclass(frozen=True, slots=True)
class KafkaPauses:
    """Pauses before Kafka is asked again, by purpose.

    | purpose | longest | what waits |
    |---|---|---|
    | resend | 1 s | a batch, until the same producer sends it again |
    | reconnect | 1 s | every partition, until another producer is tried |
    | hold | 10 s | one partition, whose batch failed again or was refused; a producer whose login was refused |

    The first pause is ``first_ns`` (``kafka.retry_backoff``). No longest pause is below it. An outage ends within 1 s
    of Kafka's return, so the first two are at most as long; Kafka's Java clients have the same longest pauses
    (``retry.backoff.max.ms``, ``reconnect.backoff.max.ms``). A refusal lasts until an operator acts."""

    first_ns: int = 100_000_000

    @classmethod
    def from_settings(cls, kafka: KafkaSettings) -> Self:
        return cls(round(kafka.retry_backoff.total_seconds() * 1e9))

    def resend_ns(self, number: int) -> int:
        """The pause of a batch that has had ``number`` others."""
        return self._pause_ns(number, _RESEND_LONGEST_NS)

    def reconnect_ns(self, number: int) -> int:
        """The pause after a producer that could not be started, and ``number`` before it."""
        return self._pause_ns(number, _RECONNECT_LONGEST_NS)

    def hold_ns(self, number: int) -> int:
        """The pause of a partition that has had ``number`` others for the same batch."""
        return self._pause_ns(number, _HOLD_LONGEST_NS)

    def _pause_ns(self, number: int, longest_ns: int) -> int:
        return pause_ns(number, self.first_ns, max(longest_ns, self.first_ns), _JITTER, _random)


_RESEND_LONGEST_NS: Final = 1_000_000_000
_RECONNECT_LONGEST_NS: Final = 1_000_000_000
_HOLD_LONGEST_NS: Final = 10_000_000_000
_STABLE_AFTER_NS: Final = 60_000_000_000
_random = random.Random()  # noqa: S311 - spreads load, guards nothing
os.register_at_fork(after_in_child=_random.seed)  # workers are forked, and would wait for the same times


class Backoff:
    """Counts attempts; its pauses double from ``initial_ns`` to at most ``max_ns``, spread by ± ``jitter``.

    A thousand gateways that lost the same broker must not return in the same instant, so pauses are spread at
    ``max_ns`` too. Pure: the caller passes monotonic nanoseconds and waits. One task owns it.

    ``started()`` notes a successful attempt. After a minute the pauses start again from ``initial_ns``.
    After a shorter success they continue, so that a session which ends after each connect does not overload the broker.
    """

    __slots__ = ("_initial_ns", "_jitter", "_max_ns", "_random", "_started_ns", "attempts")

    def __init__(self, initial_ns: int, max_ns: int, jitter: float = 0.2, *, rng: random.Random | None = None) -> None:
        """Raises ValueError unless 0 < initial_ns ≤ max_ns and 0 ≤ jitter < 1. ``rng`` makes the waits repeatable in
        tests."""
        if not 0 < initial_ns <= max_ns:
            raise ValueError(f"a backoff needs 0 < initial_ns <= max_ns, not {initial_ns} and {max_ns}")
        if not 0 <= jitter < 1:
            raise ValueError(f"a backoff's jitter is a share from 0 to below 1, not {jitter}")
        self._initial_ns = initial_ns
        self._max_ns = max_ns
        self._jitter = jitter
        self._random = rng or _random
        self.attempts = 0  # waits given since the last reset
        self._started_ns: int | None = None  # of a success since the last wait

    def started(self, now_ns: int) -> None:
        """The attempt succeeded at ``now_ns``; whether it lasts is seen at the next failure."""
        self._started_ns = now_ns

    def next_ns(self, now_ns: int) -> int:
        """How long to wait before the next attempt, in nanoseconds, after a failure at ``now_ns``."""
        if self._started_ns is not None and now_ns - self._started_ns >= _STABLE_AFTER_NS:
            self.attempts = 0
        self._started_ns = None
        self.attempts += 1
        return pause_ns(self.attempts - 1, self._initial_ns, self._max_ns, self._jitter, self._random)

    def reset(self) -> None:
        """Start again from ``initial_ns`` (the operator asked for a reconnect, the settings changed)."""
        self.attempts = 0
        self._started_ns = None


def broker_timeout_ms(patience_s: float) -> int:
    """The time-out that a broker gets within a request of ``patience_s``. It ends before the client's own.

    The broker's answer then names the missing replicas. The client's time-out would only show silence, and end the
    connection."""
    return int(patience_s * 1000 * _BROKER_SHARE)
