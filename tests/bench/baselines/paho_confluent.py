"""paho-mqtt to confluent-kafka, acknowledging each message in its delivery callback.

paho's loop and the producer's poll() on one thread: with paho's own network thread the two fight for the
interpreter. Settings as an engineer would raise them: idempotent, acks=all, a larger queue
and a longer linger (librdkafka's own linger is 5 ms).
"""

import signal
from functools import partial

import paho.mqtt.client as mqtt
from confluent_kafka import KafkaError, Message, Producer

from tests.bench.baselines.options import Options, parse, subscriber


class Bridge:
    """One MQTT client, one producer, one thread of ours (librdkafka has its own)."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._stopping = False
        self._producer = Producer(
            {
                "bootstrap.servers": options.kafka,
                "enable.idempotence": True,
                "acks": "all",
                "compression.type": options.compression,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
                "linger.ms": options.linger_ms,
            }
        )
        self._client = subscriber(options, self._on_message)

    def run(self) -> None:
        """Bridges until SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_signal)
        self._producer.list_topics(self._options.topic, timeout=10)
        self._client.connect("127.0.0.1", self._options.mqtt_port)
        while not self._stopping:
            self._client.loop(timeout=0.005)
            self._producer.poll(0)
        self._producer.flush(10)
        self._client.disconnect()

    def _on_message(self, _client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage) -> None:
        self._producer.produce(
            self._options.topic,
            value=bytes(message.payload),
            key=message.topic.encode(),
            on_delivery=partial(self._delivered, message),
        )

    def _delivered(self, message: mqtt.MQTTMessage, error: KafkaError | None, _record: Message) -> None:
        if error is None:
            self._client.ack(message.mid, message.qos)

    def _on_signal(self, _signal: int, _frame: object) -> None:
        self._stopping = True


if __name__ == "__main__":
    Bridge(parse(__doc__)).run()
