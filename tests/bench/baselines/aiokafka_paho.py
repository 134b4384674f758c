"""aiokafka to paho-mqtt on one asyncio loop: each record is published, and offsets are committed once in a while.

The other direction's first bridge: a consumer group with automatic commits, a template for the topic, QoS 1. At most
a thousand are unacknowledged: paho looks through all of them at each PUBACK. What the broker answers is not looked at,
so nobody knows what became of a command.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import Final

import paho.mqtt.client as mqtt
from aiokafka import AIOKafkaConsumer
from paho.mqtt.enums import CallbackAPIVersion

from tests.bench.baselines.options import watch_socket

_WINDOW: Final = 1_000


async def _bridge(client: mqtt.Client, consumer: AIOKafkaConsumer) -> None:
    while True:
        for records in (await consumer.getmany(timeout_ms=200)).values():
            for record in records:
                topic = f"devices/{record.key.decode()}/req/{dict(record.headers)['subject'].decode()}"
                client.publish(topic, record.value, qos=1)
                while len(client._out_messages) >= _WINDOW:  # noqa: ASYNC110 - paho does not say it
                    await asyncio.sleep(0.001)


async def main() -> None:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mqtt-port", type=int, required=True)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--topic", required=True)
    options = parser.parse_args()
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    consumer = AIOKafkaConsumer(
        options.topic, bootstrap_servers=options.kafka, group_id=f"{options.topic}-bridge", auto_offset_reset="earliest"
    )
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="baseline", protocol=mqtt.MQTTv5)
    client.max_inflight_messages_set(_WINDOW)
    watch_socket(client, loop)
    client.connect("127.0.0.1", options.mqtt_port)
    await consumer.start()
    print("subscribed", flush=True)  # the harness waits for it
    bridging = asyncio.create_task(_bridge(client, consumer))
    while not stop.is_set() and not bridging.done():
        client.loop_misc()
        await asyncio.wait([asyncio.ensure_future(stop.wait()), bridging], timeout=1)
    bridging.cancel()
    client.disconnect()
    await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main())
