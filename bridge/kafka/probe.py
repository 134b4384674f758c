"""Asks one broker at a time, each question with its own time-out. Used by ``gateway doctor``.

A client of a cluster does not show which broker is silent, so each broker has its own connection here. Nothing is
written: a batch with a wrong checksum tests whether a leader takes records. The broker checks rights, leadership and
in-sync replicas as for any produce request, and then refuses the batch with CORRUPT_MESSAGE. It writes no record, no
offset and no log line; its metric InvalidMessageCrcRecordsPerSec counts the batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import aiokafka.errors as kafka_errors
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.produce import ProduceRequest

from bridge.errors import BridgeError
from bridge.kafka.connection import REFUSED
from bridge.kafka.login import KafkaLogin
from bridge.kafka.session import SessionConnection, open_connection
from config.error_words import words
from config.errors import GatewayError


class ProbeError(BridgeError):
    """A question without a good answer. ``kind``: the broker did not answer (``silent``), refused (``refused``) or
    closed the connection (``closed``), or there was no token (``token``)."""

    def __init__(self, sentence: str, kind: Literal["silent", "refused", "closed", "token"], seconds: float) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.seconds = seconds


@dataclass(frozen=True, slots=True, order=True)
class BrokerAddress:
    """A broker's address, from its metadata."""

    node: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """A partition in metadata. ``leader`` is -1 without one; ``offline`` are replicas on brokers that are down."""

    number: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """The metadata of one broker. ``errors``: Kafka's error names for topics that it does not describe."""

    brokers: tuple[BrokerAddress, ...]
    topics: dict[str, tuple[PartitionLayout, ...]]
    errors: dict[str, str]


@dataclass(frozen=True, slots=True)
class Produced:
    """A leader's answers to the wrong batch, by (topic, partition): Kafka's error name, "" if it took the batch."""

    answers: dict[tuple[str, int], str]
    seconds: float


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turns errors of aiokafka and the system into a ProbeError."""
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
    """Connect and log in within the time-out. Raises ProbeError."""
    began = time.monotonic()
    with _explained():
        async with asyncio.timeout(timeout_s):
            connection = await open_connection(
                host, port, client_id=client_id, request_timeout_ms=int(timeout_s * 1000) + 1000, **login.options()
            )
        return BrokerLink(connection, time.monotonic() - began, timeout_s)


class BrokerLink:
    """An authenticated connection to one broker. Connecting took ``seconds``. Close it after use.

    Each question waits for the time-out of ``open_link`` at most, and raises ProbeError."""

    def __init__(self, connection: SessionConnection, seconds: float, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self.seconds = seconds

    def close(self) -> None:
        self._connection.close()

    async def layout(self, topics: Sequence[str] | None) -> Layout:
        """Brokers and these topics, all topics for None. Creates no topic."""
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
        """Send each of these partitions of this broker a wrong batch; returns why it refused them."""
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
    """Kafka's name of an error code; empty for 0."""
    if code == 0:
        return ""
    error = kafka_errors.for_code(code)
    return str(getattr(error, "message", None) or error.__name__)


def _broken() -> bytes:
    """A batch of message format 2 without records, whose header has one record and a wrong checksum."""
    after_checksum = struct.pack(">hiqqqhii", 0, 0, 0, 0, -1, -1, -1, 1)
    fixed = struct.pack(">iBI", -1, 2, 0xDEAD_BEEF)
    return struct.pack(">qi", 0, len(fixed) + len(after_checksum)) + fixed + after_checksum


_BROKEN_BATCH: Final = _broken()
