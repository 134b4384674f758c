"""One broker asked by itself, each question with a time-out of its own: what ``gateway doctor`` knows of Kafka.

A client of a cluster hides which broker does not answer; here each has its own connection. Nothing is written: the
question whether a leader takes records is a batch whose checksum is wrong. The broker carries it the whole way of a
produce request (its network and request threads, our rights, the partition's leadership and in-sync replicas, the log
that checks the batch) and refuses it there with CORRUPT_MESSAGE, without a record, an offset or a line in its log; its
metric InvalidMessageCrcRecordsPerSec counts it.
"""

from __future__ import annotations

__all__ = ["BrokerAddress", "BrokerLink", "Layout", "PartitionLayout", "ProbeError", "Produced", "open_link"]

import asyncio
import contextlib
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import aiokafka.errors as kafka_errors
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest

from bridge.errors import BridgeError
from bridge.kafka.connection import REFUSED
from bridge.kafka.session import open_connection
from config.error_words import words
from config.errors import GatewayError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bridge.kafka.login import KafkaLogin
    from bridge.kafka.session import SessionConnection


class ProbeError(BridgeError):
    """A broker did not do what it was asked for. ``kind``: it took the connection and did not answer (``silent``), said
    no (``refused``), hung up (``closed``), or there was nothing to show to it (``token``)."""

    def __init__(self, sentence: str, kind: Literal["silent", "refused", "closed", "token"], seconds: float) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.seconds = seconds


@dataclass(frozen=True, slots=True, order=True)
class BrokerAddress:
    """Where a broker says it is."""

    node: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """A partition in metadata. ``leader`` is -1 without one; ``offline`` are replicas on brokers that are gone."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Metadata as one broker has it. ``errors``: the names of Kafka's errors for topics that it does not describe."""

    brokers: tuple[BrokerAddress, ...]
    topics: dict[str, tuple[PartitionLayout, ...]]
    errors: dict[str, str]


@dataclass(frozen=True, slots=True)
class Produced:
    """What a leader answered to the batch it must refuse, by (topic, partition): the name of Kafka's error, "" where it
    took it."""

    answers: dict[tuple[str, int], str]
    seconds: float


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """aiokafka's and the system's errors become a ProbeError."""
    began = time.monotonic()
    try:
        yield
    except (OSError, TimeoutError, kafka_errors.KafkaError) as error:
        seconds, text = time.monotonic() - began, words(error)
        if isinstance(error.__cause__, GatewayError):
            raise ProbeError(str(error.__cause__), "token", seconds) from error
        if isinstance(error, REFUSED):
            raise ProbeError(text, "refused", seconds) from error
        if isinstance(error, TimeoutError | kafka_errors.RequestTimedOutError):
            raise ProbeError(f"no answer within {seconds:.1f} s", "silent", seconds) from error
        raise ProbeError(text, "closed", seconds) from error


async def open_link(host: str, port: int, login: KafkaLogin, client_id: str, timeout_s: float) -> BrokerLink:
    """Connect and log in, all of it within the time-out. Raises ProbeError."""
    began = time.monotonic()
    with _explained():
        async with asyncio.timeout(timeout_s):
            connection = await open_connection(
                host, port, client_id=client_id, request_timeout_ms=int(timeout_s * 1000) + 1000, **login.options()
            )
        return BrokerLink(connection, time.monotonic() - began, timeout_s)


class BrokerLink:
    """An authenticated connection to one broker; ``seconds`` is what it took. Close it.

    Each question waits as long as ``open_link`` was told, and raises ProbeError."""

    def __init__(self, connection: SessionConnection, seconds: float, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self.seconds = seconds

    def close(self) -> None:
        self._connection.close()

    async def layout(self, topics: Sequence[str] | None) -> Layout:
        """Brokers and these topics, all for None; none is created by it."""
        answer = await self._ask(MetadataRequest(None if topics is None else list(topics), False))
        described: dict[str, tuple[PartitionLayout, ...]] = {}
        errors: dict[str, str] = {}
        for code, name, _internal, partitions in answer.topics:
            if code:
                errors[name] = _name(code)
            else:
                described[name] = tuple(sorted((_partition(*one) for one in partitions), key=lambda one: one.number))
        brokers = tuple(sorted(BrokerAddress(*_padded(one, 4)) for one in answer.brokers))
        return Layout(brokers, described, errors)

    async def refuse(self, places: Sequence[tuple[str, int]]) -> Produced:
        """Offer each of these partitions, which this broker is to lead, a batch that it must refuse."""
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append((partition, _BROKEN_BATCH))
        began = time.monotonic()
        answer = await self._ask(ProduceRequest(None, -1, int(self._timeout_s * 1000), list(topics.items())))
        answers = {
            (topic, partition): _name(code)
            for topic, partitions in answer.topics
            for partition, code, *_more in partitions
        }
        return Produced(answers, time.monotonic() - began)

    async def _ask(self, request: Any) -> Any:
        with _explained():
            async with asyncio.timeout(self._timeout_s):
                return await self._connection.send(request)


def _partition(
    _code: int, number: int, leader: int, replicas: list[int], in_sync: list[int], offline: Sequence[int] = ()
) -> PartitionLayout:
    return PartitionLayout(number, leader, tuple(replicas), tuple(in_sync), tuple(offline))


def _padded(values: Sequence[Any], size: int) -> tuple[Any, ...]:
    return (*values, *(None for _ in range(size - len(values))))


def _name(code: int) -> str:
    """Kafka's own name of an error code, without its Python clothes; empty for none."""
    if code == 0:
        return ""
    error = kafka_errors.for_code(code)
    return str(getattr(error, "message", None) or error.__name__)


def _broken() -> bytes:
    """A batch of message format 2 that promises one record, holds none, and has a checksum that is not its own."""
    after_checksum = struct.pack(">hiqqqhii", 0, 0, 0, 0, -1, -1, -1, 1)
    fixed = struct.pack(">iBI", -1, 2, 0xDEAD_BEEF)
    return struct.pack(">qi", 0, len(fixed) + len(after_checksum)) + fixed + after_checksum


_BROKEN_BATCH: Final = _broken()
