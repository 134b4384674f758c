"""Topics for tests, made and removed with aiokafka's admin client, changed and filled with confluent's; and the topics
and consumer groups that there are."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, OffsetSpec, ResourceType

from tests.waiting import until, wait_until

_DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.05


@asynccontextmanager
async def admin_client(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create_topic(
    bootstrap: str, name: str, *, partitions: int = 1, replication: int = -1, config: Mapping[str, str] | None = None
) -> None:
    """Create a topic and wait until each partition has a leader.

    AssertionError when Kafka refuses it, TimeoutError when it takes too long.
    """
    # With -1, the broker's own default, aiokafka wants assignments, of which none will do.
    assignments: dict[int, list[int]] | None = {} if replication == -1 else None
    topic = NewTopic(name, partitions, replication, assignments, dict(config or {}))
    async with admin_client(bootstrap) as admin:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while refused := await _refusals(admin, topic):
                # On a busy machine the controller may miss a broker's heartbeats for a moment.
                assert all("fenced" in str(why) for *_, why in refused), f"Kafka refused topic {name}: {refused}"
                await asyncio.sleep(_POLL_SECONDS)
            while not await _led(admin, name, partitions):  # noqa: ASYNC110 - Kafka tells only who asks
                await asyncio.sleep(_POLL_SECONDS)


async def _refusals(admin: AIOKafkaAdminClient, topic: NewTopic) -> list[tuple[Any, ...]]:
    answer = await admin.create_topics([topic])
    return [error for error in answer.topic_errors if error[1] != 0]


async def _led(admin: AIOKafkaAdminClient, name: str, partitions: int) -> bool:
    (topic,) = await admin.describe_topics([name])
    return topic["error_code"] == 0 and sum(p["leader"] >= 0 for p in topic["partitions"]) == partitions


async def delete_topics(bootstrap: str, names: Iterable[str]) -> None:
    """Delete topics; those that are gone already are no error."""
    async with admin_client(bootstrap) as admin:
        await admin.delete_topics(list(names))


async def add_partitions(bootstrap: str, name: str, partitions: int) -> None:
    """Give a topic as many partitions as that, and wait until each has a leader, as the broker tells."""
    async with admin_client(bootstrap) as admin:
        await admin.create_partitions({name: NewPartitions(partitions)})
        await until(lambda: _led(admin, name, partitions), f"{name} has {partitions} partitions")


def alter_topic(bootstrap: str, name: str, setting: str, value: object) -> None:
    """Change one setting of a topic; returns when the broker shows it."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    entry = ConfigEntry(setting, str(value), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(_DEADLINE_SECONDS)

    def shown() -> bool:
        (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]).values()
        return found.result(_DEADLINE_SECONDS)[setting].value == str(value)

    wait_until(shown, f"the broker knows {setting} of {name}")


def delete_before(bootstrap: str, name: str, partition: int, offset: int) -> None:
    """Delete the records before an offset."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (deleted,) = admin.delete_records([TopicPartition(name, partition, offset)]).values()
    assert deleted.result(_DEADLINE_SECONDS).low_watermark == offset


def produce(bootstrap: str, name: str, values: Iterable[str | bytes], **options: Any) -> None:
    """Write values to a topic; ``options`` as confluent's producer takes them. Kafka has them all in the end."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    for value in values:
        producer.produce(name, value, on_delivery=lambda error, _: failed.append(error), **options)
    assert producer.flush(_DEADLINE_SECONDS) == 0
    assert not any(failed), f"Kafka did not take a record for {name}: {failed}"


def produce_aborted(bootstrap: str, name: str, value: bytes, *, partition: int) -> None:
    """Write a value in a transaction, and abort it; returns when the marker is in the log, which comes later."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(_DEADLINE_SECONDS)
    producer.begin_transaction()
    producer.produce(name, value, partition=partition)
    assert producer.flush(_DEADLINE_SECONDS) == 0
    producer.abort_transaction(_DEADLINE_SECONDS)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def end(isolation: IsolationLevel) -> int:
        latest = {TopicPartition(name, partition): OffsetSpec.latest()}
        (found,) = admin.list_offsets(latest, isolation_level=isolation).values()
        return int(found.result(_DEADLINE_SECONDS).offset)

    wait_until(
        lambda: end(IsolationLevel.READ_COMMITTED) == end(IsolationLevel.READ_UNCOMMITTED), "the transaction is over"
    )


def topic_names(bootstrap: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    return set(admin.list_topics(timeout=_DEADLINE_SECONDS).topics)


def consumer_groups(bootstrap: str) -> set[str]:
    """The names of all consumer groups."""
    # The client has a name until the answer is here: one that nothing refers to is closed, and its answers never come.
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = admin.list_consumer_groups().result(_DEADLINE_SECONDS)
    assert not found.errors, found.errors
    return {group.group_id for group in found.valid}
