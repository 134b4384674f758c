"""What a soak found, and whether that is well. Pure: numbers in, sentences out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tests.chaos.harness import Account

WARM_UP_S = 120.0  # of each life, or half of it: by then every fault has come once, and caches are full
JUDGED_S = 120.0  # a life that was warm for less says nothing of growth


class Bound(NamedTuple):
    """How much a line fitted to a warm life may rise: by ``step`` whatever its length, and so much a minute."""

    what: str
    step: float
    per_minute: float
    value: Callable[[Sample], float]

    def at_most(self, minutes: float) -> float:
        """The steepest slope of a life of that length, a minute, that is well."""
        return self.per_minute + self.step / minutes


class Sample(NamedTuple):
    """One look at the process."""

    at_s: float
    rss_mib: float
    descriptors: int


@dataclass
class Life:
    """What was seen of one process."""

    pid: int
    redelivered: int = 0  # messages that came with DUP=1: it, or the life before it, had not acknowledged them
    samples: list[Sample] = field(default_factory=list)

    @property
    def settled(self) -> list[Sample]:
        """Without the warm-up."""
        if not self.samples:
            return []
        began_s, ended_s = self.samples[0].at_s, self.samples[-1].at_s
        return [sample for sample in self.samples if sample.at_s >= began_s + min(WARM_UP_S, (ended_s - began_s) / 2)]

    @property
    def settled_s(self) -> float:
        samples = self.settled
        return samples[-1].at_s - samples[0].at_s if samples else 0.0


# A process that keeps nothing has slope 0, and so has the bound as lives get long: 0.05 MiB a minute is 3 MiB an hour.
# The steps are what a life of any length may have once: memory is taken from the system in pieces and not given back
# (1 MiB for Python's objects, some more when malloc's heap breaks up under the first outages; 5,000 objects that wait
# for the collector are 0.7 MiB), which came to 2.5 MiB behind the warm-up at most. Four sockets may be away at first.
# So a life of 10 minutes shows a leak of 0.43 MiB a minute, one of an hour 0.1.
MEMORY = Bound("memory grows, in MiB,", 3.0, 0.05, lambda sample: sample.rss_mib)
DESCRIPTORS = Bound("descriptors grow", 5.0, 0.02, lambda sample: sample.descriptors)


def slope_per_minute(life: Life, bound: Bound) -> float:
    """The line through what was seen of a life behind its warm-up (least squares), a minute; 0 without samples."""
    samples = life.settled
    if len(samples) < 2:
        return 0.0
    middle_s, middle = fmean(s.at_s for s in samples), fmean(bound.value(s) for s in samples)
    squares = sum((s.at_s - middle_s) ** 2 for s in samples)
    products = sum((s.at_s - middle_s) * (bound.value(s) - middle) for s in samples)
    return 60 * products / squares if squares else 0.0


def judged(lives: Sequence[Life]) -> list[Life]:
    """The lives that were warm for long enough."""
    return [life for life in lives if life.settled_s >= JUDGED_S]


def growth(lives: Sequence[Life], bound: Bound) -> list[str]:
    """Whether and how fast something grows, in a sentence for each life where it does."""
    found = []
    for life in judged(lives):
        slope, minutes = slope_per_minute(life, bound), life.settled_s / 60
        if slope > bound.at_most(minutes):
            found.append(
                f"{bound.what} by {slope:.2f} a minute, over {minutes:.1f} minutes of process {life.pid}, "
                f"which explains {bound.at_most(minutes):.2f}"
            )
    return found


@dataclass
class Outcome:
    """The numbers of a run; ``problems`` is the verdict."""

    seed: int
    seconds: float = 0.0
    account: Account | None = None
    repeated: int = 0  # messages that devices sent again, or a broker that had forgotten their acknowledgement
    faults: dict[str, list[float]] = field(default_factory=dict)  # fault to the gaps it made, in seconds
    lives: list[Life] = field(default_factory=list)
    imbalances: list[float] = field(default_factory=list)
    final_imbalance: float = 0.0
    looks: int = 0
    unanswered: int = 0  # questions that got no answer within 5 s: the machine is too busy, or the gateway hangs

    @property
    def may_repeat(self) -> int:
        """How many copies there may be: what the MQTT broker or a device sent again for want of an acknowledgement."""
        return sum(life.redelivered for life in self.lives) + self.repeated

    def slopes(self) -> list[dict[str, float]]:
        """Of each life that is judged: minutes behind the warm-up, slopes a minute, and the steepest that are well."""
        found = []
        for life in judged(self.lives):
            minutes = life.settled_s / 60
            found.append(
                {
                    "minutes": round(minutes, 1),
                    "rss_mib_first": round(life.settled[0].rss_mib, 1),
                    "rss_mib_last": round(life.settled[-1].rss_mib, 1),
                    "rss_mib_per_minute": round(slope_per_minute(life, MEMORY), 3),
                    "rss_mib_per_minute_at_most": round(MEMORY.at_most(minutes), 3),
                    "descriptors_per_minute": round(slope_per_minute(life, DESCRIPTORS), 3),
                    "descriptors_per_minute_at_most": round(DESCRIPTORS.at_most(minutes), 3),
                }
            )
        return found

    def problems(self) -> list[str]:
        """What is not as it must be, in sentences; empty when all is well."""
        account = self.account
        if account is None:
            return ["the run did not come to its account"]
        found = []
        if account.missing:
            found.append(f"{len(account.missing)} messages are missing: {account.missing[:5]}")
        if account.strangers:
            found.append(f"{len(account.strangers)} records are of no message: {account.strangers[:5]}")
        if account.out_of_order:
            found.append(f"{len(account.out_of_order)} first occurrences out of order: {account.out_of_order[:3]}")
        if account.copies > self.may_repeat:
            found.append(f"{account.copies} copies, but only {self.may_repeat} messages were sent again")
        if self.imbalances or self.final_imbalance:
            found.append(f"the ledger was out of balance: {[*self.imbalances[:5], self.final_imbalance]}")
        if not self.looks:
            found.append("nobody looked at the gateway")
        found += growth(self.lives, MEMORY)
        found += growth(self.lives, DESCRIPTORS)
        return found

    @property
    def status(self) -> int:
        """The exit status: 3 for missing messages, 1 for anything else."""
        if self.account is not None and self.account.missing:
            return 3
        return 1 if self.problems() else 0

    def as_dict(self) -> dict[str, Any]:
        account = self.account
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "published": account.published if account else None,
            "missing": len(account.missing) if account else None,
            "foreign": len(account.strangers) if account else None,
            "out_of_order": len(account.out_of_order) if account else None,
            "copies": account.copies if account else None,
            "copies_at_most": self.may_repeat,
            "lives": len(self.lives),
            "looks": self.looks,
            "unanswered": self.unanswered,
            "rss_mib_max": max((s.rss_mib for life in self.lives for s in life.samples), default=0.0),
            "descriptors_max": max((s.descriptors for life in self.lives for s in life.samples), default=0),
            "slopes": self.slopes(),
            "faults": {name: {"count": len(gaps), "gap_s": round(max(gaps), 2)} for name, gaps in self.faults.items()},
            "problems": self.problems(),
        }


def report(outcome: Outcome) -> str:
    """The summary table."""
    lines = ["", f"{'fault':<20}{'times':>6}{'median gap':>12}{'longest':>10}"]
    for name, gaps in sorted(outcome.faults.items()):
        lines.append(f"{name:<20}{len(gaps):>6}{median(gaps):>10.2f} s{max(gaps):>8.2f} s")
    facts = outcome.as_dict()
    account = outcome.account
    lines += ["", f"{'seconds':<34}{facts['seconds']:>10}"]
    if account is not None:
        lines += [
            f"{name:<34}{facts[name.replace(' ', '_')]:>10}"
            for name in ("published", "missing", "foreign", "out of order")
        ]
        lines.append(f"{'copies':<34}{account.copies:>10}   at most {outcome.may_repeat}")
    lines += [
        f"{'ledger out of balance':<34}{len(outcome.imbalances):>10}   of {outcome.looks} looks",
        f"{'questions without an answer in 5 s':<34}{outcome.unanswered:>10}",
        f"{'lives of the gateway':<34}{len(outcome.lives):>10}   {len(judged(outcome.lives))} long enough to be judged",
        f"{'memory, MiB, at most':<34}{facts['rss_mib_max']:>10.1f}",
        f"{'descriptors, at most':<34}{facts['descriptors_max']:>10}",
    ]
    for life in outcome.slopes():
        lines.append(
            f"  warm for {life['minutes']} minutes: memory {life['rss_mib_first']} to {life['rss_mib_last']} MiB, "
            f"{life['rss_mib_per_minute']:+.2f} a minute (at most {life['rss_mib_per_minute_at_most']:.2f}); "
            f"descriptors {life['descriptors_per_minute']:+.2f} (at most {life['descriptors_per_minute_at_most']:.2f})"
        )
    problems = outcome.problems()
    lines += ["", *(f"FAILED: {problem}" for problem in problems)] if problems else ["", "all is well"]
    return "\n".join(lines)
