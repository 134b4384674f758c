"""What Kafka tells its administrator: immutable, with plain values, ready for a table or JSON.

Times of Kafka's own are milliseconds since 1970 by the broker's clock; ages are seconds.
"""

from __future__ import annotations

__all__ = [
    "Answers",
    "Broker",
    "BrokerVersion",
    "Cluster",
    "ConfigEntry",
    "ConfigSource",
    "Group",
    "GroupListing",
    "LogDir",
    "Member",
    "Offsets",
    "Partition",
    "Quorum",
    "QuorumReplica",
    "Reassignment",
    "ReplicaLog",
    "Topic",
    "TopicPartition",
    "Unanswered",
]

from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")

ConfigSource = Literal["topic", "broker", "cluster", "file", "default", "group", "other"]
"""Where a value is set: at the topic, at this broker, for all brokers, in a server.properties, nowhere."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker that is registered. ``fenced`` ones are known and lead nothing, for their heartbeats stay out; None:
    this Kafka does not say."""

    id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"broker {self.id} ({self.address})"


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A broker that did not answer a question that others did, and why, as a sentence. ``id`` is None for an address
    whose broker is not known yet."""

    id: int | None
    address: str
    why: str
    silent: bool  # it took the connection and said nothing: frozen, or very busy

    @property
    def name(self) -> str:
        return self.address if self.id is None else f"broker {self.id} ({self.address})"


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """One question's answers by broker, and who gave none."""

    by_broker: dict[int, T]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """What a broker speaks. Kafka's protocol does not tell a release; ``speaks`` is the newest whose questions it
    knows ("4.1"), "" when that cannot be told."""

    broker: int
    speaks: str
    features: dict[str, tuple[int, int]]  # what it supports, lowest and highest level


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as Kafka's metadata has it. ``leader`` is None when nobody leads it; ``replicas`` begin with the
    preferred leader. ``elr`` are replicas out of sync that may still be elected without loss (KIP-966), None where
    Kafka does not say."""

    topic: str
    number: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None

    @property
    def preferred(self) -> int | None:
        return self.replicas[0] if self.replicas else None

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: str
    internal: bool
    partitions: tuple[Partition, ...]

    @property
    def replication(self) -> int:
        """Replicas of the partition that has most."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """``value`` is None when Kafka does not tell it (a password)."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A node's copy of the metadata log. ``lag`` is in records behind the leader; ages are None where unknown."""

    id: int
    log_end_offset: int
    lag: int
    last_fetch_age_seconds: float | None = None
    last_caught_up_age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Quorum:
    """Who keeps the metadata: voters may become controller, observers (the brokers) only read. ``clock_ahead_seconds``
    is how far the leader's clock is before ours, within the second that lies between two of its notes; None with no
    other replica, of which it would note anything."""

    leader: int
    epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    clock_ahead_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """``controller`` is the node that leads the metadata quorum, None where no such node is known or none answers;
    ``quorum_problem`` then says why, and is empty else."""

    id: str
    brokers: tuple[Broker, ...]
    controller: int | None
    metadata_version: int | None  # the finalized feature level ``metadata.version``
    quorum: Quorum | None = None
    quorum_problem: str = ""

    def broker(self, number: int) -> Broker | None:
        return next((broker for broker in self.brokers if broker.id == number), None)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way to other brokers: ``replicas`` are all that have it or get it now."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """A replica on a disk. ``offset_lag`` is its distance from the high watermark; ``future``: it is on its way to
    this folder from another one of the same broker."""

    topic: str
    partition: int
    bytes: int
    offset_lag: int
    future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A folder of a broker. Sizes of the file system are None where Kafka does not tell them."""

    path: str
    error: str | None
    total_bytes: int | None
    usable_bytes: int | None
    replicas: tuple[ReplicaLog, ...]

    @property
    def bytes(self) -> int:
        return sum(replica.bytes for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as its coordinator lists it. ``type`` is "classic", "consumer" (KIP-848), "share" or "streams", "" where
    Kafka does not say."""

    id: str
    type: str
    state: str
    protocol_type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None = None  # what it is to have in the end; None where Kafka does not say


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its coordinator describes it. ``coordinator`` is None when Kafka says that there is none now."""

    id: str
    type: str
    state: str
    protocol: str
    coordinator: int | None
    offsets_partition: int
    offsets_partitions: int
    members: tuple[Member, ...]
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset for each partition that could be asked, and a sentence for each that could not."""

    values: dict[TopicPartition, int] = field(default_factory=dict)
    problems: dict[TopicPartition, str] = field(default_factory=dict)
    unanswered: tuple[Unanswered, ...] = ()
