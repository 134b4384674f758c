"""A topic that a job writes to: it exists, or is made, or starting ends with a sentence."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from streaming.errors import KafkaRefusedError, KafkaUnavailableError
from streaming.kafka.admin import KafkaAdmin
from streaming.kafka.failures import cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from config.kafka import TopicsSettings
    from config.settings import Settings


def ensure_topic(spark: SparkSession, settings: Settings, topic: str, setting: str) -> None:
    """Makes sure Kafka has the topic that ``setting`` names; makes it as ``kafka.topics`` says if that is allowed.

    Blocks for at most some seconds. Raises KafkaUnavailableError if it is missing and may not be made,
    KafkaRefusedError if Kafka does not allow it.
    """
    servers = ", ".join(settings.kafka.bootstrap_servers)
    try:
        with closing(KafkaAdmin(spark, settings.kafka)) as admin:
            if admin.has_topic(topic):
                return
            if not settings.kafka.topics.create:
                raise KafkaUnavailableError(
                    f"Kafka at {servers} has no topic {topic!r}, which {setting} names, or does not let this user see"
                    " it. Create it, name another, allow Describe and Write on it, or set kafka.topics.create = true to"
                    " have it made."
                )
            _create(admin, settings.kafka.topics, topic)
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


def _create(admin: KafkaAdmin, topics: TopicsSettings, topic: str) -> None:
    declared = next((one for one in topics.declare if one.name == topic), None)
    configs = {}
    if declared is not None and declared.retention is not None:
        configs["retention.ms"] = str(int(declared.retention.total_seconds() * 1000))
    if declared is not None and declared.cleanup_policy is not None:
        configs["cleanup.policy"] = declared.cleanup_policy
    wanted = declared or topics
    admin.create_topic(topic, wanted.partitions, wanted.replication, configs)
