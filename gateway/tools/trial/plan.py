"""What one trial does: how many messages of which size, and the names that keep it apart from everything else."""

from __future__ import annotations

__all__ = ["AHEAD", "TrialPlan", "read_mark"]

import hashlib
import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

from config.settings import (
    DeadLetterSettings,
    HttpSettings,
    LedgerSettings,
    LogSettings,
    MqttSettings,
    RouteSettings,
    Settings,
    StatusSettings,
    TopicSettings,
    TopicsSettings,
)

if TYPE_CHECKING:
    from pathlib import Path

AHEAD: Final = 500
"""Messages that are under way at most. EMQX queues 1,000 for a session and then drops: a trial is no flood."""
DEVICES: Final = 20
LINES: Final = 4
"""Connections of the publisher. EMQX may give all messages of one to one session (hash_clientid)."""
SESSION_EXPIRY: Final = timedelta(minutes=1)
"""If even our own end is cut short, the broker forgets the sessions after this."""
_HEAD = "trial {run} {number} "
MIN_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """One run. ``run`` is eight hexadecimal digits, part of every name that it uses."""

    run: str
    messages: int = 10_000
    size: int = 200
    """Bytes of each payload."""
    qos: Literal[0, 1, 2] = 1
    rate: float | None = None
    """Messages a second; None for as fast as they come back."""
    ahead: int = AHEAD
    partitions: int = 3
    topic: str | None = None
    """A Kafka topic that is there already; None makes one, and deletes it."""
    prefix: str = "gateway-trial"
    """What the MQTT topics begin with."""
    timeout_s: float = 300.0
    publisher: tuple[str, str] | None = field(default=None, repr=False)
    """User name and password of the publisher, where it is another one than the gateway."""

    @property
    def instance(self) -> str:
        return f"trial-{self.run}"

    @property
    def kafka_topic(self) -> str:
        return self.topic or f"gateway-trial-{self.run}"

    @property
    def dead_letter_topic(self) -> str:
        """Never made: what cannot be delivered is missing, and says so."""
        return f"gateway-trial-{self.run}-dead-letters"

    def missing_right(self, username: str | None, action: Literal["publish", "subscribe"]) -> str:
        """Which rule gives ``username`` what the broker has refused, in sentences; the gateway and a publisher that is
        the same user need both rights."""
        named = "NAME" if username is None else username
        only = "" if self.publisher is None else f" --action {action}"
        right = "all" if self.publisher is None else action
        return (
            f"A rule of gateway auth serve that allows it: gateway auth acl add allow '{self.prefix}/#' "
            f"--username {shlex.quote(named)}{only} --first. In EMQX's acl.conf: "
            f'{{allow, {{user, "{named}"}}, {right}, ["{self.prefix}/#"]}}.'
        )

    def lanes(self, mqtt: MqttSettings) -> int:
        """Filters of the route: sessions with a partitioned distribution need one each."""
        return mqtt.sessions if mqtt.distribution == "partitioned" else 1

    def mqtt_topics(self, mqtt: MqttSettings) -> list[str]:
        """The topic of each device."""
        lanes = self.lanes(mqtt)
        return [f"{self.prefix}/{self.run}/{device % lanes}/d{device:02}" for device in range(DEVICES)]

    def settings(self, base: Settings, data_dir: Path) -> Settings:
        """Settings of the trial's worker: the brokers, credentials and limits of ``base``, and names, routes and files
        of its own. Nothing of it is retained, and no session outlives it for long."""
        mqtt = base.mqtt.model_copy(
            update={
                "client_id": MqttSettings().client_id,
                "share_group": self.instance,
                "session_expiry": min(base.mqtt.session_expiry, SESSION_EXPIRY),
                "status": StatusSettings(enabled=False),
                "groups": (),
            }
        )
        kafka = base.kafka.model_copy(update={"client_id": "${instance}-${worker}", "topics": self.topics()})
        filters = tuple(f"{self.prefix}/{self.run}/{lane}/+" for lane in range(self.lanes(mqtt)))
        return Settings(
            instance=self.instance,
            workers=0,
            data_dir=data_dir,
            mqtt=mqtt,
            kafka=kafka,
            flow=base.flow,
            routes=(RouteSettings(name="trial", filters=filters, topic=self.kafka_topic, qos=self.qos),),
            dead_letter=DeadLetterSettings(topic=self.dead_letter_topic),
            ledger=LedgerSettings(topic=""),
            http=HttpSettings(port=0),
            log=LogSettings(level="warning", format="json"),
            shutdown_timeout=timedelta(seconds=20),
        )

    def topics(self) -> TopicsSettings:
        """How the Kafka topic is made. The worker itself makes none."""
        if self.topic is not None:
            return TopicsSettings()
        return TopicsSettings(declare=(TopicSettings(name=self.kafka_topic, partitions=self.partitions),))

    def payloads(self) -> Payloads:
        """What the messages carry."""
        return Payloads(self)


class Payloads:
    """``payload(number)``: the mark, and hexadecimal digits up to the size that look random, so that they compress to
    about a half. Telemetry compresses better."""

    def __init__(self, plan: TrialPlan) -> None:
        self._plan = plan

    def payload(self, number: int) -> bytes:
        head = _HEAD.format(run=self._plan.run, number=number)
        wanted = self._plan.size - len(head)
        return (head + hashlib.shake_128(head.encode()).hexdigest(wanted // 2 + 1)[:wanted]).encode()


def read_mark(run: bytes, value: bytes | None) -> int | None:
    """The number of a trial's message; None for a record that is not of this run."""
    parts = (value or b"")[:MIN_SIZE].split(b" ", 3)
    if len(parts) < 4 or parts[0] != b"trial" or parts[1] != run or not parts[2].isdigit():
        return None
    return int(parts[2])
