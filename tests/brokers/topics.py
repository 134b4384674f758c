"""Topics for tests, made and removed with aiokafka's admin client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DEADLINE_SECONDS = 20.0
_POLL_SECONDS = 0.05


async def create_topic(
    bootstrap: str,
    name: str,
    *,
    partitions: int = 1,
    replication: int = -1,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic and wait until each partition has a leader.

    AssertionError when Kafka refuses it, TimeoutError when it takes too long.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        # With -1, the broker's own default, aiokafka wants assignments, of which none will do.
        assignments: dict[int, list[int]] | None = {} if replication == -1 else None
        topic = NewTopic(name, partitions, replication, assignments, dict(config or {}))
        answer = await admin.create_topics([topic])
        refused = [error for error in answer.topic_errors if error[1] != 0]
        assert not refused, f"Kafka refused topic {name}: {refused}"
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while not await _led(admin, name, partitions):  # noqa: ASYNC110 - Kafka tells only who asks
                await asyncio.sleep(_POLL_SECONDS)
    finally:
        await admin.close()


async def _led(admin: AIOKafkaAdminClient, name: str, partitions: int) -> bool:
    (topic,) = await admin.describe_topics([name])
    return topic["error_code"] == 0 and sum(p["leader"] >= 0 for p in topic["partitions"]) == partitions


async def delete_topics(bootstrap: str, names: Iterable[str]) -> None:
    """Delete topics; those that are gone already are no error."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics(list(names))
    finally:
        await admin.close()
