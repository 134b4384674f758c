"""What a soak found, and whether that is well. Pure: numbers in, sentences out."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.chaos.harness import Account

WARM_UP_S = 60.0  # of each life, or half of it: caches fill, the allocator grows with the first outage
# A slope is well when it is flat, or when noise explains what it makes of a life: a run of a minute cannot tell a leak
# of half a MiB a minute from an allocator that has taken another arena, nor from four sockets that are away.
RSS_SLOPE_MIB_PER_MINUTE = 0.2
RSS_RISE_MIB = 4.0
DESCRIPTOR_SLOPE_PER_MINUTE = 0.1
DESCRIPTOR_RISE = 5.0


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


def slope_per_minute(lives: Sequence[Life], value: Callable[[Sample], float]) -> float:
    """The common slope of all lives, each with a level of its own (least squares), per minute; 0 without samples."""
    products = squares = 0.0
    for life in lives:
        samples = life.settled
        if len(samples) < 2:
            continue
        middle_s, middle = fmean(s.at_s for s in samples), fmean(value(s) for s in samples)
        products += sum((s.at_s - middle_s) * (value(s) - middle) for s in samples)
        squares += sum((s.at_s - middle_s) ** 2 for s in samples)
    return 60 * products / squares if squares else 0.0


def longest_s(lives: Sequence[Life]) -> float:
    """Of the times after the warm-up."""
    return max((life.settled_s for life in lives), default=0.0)


@dataclass
class Outcome:
    """The numbers of a run; ``problems`` is the verdict."""

    seed: int
    seconds: float = 0.0
    account: Account | None = None
    repeated: int = 0  # messages that devices sent again
    faults: dict[str, list[float]] = field(default_factory=dict)  # fault to the gaps it made, in seconds
    lives: list[Life] = field(default_factory=list)
    imbalances: list[float] = field(default_factory=list)
    final_imbalance: float = 0.0
    looks: int = 0

    @property
    def may_repeat(self) -> int:
        """How many copies there may be: what the MQTT broker or a device sent again for want of an acknowledgement."""
        return sum(life.redelivered for life in self.lives) + self.repeated

    @property
    def rss_slope(self) -> float:
        return slope_per_minute(self.lives, lambda sample: sample.rss_mib)

    @property
    def descriptor_slope(self) -> float:
        return slope_per_minute(self.lives, lambda sample: sample.descriptors)

    def problems(self) -> list[str]:
        """What is not as it must be, in sentences; empty when all is well."""
        account = self.account
        if account is None:
            return ["the run did not come to its account"]
        minutes = longest_s(self.lives) / 60
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
        if self.rss_slope > RSS_SLOPE_MIB_PER_MINUTE and self.rss_slope * minutes > RSS_RISE_MIB:
            found.append(f"memory grows by {self.rss_slope:.2f} MiB a minute")
        if self.descriptor_slope > DESCRIPTOR_SLOPE_PER_MINUTE and self.descriptor_slope * minutes > DESCRIPTOR_RISE:
            found.append(f"descriptors grow by {self.descriptor_slope:.2f} a minute")
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
            "rss_mib_max": max((s.rss_mib for life in self.lives for s in life.samples), default=0.0),
            "rss_slope_mib_per_minute": round(self.rss_slope, 3),
            "descriptors_max": max((s.descriptors for life in self.lives for s in life.samples), default=0),
            "descriptor_slope_per_minute": round(self.descriptor_slope, 3),
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
        f"{'lives of the gateway':<34}{len(outcome.lives):>10}   warm for up to {longest_s(outcome.lives):.0f} s",
        f"{'memory, MiB':<34}{facts['rss_mib_max']:>10.1f}   slope {outcome.rss_slope:+.2f} a minute",
        f"{'descriptors':<34}{facts['descriptors_max']:>10}   slope {outcome.descriptor_slope:+.2f} a minute",
    ]
    problems = outcome.problems()
    lines += ["", *(f"FAILED: {problem}" for problem in problems)] if problems else ["", "all is well"]
    return "\n".join(lines)
