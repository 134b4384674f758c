"""A connection to a broker: answers as their bytes arrive, silence, and a broker that will not read for a while
(KIP-219): requests to it get as much longer."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from unittest.mock import Mock

import pytest
from aiokafka.errors import KafkaConnectionError, RequestTimedOutError
from aiokafka.protocol.produce import ProduceResponse_v8

from bridge.errors import IncarnationError, UnreachableError
from bridge.kafka.produce import Produce
from bridge.kafka.producer import KafkaProducer
from bridge.kafka.session import SessionConnection
from config.settings import KafkaSettings
from tests.unit.manual_time import manual_time

PATIENCE_S = 2.0


async def answered(newest: int, throttle_ms: int) -> tuple[SessionConnection, float]:
    """A connection with an answer to a batch, and how long a request that was sent before that may take."""
    connection = SessionConnection("localhost", 9092, request_timeout_ms=PATIENCE_S * 1000)
    connection._versions = {0: (0, newest)}
    loop = asyncio.get_running_loop()
    began_s, never = loop.time(), loop.create_future()

    async def waiting() -> Any:
        return await never

    async def limited(answer: Coroutine[Any, Any, Any]) -> float:
        with pytest.raises(TimeoutError):
            await connection._within_patience(answer)
        return loop.time() - began_s

    under_way = asyncio.create_task(limited(waiting()))
    await asyncio.sleep(1)
    connection._requests.append((7, Produce(None, -1, 5_000, []).prepare({0: (0, 8)}), loop.create_future()))
    connection._handle_frame((7).to_bytes(4, "big") + ProduceResponse_v8([], throttle_ms).encode())
    return connection, await under_way


@manual_time
async def test_a_muted_broker_has_more_time_for_what_it_was_sent_before() -> None:
    _, took_s = await answered(8, 5_000)
    assert took_s == pytest.approx(1 + 5 + PATIENCE_S)


@manual_time
@pytest.mark.parametrize(("newest", "throttle_ms"), [(8, 0), (5, 5_000)], ids=["no quota", "it has waited already"])
async def test_any_other_answer_gives_no_more_time(newest: int, throttle_ms: int) -> None:
    connection, took_s = await answered(newest, throttle_ms)
    assert took_s == pytest.approx(PATIENCE_S)
    assert connection.muted_s == 0


async def test_the_failure_of_an_answer_is_none_of_a_stored_batch() -> None:
    producer = KafkaProducer(KafkaSettings(), "gw", [])
    stored, failed, ended = (asyncio.get_running_loop().create_future() for _ in range(3))
    stored.set_result(17)
    failed.set_exception(UnreachableError("It is away."))
    ended.cancel()
    assert producer.failure(stored) is None
    assert producer.failure(failed) is failed.exception()
    assert isinstance(producer.failure(ended), IncarnationError)


def standing() -> SessionConnection:
    """A connection whose transport is a mock."""
    connection = SessionConnection("localhost", 9092, request_timeout_ms=PATIENCE_S * 1000)
    connection._versions = {0: (0, 8)}
    connection._reader = connection._writer = connection._read_task = Mock()
    return connection


def ask(connection: SessionConnection, told: list[Any]) -> None:
    connection.ask(Produce(None, -1, 5_000, []), lambda answer, error: told.append(error or answer.throttle_time_ms))


def frame(number: int, throttle_ms: int = 0) -> bytes:
    answer = number.to_bytes(4, "big") + ProduceResponse_v8([], throttle_ms).encode()
    return len(answer).to_bytes(4, "big") + answer


@pytest.mark.parametrize("version", [7, 8])
async def test_a_request_is_written_whole_and_its_batches_are_not_copied(version: int) -> None:
    connection, batch = standing(), bytearray(b"batch")
    connection._versions = {0: (0, version)}
    written: list[bytes | bytearray] = []
    connection._writer.writelines = written.extend
    connection.ask(Produce(None, -1, 5_000, [("t", [(3, batch)])]), print)
    _number, question, _answer = connection._requests[0]
    header = question.build_request_header(correlation_id=1, client_id=connection._client_id).encode()
    body = header + question.encode()
    assert b"".join(written) == len(body).to_bytes(4, "big") + body
    assert (written[-1] is batch) == (version == 8), "an older version is aiokafka's"


@pytest.mark.parametrize("piece", [1, 3, 5, 13, 1000])
async def test_an_answer_is_told_when_its_last_byte_arrives(piece: int) -> None:
    connection, told = standing(), list[Any]()
    frames = [frame(number, number) for number in (1, 2, 3)]
    for _ in frames:
        ask(connection, told)
    data, ends = b"".join(frames), [sum(map(len, frames[: n + 1])) for n in range(len(frames))]
    for at in range(0, len(data), piece):
        connection._feed(data[at : at + piece])
        assert told == [number for number, end in enumerate(ends, 1) if end <= at + piece]
    assert not connection._requests


@manual_time
@pytest.mark.parametrize("throttle_ms", [0, 5_000])
async def test_a_request_without_answer_ends_with_its_connection(throttle_ms: int) -> None:
    connection, first, later = standing(), list[Any](), list[Any]()
    loop = asyncio.get_running_loop()
    ask(connection, first)
    await asyncio.sleep(1)
    ask(connection, later)
    asked_s = loop.time()
    await asyncio.sleep(0.5)
    ask(connection, later)
    connection._feed(frame(1, throttle_ms))
    overdue_s = max(asked_s, connection._muted_until_s) + PATIENCE_S
    await asyncio.sleep(overdue_s - 0.001 - loop.time())
    assert (first, later) == ([throttle_ms], [])
    await asyncio.sleep(0.002)
    assert [type(error) for error in later] == [RequestTimedOutError, KafkaConnectionError]
    assert not connection.connected()
    with pytest.raises(KafkaConnectionError):
        ask(connection, later)


@manual_time
async def test_an_answered_request_leaves_its_connection_in_peace() -> None:
    connection, told = standing(), list[Any]()
    ask(connection, told)
    connection._feed(frame(1))
    await asyncio.sleep(3 * PATIENCE_S)
    assert told == [0]
    connection._reader.at_eof.return_value = False
    assert connection.connected()
    connection.close()
