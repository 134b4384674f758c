"""Protocols of the data path: a Kafka producer, a store on disk, a source of tokens.

Implementations match by shape. ``bridge.kafka.producer`` is the one on aiokafka. The tests have one in memory, which
passes the same suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bridge.errors import BridgeError

if TYPE_CHECKING:
    from asyncio import Future

    from bridge.spool.record import SpoolBatch
    from bridge.spool.store import ReadResult

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
        """Records in a closed batch. Once it was sent, they are counted in the sent bytes."""

    def encode(self) -> bytes:
        """A closed batch as bytes, sent or not, for ``Producer.restore``."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record read from a sealed batch. ``timestamp_ms`` is absolute, milliseconds since 1970."""

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
        """The next batches of a partition after an id (0: from the first), in order, at least one if there is one.

        The result also counts lost ones. Raises SpoolWriteError."""

    def remove(self, topic: str, partition: int, ids: Sequence[int]) -> None:
        """Remove delivered batches."""


Answered = Callable[[int, BridgeError | None], None]  # receives the offset, or an error


class Producer(Protocol):
    """One incarnation of an idempotent, acks=all producer. All methods belong to the event loop's thread."""

    async def start(self) -> None:
        """Connect and fetch metadata and a producer id. Raises UnreachableError or RefusedError."""

    async def close(self, *, patience_s: float) -> None:
        """End connections and tasks. Batches not acknowledged by then may or may not be in Kafka. Never hangs."""

    def create_batch(self, *, compressed: bool) -> BatchBuilder:
        """An empty batch. Small batches are cheaper uncompressed."""

    def hand_over(self, topic: str, partition: int, batch: BatchBuilder, answered: Answered) -> None:
        """Hand a closed batch over. At most one batch of a partition may be under way, of each writer. Does not block.

        Raises LeaderMissingError when nothing was handed over. ``answered`` is called later, once: with the offset of
        the first record when all in-sync replicas have the batch (-1 when Kafka does not say where), otherwise with
        PoisonedError, TimestampError, IncarnationError or RefusedError. It must not raise. A closed producer does not
        call it."""

    def send(self, topic: str, partition: int, batch: BatchBuilder) -> Future[int]:
        """``hand_over`` with a future, whose result is the offset. ``failure`` explains a failed future."""

    def failure(self, answer: Future[int]) -> BridgeError | None:
        """The outcome of a batch whose future is done: None when Kafka has it, else the error."""

    def cluster_id(self) -> str | None:
        """The id of the cluster, which never changes; None before the start, or when the cluster has none."""

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
        """A closed batch from the bytes of ``encode``, of this life or an earlier one. It can be sent."""


ProducerFactory = Callable[[], Producer]


@dataclass(frozen=True, slots=True)
class Credential:
    """A token for a login. Its repr is safe to log."""

    token: str = field(repr=False)
    expires_at_ns: int | None = None  # by time.monotonic_ns(); None when unknown
    number: int = 1  # counted up by the source: 3 is old when there is a 4


class CredentialSource(Protocol):
    """A source of tokens for MQTT and Kafka (``auth.outward.tokens``). Belongs to the event loop's thread.

    It renews a token in the background, well before it expires, and returns the old one while that is valid.
    ``failures`` counts the attempts without a token.
    """

    failures: int

    @property
    def failing(self) -> bool:
        """Whether the last attempt returned no token."""

    async def start(self) -> None:
        """Start to fetch and renew tokens. Returns at once, perhaps before the first token. Raises ConfigError when no
        token is possible (a file that is no text)."""

    async def current(self) -> Credential:
        """The token to show now. Waits for one attempt when no valid token is there.

        Raises GatewayError with the place of the token and the reason why there is none. A later call may succeed.
        Callers need not space their calls: the source spaces its attempts."""

    def watch(self, told: Callable[[Credential], None]) -> Callable[[], None]:
        """Call ``told`` on the loop with each credential that replaces another. The returned callable ends that."""

    def refused(self, credential: Credential) -> None:
        """Fetch another token soon: a broker refused this one. Does nothing when there is a newer one already. Never
        raises, does not block."""

    async def close(self) -> None:
        """Stop the renewal and close connections. Never raises."""
