"""Names the part of the demo that stands still, from the counts of every part. Decides without I/O or a clock.

A part stands when the one before it has more than it, and it has not taken anything for some seconds. Only the first of
those that stand is named: the others wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway.local.demo.show.state import DemoState

STANDS_S: Final = 10.0
SPARK_STANDS_S: Final = 90.0  # a batch that is under way shows nothing
LATE_P50_MS: Final = 1_000
LATE_P99_MS: Final = 5_000


@dataclass(slots=True)
class Standstill:
    """One, with the moment since the first message when it began, and how long it was; None while it lasts."""

    stage: str
    at_s: float
    text: str
    seconds: float | None = None

    def __str__(self) -> str:
        lasted = "to the end" if self.seconds is None else f"for {self.seconds:.0f} s"
        return f"{self.text} From second {self.at_s:.0f} on, {lasted}."

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "at_s": round(self.at_s, 1),
            "seconds": None if self.seconds is None else round(self.seconds, 1),
        }


class Watchdog:
    """Looks at the counts of a run once a refresh. ``rate``: messages a second of all devices together."""

    def __init__(self, rate: float) -> None:
        self._quiet_s = max(STANDS_S, 5 / rate)  # rate: messages a second of all devices
        self._waiting_since: dict[str, float] = {}  # stages with work, on the monotonic clock
        self.found: list[Standstill] = []
        self._totals: dict[str, tuple[int, float]] = {}  # by stage: the count, and since when it is that
        self._now: Standstill | None = None

    def look(self, state: DemoState, now_s: float) -> Standstill | None:
        """Take the counts of this moment in. Returns what has begun or ended just now, if anything has."""
        gateway, in_kafka = state.gateway, state.witness.in_kafka
        totals = {
            "devices": state.published,
            "acknowledgements": state.acknowledged,
            "mqtt": gateway.received,
            "gateway": in_kafka,
            "spark": state.spark.rows,
        }
        for stage, total in totals.items():
            if self._totals.get(stage, (-1, 0.0))[0] != total:
                self._totals[stage] = total, now_s
        waiting = {
            "acknowledgements": state.published - state.acknowledged,
            "mqtt": state.acknowledged - gateway.received,
            "gateway": gateway.received - in_kafka - gateway.dead_letters,
            "spark": state.spark.lag(state.witness.ends) if state.with_spark and state.spark.started else 0,
        }
        texts = {
            "devices": f"The devices publish nothing: {state.connected} of {state.devices} are connected."
            f" {state.device_error}".rstrip(),
            "acknowledgements": f"The MQTT broker acknowledges nothing: {waiting['acknowledgements']:,} messages of the"
            " devices wait for it.",
            "mqtt": f"The MQTT broker gives the gateway nothing: it has {waiting['mqtt']:,} messages for it, and the"
            f" gateway has {gateway.in_flight:,} in flight and {gateway.unacked:,} unacknowledged."
            if state.gateway_answers
            else f"The gateway does not answer: {waiting['mqtt']:,} messages wait for it.",
            "gateway": f"Nothing gets from the gateway to Kafka: {waiting['gateway']:,} messages wait.",
            "spark": f"Spark writes nothing: it is {waiting['spark']:,} records behind Kafka.",
        }
        self._waiting_since = {
            stage: self._waiting_since.get(stage, now_s) for stage, count in waiting.items() if count > 0
        }
        standing = next((stage for stage in texts if self._stands(stage, state, now_s)), None)
        return self._changed(standing, texts, state, now_s)

    def _stands(self, stage: str, state: DemoState, now_s: float) -> bool:
        """Whether the stage has had work for too long, and its count did not change."""
        unchanged_s = now_s - self._totals[stage][1]
        if stage == "devices":
            # Once they have been told to stop they publish nothing, and nothing is wrong.
            return state.flow_ended_s is None and unchanged_s >= self._quiet_s
        waited_s = now_s - self._waiting_since.get(stage, now_s)
        return min(unchanged_s, waited_s) >= (SPARK_STANDS_S if stage == "spark" else STANDS_S)

    def _changed(self, stage: str | None, texts: dict[str, str], state: DemoState, now_s: float) -> Standstill | None:
        """The standstill that has begun now, or the one that has ended; None if nothing has changed."""
        now = self._now
        if now is not None and now.stage != stage:
            self._now, now.seconds = None, state.flow_seconds_at(now_s) - now.at_s
            if stage is None:
                return now
        if stage is not None and self._now is None:
            began_s = max(self._totals[stage][1], self._waiting_since.get(stage, 0.0))
            self._now = Standstill(stage, state.flow_seconds_at(began_s), texts[stage])
            self.found.append(self._now)
            return self._now
        return None


def lateness(p50_ms: int | None, p99_ms: int | None) -> str:
    """A sentence, when messages came through late; empty when not."""
    if p50_ms is not None and p50_ms > LATE_P50_MS:
        return f"LATE: half of the messages took longer than {p50_ms / 1000:.1f} s from the device to Kafka."
    if p99_ms is not None and p99_ms > LATE_P99_MS:
        return f"LATE: one message in a hundred took longer than {p99_ms / 1000:.1f} s from the device to Kafka."
    return ""
