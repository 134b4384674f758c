"""Turns answers of Kafka's protocol into the model's values."""

from typing import Any, Final

from gateway.admin.errors import AdminError, AdminMissingError, AdminRefusedError, AdminRetriableError
from gateway.admin.model import (
    ConfigEntry,
    ConfigSource,
    LogDir,
    Member,
    Partition,
    QuorumReplica,
    ReplicaLog,
    Topic,
    TopicPartition,
)
from gateway.admin.protocol import consumer_api, kafka_errors

_SOURCES: Final[dict[int, ConfigSource]] = {
    1: "topic", 2: "broker", 3: "cluster", 4: "file", 5: "default", 8: "group"
}  # fmt: skip
_MISSING: Final = frozenset({3, 69, 100})  # UNKNOWN_TOPIC_OR_PARTITION, GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_ID
_RIGHTS: Final = {
    29: "Describe (to look), Create, Alter, AlterConfigs or Delete (to change) on the topic",
    30: "Describe on the group",
    31: "Describe (to look), Create, Alter or ClusterAction on the cluster",
    53: "Describe on the transactional id",
}
# Retriable by Kafka's definition, which differs from kafka-python's for some of them.
_RETRIABLE: Final = frozenset({-1, 3, 5, 6, 7, 8, 13, 14, 15, 16, 41, 51, 56, 60, 75, 80, 89})


def check(code: int, what: str, message: str | None = None, *, missing: bool = True) -> None:
    """Raise the error of a Kafka error code; nothing for 0. ``what`` is the failed action ("Topic a cannot be
    created"). ``missing``: a missing topic or group is the user's mistake, not a passing state."""
    if code == 0:
        return
    kind = kafka_errors.for_code(code)
    said = (message or "").strip().rstrip(".") or kind.message
    if code in _RIGHTS or code in {54, 58}:  # SECURITY_DISABLED, SASL_AUTHENTICATION_FAILED
        rights = _RIGHTS.get(code, "a login that the cluster knows")
        raise AdminRefusedError(f"Kafka does not allow it: {what} ({said}). It needs {rights}.")
    if code in _MISSING and missing:
        raise AdminMissingError(f"{what}: {said}.")
    error = AdminRetriableError if code in _RETRIABLE or kind.retriable else AdminError
    raise error(f"{what}: {said}.")


def sentence(code: int, what: str, message: str | None = None) -> str:
    """The text of the error that ``check`` raises; empty for code 0."""
    try:
        check(code, what, message)
    except AdminError as error:
        return str(error)
    return ""


def topic_of(found: Any) -> Topic:
    """The topic of a Metadata or DescribeTopicPartitions answer."""
    return Topic(
        name=found.name,
        id=str(found.topic_id) if found.topic_id is not None else "",
        internal=bool(found.is_internal),
        partitions=tuple(sorted((partition_of(found.name, one) for one in found.partitions), key=lambda p: p.number)),
    )


def partition_of(topic: str, found: Any) -> Partition:
    """A partition of a Metadata or DescribeTopicPartitions answer."""
    elr = getattr(found, "eligible_leader_replicas", None)  # not in Metadata answers
    last = getattr(found, "last_known_elr", None)
    return Partition(
        topic=topic,
        number=found.partition_index,
        leader=found.leader_id if found.leader_id >= 0 else None,
        leader_epoch=found.leader_epoch,
        replicas=tuple(found.replica_nodes),
        isr=tuple(found.isr_nodes),
        offline=tuple(found.offline_replicas or ()),
        elr=None if elr is None else tuple(elr),
        last_known_elr=None if last is None else tuple(last),
    )


def config_entry(found: Any) -> ConfigEntry:
    """An entry of a DescribeConfigs answer."""
    return ConfigEntry(
        name=found.name,
        value=None if found.is_sensitive else found.value,
        source=_SOURCES.get(found.config_source, "other"),
        read_only=bool(found.read_only),
        sensitive=bool(found.is_sensitive),
    )


def quorum_replica(found: Any, leader_end: int, now_ms: float) -> QuorumReplica:
    """``now_ms`` is the present, from which ages count. Kafka reports no times of the leader itself."""

    def age(at_ms: int) -> float | None:
        return max(0.0, (now_ms - at_ms) / 1000) if at_ms > 0 else None

    return QuorumReplica(
        id=found.replica_id,
        log_end_offset=found.log_end_offset,
        lag=max(0, leader_end - found.log_end_offset),
        last_fetch_age_seconds=age(found.last_fetch_timestamp),
        last_caught_up_age_seconds=age(found.last_caught_up_timestamp),
    )


def clock_ahead(replicas: list[Any], now_ms: float) -> float | None:
    """From the newest fetch that the leader has noted; a replica fetches twice a second."""
    newest_ms = max((one.last_fetch_timestamp for one in replicas), default=0)
    return (newest_ms - now_ms) / 1000 if newest_ms > 0 else None


def log_dir(found: Any) -> LogDir:
    """A folder of a DescribeLogDirs answer, where an unknown size is -1."""
    return LogDir(
        path=found.log_dir,
        error=None if found.error_code == 0 else kafka_errors.for_code(found.error_code).message,
        total_bytes=found.total_bytes if found.total_bytes >= 0 else None,
        usable_bytes=found.usable_bytes if found.usable_bytes >= 0 else None,
        replicas=tuple(
            ReplicaLog(topic.name, one.partition_index, one.partition_size, one.offset_lag, bool(one.is_future_key))
            for topic in found.topics
            for one in topic.partitions
        ),
    )


def assigned(topics: Any) -> tuple[TopicPartition, ...]:
    """The partitions of a member's assignment, in the form of either group protocol."""
    return tuple(
        sorted(
            TopicPartition(getattr(topic, "topic_name", None) or topic.topic, number)
            for topic in topics
            for number in topic.partitions
        )
    )


def listed_member(found: Any) -> Member:
    """A member of a classic group. Its assignment is empty for other protocols than the consumers' (Connect)."""
    partitions: tuple[TopicPartition, ...] = ()
    if found.member_assignment:
        try:
            partitions = assigned(
                consumer_api.ConsumerProtocolAssignment.decode(found.member_assignment).assigned_partitions
            )
        except Exception:  # noqa: BLE001 - bytes of a protocol that is not the consumers'
            partitions = ()
    return Member(found.member_id, found.client_id, found.client_host, found.group_instance_id, partitions)


def described_member(found: Any) -> Member:
    """A member of a KIP-848 group."""
    return Member(
        found.member_id,
        found.client_id,
        found.client_host,
        found.instance_id,
        assigned(found.assignment.topic_partitions),
        assigned(found.target_assignment.topic_partitions),
    )
