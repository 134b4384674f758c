"""What Kafka holds of a topic now: first and next offsets, and which topic of that name it is."""

from __future__ import annotations

__all__ = ["KafkaLog"]

from typing import TYPE_CHECKING, Any

from streaming.group import make_admin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from config.settings import KafkaSettings

Place = tuple[str, int]


class KafkaLog:
    """Asks Kafka by the JVM's own admin client, with the source's login. Blocks for a round trip, at most 10 s; what
    the JVM raises comes through as a py4j error. Connects at the first question; ``close`` ends its thread."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001 (pyspark has no public way to Kafka's client)
        self._kafka = kafka
        self._admin: Any = None

    def _connected(self) -> Any:
        if self._admin is None:
            self._admin = make_admin(self._jvm, self._kafka)
        return self._admin

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def earliest(self, places: Iterable[Place]) -> dict[Place, int]:
        """The first offset that each partition still has."""
        return self._offsets(places, self._jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest())

    def latest(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offset that each partition's next record will have."""
        return self._offsets(places, self._jvm.org.apache.kafka.clients.admin.OffsetSpec.latest())

    def _offsets(self, places: Iterable[Place], wanted: Any) -> dict[Place, int]:
        asked = {place: self._jvm.org.apache.kafka.common.TopicPartition(*place) for place in places}
        if not asked:
            return {}
        question = self._jvm.java.util.HashMap()
        for partition in asked.values():
            question.put(partition, wanted)
        answer = self._connected().listOffsets(question).all().get()
        return {place: int(answer.get(partition).offset()) for place, partition in asked.items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's id of each topic: another one is another topic of the same name."""
        names = self._jvm.java.util.ArrayList()
        for topic in topics:
            names.add(topic)
        answer = self._connected().describeTopics(names).allTopicNames().get()
        return {str(name): str(answer.get(name).topicId()) for name in names}
