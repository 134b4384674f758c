"""What the baselines share: the command line, and the MQTT client."""

import argparse
import asyncio
from dataclasses import dataclass

import paho.mqtt.client as mqtt
from paho.mqtt.client import CallbackOnMessage
from paho.mqtt.enums import CallbackAPIVersion


@dataclass(frozen=True, slots=True)
class Options:
    """Where to read from and write to; ``persistent`` keeps the MQTT session while the bridge is away."""

    mqtt_port: int
    mqtt_filter: str
    client_id: str
    persistent: bool
    kafka: str
    topic: str
    compression: str
    linger_ms: int


def parse(description: str | None) -> Options:
    """The options of this process's command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--mqtt-port", type=int, required=True)
    parser.add_argument("--mqtt-filter", required=True)
    parser.add_argument("--client-id", default="baseline")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--compression", choices=("none", "zstd"), default="none")
    parser.add_argument("--linger-ms", type=int, default=20)
    return Options(**vars(parser.parse_args()))


def subscriber(options: Options, on_message: CallbackOnMessage) -> mqtt.Client:
    """An MQTT client that subscribes when it is connected, and acknowledges when it is told to."""
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id=options.client_id, clean_session=not options.persistent, manual_ack=True
    )
    client.on_connect = lambda connected, *_args: connected.subscribe(options.mqtt_filter, qos=1)
    client.on_subscribe = lambda *_args: print("subscribed", flush=True)  # the harness waits for it
    client.on_message = on_message
    return client


def watch_socket(client: mqtt.Client, loop: asyncio.AbstractEventLoop) -> None:
    """Reads and writes when the loop says so, as paho documents its use with asyncio."""
    client.on_socket_open = lambda client, _data, sock: loop.add_reader(sock.fileno(), client.loop_read)
    client.on_socket_close = lambda _client, _data, sock: loop.remove_reader(sock.fileno())  # type: ignore[assignment]
    client.on_socket_register_write = lambda client, _data, sock: loop.add_writer(sock.fileno(), client.loop_write)
    client.on_socket_unregister_write = lambda _client, _data, sock: loop.remove_writer(sock.fileno())  # type: ignore[assignment]
