"""A topic that a job writes to: it exists, or is made, or starting ends with a sentence."""

from __future__ import annotations

__all__ = ["ensure_topic"]

from contextlib import closing
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from streaming.errors import KafkaRefusedError, KafkaUnavailableError
from streaming.failures import cause
from streaming.group import make_admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from config.settings import KafkaSettings, Settings

_TIMEOUT_S = 15


def ensure_topic(spark: SparkSession, settings: Settings, topic: str, setting: str) -> None:
    """Makes sure Kafka has the topic that ``setting`` names; makes it as ``kafka.topics`` says if that is allowed.

    Blocks for at most some seconds. Raises KafkaUnavailableError if it is missing and may not be made,
    KafkaRefusedError if Kafka does not allow it.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 (pyspark has no public way to Kafka's client)
    servers = ", ".join(settings.kafka.bootstrap_servers)
    try:
        with closing(make_admin(jvm, settings.kafka)) as admin:
            if topic in _done(jvm, admin.listTopics().names()):
                return
            if not settings.kafka.topics.create:
                raise KafkaUnavailableError(
                    f"Kafka at {servers} has no topic {topic!r}, which {setting} names, or does not let this user see"
                    " it. Create it, name another, allow Describe and Write on it, or set kafka.topics.create = true to"
                    " have it made."
                )
            wanted = jvm.java.util.ArrayList()
            wanted.add(_new_topic(jvm, settings.kafka, topic))
            _done(jvm, admin.createTopics(wanted).all())
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


def _done(jvm: Any, future: Any) -> Any:
    return future.get(_TIMEOUT_S, jvm.java.util.concurrent.TimeUnit.SECONDS)


def _new_topic(jvm: Any, kafka: KafkaSettings, topic: str) -> Any:
    declared = next((one for one in kafka.topics.declare if one.name == topic), None)
    partitions = kafka.topics.partitions if declared is None else declared.partitions
    replication = kafka.topics.replication if declared is None else declared.replication
    # -1, the broker's own default, is what Kafka itself sends for none.
    made = jvm.org.apache.kafka.clients.admin.NewTopic(topic, partitions, replication)
    configs = jvm.java.util.HashMap()
    if declared is not None and declared.retention is not None:
        configs.put("retention.ms", str(int(declared.retention.total_seconds() * 1000)))
    if declared is not None and declared.cleanup_policy is not None:
        configs.put("cleanup.policy", declared.cleanup_policy)
    return made.configs(configs)
