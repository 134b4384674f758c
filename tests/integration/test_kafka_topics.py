"""Topics that settings name exist, or are made as settings say, or the start ends with a sentence."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from bridge.errors import BridgeError, RefusedError, RetriableError, TopicMissingError
from bridge.kafka.topics import Topics
from config.errors import ExitStatus
from gateway.local.embedded.kafka import KafkaCluster
from tests.brokers.kafka_backend import KafkaBackend
from tests.brokers.secured import SecuredKafka
from tests.producer_port import running, sent, values
from tests.waiting import wait_until


def described(cluster: KafkaCluster, topic: str, *names: str) -> tuple[int, int, dict[str, str]]:
    """Partitions, replicas, and the configuration of these names that differs from the broker's."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    looks: list[Any] = []

    def is_known() -> bool:  # one of several brokers hears of it later, and any of them is asked
        looks.append(admin.list_topics(topic, timeout=30).topics[topic])
        return looks[-1].error is None

    wait_until(is_known, f"{topic} is known")
    found = looks[-1]
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(30) if names else {}
    own = {name: config[name].value for name in names if not config[name].is_default}
    return len(found.partitions), len(found.partitions[0].replicas), own


async def ensure(backend: KafkaBackend, *topics: str, **settings: Any) -> Topics:
    topic_settings = backend.settings.topics.model_validate(settings)
    kafka = backend.settings.model_copy(update={"topics": topic_settings})
    async with running(backend.producer([])) as producer:
        ensured = Topics(kafka, "test")
        await ensured.ensure(producer, topics)  # type: ignore[arg-type]
        for topic in topics:
            assert producer.partition_count(topic)
            assert await sent(producer, topic, values(b"x")) is None
    return ensured


async def test_topics_that_exist_are_only_looked_at(backend: KafkaBackend) -> None:
    one, other = await backend.topic(3), await backend.topic()
    await ensure(backend, one, other, create=False)
    ensured = await ensure(backend, one, other, create=True)
    assert described(backend.cluster, one)[0] == 3
    assert not ensured.is_settling(one)


async def test_a_missing_topic_is_named_and_the_way_out_too(backend: KafkaBackend, unique: str) -> None:
    there = await backend.topic()
    with pytest.raises(TopicMissingError) as failure:
        await ensure(backend, there, f"{unique}-a", f"{unique}-b")
    assert str(failure.value) == (
        f"Kafka has no topic {unique}-a, {unique}-b. "
        "`gateway topics apply` makes it; with kafka.topics.create = true the start does."
    )
    assert failure.value.exit_status is ExitStatus.UNAVAILABLE


async def test_a_missing_topic_is_not_asked_for_for_ever(backend: KafkaBackend, unique: str) -> None:
    """aiokafka logs it at each renewal, and a broker that creates what it is asked for would make it."""
    there = await backend.topic()
    async with running(backend.producer([there])) as producer:
        for settings in ({}, {"create": True, "replication": 3}):
            kafka = backend.settings.model_copy(update={"topics": backend.settings.topics.model_validate(settings)})
            with pytest.raises(TopicMissingError):
                await Topics(kafka, "test").ensure(producer, [there, unique])
            assert producer._client._topics == {there}
        assert await sent(producer, there, values(b"x")) is None


async def test_a_missing_topic_is_created_as_declared(backend: KafkaBackend, unique: str) -> None:
    declare = ({"name": unique, "partitions": 5, "retention": "3h", "cleanup_policy": "compact,delete"},)
    assert (await ensure(backend, unique, create=True, declare=declare)).is_settling(unique)
    names = ("retention.ms", "cleanup.policy")
    assert described(backend.cluster, unique, *names) == (
        5,
        1,
        {"retention.ms": "10800000", "cleanup.policy": "compact,delete"},
    )


async def test_a_missing_topic_that_is_not_declared_has_the_defaults_of_settings_and_broker(
    backend: KafkaBackend, unique: str
) -> None:
    await ensure(backend, unique, create=True, partitions=4)
    assert described(backend.cluster, unique, "retention.ms", "cleanup.policy") == (4, 1, {})


async def test_replication_is_the_broker_s_default_unless_told(
    make_kafka: Callable[..., SecuredKafka], unique: str, free_ports: Callable[[int], list[int]]
) -> None:
    cluster = make_kafka(2, sasl=True, settings={"default.replication.factor": "2"})
    backend = KafkaBackend(cluster, unique, free_ports(1)[0])
    await ensure(backend, f"{unique}-broker", create=True)
    await ensure(backend, f"{unique}-told", create=True, replication=1)
    assert described(cluster, f"{unique}-broker")[1] == 2
    assert described(cluster, f"{unique}-told")[1] == 1


async def test_many_are_created_at_once_and_twice_at_the_same_time(backend: KafkaBackend, unique: str) -> None:
    """Two workers start together, and both find them missing."""
    topics = [f"{unique}-{number}" for number in range(5)]
    await asyncio.gather(*(ensure(backend, *topics, create=True, partitions=1) for _ in range(3)))


@pytest.mark.parametrize(("settings", "words"), [
    ({"replication": 3}, "replication factor of 3"),
    ({"declare": ({"name": "declared", "replication": 2},)}, "replication factor of 2"),
])  # fmt: skip
async def test_what_kafka_cannot_create_is_told_in_its_words(
    backend: KafkaBackend, settings: dict[str, Any], words: str
) -> None:
    topic = "declared" if "declare" in settings else "not-declared"
    with pytest.raises(
        TopicMissingError, match=rf"Topic {topic} could not be created: .*{words}[^.]*\. Check kafka.topics"
    ):
        await ensure(backend, topic, create=True, **settings)


async def test_a_topic_we_may_not_see_is_a_matter_of_rights(backend: KafkaBackend, unique: str) -> None:
    topic = await backend.topic()
    await backend.hide(topic)
    with pytest.raises(RefusedError, match=f"does not let us describe topic {topic}.*Describe and Write"):
        await ensure(backend, topic)


async def test_a_topic_we_may_not_create_is_a_matter_of_rights(backend: KafkaBackend, unique: str) -> None:
    await backend.hide(unique, visible=True)
    await backend.allow_creation(allowed=False)
    try:
        with pytest.raises(RefusedError, match=f"does not let us create topic {unique}"):
            await ensure(backend, unique, create=True)
    finally:
        await backend.allow_creation(allowed=True)


async def test_a_frozen_kafka_is_worth_another_try(backend: KafkaBackend, unique: str) -> None:
    async with running(backend.producer([])) as producer:
        backend.freeze()
        try:
            with pytest.raises(RetriableError):
                await Topics(backend.settings, "test").ensure(producer, [unique])  # type: ignore[arg-type]
            with pytest.raises(RetriableError) as failure:
                await Topics(backend.settings, "test").create([unique])
            assert not isinstance(failure.value, TopicMissingError)
            assert isinstance(failure.value, BridgeError)
        finally:
            backend.thaw()
