"""The gateway's data path as a worker wires it, on a Kafka that is a list in memory: what reached it, in which order.

Everything between the MQTT bytes and the producer's port is the real thing; ``hold`` keeps the answers back, so that a
test sees what must wait for them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, Protocol, Self, cast

from bridge.errors import BridgeError
from bridge.ledger import Ledger
from bridge.ports import Answered, BatchBuilder, Headers, Producer, StoredRecord
from bridge.produce.batch import Batch, Span
from bridge.produce.partitions import Partitions
from bridge.produce.pipeline import Pipeline, PipelineHooks
from bridge.produce.sender import SenderPolicy
from bridge.routing.router import Router
from config.settings import Settings
from gateway.base.lifecycle import StopVerb
from gateway.base.metrics import Metrics
from gateway.data_dir.lost_sessions import LostSessions
from gateway.mqtt.flow import Flow
from gateway.mqtt.ingest import Ingest
from gateway.mqtt.login import Login
from gateway.mqtt.properties import parse_properties
from gateway.mqtt.session import DataPath, Session, SessionPlan

PARTITIONS = 4


class HasPort(Protocol):
    """A broker of any kind."""

    @property
    def port(self) -> int: ...


class Stored(NamedTuple):
    """A record in the memory Kafka."""

    topic: str
    partition: int
    record: StoredRecord


class MemoryBatch:
    """``bridge.ports.BatchBuilder`` on a list."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self.records: list[StoredRecord] = []
        self.closed = False
        self.append = self._append

    def _append(
        self, number: int, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> object | None:
        assert not self.closed, "a record was appended to a closed batch"
        assert number == len(self.records), f"record {number} was appended to a batch that has {len(self.records)}"
        size = len(key or b"") + len(value or b"") + sum(len(n) + len(v or b"") for n, v in headers) + 10
        if self.records and self._bytes + size > self._limit_bytes:
            return None
        self._bytes += size
        self.records.append(StoredRecord(timestamp, key, value, list(headers)))
        return self

    def size(self) -> int:
        return self._bytes

    def close(self, count: int) -> None:
        assert count == len(self.records), f"{count} records announced, {len(self.records)} appended"
        self.closed = True

    def record_count(self) -> int:
        return len(self.records)

    def encode(self) -> bytes:
        raise AssertionError("nothing is spooled here")


class HandsOver:
    """``bridge.ports.Producer.hand_over`` by a producer's futures."""

    def hand_over(self, topic: str, partition: int, batch: BatchBuilder, answered: Answered) -> None:
        producer = cast(Producer, self)

        def tell(answer: asyncio.Future[int]) -> None:
            error = producer.failure(answer)
            answered(answer.result() if error is None else -1, error)

        producer.send(topic, partition, batch).add_done_callback(tell)


class MemoryProducer(HandsOver):
    """``bridge.ports.Producer`` on lists. ``log`` is every record in the order Kafka took them."""

    def __init__(self, batch_bytes: int) -> None:
        self._batch_bytes = batch_bytes
        self.log: list[Stored] = []
        self.holding = False
        self._ends: dict[tuple[str, int], int] = {}
        self._held: list[tuple[str, int, MemoryBatch, asyncio.Future[int]]] = []

    async def start(self) -> None: ...

    async def close(self, *, patience_s: float) -> None: ...

    def create_batch(self, *, compressed: bool) -> BatchBuilder:
        return MemoryBatch(self._batch_bytes)

    def send(self, topic: str, partition: int, batch: BatchBuilder) -> asyncio.Future[int]:
        assert isinstance(batch, MemoryBatch)
        assert batch.closed
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._held.append((topic, partition, batch, future))
        if not self.holding:
            self._answer()
        return future

    def release(self) -> None:
        """Take everything held, and from now on everything at once."""
        self.holding = False
        self._answer()

    def take_first(self) -> None:
        """Take the oldest batch held, if there is one."""
        if self._held:
            self._take(*self._held.pop(0))

    def take(self, value: bytes) -> None:
        """Take the one held batch that has a record with this value, out of turn."""
        (found,) = (held for held in self._held if any(record.value == value for record in held[2].records))
        self._held.remove(found)
        self._take(*found)

    def _answer(self) -> None:
        held, self._held = self._held, []
        for batch in held:
            self._take(*batch)

    def _take(self, topic: str, partition: int, batch: MemoryBatch, future: asyncio.Future[int]) -> None:
        offset = self._ends.get((topic, partition), 0)
        self._ends[topic, partition] = offset + len(batch.records)
        self.log += (Stored(topic, partition, record) for record in batch.records)
        future.set_result(offset)

    def failure(self, answer: asyncio.Future[int]) -> BridgeError | None:
        return None

    def cluster_id(self) -> str | None:
        return "memory"

    def partition_count(self, topic: str) -> int | None:
        return PARTITIONS

    def has_leader(self, topic: str, partition: int) -> bool:
        return True

    def held_until_ns(self, topic: str, partition: int) -> int:
        return 0

    def metadata_refreshed_ns(self) -> int:
        return time.monotonic_ns()

    def watch_topic(self, topic: str) -> None: ...

    async def refresh_metadata(self) -> bool:
        return True

    def restore(self, data: bytes) -> BatchBuilder:
        raise AssertionError("nothing is spooled here")

    def records(self, batch: BatchBuilder) -> list[StoredRecord]:
        assert isinstance(batch, MemoryBatch)
        return batch.records


class _Observer:
    def batch_stored(self, batch: Batch, partition: int, offset: int, now_ns: int) -> None: ...

    def batch_failed(self, batch: Batch, partition: int, error: BridgeError) -> None:
        raise AssertionError(f"a batch for partition {partition} failed: {error}")

    def incarnation_started(self, number: int) -> None: ...


class _Topics:
    def partition_count(self, topic: str) -> int | None:
        return PARTITIONS

    async def locate(self, topic: str) -> int:
        return PARTITIONS


class MemoryPath:
    """What a worker wires, without the worker. Make it in the running loop; ``await start()`` before the first record.

    ``defects`` collects what parts reported as a defect of ours: a test ends with it empty.
    """

    def __init__(self, settings: Settings, login: Login | None = None, lost: LostSessions | None = None) -> None:
        self.settings = settings
        self.defects: list[BaseException] = []
        self.filtered: list[tuple[str, str]] = []
        self.verb = StopVerb.RESTART
        self.router = Router(settings.routes, instance=settings.instance, reserved_topics=settings.dead_letter_topics)
        self.producer = MemoryProducer(settings.kafka.batch_bytes)
        self.metrics = Metrics(settings)
        hooks = PipelineHooks(
            topics=_Topics(), parse_properties=parse_properties,
            filtered=lambda route, reason: self.filtered.append((route, reason)), failed=self.defects.append,
            observer=_Observer(),
        )  # fmt: skip
        policy = SenderPolicy(delivery_timeout_ns=10**12, settle_ns=10**9)
        pipeline = Pipeline(Partitions(), lambda: self.producer, policy, hooks)
        self.sender = pipeline.sender
        path = pipeline.group(settings, self.router, self._complete)
        self.accumulator, self.dead_letters, self.dispatcher = path.accumulator, path.dead_letters, path.dispatcher
        self.ledger = Ledger(self.accumulator.in_flight)
        self.flow = Flow(
            self.accumulator, self.sender, self.ledger,
            linger_ns=_ns(settings.flow.linger_max), pacing_ns=max(_ns(settings.flow.read_pacing_max), 500_000),
            memory_bytes=settings.flow.memory_bytes,
        )  # fmt: skip
        self.data_path = DataPath(
            self.flow, self.accumulator, self.dispatcher, self.dead_letters, self.metrics,
            login or Login(settings.mqtt), lost=lost,
        )  # fmt: skip

    def _complete(self, span: Span) -> None:
        self.flow.completed(span)

    async def __aenter__(self) -> Self:
        await self.sender.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.flow.close()
        await self.dispatcher.close()
        await self.sender.close(patience_s=1.0)

    def ingest(self) -> Ingest:
        """An ingest of its own, with the settings' protocol and limits."""
        return Ingest(
            self.dispatcher, self.accumulator, self.dead_letters, v5=self.settings.mqtt.protocol == "5",
            max_packet=self.settings.mqtt.max_packet_bytes, max_record=self.settings.kafka.max_record_bytes,
        )  # fmt: skip

    def session(self, number: int = 0, *, client_id: str, status_topic: str | None = None) -> Session:
        """A session with its share of the routes' subscriptions, as a worker would make it."""
        mqtt = self.settings.mqtt
        subscriptions = self.router.subscriptions(mqtt.distribution, mqtt.sessions, share_group=mqtt.share_group)
        plan = SessionPlan(str(number), client_id, subscriptions[number], status_topic)
        return Session(plan, self.settings, self.data_path, lambda: self.verb, self.defects.append)

    @contextlib.asynccontextmanager
    async def running(self, *sessions: Session, start: bool = True) -> AsyncIterator[None]:
        """With these sessions; stopped at the end, the account checked. ``start=False``: they may be starting yet."""
        starting = asyncio.gather(*(session.start() for session in sessions))
        try:
            if start:
                await asyncio.wait_for(asyncio.shield(starting), 60)
            yield
        finally:
            deadline_ns = time.monotonic_ns() + 10_000_000_000
            await asyncio.gather(*(session.stop(deadline_ns) for session in sessions))
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        self.check()

    @property
    def log(self) -> list[Stored]:
        return self.producer.log

    @property
    def values(self) -> list[bytes | None]:
        return [stored.record.value for stored in self.producer.log]

    def check(self) -> None:
        """The account balances and no part has reported a defect."""
        assert not self.defects, self.defects
        assert self.ledger.imbalance() == 0, str(self.ledger.snapshot())


def make_settings(**tables: Any) -> Settings:
    """Settings from tables, with one route ``devices/#`` → ``telemetry`` unless told otherwise."""
    tables.setdefault("routes", [{"name": "telemetry", "filters": ["devices/#"], "topic": "telemetry"}])
    return Settings(**tables)


def settings_for(*brokers: HasPort, mqtt: dict[str, Any] | None = None, **tables: Any) -> Settings:
    """:func:`make_settings` for one session of these brokers, which soon comes again."""
    addresses = [f"mqtt://127.0.0.1:{broker.port}" for broker in brokers]
    soon = {"reconnect_initial": "20ms", "reconnect_max": "50ms", "sessions": 1}
    return make_settings(mqtt={"addresses": addresses, **soon, **(mqtt or {})}, **tables)


@contextlib.asynccontextmanager
async def one_session(
    *brokers: HasPort, start: bool = True, **tables: Any
) -> AsyncIterator[tuple[MemoryPath, Session]]:
    """A session ``gateway-0-0`` of these brokers on a path of its own, as :meth:`MemoryPath.running` has it."""
    async with MemoryPath(settings_for(*brokers, **tables)) as path:
        session = path.session(client_id="gateway-0-0")
        async with path.running(session, start=start):
            yield path, session


def _ns(length: Any) -> int:
    return round(length.total_seconds() * 1e9)
