"""What the device job reads and writes, and the settings it judges by: rows, without any behaviour.

All times are milliseconds since 1970; ``received_ms`` is the gateway's clock, ``device_ms`` the device's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

MOST: Final = (1 << 63) - 1
"""What Spark's whole numbers hold: a larger one ends the job, at each start again, or is lost between two batches."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings ``[stream.devices]``, in milliseconds, and what else judging depends on."""

    offline_after_ms: int = 600_000
    gateway_after_ms: int = 300_000
    gap_after_ms: int = 60_000
    flap_transitions: int = 6
    flap_window_ms: int = 3_600_000
    forget_after_ms: int = 30 * 86_400_000
    beat_ms: int = 60_000  # how often a gateway writes to its ledger
    tick_ms: int = 10_000  # how often the processing time is looked at while nothing comes

    @property
    def grid_ms(self) -> int:
        """Steps in which the stream's progress is followed: a verdict is late by this at the most."""
        return max(1000, self.offline_after_ms // 20)


class Reading(NamedTuple):
    """A row of silver."""

    device: str
    type: str | None
    site: str | None
    gateway: str  # empty: the record does not say
    seq: int | None
    device_ms: int
    event_ms: int
    received_ms: int
    values: Mapping[str, float]


class Presence(NamedTuple):
    """A birth (``online``) or a death."""

    device: str
    gateway: str
    online: bool
    session_ms: int | None  # when the connection it speaks of was made: orders births and deaths of several brokers
    received_ms: int
    detail: str

    @property
    def is_second(self) -> bool:
        """Whether it counts, of a birth and a death at one moment: the end of a known connection, else the return."""
        return self.online == (self.session_ms is None)


class Event(NamedTuple):
    """A row of ``device_events``."""

    at_ms: int
    event: str
    device: str | None
    gateway: str | None
    detail: str


def moment(ms: int) -> str:
    """A time as people read it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
