"""Questions about a consumer group, of its members and of others."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

import aiokafka.errors as kafka_errors
from aiokafka.client import CoordinationType
from aiokafka.protocol.admin import DeleteGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest

from bridge.commands.ports import Committed
from bridge.errors import RefusedError, UnreachableError
from bridge.kafka.connection import asking
from bridge.kafka.group_protocol import LeaveGroup, Question, by_topic
from config.error_words import words

if TYPE_CHECKING:
    from bridge.commands.ports import Partition
    from bridge.kafka.client import Client
    from bridge.kafka.login import KafkaLogin
    from config.settings import KafkaSettings

RETRY_S: Final = 0.1
FIRST_LOOKUP_S: Final = 30.0  # a new cluster makes its topic of offsets at the first question
OVER: Final = frozenset({22, 25})  # ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID
_NO_GROUP: Final = 69  # GROUP_ID_NOT_FOUND


def group_refused(group: str) -> str:
    return f"Kafka does not let us into group {group}. Check kafka.sasl and the ACLs: Read on the group."


async def find_coordinator(client: Client, group: str) -> int:
    """The broker that keeps a group. Raises RefusedError, and aiokafka's KafkaError."""
    try:
        node: int = await client.coordinator_lookup(CoordinationType.GROUP, group)
    except kafka_errors.GroupAuthorizationFailedError as error:
        raise RefusedError(group_refused(group)) from error
    return node


async def read_commits(
    settings: KafkaSettings, client_id: str, group: str, partitions: Collection[Partition], login: KafkaLogin
) -> dict[Partition, Committed | None]:
    """What a group has committed, None for nothing, as no member of it. Raises UnreachableError or RefusedError."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + max(FIRST_LOOKUP_S, settings.request_timeout.total_seconds())
    failed = f"Kafka did not tell the commits of group {group}"
    async with asking(settings, client_id, login, failed) as client:
        while True:
            try:
                node = await find_coordinator(client, group)
                answer = await client.send(node, OffsetFetchRequest(group, by_topic(partitions)))
                codes = {getattr(answer, "error_code", 0), *(row[3] for _, rows in answer.topics for row in rows)} - {0}
                if not codes:
                    break
                raise kafka_errors.for_code(min(codes))
            except (kafka_errors.GroupAuthorizationFailedError, kafka_errors.TopicAuthorizationFailedError) as error:
                raise RefusedError(group_refused(group)) from error
            except kafka_errors.KafkaError as error:
                if loop.time() > until_s:
                    raise UnreachableError(f"{failed}: {words(error)}.") from error
                await asyncio.sleep(RETRY_S)
    return {
        (topic, number): None if offset < 0 else Committed(offset, metadata or "")
        for topic, rows in answer.topics
        for number, offset, metadata, _ in rows
    }


async def remove_members(
    settings: KafkaSettings, client_id: str, group: str, instances: Sequence[str], login: KafkaLogin | None = None
) -> None:
    """Put members that have ended out of a group, so that their partitions need not wait for SESSION_S. Members that it
    does not have are ignored. Raises UnreachableError or RefusedError."""
    request = Question(LeaveGroup, group, [("", instance) for instance in instances])
    answer = await _asked(settings, client_id, group, request, login)
    for code in (answer.error_code, *(code for *_, code in answer.members)):
        if code == 30:
            raise RefusedError(group_refused(group))
        if code not in {0, *OVER}:
            raise UnreachableError(f"Kafka did not remove members of group {group} (error {code}).")


async def delete_group(settings: KafkaSettings, client_id: str, group: str, login: KafkaLogin | None = None) -> None:
    """Delete a group without members, and its commits. One that does not exist is ignored. Raises UnreachableError or
    RefusedError."""
    answer = await _asked(settings, client_id, group, DeleteGroupsRequest([group]), login)
    ((_, code),) = answer.results
    if code == 30:
        raise RefusedError(f"Kafka does not let us delete group {group}. Check the ACLs: Delete on the group.")
    if code not in {0, _NO_GROUP}:
        error = kafka_errors.for_code(code)
        raise UnreachableError(f"Kafka did not delete group {group}: {error.__name__} ({code}).")


async def _asked(settings: KafkaSettings, client_id: str, group: str, request: Any, login: KafkaLogin | None) -> Any:
    """The coordinator's answer to one question about a group, without being a member of it."""
    async with asking(settings, client_id, login, f"Kafka did not answer about group {group}") as client:
        return await client.send(await find_coordinator(client, group), request)
