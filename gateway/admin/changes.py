"""Changes: topics created, grown, configured and deleted, leaders elected.

These methods ask for no confirmation and write no audit (``gateway.admin.audit``). Each sends one request to Kafka.
After an AdminRetriableError Kafka may have made the change, so read the state before a repetition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bridge.backoff import broker_timeout_ms
from gateway.admin.model import TopicPartition, by_topic
from gateway.admin.protocol import admin_api
from gateway.admin.reading import check, sentence

if TYPE_CHECKING:
    from gateway.admin.links import Links

_TOPIC: Final = 2  # kinds of resources
_SET, _DELETE = 0, 1  # kinds of changes to a configuration
_PREFERRED: Final = 0
_ELECTION_NOT_NEEDED: Final = 84
_ALREADY_EXISTS: Final = 36


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. ``replication`` -1 is the broker's default."""

    name: str
    partitions: int
    replication: int
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Election:
    """The outcome of an election: partitions with a changed leader, partitions already led by the preferred one, and
    the reasons for the others."""

    elected: tuple[TopicPartition, ...]
    not_needed: tuple[TopicPartition, ...]
    failed: dict[TopicPartition, str]


class Changes:
    _links: Links
    timeout_s: float

    def create_topic(self, topic: NewTopic, *, validate_only: bool = False) -> bool:
        """Create a topic; False if it exists. With ``validate_only`` Kafka only checks the request. Every broker's
        metadata have the topic some moments later."""
        asked = admin_api.CreateTopicsRequest.CreatableTopic
        request = admin_api.CreateTopicsRequest(
            topics=[
                asked(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.replication,
                    assignments=[],
                    configs=[asked.CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
                )
            ],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )
        answer = self._links.ask_one(request).topics[0]
        if answer.error_code == _ALREADY_EXISTS:
            return False
        check(answer.error_code, f"Topic {topic.name} cannot be created", answer.error_message, missing=False)
        return True

    def add_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Grow a topic to ``count`` partitions. Raises AdminError if it has as many or more."""
        asked = admin_api.CreatePartitionsRequest.CreatePartitionsTopic
        request = admin_api.CreatePartitionsRequest(
            topics=[asked(name=topic, count=count, assignments=None)],
            timeout_ms=self._timeout_ms,
            validate_only=validate_only,
        )
        answer = self._links.ask_one(request).results[0]
        check(answer.error_code, f"Topic {topic} cannot be grown to {count} partitions", answer.error_message)

    def alter_topic(self, topic: str, configs: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Set these keys of a topic's configuration; None restores the broker's default. Other keys stay."""
        asked = admin_api.IncrementalAlterConfigsRequest.AlterConfigsResource
        changes = [
            asked.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
            for key, value in configs.items()
        ]
        request = admin_api.IncrementalAlterConfigsRequest(
            resources=[asked(resource_type=_TOPIC, resource_name=topic, configs=changes)], validate_only=validate_only
        )
        answer = self._links.ask_one(request).responses[0]
        check(answer.error_code, f"The configuration of topic {topic} cannot be changed", answer.error_message)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic. It disappears from every broker's metadata some moments later, and its files after a minute
        (file.delete.delay.ms)."""
        asked = admin_api.DeleteTopicsRequest.DeleteTopicState
        request = admin_api.DeleteTopicsRequest(
            topics=[asked(name=topic)], topic_names=[topic], timeout_ms=self._timeout_ms
        )
        answer = self._links.ask_one(request).responses[0]
        check(answer.error_code, f"Topic {topic} cannot be deleted", answer.error_message)

    def elect(self, partitions: Iterable[TopicPartition]) -> Election:
        """Elect the preferred leaders of these partitions, as far as they are in sync. An election is never unclean, so
        no record is lost."""
        wanted = by_topic(sorted(set(partitions)))
        asked = admin_api.ElectLeadersRequest.TopicPartitions
        request = admin_api.ElectLeadersRequest(
            election_type=_PREFERRED,
            topic_partitions=[asked(topic=topic, partitions=numbers) for topic, numbers in wanted.items()],
            timeout_ms=self._timeout_ms,
        )
        answer = self._links.ask_one(request)
        check(answer.error_code, "Leaders cannot be elected")
        elected, not_needed = [], []
        failed: dict[TopicPartition, str] = {}
        for topic in answer.replica_election_results:
            for one in topic.partition_result:
                place = TopicPartition(topic.topic, one.partition_id)
                if one.error_code == 0:
                    elected.append(place)
                elif one.error_code == _ELECTION_NOT_NEEDED:
                    not_needed.append(place)
                else:
                    failed[place] = sentence(one.error_code, f"{place} keeps its leader", one.error_message)
        return Election(tuple(elected), tuple(not_needed), failed)

    @property
    def _timeout_ms(self) -> int:
        return broker_timeout_ms(self.timeout_s)
