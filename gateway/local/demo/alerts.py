"""Makes commands of alerts of the Spark job ``anomalies``, as a plant's own service would, and notes the outcome."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from config.error_words import words
from gateway.local.demo.background import Background
from gateway.local.demo.options import ALERTS_TOPIC, STATUSES_TOPIC
from gateway.local.demo.records import ReadBackError

SUBJECT: Final = "recalibrate"
_SHOWN: Final = 3
_AFTER_S: Final = 3.0
"""How long a device is watched once it has answered, so that some right readings are seen."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert, and what became of its command, whose id is the alert's. Moments are in ms since 1970."""

    alert_id: str
    device: str
    signal: str
    value: float
    usual: float
    """The mean that the value was compared with."""
    measured_ms: int
    alerted_ms: int
    """When Kafka had the alert."""
    commanded_ms: int | None = None
    """When Kafka had the command; None: none was sent."""
    status: str | None = None
    """The last status of the command; None until it has one."""
    finished_ms: int | None = None
    after: tuple[float, ...] = ()
    """What the device measured after that, by the table silver."""


@dataclass(frozen=True, slots=True)
class Loop:
    """From a wrong reading to a device that measures right again."""

    faulty: str | None
    """The device that measured wrong; None: the run was too short for it."""
    alerts: tuple[Alert, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"faulty": self.faulty, "alerts": [asdict(one) for one in self.alerts]}


def read_alert(value: bytes, alerted_ms: int) -> Alert | None:
    """The alert in a record of the job's topic, written at ``alerted_ms``. None for a mere score, and for a silence: no
    command ends it."""
    said = json.loads(value)
    if said["kind"] in ("score", "silence"):
        return None
    measured = datetime.fromisoformat(said["event_time"])
    return Alert(
        said["alert_id"],
        said["device"],
        said["signal"],
        said["value"],
        said["median"],
        round(measured.timestamp() * 1000),
        alerted_ms,
    )


def render_loop(loop: Loop) -> str:
    """Lines for people about what the alerts led to, for below the account of the commands."""
    title = "What Spark's alerts led to"
    if not loop.alerts:
        if loop.faulty is None:
            return f"{title}\n  Nothing: the run was too short for a device to measure wrong."
        return (
            f"{title}\n  Nothing yet: {loop.faulty} measured wrong, and Spark's alert had not come before the end.\n"
            "  A longer --duration gives it time."
        )
    lines = [title]
    for one in sorted(loop.alerts, key=lambda alert: alert.device != loop.faulty)[:_SHOWN]:
        lines += [f"  {one.device}: {one.signal} {one.value:,.2f}, where {one.usual:,.2f} was usual", *_steps_of(one)]
    if len(loop.alerts) > _SHOWN:
        lines.append(f"  and {len(loop.alerts) - _SHOWN:,} more alerts (--json has them)")
    if loop.faulty is not None and loop.faulty not in {one.device for one in loop.alerts}:
        lines.append(f"  {loop.faulty} measured wrong, and Spark's alert about it had not come before the end.")
    return "\n".join(lines)


def _steps_of(alert: Alert) -> list[str]:
    lines = [f"    alert in Kafka    {_seconds(alert.measured_ms, alert.alerted_ms)} after the reading"]
    if alert.commanded_ms is None:
        return [*lines, "    no command        the run was ending"]
    lines.append(f"    command in Kafka  {_seconds(alert.alerted_ms, alert.commanded_ms)} after the alert")
    if alert.finished_ms is None:
        return [*lines, f"    not finished      {alert.status or 'without a status'}"]
    status = (alert.status or "").replace("_", " ")
    lines.append(f"    {status:<16}  {_seconds(alert.commanded_ms, alert.finished_ms)} after the command")
    if alert.after:
        low, high = min(alert.after), max(alert.after)
        lines.append(f"    since then        {len(alert.after):,} readings, from {low:,.2f} to {high:,.2f}")
    return lines


def _seconds(begin_ms: int, end_ms: int) -> str:
    return f"{max(0, end_ms - begin_ms) / 1000:6.2f} s"


class Alerts(Background):
    """Begins when both topics are there. ``command`` writes a command to Kafka, and says when it was
    there; ``say`` tells people."""

    def __init__(
        self, bootstrap: str, command: Callable[[str, str, str], Awaitable[int]], say: Callable[[str], None]
    ) -> None:  # command: device, subject, id → when Kafka had it, in ms
        self._bootstrap = bootstrap
        self._command = command
        self._say = say
        self._found: dict[str, Alert] = {}
        self._ended = asyncio.Event()

    @property
    def found(self) -> tuple[Alert, ...]:
        return tuple(self._found.values())

    def is_closed(self, device: str) -> bool:
        """Whether a command that an alert of the device led to has ended."""
        return any(one.device == device and one.finished_ms is not None for one in self.found)

    async def wait_closed(self, device: str) -> None:
        """Wait until :meth:`is_closed` is true of the device, and some seconds more for its readings after that."""
        while not self.is_closed(device):
            self._ended.clear()
            await self._ended.wait()
        await asyncio.sleep(_AFTER_S)

    async def take_alert(self, value: bytes, alerted_ms: int) -> None:
        """Take a record of the job's topic, which may have copies."""
        alert = read_alert(value, alerted_ms)
        if alert is None or alert.alert_id in self._found:
            return
        self._found[alert.alert_id] = alert
        self._say(f"Spark: {alert.device} measures {alert.signal} {alert.value:,.2f}, usual {alert.usual:,.2f}: alert.")
        commanded_ms = await self._command(alert.device, SUBJECT, alert.alert_id)
        # Its status may have come meanwhile.
        self._found[alert.alert_id] = replace(self._found[alert.alert_id], commanded_ms=commanded_ms)
        self._say(f"{alert.device} is told to {SUBJECT}.")

    def take_status(self, value: bytes) -> None:
        """Take a record of the status topic, which may come again."""
        said = json.loads(value)
        alert = self._found.get(said["id"])
        if alert is None or alert.finished_ms is not None:
            return
        finished_ms = said["at_ms"] if said["terminal"] else None
        self._found[alert.alert_id] = replace(alert, status=said["status"], finished_ms=finished_ms)
        if finished_ms is not None:
            self._ended.set()
            took = _seconds(alert.measured_ms, finished_ms).strip()
            self._say(f"{alert.device}: {said['status'].replace('_', ' ')}, {took} after the reading.")

    async def _run(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.errors import KafkaError

        consumer: Any = AIOKafkaConsumer(
            ALERTS_TOPIC,
            STATUSES_TOPIC,
            bootstrap_servers=self._bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            async for record in consumer:
                if record.topic == ALERTS_TOPIC:
                    await self.take_alert(record.value, record.timestamp)
                else:
                    self.take_status(record.value)
        except KafkaError as error:
            raise ReadBackError(f"the alerts of Spark could not be read from Kafka: {words(error)}.") from error
        finally:
            await consumer.stop()
