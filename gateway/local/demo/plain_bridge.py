"""The bridge most of us write first, as a process (``python -m gateway.local.demo.plain_bridge``), to compare with.

paho-mqtt's callback hands each message to aiokafka's producer: QoS 1, a persistent session, every setting of the
producer on the safe side (``acks="all"``, idempotent). One thing is wrong with it, and it is the usual one: paho sends
PUBACK when the callback returns, and Kafka has the message later. What is between the two is in this process's memory
alone. While Kafka is slow that is much, and when the process dies the MQTT broker does not send it again.

It is measured, so it also counts; nothing else is added to it or left out. Its only argument is one JSON object
(bootstrap, topic, port, client_id, filter). It prints ``subscribed`` once, and ``progress`` twice a second. A line on
standard input ends it in order: disconnect, and flush the producer; the end of standard input ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from paho.mqtt.enums import CallbackAPIVersion

from gateway.base.process.child import run, say, words_of_parent

if TYPE_CHECKING:
    from concurrent.futures import Future

_PROGRESS_S = 0.5
_STOP_S = 20.0
_log = logging.getLogger("plain_bridge")


class _Bridge:
    """paho's thread calls ``_on_…``; everything else runs on the loop."""

    def __init__(self, bootstrap: str, topic: str, port: int, client_id: str, filter: str) -> None:  # noqa: A002
        self._topic, self._port, self._filter = topic, port, filter
        self._loop = asyncio.get_running_loop()
        self._producer: Any = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=False)
        self._client.on_connect = self._on_connect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._forwarding: set[Future[None]] = set()  # paho's thread adds, the loop's takes out
        self._received = 0  # written by paho's thread
        self._delivered = 0
        self._failed = 0

    async def start(self) -> None:
        await self._producer.start()
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()

    async def stop(self) -> None:
        """Delivers everything it has taken in, if Kafka takes it within ``_STOP_S``."""
        self._client.disconnect()
        with contextlib.suppress(AttributeError):  # paho joins None when its thread has ended between two lines
            self._client.loop_stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await asyncio.gather(*map(asyncio.wrap_future, tuple(self._forwarding)))
                await self._producer.stop()
        self.report()

    def report(self) -> None:
        say("progress", received=self._received, delivered=self._delivered, failed=self._failed)

    def _on_connect(self, client: mqtt.Client, *_args: object) -> None:
        client.subscribe(self._filter, qos=1)

    def _on_subscribe(self, *_args: object) -> None:
        self._loop.call_soon_threadsafe(say, "subscribed")

    def _on_message(self, _client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage) -> None:
        self._received += 1
        future = asyncio.run_coroutine_threadsafe(self._forward(message), self._loop)
        self._forwarding.add(future)
        future.add_done_callback(self._forwarding.discard)

    async def _forward(self, message: mqtt.MQTTMessage) -> None:
        try:
            await self._producer.send_and_wait(self._topic, message.payload, key=message.topic.encode())
        except KafkaError:
            self._failed += 1
            _log.exception("a message was not delivered")
        else:
            self._delivered += 1


async def _run(arguments: dict[str, Any]) -> int:
    stop = asyncio.create_task((await words_of_parent()).readline())  # an empty line: the parent has ended
    bridge = _Bridge(**arguments)
    starting = asyncio.create_task(bridge.start())
    await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
    if stop.done() and not stop.result():
        starting.cancel()
        return 1
    await starting
    while not stop.done():
        bridge.report()
        await asyncio.wait({stop}, timeout=_PROGRESS_S)
    if not stop.result():
        return 1  # no one reads a report
    await bridge.stop()
    return 0


if __name__ == "__main__":
    sys.exit(run(_run))
