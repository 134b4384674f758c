"""What members of a consumer group say to its coordinator, and how they share partitions out.

aiokafka sends the instance id in JoinGroup and SyncGroup alone. Without it in the others a rival with the same id looks
like an expired session, and a static member cannot leave. So the requests here have it (KIP-345, Kafka 2.3).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.struct import Struct
from aiokafka.protocol.types import Array, Bytes, Int16, Int32, Int64, Schema, String

if TYPE_CHECKING:
    from bridge.commands.ports import Partition

PROTOCOL: Final = "cooperative-sticky"
_TEXT: Final = String("utf-8")
_OWNED: Final = Array(("topic", _TEXT), ("partitions", Array(Int32)))


class _HeartbeatAnswer(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 12, 3
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16))


class Heartbeat(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION, RESPONSE_TYPE = 12, 3, _HeartbeatAnswer
    SCHEMA = Schema(("group", _TEXT), ("generation_id", Int32), ("member_id", _TEXT), ("group_instance_id", _TEXT))


class _LeaveAnswer(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 13, 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("members", Array(("member_id", _TEXT), ("group_instance_id", _TEXT), ("error_code", Int16))),
    )


class LeaveGroup(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION, RESPONSE_TYPE = 13, 3, _LeaveAnswer
    SCHEMA = Schema(("group", _TEXT), ("members", Array(("member_id", _TEXT), ("group_instance_id", _TEXT))))


class _CommitAnswer(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 8, 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("topics", Array(("topic", _TEXT), ("partitions", Array(("partition", Int32), ("error_code", Int16))))),
    )


class OffsetCommit(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION, RESPONSE_TYPE = 8, 7, _CommitAnswer
    SCHEMA = Schema(
        ("group", _TEXT),
        ("generation_id", Int32),
        ("member_id", _TEXT),
        ("group_instance_id", _TEXT),
        (
            "topics",
            Array(
                ("topic", _TEXT),
                (
                    "partitions",
                    Array(("partition", Int32), ("offset", Int64), ("leader_epoch", Int32), ("metadata", _TEXT)),
                ),
            ),
        ),
    )


class Question(Request[RequestStruct]):  # type: ignore[misc]
    """A request of one version: its kind, then its fields in the order of the schema."""

    API_KEY = -1

    def __init__(self, kind: type[RequestStruct], *fields: Any) -> None:
        self.API_KEY, self._CLASSES = kind.API_KEY, (kind,)
        self._fields = fields

    def build(self, kind: type[RequestStruct]) -> RequestStruct:
        return kind(*self._fields)


class _Subscription(Struct):  # type: ignore[misc]
    """What a member says of itself (ConsumerProtocolSubscription, version 1: with the partitions it has)."""

    SCHEMA = Schema(("version", Int16), ("topics", Array(_TEXT)), ("user_data", Bytes), ("owned", _OWNED))


def subscription(topics: Sequence[str], owned: Iterable[Partition]) -> bytes:
    """A member's metadata for JoinGroup."""
    encoded: bytes = _Subscription(1, list(topics), None, by_topic(owned)).encode()
    return encoded


def read_subscription(metadata: bytes) -> tuple[frozenset[str], frozenset[Partition]]:
    """A member's topics, and the partitions that it has."""
    decoded = _Subscription.decode(metadata)
    owned = frozenset((topic, number) for topic, numbers in decoded.owned for number in numbers)
    return frozenset(decoded.topics), owned


def assignment(partitions: Iterable[Partition]) -> bytes:
    """A member's share for SyncGroup."""
    encoded: bytes = ConsumerProtocolMemberAssignment(0, by_topic(partitions), None).encode()
    return encoded


def read_assignment(data: bytes) -> frozenset[Partition]:
    """The partitions of an assignment; none for the empty bytes of a group without one."""
    if not data:
        return frozenset()
    decoded = ConsumerProtocolMemberAssignment.decode(data).assignment
    return frozenset((topic, number) for topic, numbers in decoded for number in numbers)


def by_topic(partitions: Iterable[Partition]) -> list[tuple[str, list[int]]]:
    grouped: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        grouped.setdefault(topic, []).append(number)
    return list(grouped.items())


def share(
    members: Mapping[str, tuple[Collection[str], Collection[Partition]]], counts: Mapping[str, int]
) -> dict[str, set[Partition]]:
    """Who gets which partition, by member id: ``members`` are the topics that each wants and the partitions it has now,
    ``counts`` the topics' partitions.

    As many of a topic for each, give or take one, and as few as possible move. A partition that moves is nobody's in
    this round: its owner has to give it up first, and joins again when it has (KIP-429)."""
    shares: dict[str, set[Partition]] = {member: set() for member in members}
    for topic, count in sorted(counts.items()):
        wanting = {member: set(owned) for member, (topics, owned) in sorted(members.items()) if topic in topics}
        if wanting:
            for member, got in _share_topic({(topic, number) for number in range(count)}, wanting, shares).items():
                shares[member] |= got
    claimed = {partition for _, owned in members.values() for partition in owned}
    return {
        member: {one for one in got if one in members[member][1] or one not in claimed}
        for member, got in shares.items()
    }


def _share_topic(
    free: set[Partition], claims: Mapping[str, set[Partition]], others: Mapping[str, set[Partition]]
) -> dict[str, set[Partition]]:
    """Shares one topic's partitions, ``free``, which are taken out of it. ``claims``: what each member that wants the
    topic has now, of all topics; ``others``: what it got of earlier topics."""
    base, spare = divmod(len(free), len(claims))
    shares: dict[str, set[Partition]] = {}
    for member in sorted(claims, key=lambda member: -len(free & claims[member])):
        kept = sorted(free & claims[member])[: base + (spare > 0)]
        spare -= len(kept) > base
        shares[member] = set(kept)
        free.difference_update(kept)
    for partition in sorted(free):
        fewest = min(shares, key=lambda member: (len(shares[member]), len(others[member]), member))
        shares[fewest].add(partition)
    return shares
