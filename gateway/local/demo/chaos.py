"""The faults of ``--chaos``, their times, their result and its text. Decides without I/O and without a clock.

Two bridges get the same messages from the same brokers: the gateway, and the plain one that most of us write first
(``gateway.local.demo.plain_bridge``). Both are killed at the same moments; Kafka freezes for both.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from gateway.local.runtime.cache import format_bytes

if TYPE_CHECKING:
    from gateway.local.demo.account import Stage

MIN_DURATION_S = 20.0
"""Shorter, the kills would meet gateways that are still coming back from the one before."""
_FROZEN_LEAST_S, _FROZEN_MOST_S = 6.0, 30.0  # spool.after is 1 s; the plain bridge's own patience with Kafka is 40 s
_TRACE_SHOWN = 24
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """When what happens, at the earliest, in seconds after the first message; ``faults.py`` does it."""

    kill_s: float
    freeze_s: float
    frozen_for_s: float
    kill_frozen_s: float
    """A second kill, while Kafka is frozen: that is when a watchdog ends what hangs, and when memory holds most."""

    @classmethod
    def for_duration(cls, duration_s: float) -> Self:
        """A kill at a third of the run, a freeze from half on, and a kill when two thirds of the freeze are over."""
        frozen_for_s = min(_FROZEN_MOST_S, max(_FROZEN_LEAST_S, duration_s / 5))
        freeze_s = duration_s / 2
        return cls(duration_s / 3, freeze_s, frozen_for_s, freeze_s + frozen_for_s * 2 / 3)


class FaultKind(Enum):
    KILLED = "bridges_killed"
    FROZEN = "kafka_frozen"


@dataclass(slots=True)
class Fault:
    """One thing that was done to the demo."""

    kind: FaultKind
    at_s: float
    """When it was done, in seconds after the first message."""
    over_s: float | None = None
    """How long it lasted: until the gateway had its MQTT sessions again, or until Kafka was let go on."""
    while_frozen: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "fault": self.kind.value,
            "at_s": round(self.at_s, 1),
            "lasted_s": None if self.over_s is None else round(self.over_s, 1),
        }

    def __str__(self) -> str:
        if self.kind is FaultKind.FROZEN:
            return (
                "Kafka frozen (SIGSTOP)" if self.over_s is None else f"Kafka frozen (SIGSTOP) for {self.over_s:.1f} s"
            )
        what = "both killed again, with Kafka frozen" if self.while_frozen else "both bridges killed (kill -9)"
        if self.over_s is None:
            return f"{what}; the gateway is coming back"
        return f"{what}; the gateway back after {self.over_s:.1f} s"


class SpoolSample(NamedTuple):
    """What the gateway's metrics said at a moment."""

    at_s: float
    messages: int
    size_bytes: int


class SpoolTrace:
    """The spool's rise and drain, as scraped. Keeps what is not empty, and the last sample before and first after."""

    def __init__(self) -> None:
        self.samples: list[SpoolSample] = []
        self.last = SpoolSample(0.0, 0, 0)
        self.most_messages = 0
        self.most_bytes = 0
        self._recent: deque[int] = deque(maxlen=_TRACE_SHOWN)  # messages at the last looks

    def add(self, at_s: float, messages: int, size_bytes: int) -> None:
        """Take a look at the spool. ``samples`` keeps those with messages, and the empty ones next to them."""
        sample = SpoolSample(at_s, messages, size_bytes)
        if messages and not self.last.messages:
            self.samples.append(self.last)
        if messages or self.last.messages:
            self.samples.append(sample)
        self.last = sample
        self.most_messages = max(self.most_messages, messages)
        self.most_bytes = max(self.most_bytes, size_bytes)
        self._recent.append(messages)

    def emptied_s(self, after_s: float) -> float | None:
        """When it was first seen empty after a moment, having held something; None if it was not."""
        seen = [sample for sample in self.samples if sample.at_s >= after_s]
        return next((sample.at_s for sample in seen if not sample.messages), None)

    def bars(self) -> str:
        """The last samples as a small chart; empty as long as there was nothing in it."""
        if not any(self._recent):
            return ""
        most, steps = max(self._recent), len(_BARS) - 1
        return "".join(_BARS[-(-count * steps // most)] for count in self._recent)


@dataclass(frozen=True, slots=True)
class PlainCounts:
    """What the plain bridge says of itself, over all its lives; a killed one's last moment is not in it."""

    running: bool = False
    received: int = 0
    delivered: int = 0
    failed: int = 0
    in_memory: int = 0
    """Acknowledged to MQTT and not in Kafka, in the present process."""


@dataclass(slots=True)
class ChaosState:
    """What the views draw."""

    plan: ChaosPlan
    faults: list[Fault] = field(default_factory=list)
    spool: SpoolTrace = field(default_factory=SpoolTrace)
    plain: PlainCounts = field(default_factory=PlainCounts)

    @property
    def killed(self) -> bool:
        return any(fault.kind is FaultKind.KILLED for fault in self.faults)

    def thawed_s(self) -> float | None:
        """The end of the last freeze of Kafka; None before it."""
        ends = [f.at_s + f.over_s for f in self.faults if f.kind is FaultKind.FROZEN and f.over_s is not None]
        return max(ends, default=None)

    def drained_after_s(self) -> float | None:
        """How long after the thaw the spool was seen empty; None if it was not, or never held anything."""
        thawed_s = self.thawed_s()
        emptied_s = None if thawed_s is None else self.spool.emptied_s(thawed_s)
        return None if thawed_s is None or emptied_s is None else emptied_s - thawed_s


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """What was done, what the spool did, and what became of the messages in the plain bridge."""

    state: ChaosState
    plain: Stage

    def as_json(self) -> dict[str, Any]:
        spool, drained_s = self.state.spool, self.state.drained_after_s()
        return {
            "faults": [fault.as_json() for fault in self.state.faults],
            "spool": {
                "most_messages": spool.most_messages,
                "most_bytes": spool.most_bytes,
                "left_messages": spool.last.messages,
                "drained_after_s": None if drained_s is None else round(drained_s, 1),
                "samples": [[round(at_s, 1), messages, size] for at_s, messages, size in spool.samples],
            },
            "plain_bridge": {
                "kafka": self.plain.records,
                "duplicates": self.plain.duplicates,
                "missing": self.plain.missing,
            },
        }


def render_chaos(result: ChaosResult) -> str:
    """Lines for people about the faults and the plain bridge, for below the account."""
    state, plain = result.state, result.plain
    lines = ["What was done meanwhile"]
    lines += [f"  {fault.at_s:5.1f} s  {fault}" for fault in state.faults] or ["  nothing: it was ended before"]
    lines += _spool_lines(state)
    lines += ["", "The same messages through a plain bridge, paho's callback → aiokafka's send()"]
    note = f"missing {plain.missing:,}, duplicates {plain.duplicates:,}"
    if plain.reordered:
        note += f", behind a later one of their device {plain.reordered:,}"
    lines.append(f"  in its Kafka topic  {plain.records:,}  {note}")
    if plain.missing:
        lines.append(f"  PLAIN BRIDGE LOST {plain.missing:,} messages that were acknowledged to their devices.")
        lines += _WHY
    elif state.faults:
        lines.append("  It lost nothing this time: its memory was empty whenever it was killed.")
    return "\n".join(lines)


_WHY = [
    "  Its producer is set up well (acks=all, idempotent), and its MQTT session is",
    "  persistent. But paho acknowledges a message when the callback returns, and",
    "  Kafka has it later. What is between the two dies with the process; the MQTT",
    "  broker was told that it is safe, and does not send it again.",
]


def _spool_lines(state: ChaosState) -> list[str]:
    spool, drained_s = state.spool, state.drained_after_s()
    if not spool.most_messages:
        return ["  The gateway's spool was not needed."]
    lines = [f"  The gateway's spool held up to {spool.most_messages:,} messages ({format_bytes(spool.most_bytes)})."]
    if spool.last.messages:
        lines.append(f"  It holds {spool.last.messages:,} at the end.")
    elif drained_s is not None:
        lines.append(f"  It was empty {drained_s:.1f} s after Kafka went on.")
    return lines
