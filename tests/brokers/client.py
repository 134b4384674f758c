"""A plain paho client for tests, driven from the outside: connect, wait for answers, collect messages."""

import contextlib
import queue
import threading
from pathlib import Path
from typing import Any, Self

import paho.mqtt.client as mqtt

from tests.waiting import DEADLINE_S


class RefusedError(Exception):
    """CONNECT or SUBSCRIBE was answered with a failure; the reason code's words."""


def hang_up(client: mqtt.Client) -> None:
    """DISCONNECT, and end the network thread."""
    client.disconnect()
    with contextlib.suppress(AttributeError):  # paho joins None when its thread has ended between two lines
        client.loop_stop()


class Client:
    """A connected MQTT client; the constructor waits for CONNACK and raises :class:`RefusedError` with its reason.

    ``messages`` is a queue of what arrives; ``closed`` is set when the connection ends.
    """

    def __init__(
        self,
        port: int,
        *,
        client_id: str = "",
        version: int = 5,
        websocket: bool = False,
        ca_file: Path | None = None,
        user: tuple[str, str] | None = None,
        clean: bool = True,
        receive_maximum: int | None = None,
        manual_ack: bool = False,
    ) -> None:
        self.messages: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
        self.closed = threading.Event()
        self.session_present = False
        self._answers: queue.Queue[Any] = queue.Queue()
        self._acknowledged: dict[int, Any] = {}
        options: dict[str, Any] = {} if version == 5 else {"clean_session": clean}
        self.paho = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id,
            protocol=mqtt.MQTTProtocolVersion(version),
            transport="websockets" if websocket else "tcp",
            reconnect_on_failure=False,
            manual_ack=manual_ack,
            **options,
        )
        if websocket:
            self.paho.ws_set_options(path="/mqtt")
        if ca_file is not None:
            self.paho.tls_set(str(ca_file))
        if user is not None:
            self.paho.username_pw_set(*user)
        self.paho.on_connect = self._on_connect
        self.paho.on_connect_fail = lambda *_: self._answers.put(RefusedError("no connection"))
        self.paho.on_disconnect = lambda *_: self._on_disconnect()
        self.paho.on_message = lambda _client, _data, message: self.messages.put(message)
        self.paho.on_publish = lambda _client, _data, mid, code, _properties: self._acknowledged.update({mid: code})
        self.paho.on_subscribe = lambda _client, _data, _id, codes, _properties: self._answers.put(codes)
        extra: dict[str, Any] = {}
        if version == 5:
            properties = mqtt.Properties(mqtt.PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 0 if clean else 3600
            if receive_maximum is not None:
                properties.ReceiveMaximum = receive_maximum
            extra = {"clean_start": clean, "properties": properties}
        self.paho.connect("127.0.0.1", port, **extra)
        self.paho.loop_start()
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        """Subscribe and wait for SUBACK; RefusedError when it says no."""
        self.paho.subscribe(topic_filter, qos)
        (code,) = self._answer()
        if code.is_failure:
            raise RefusedError(str(code))

    def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        """Publish and wait until the broker has acknowledged."""
        self._published(topic, payload, qos, retain=retain)

    def publish_refused(self, topic: str, payload: bytes) -> bool:
        """Publish with QoS 1 over MQTT 5 and wait for the acknowledgement; whether it says no."""
        return bool(self._acknowledged[self._published(topic, payload)].is_failure)

    def publish_heard(self, topic: str, payload: bytes, properties: mqtt.Properties) -> bool:
        """Publish likewise; whether anybody has subscribed to the topic, which mosquitto and EMQX tell."""
        number = self._published(topic, payload, properties=properties)
        return bool(self._acknowledged[number] != "No matching subscribers")

    def _published(self, topic: str, payload: bytes, qos: int = 1, **options: Any) -> int:
        info = self.paho.publish(topic, payload, qos, **options)
        info.wait_for_publish(DEADLINE_S)
        assert info.is_published(), f"{topic} was not acknowledged within {DEADLINE_S:g} s"
        return info.mid

    def receive(self, timeout: float = DEADLINE_S) -> mqtt.MQTTMessage:
        """The next message; AssertionError when none comes."""
        try:
            return self.messages.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no message within {timeout:g} s") from None

    def close(self) -> None:
        """DISCONNECT, and end the network thread."""
        hang_up(self.paho)
        self.paho._reset_sockets()  # or the garbage collector may meet its pair of sockets first, and warn

    def drop(self) -> None:
        """Close the socket without DISCONNECT, as a crash does."""
        self.paho.loop_stop()
        with contextlib.suppress(OSError):
            self.paho.socket().close()

    def _answer(self) -> Any:
        try:
            answer = self._answers.get(timeout=DEADLINE_S)
        except queue.Empty:
            raise AssertionError(f"the broker did not answer within {DEADLINE_S:g} s") from None
        if isinstance(answer, RefusedError):
            raise answer
        return answer

    def _on_connect(self, _client: Any, _data: Any, flags: Any, code: Any, _properties: Any) -> None:
        self.session_present = flags.session_present
        self._answers.put(RefusedError(str(code)) if code.is_failure else code)

    def _on_disconnect(self) -> None:
        self.closed.set()
        self._answers.put(RefusedError("connection closed"))
