"""Reads Kafka for a verification of commands, in no consumer group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bridge.kafka.group_admin import read_commits
from bridge.kafka.reader import TopicReader

if TYPE_CHECKING:
    from bridge.commands.ports import Committed, Partition
    from bridge.kafka.login import KafkaLogin
    from config.settings import Settings
    from config.tables.commands import CommandSettings


class KafkaCommandLog(TopicReader):
    """The topics of one ``[[commands]]``; an async context manager."""

    isolation_level = "read_committed"  # as the workers read

    def __init__(self, settings: Settings, commands: CommandSettings, login: KafkaLogin) -> None:
        self._cluster, self._client_id, self._commands = settings.kafka, f"{settings.instance}-verify", commands
        super().__init__(
            settings.kafka, self._client_id, dict.fromkeys([*commands.topics, commands.status_topic]), login
        )

    async def commits(self, group: str) -> Mapping[Partition, Committed | None]:
        """What a group has committed, of every partition of the command topics."""
        partitions = [(at.topic, at.partition) for at in self.partitions if at.topic in self._commands.topics]
        return await read_commits(self._cluster, self._client_id, group, partitions, self.login)
