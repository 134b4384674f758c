"""The plan of a trial: messages, sizes, and names that separate it from everything else."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

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
from config.tables.commands import CommandSettings

AHEAD: Final = 500
"""Most messages under way. EMQX queues 1,000 for a session and then drops."""
DEVICES: Final = 20
LINES: Final = 4
"""Connections of the publisher. EMQX may give all messages of one to one session (hash_clientid)."""
SESSION_EXPIRY: Final = timedelta(minutes=1)
"""If the clean-up is cut short too, the broker ends the sessions after this time."""
_HEAD = "trial {run} {number} "
MIN_SIZE: Final = 32


@dataclass(frozen=True, slots=True)
class TrialCommands:
    """One ``[[commands]]`` as a trial runs it, the route of its answers, and sentences about what is not judged."""

    settings: CommandSettings
    answers: RouteSettings | None
    not_judged: tuple[str, ...]

    def topics(self, partitions: int) -> tuple[TopicSettings, ...]:
        one = self.settings
        retention = max(one.expiry, one.status_retention)
        names = {one.topics[0]: "delete", one.status_topic: "compact,delete"}
        if self.answers is not None:
            names[self.answers.topic] = "delete"
        return tuple(
            TopicSettings(name=name, partitions=partitions, retention=retention, cleanup_policy=policy)
            for name, policy in names.items()
        )


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """One run. ``run`` is eight hexadecimal digits, which are part of all its names."""

    run: str
    messages: int = 10_000
    size: int = 200
    """Bytes of each payload."""
    qos: Literal[0, 1, 2] = 1
    rate: float | None = None
    """Messages a second; None: as fast as they come back."""
    ahead: int = AHEAD
    partitions: int = 3
    topic: str | None = None
    """An existing Kafka topic; None: one is created and deleted."""
    prefix: str = "gateway-trial"
    """Beginning of the MQTT topics."""
    timeout_s: float = 300.0
    publisher: tuple[str, str] | None = field(default=None, repr=False)
    """User name and password of the publisher, if they are not the gateway's."""
    commands_each: int = 200
    """Commands of each entry."""
    entries: tuple[CommandSettings, ...] = ()
    """The ``[[commands]]`` to try."""

    @property
    def instance(self) -> str:
        return f"trial-{self.run}"

    @property
    def kafka_topic(self) -> str:
        return self.topic or f"gateway-trial-{self.run}"

    @property
    def dead_letter_topic(self) -> str:
        """Never created: undeliverable messages count as missing."""
        return f"gateway-trial-{self.run}-dead-letters"

    def missing_right(self, username: str | None, action: Literal["publish", "subscribe"]) -> str:
        """Sentences about the rule that gives ``username`` the refused right. If publisher and gateway are one user, it
        needs both rights; with commands each of the two does."""
        named = "NAME" if username is None else username
        needs_both = self.publisher is None or bool(self.entries)
        only = "" if needs_both else f" --action {action}"
        right = "all" if needs_both else action
        return (
            f"A rule of gateway auth serve that allows it: gateway auth acl add allow '{self.prefix}/#' "
            f"--username {shlex.quote(named)}{only} --first. In EMQX's acl.conf: "
            f'{{allow, {{user, "{named}"}}, {right}, ["{self.prefix}/#"]}}.'
        )

    def lanes(self, mqtt: MqttSettings) -> int:
        """Number of filters of the route: with the distribution ``partitioned`` each session needs one."""
        return mqtt.sessions if mqtt.distribution == "partitioned" else 1

    def mqtt_topics(self, mqtt: MqttSettings) -> list[str]:
        lanes = self.lanes(mqtt)
        return [f"{self.prefix}/{self.run}/{device % lanes}/d{device:02}" for device in range(DEVICES)]

    def settings(self, base: Settings, data_dir: Path) -> Settings:
        """Settings of the trial's worker: brokers, credentials and limits of ``base``, but its own names, routes and
        files. Nothing is retained, and no session outlives it for long."""
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
        commands = self.commands()
        answers = [one.answers for one in commands if one.answers is not None]
        return Settings(
            instance=self.instance,
            workers=0,
            data_dir=data_dir,
            mqtt=mqtt,
            kafka=kafka,
            flow=base.flow,
            routes=(RouteSettings(name="trial", filters=filters, topic=self.kafka_topic, qos=self.qos), *answers),
            commands=tuple(one.settings for one in commands),
            dead_letter=DeadLetterSettings(topic=self.dead_letter_topic),
            ledger=LedgerSettings(topic=""),
            http=HttpSettings(port=0),
            log=LogSettings(level="warning", format="json"),
            shutdown_timeout=timedelta(seconds=20),
        )

    def topics(self) -> TopicsSettings:
        """Settings to create the Kafka topics. The worker itself creates none."""
        if self.topic is not None:
            return TopicsSettings()
        messages = TopicSettings(name=self.kafka_topic, partitions=self.partitions)
        commands = (topic for one in self.commands() for topic in one.topics(self.partitions))
        return TopicsSettings(declare=(messages, *commands))

    def commands(self) -> tuple[TrialCommands, ...]:
        """The entries with topics and a group of the trial's own. Everything else stays, but for what only the user's
        own topics have."""
        return tuple(self._trial_entry(number, one) for number, one in enumerate(self.entries))

    def _trial_entry(self, number: int, one: CommandSettings) -> TrialCommands:
        """An entry of the settings with the trial's own topics, and without what the trial cannot judge."""
        topic, below = f"{self.kafka_topic}-{one.name}", f"{self.prefix}/{self.run}/commands/{one.name}"
        answers = None
        if one.answers is not None and one.qos:
            device = f"${{topic[{below.count('/') + 2}]}}"
            answers = RouteSettings(
                name=f"answers-{number}", filters=(f"{below}/res/+/#",), topic=f"{topic}-answers", key=device,
                device=device, metadata_headers=("topic", "properties", "device"),
            )  # fmt: skip
        not_judged = []
        if one.delivered_by is not None:
            not_judged.append("deliveries (delivered_by): EMQX's rule reports those of your own topics alone")
        if one.presence is not None:
            not_judged.append("presence: no births of the trial's devices are published")
        settings = one.model_copy(
            update={
                "topics": (f"{topic}-commands",),
                "status_topic": f"{topic}-statuses",
                "group": "",
                "mqtt_topic": f"{below}/req/{one.mqtt_topic}",
                "response_topic": f"{below}/res/${{device}}",
                "answers": None if answers is None else answers.name,
                "delivered_by": None,
                "presence": None,
                "confirm": "sent",
                "release": "sent" if one.release == "delivered" else one.release,
                "max_payload_bytes": max(one.max_payload_bytes, MIN_SIZE),
            }
        )
        return TrialCommands(settings, answers, tuple(not_judged))

    def mark(self, number: int) -> bytes:
        """The payload of a command: a message's mark alone."""
        return _HEAD.format(run=self.run, number=number).encode()

    def payload(self, number: int) -> bytes:
        """The payload of a message: its mark, then random-looking hexadecimal digits up to the size. These compress to
        about a half; telemetry compresses better."""
        head = _HEAD.format(run=self.run, number=number)
        wanted = self.size - len(head)
        return (head + hashlib.shake_128(head.encode()).hexdigest(wanted // 2 + 1)[:wanted]).encode()


def read_mark(run: bytes, value: bytes | None) -> int | None:
    """The number of a message of this run; None for another record."""
    parts = (value or b"")[:MIN_SIZE].split(b" ", 3)
    if len(parts) < 4 or parts[0] != b"trial" or parts[1] != run or not parts[2].isdigit():
        return None
    return int(parts[2])
