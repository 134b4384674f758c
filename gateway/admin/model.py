"""Kafka's answers as immutable plain values, for tables and JSON.

Times reported by Kafka are milliseconds since 1970 by the broker's clock; ages are seconds.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T")

ConfigSource = Literal["topic", "broker", "cluster", "file", "default", "group", "other"]
"""Origin of a value: the topic, this broker, all brokers, a server.properties, or the default."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def by_topic(places: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place in places:
        found.setdefault(place.topic, []).append(place.partition)
    return found


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker. ``fenced``: it sends no heartbeats and leads nothing; None: this Kafka does not report
    it."""

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
    """A broker without an answer, with the reason as a sentence. ``id`` is None for an address whose broker is unknown
    so far."""

    id: int | None
    address: str
    why: str
    silent: bool  # it accepted the connection and sent nothing: frozen, or very busy

    @property
    def name(self) -> str:
        return self.address if self.id is None else f"broker {self.id} ({self.address})"


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """The answers to one question by broker, and the brokers without an answer."""

    by_broker: dict[int, T]
    unanswered: tuple[Unanswered, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerVersion:
    """A broker's versions. Kafka's protocol does not report a release. ``speaks`` is the newest release whose protocol
    the broker knows ("4.1"), or "" if unknown."""

    broker: int
    speaks: str
    features: dict[str, tuple[int, int]]  # supported features with lowest and highest level


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition in Kafka's metadata. ``leader`` may be None; ``replicas`` begin with the preferred leader. ``elr``
    are out-of-sync replicas that can still be elected without loss (KIP-966), None if Kafka does not report them."""

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
        """The largest number of replicas of a partition."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """``value`` is None if Kafka hides it (a password)."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A node's copy of the metadata log. ``lag`` is in records behind the leader; ages are None if unknown."""

    id: int
    log_end_offset: int
    lag: int
    last_fetch_age_seconds: float | None = None
    last_caught_up_age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Quorum:
    """The metadata quorum: voters may become controller, observers (the brokers) only read. ``clock_ahead_seconds`` is
    how far the leader's clock is ahead of this machine's, to about a second; None without another replica."""

    leader: int
    epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    clock_ahead_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """``controller`` is the leader of the metadata quorum. If it is None, ``quorum_problem`` has the reason."""

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
    """A partition that is being moved. ``replicas`` are all brokers that have it or are getting it."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """A replica on a disk. ``offset_lag`` is its distance from the high watermark; ``future``: it is being moved to
    this folder from another one of the same broker."""

    topic: str
    partition: int
    bytes: int
    offset_lag: int
    future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A folder of a broker. Sizes of the file system are None if Kafka does not report them."""

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
    """A group in its coordinator's list. ``type`` is "classic", "consumer" (KIP-848), "share" or "streams", or "" if
    Kafka does not report it."""

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
    target: tuple[TopicPartition, ...] | None = None  # its partitions after the rebalance; None if unknown


@dataclass(frozen=True, slots=True)
class Group:
    """A group as described by its coordinator. ``coordinator`` is None if there is none now."""

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
    """Offsets by partition, and a sentence for each partition without an answer."""

    values: dict[TopicPartition, int] = field(default_factory=dict)
    problems: dict[TopicPartition, str] = field(default_factory=dict)
    unanswered: tuple[Unanswered, ...] = ()
