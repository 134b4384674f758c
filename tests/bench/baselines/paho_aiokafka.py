"""paho-mqtt to aiokafka on one asyncio loop, acknowledging each message when Kafka has it.

The way paho documents its use with asyncio, a queue between the callback and the coroutine that sends (so that order
is kept), and one done-callback a message. Settings as an engineer would raise them: idempotent, acks=all, a small
linger, large batches.
"""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import Any

import paho.mqtt.client as mqtt
from aiokafka import AIOKafkaProducer

from tests.bench.baselines.options import Options, parse, subscriber, watch_socket


class Bridge:
    """One MQTT client, one producer. Everything runs on the loop."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[mqtt.MQTTMessage] = asyncio.Queue()
        self._producer = AIOKafkaProducer(
            bootstrap_servers=options.kafka,
            acks="all",
            enable_idempotence=True,
            compression_type=None if options.compression == "none" else options.compression,
            linger_ms=20,
            max_batch_size=256 * 1024,
        )
        self._client = subscriber(options, self._on_message)
        watch_socket(self._client, self._loop)

    async def run(self, stop: asyncio.Event) -> None:
        """Bridges until ``stop`` is set."""
        await self._producer.start()
        self._client.connect("127.0.0.1", self._options.mqtt_port)
        tasks = [self._loop.create_task(self._send()), self._loop.create_task(self._misc())]
        await stop.wait()
        self._client.disconnect()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._producer.stop()

    async def _send(self) -> None:
        topic = self._options.topic
        while True:
            message = await self._messages.get()
            future = await self._producer.send(topic, value=message.payload, key=message.topic.encode())
            future.add_done_callback(partial(self._delivered, message))

    def _delivered(self, message: mqtt.MQTTMessage, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._client.ack(message.mid, message.qos)

    async def _misc(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._client.loop_misc()

    def _on_message(self, _client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage) -> None:
        self._messages.put_nowait(message)


async def main() -> None:
    """Runs until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await Bridge(parse(__doc__)).run(stop)


if __name__ == "__main__":
    asyncio.run(main())
