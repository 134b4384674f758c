"""Sends commands to the simulated devices through Kafka, at a steady low rate, and reads back what became of each.

A device is told to take one reading of two, and a little later every one again. The demo itself decides that, so that
there are commands at any time. Those that alerts of the job ``anomalies`` lead to come from ``alerts.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from config.error_words import words
from gateway.devices.commanded import CommandAccount, examine_commands
from gateway.local.demo.background import Background
from gateway.local.demo.options import COMMANDS_TOPIC, STATUSES_TOPIC
from gateway.local.demo.records import ReadBackError, read_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

_PER_SECOND: Final = 5.0
_LASTS: Final = 10  # commands to other devices, before a device is told to measure as before
_BURST: Final = 50
_FLUSH_S: Final = 10.0
_FINISH_S: Final = 30.0  # above the longest life of a command in the demo
_LOOK_S: Final = 0.2


class Commander(Background):
    """Sends from :meth:`start` to :meth:`end`; :meth:`burst` may be called in between."""

    def __init__(self, bootstrap: str, devices: Sequence[str]) -> None:
        self._bootstrap = bootstrap
        self._producer: Any = None
        self._orders = _orders(devices)
        self._futures: list[asyncio.Future[Any]] = []
        self.statuses: list[tuple[str, bytes]] = []
        """Place and value of each record of the status topic, as :meth:`finished` has read them."""

    async def start(self) -> None:
        """Start to send. Raises ReadBackError when Kafka does not answer."""
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        self._producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, acks="all", enable_idempotence=True)
        try:
            await self._producer.start()
        except KafkaError as error:
            raise ReadBackError(f"commands cannot be sent through Kafka: {words(error)}.") from error
        self.begin()

    async def burst(self) -> None:
        """Many commands at once, so that some are under way in a moment."""
        for _ in range(_BURST):
            await self._send()

    async def tell(self, device: str, subject: str, command_id: str) -> int:
        """One more, at once; returns when Kafka had it, in ms since 1970."""
        written = await self._produce(device, subject, {subject: True}, ("correlation-id", command_id.encode()))
        return int((await asyncio.shield(written)).timestamp)

    async def end(self) -> None:
        """Stop sending; returns once Kafka has what was sent, at most ``_FLUSH_S`` later."""
        await super().end()
        if self._futures:
            await asyncio.wait(self._futures, timeout=_FLUSH_S)
        await self.abandon()

    async def abandon(self) -> None:
        """End at once. Safe to call at any time."""
        await super().end()
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_FLUSH_S):
                    await producer.stop()

    async def finished(self) -> CommandAccount:
        """What became of the commands, once all are finished, or as it is after half a minute."""
        deadline_s = time.monotonic() + _FINISH_S
        while True:
            written = await _read(self._bootstrap, COMMANDS_TOPIC)
            self.statuses = await _read(self._bootstrap, STATUSES_TOPIC)
            account = examine_commands(written, self.statuses)
            if not account.open or time.monotonic() > deadline_s:
                return account
            await asyncio.sleep(_LOOK_S)

    async def _run(self) -> None:
        while True:
            await self._send()
            await asyncio.sleep(1 / _PER_SECOND)

    async def _send(self) -> None:
        device, every = next(self._orders)
        await self._produce(device, "set", {"every": every})

    async def _produce(self, device: str, subject: str, value: object, *more: tuple[str, bytes]) -> asyncio.Future[Any]:
        """Give a command to the producer, with ``more`` headers; the future is done once Kafka has it."""
        headers = [("subject", subject.encode()), ("response-required", b"true"), ("content-type", b"application/json")]
        future: asyncio.Future[Any] = await self._producer.send(
            COMMANDS_TOPIC, json.dumps(value).encode(), key=device.encode(), headers=[*headers, *more]
        )
        self._futures.append(future)
        return future


def _orders(devices: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Endless commands: a device, and every how many of its readings to publish. At most ``_LASTS`` devices have 2 at a
    time, the others 1."""
    lasts = min(_LASTS, len(devices))
    for number in itertools.count():
        yield devices[number % len(devices)], 2
        if number >= lasts - 1:
            yield devices[(number - lasts + 1) % len(devices)], 1


async def _read(bootstrap: str, topic: str) -> list[tuple[str, bytes]]:
    """Place and value of each record that the topic has now."""
    records = read_topic(bootstrap, topic)
    return [(f"{topic}/{one.partition}:{one.offset}", one.value or b"") async for one in records]
