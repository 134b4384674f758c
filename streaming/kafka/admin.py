"""Kafka asked and changed by the JVM's own admin client: what it holds of a topic, new topics, a group's offsets."""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from config.settings import KafkaSettings, Settings
from config.tables.kafka import TopicsSettings
from streaming import jvm
from streaming.errors import KafkaRefusedError, KafkaUnavailableError
from streaming.kafka.failures import cause, explain
from streaming.kafka.options import source_options
from streaming.progress import Offsets

Place = tuple[str, int]
_TIMEOUT_MS: Final = 10_000


class KafkaAdmin:
    """Has the source's login. Blocks for a round trip, at most 10 s; what the JVM raises comes through as a py4j error.
    Connects at the first question; ``close`` ends its thread."""

    def __init__(self, spark: SparkSession, kafka: KafkaSettings) -> None:
        self._spark, self._kafka = spark, kafka
        self._client: Any = None

    def _java(self, name: str) -> Any:
        return jvm.java_class(self._spark, f"org.apache.kafka.{name}")

    def _connected(self) -> Any:
        if self._client is None:
            options = source_options(self._kafka).items()
            told = {name.removeprefix("kafka."): it for name, it in options if name.startswith("kafka.")}
            told |= {"request.timeout.ms": str(_TIMEOUT_MS // 2), "default.api.timeout.ms": str(_TIMEOUT_MS)}
            told["client.id"] = "gateway-stream"
            self._client = self._java("clients.admin.AdminClient").create(told)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def earliest(self, places: Iterable[Place]) -> dict[Place, int]:
        return self._offsets(places, "earliest")

    def latest(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offset that each partition's next record will have."""
        return self._offsets(places, "latest")

    def since(self, places: Iterable[Place], ms: int) -> dict[Place, int]:
        """The offset of each partition's first record with that timestamp or a later one; -1: it has none."""
        return self._offsets(places, "forTimestamp", ms)

    def _offsets(self, places: Iterable[Place], which: str, *ms: int) -> dict[Place, int]:
        partition_class = self._java("common.TopicPartition")
        asked = {place: partition_class(*place) for place in places}
        if not asked:
            return {}
        wanted = getattr(self._java("clients.admin.OffsetSpec"), which)(*ms)
        answer = self._connected().listOffsets(dict.fromkeys(asked.values(), wanted)).all().get()
        return {place: int(answer.get(partition).offset()) for place, partition in asked.items()}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's id of each topic: another one is another topic of the same name."""
        return {name: str(told.topicId()) for name, told in self._described(topics).items()}

    def partitions(self, topics: Iterable[str]) -> list[Place]:
        described = self._described(topics).items()
        return [(name, number) for name, told in described for number in range(told.partitions().size())]

    def _described(self, topics: Iterable[str]) -> dict[str, Any]:
        names = list(topics)
        answer = self._connected().describeTopics(names).allTopicNames().get()
        return {name: answer.get(name) for name in names}

    def present(self, topics: Iterable[str]) -> list[str]:
        """Those of the topics that are there, and that this user may see."""
        there = self._connected().listTopics().names().get()
        return [topic for topic in topics if there.contains(topic)]

    def create_topic(self, topic: str, topics: TopicsSettings) -> None:
        """Makes it as ``topics`` declares it, else with the partitions and replicas that they give for any."""
        declared, configs = next((one for one in topics.declare if one.name == topic), None), {}
        if declared is not None and declared.retention is not None:
            configs["retention.ms"] = str(declared.retention // timedelta(milliseconds=1))
        if declared is not None and declared.cleanup_policy is not None:
            configs["cleanup.policy"] = declared.cleanup_policy
        wanted = declared or topics
        made = self._java("clients.admin.NewTopic")(topic, wanted.partitions, wanted.replication)
        self._connected().createTopics([made.configs(configs)]).all().get()

    def commit(self, group: str, offsets: Offsets) -> None:
        """Puts a group without members to these offsets."""
        partition, place = self._java("common.TopicPartition"), self._java("clients.consumer.OffsetAndMetadata")
        wanted = {
            partition(topic, int(number)): place(int(offset))
            for topic, partitions in offsets.items()
            for number, offset in partitions.items()
        }
        self._connected().alterConsumerGroupOffsets(group, wanted).all().get()


@contextmanager
def asked(spark: SparkSession, settings: Settings, query: str) -> Iterator[KafkaAdmin]:
    """A client for a few questions. Raises a StreamError, which names the query, if Kafka does not answer."""
    try:
        with closing(KafkaAdmin(spark, settings.kafka)) as admin:
            yield admin
    except Py4JJavaError as error:
        raise explain(query, error, settings) from error


def ensure_topic(spark: SparkSession, settings: Settings, topic: str, setting: str) -> None:
    """Makes sure Kafka has the topic that ``setting`` names; makes it as ``kafka.topics`` says if that is allowed.
    Blocks for at most some seconds. Raises KafkaUnavailableError if it is missing and may not be made,
    KafkaRefusedError if Kafka does not allow it."""
    servers = ", ".join(settings.kafka.bootstrap_servers)
    try:
        with closing(KafkaAdmin(spark, settings.kafka)) as admin:
            if admin.present([topic]):
                return
            if not settings.kafka.topics.create:
                raise KafkaUnavailableError(
                    f"Kafka at {servers} has no topic {topic!r}, which {setting} names, or does not let this user see"
                    " it. Create it, name another, allow Describe and Write on it, or set kafka.topics.create = true to"
                    " have it made."
                )
            admin.create_topic(topic, settings.kafka.topics)
    except Py4JJavaError as error:
        said = str(error)
        if "TopicExistsException" in said:
            return  # another job was quicker
        if "Authorization" in said or "Authentication" in said:
            raise KafkaRefusedError(
                f"Kafka at {servers} does not let this user make the topic {topic!r}, which {setting} names"
                f" ({cause(said)}). Create it by hand, or allow Create, Describe and Write on it."
            ) from error
        raise KafkaUnavailableError(
            f"The topic {topic!r}, which {setting} names, could not be looked up or made in Kafka at {servers}"
            f" ({cause(said)}). Are the brokers up, and do kafka.topics.partitions and replication suit them?"
        ) from error
