"""What the data path asks of the outside: a Kafka producer, a store on disk, a token to show.

Implementations match by shape. ``bridge.kafka.producer`` is the one on aiokafka; the tests have one in memory that
obeys the same suite."""

from __future__ import annotations

__all__ = [
    "Append",
    "BatchBuilder",
    "Credential",
    "CredentialSource",
    "Headers",
    "Producer",
    "ProducerFactory",
    "SpoolStore",
    "StoredRecord",
]

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import Future

    from bridge.errors import BridgeError
    from bridge.spool.spool import ReadResult, SpoolBatch

Headers = Sequence[tuple[str, bytes | None]]
"""A list: the real builder takes nothing else. Typed as a sequence, for a list of pairs without None is one too."""


Append = Callable[[int, int, bytes | None, bytes | None, Headers], object]
"""Appends one record: its number in the batch from 0, timestamp in ms, key, value, headers. None means the batch is
full and the record is not in it; a first record always fits. Positional, because the hot path calls it for every
message."""


class BatchBuilder(Protocol):
    """Collects records for one partition."""

    append: Append

    def size(self) -> int:
        """Bytes so far, before compression."""

    def close(self, count: int) -> None:
        """No more records: ``count`` were appended."""

    def record_count(self) -> int:
        """Records in a closed batch: once it has been sent, as counted in the very bytes that were."""

    def encode(self) -> bytes:
        """A closed batch as bytes, sent or not, from which ``Producer.restore`` makes it again."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record taken back out of a sealed batch. ``timestamp_ms`` is absolute, milliseconds since 1970."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class SpoolStore(Protocol):
    """Batches on disk, in order per partition. Durable when ``append`` returns."""

    max_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes stored and not removed."""

    def partitions(self) -> Iterable[tuple[str, int]]:
        """Partitions with stored batches."""

    def waiting(self, topic: str, partition: int) -> int:
        """Batches stored for a partition."""

    def waiting_messages(self, topic: str, partition: int) -> int:
        """Messages stored for a partition."""

    async def append(self, batches: Sequence[SpoolBatch]) -> list[int]:
        """Store batches, all or none; returns their ids, which rise within a partition. Raises SpoolFullError or
        SpoolWriteError, and then none is stored."""

    async def read(self, topic: str, partition: int, after_id: int, max_bytes: int) -> ReadResult:
        """The next batches of a partition after an id (0: from the first), in order, at least one if there is one;
        and what has been lost among them. Raises SpoolWriteError."""

    def remove(self, topic: str, partition: int, ids: Sequence[int]) -> None:
        """Forget batches that are delivered."""


class Producer(Protocol):
    """One incarnation of an idempotent, acks=all producer. All methods belong to the event loop's thread."""

    async def start(self) -> None:
        """Connect and fetch metadata and a producer id. Raises UnreachableError or RefusedError."""

    async def close(self, *, patience_s: float) -> None:
        """End connections and tasks. Batches not acknowledged by then may or may not be in Kafka. Never hangs."""

    def create_batch(self, *, compressed: bool) -> BatchBuilder:
        """An empty batch. Small batches are cheaper uncompressed."""

    def send(self, topic: str, partition: int, batch: BatchBuilder) -> Future[int]:
        """Hand a closed batch over. At most one batch of a partition may be under way. Does not block.

        Raises LeaderMissingError when nothing was handed over. The future is done when all in-sync replicas have the
        batch, with the offset of its first record (-1 when Kafka has it and does not say where), or failed: ask
        ``failure`` what that means."""

    def failure(self, answer: Future[int]) -> BridgeError | None:
        """What became of a batch whose future is done: None when Kafka has it, else Poisoned-, Timestamp-,
        Incarnation- or RefusedError."""

    def cluster_id(self) -> str | None:
        """What the cluster calls itself, the same for all its life; None before the start, or when it does not say."""

    def partition_count(self, topic: str) -> int | None:
        """Partitions of a topic by the last metadata, or None when the topic is not known."""

    def has_leader(self, topic: str, partition: int) -> bool: ...

    def held_until_ns(self, topic: str, partition: int) -> int:
        """Until when (monotonic) the partition's leader has asked for no more batches; 0 when it never did."""

    def metadata_refreshed_ns(self) -> int:
        """Monotonic time of the last metadata, 0 before the first."""

    def watch_topic(self, topic: str) -> None:
        """Include the topic in metadata from now on, and ask for it soon."""

    async def refresh_metadata(self) -> bool:
        """Ask for metadata now; true when it came."""

    def records(self, batch: BatchBuilder) -> list[StoredRecord]:
        """The records of a batch that was closed, sent or not."""

    def restore(self, data: bytes) -> BatchBuilder:
        """A closed batch from what its ``encode`` gave, in this life or an earlier one; it can be sent."""


ProducerFactory = Callable[[], Producer]


@dataclass(frozen=True, slots=True)
class Credential:
    """A token that proves who we are. Its repr is safe to log."""

    token: str = field(repr=False)
    expires_at_ns: int | None = None  # by time.monotonic_ns(); None when nobody can tell
    number: int = 1  # of this source, counted up: whoever has shown 3 has an old one when there is a 4


class CredentialSource(Protocol):
    """Where tokens come from, for MQTT and Kafka alike (``auth.outward.tokens``). Belongs to the event loop's thread.

    It renews by itself in the background, well before a token expires, and goes on handing out the old one while that
    is good. ``failures`` counts the attempts that found none.
    """

    failures: int

    @property
    def failing(self) -> bool:
        """Whether the last attempt found none."""

    async def start(self) -> None:
        """Begin to keep a token. Returns at once; the first one may still be on its way. Raises ConfigError when no
        token can ever come (a file that is no text)."""

    async def current(self) -> Credential:
        """The token to show now; it waits only when there is none that is good, as long as one attempt takes. Raises
        GatewayError with a sentence about where it was looked for and why there is none; a later call may succeed,
        and need not be spaced: attempts are, here."""

    def watch(self, told: Callable[[Credential], None]) -> Callable[[], None]:
        """``told`` is called on the loop with each credential that replaces another; what is returned ends that."""

    def refused(self, credential: Credential) -> None:
        """A broker did not take this one: get another as soon as may be. Nothing happens when there is one already.
        Never raises, does not block."""

    async def close(self) -> None:
        """Stop renewing, and let go of connections. Never raises."""
