"""Kafka asked and changed by the JVM's own admin client: what it holds of a topic, new topics, a group's offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from streaming import jvm
from streaming.kafka.options import source_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from config.settings import KafkaSettings
    from streaming.progress import Offsets

Place = tuple[str, int]

_TIMEOUT_MS: Final = 10_000


class KafkaAdmin:
    """Has the source's login. Blocks for a round trip, at most 10 s; what the JVM raises comes through as a py4j error.
    Connects at the first question; ``close`` ends its thread."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings) -> None:
        self._spark, self._kafka = spark, kafka
        self._client: Any = None

    @property
    def _java(self) -> Any:
        return jvm.classes(self._spark)

    def _connected(self) -> Any:
        if self._client is None:
            options = source_options(self._kafka).items()
            login = {name.removeprefix("kafka."): it for name, it in options if name.startswith("kafka.")}
            ours = {
                "request.timeout.ms": str(_TIMEOUT_MS // 2),
                "default.api.timeout.ms": str(_TIMEOUT_MS),
                "client.id": "gateway-stream",
            }
            self._client = jvm.kafka_admin(self._spark, login | ours)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def earliest(self, places: Iterable[Place]) -> dict[Place, int]:
        return self._offsets(places, self._java.org.apache.kafka.clients.admin.OffsetSpec.earliest())

    def latest(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offset that each partition's next record will have."""
        return self._offsets(places, self._java.org.apache.kafka.clients.admin.OffsetSpec.latest())

    def _offsets(self, places: Iterable[Place], wanted: Any) -> dict[Place, int]:
        asked = {place: self._java.org.apache.kafka.common.TopicPartition(*place) for place in places}
        if not asked:
            return {}
        answer = self._connected().listOffsets(dict.fromkeys(asked.values(), wanted)).all().get()
        return {place: int(answer.get(partition).offset()) for place, partition in asked.items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's id of each topic: another one is another topic of the same name."""
        names = list(topics)
        answer = self._connected().describeTopics(names).allTopicNames().get()
        return {str(name): str(answer.get(name).topicId()) for name in names}

    def has_topic(self, topic: str) -> bool:
        """Whether there is a topic that this user may see."""
        return bool(self._connected().listTopics().names().get().contains(topic))

    def create_topic(self, topic: str, partitions: int, replication: int, configs: Mapping[str, str]) -> None:
        """-1 for the numbers: the broker's own defaults."""
        made = self._java.org.apache.kafka.clients.admin.NewTopic(topic, partitions, replication)
        self._connected().createTopics([made.configs(dict(configs))]).all().get()

    def commit(self, group: str, offsets: Offsets) -> None:
        """Puts a group without members to these offsets."""
        java = self._java.org.apache.kafka
        wanted = {
            java.common.TopicPartition(topic, int(number)): java.clients.consumer.OffsetAndMetadata(int(offset))
            for topic, partitions in offsets.items()
            for number, offset in partitions.items()
        }
        self._connected().alterConsumerGroupOffsets(group, wanted).all().get()
