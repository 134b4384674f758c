"""One MQTT connection that publishes at QoS 1, with the transports and the login of the gateway's sessions.

It subscribes to nothing, and its session ends with it. The gateway's data path has no part in it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import MQTT_ERR_SUCCESS, error_string

from config.values.addresses import parse_mqtt_address
from gateway.mqtt import reasons
from gateway.mqtt.client import Handshake, PahoClient
from gateway.mqtt.errors import ConnectError
from gateway.mqtt.watched import WatchedStream

if TYPE_CHECKING:
    from paho.mqtt.reasoncodes import ReasonCode

    from config.settings import MqttSettings
    from gateway.mqtt.login import Login
    from gateway.mqtt.stream import PacketStream


class Publisher:
    """Made for one connection; always ``close`` it. Belongs to the event loop's thread."""

    def __init__(self, settings: MqttSettings, client_id: str, login: Login, address: str) -> None:
        # It has no subscriptions, so shared ones do not matter.
        self._settings = settings.model_copy(update={"persistent": False, "distribution": "partitioned"})
        self._client_id = client_id
        self._login = login
        self._address = parse_mqtt_address(address)
        self._loop = asyncio.get_running_loop()
        self._client: PahoClient | None = None
        self._stream: PacketStream | None = None
        self._ended: asyncio.Future[tuple[str, str | None]] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._watched: WatchedStream | None = None

    @property
    def connected(self) -> bool:
        """Whether the connection exists, as far as is known."""
        return self._client is not None and not self._ended.done()

    async def connect(self) -> None:
        """Connect and wait for CONNACK. Raises ConnectError."""
        shown = await self._login.show(encrypted=self._address.encrypted)
        handshake = Handshake(self._settings, self._address, self._client_id, None, shown)
        client = self._client = handshake.client
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        await handshake.connect()
        stream = self._stream = client.stream
        assert stream is not None, "a connection that was made has its stream"
        watched = self._watched = WatchedStream(
            client, stream, self._settings.keepalive, take=stream.control.extend, ended=partial(self._end, "closed")
        )
        await handshake.connected(self._ended)
        watched.keep_alive()

    async def publish(self, topic: str, payload: bytes) -> int:
        """Publish, and return the reason code of the PUBACK.

        Below 0x80 the broker has the message; 0x10 means that no client is subscribed (MQTT 5.0 section 3.4.2.1). Waits
        as long as the connection stands; raises ConnectError when it ends.
        """
        client = self._client
        if client is None or self._ended.done():
            raise self._lost()
        info = client.publish(topic, payload, qos=1)
        if info.rc != MQTT_ERR_SUCCESS:
            raise ConnectError(f"{self._address}: PUBLISH was not sent: {error_string(info.rc)}", "other")
        answer = self._waiting[info.mid] = self._loop.create_future()
        client.loop_write()
        try:
            await asyncio.wait({answer, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.pop(info.mid, None)
        if not answer.done():
            raise self._lost()
        code: int = answer.result()
        return code

    def _lost(self) -> ConnectError:
        _, detail = self._ended.result() if self._ended.done() else ("other", None)
        return ConnectError(f"{self._address} ended the connection ({detail or 'no reason given'}).", "other")

    def close(self) -> None:
        """Send DISCONNECT and close the connection. Does not wait; a second call is allowed."""
        self._end("requested", None)
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()
            client.drop_callbacks()
        if self._stream is not None:
            self._stream.flush()
            self._stream.close()
        elif client is not None:
            client.abort()

    def _end(self, label: str, detail: str | None) -> None:
        if self._ended.done():
            return
        self._ended.set_result((label, detail))
        if self._watched is not None:
            self._watched.stop()

    # --- paho's callbacks --------------------------------------------------------------------------------------------

    def _on_publish(self, _client: object, _data: object, packet_id: int, reason: ReasonCode, _more: object) -> None:
        if (answer := self._waiting.get(packet_id)) is not None and not answer.done():
            answer.set_result(reason.value)

    def _on_disconnect(self, _client: object, _data: object, _flags: Any, reason: ReasonCode, _more: object) -> None:
        self._loop.call_soon_threadsafe(self._end, "closed", f"{reasons.words(reason.value)}")
