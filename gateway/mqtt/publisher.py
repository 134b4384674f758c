"""One MQTT connection that publishes at QoS 1, made as the gateway's sessions are: any transport, the same login.

It subscribes to nothing, and its session ends with it. The gateway's data path has no part in it.
"""

from __future__ import annotations

__all__ = ["Publisher"]

import asyncio
from typing import TYPE_CHECKING, Any, Final

from paho.mqtt.client import MQTT_ERR_SUCCESS, error_string

from config.error_words import words
from config.values.addresses import parse_mqtt_address
from gateway.mqtt import reasons
from gateway.mqtt.client import Handshake
from gateway.mqtt.errors import ConnectError

if TYPE_CHECKING:
    from paho.mqtt.reasoncodes import ReasonCode

    from config.settings import MqttSettings
    from gateway.mqtt.client import PahoClient
    from gateway.mqtt.login import Login
    from gateway.mqtt.stream import PacketStream

_CHECKS_IN_KEEPALIVE: Final = 3


class Publisher:
    """Made for one connection; ``close`` it whatever happens. Belongs to the event loop's thread."""

    def __init__(self, settings: MqttSettings, client_id: str, login: Login, address: str) -> None:
        # Whether the broker shares subscriptions is nothing to somebody who has none.
        self._settings = settings.model_copy(update={"persistent": False, "distribution": "partitioned"})
        self._client_id = client_id
        self._login = login
        self._address = parse_mqtt_address(address)
        self._loop = asyncio.get_running_loop()
        self._client: PahoClient | None = None
        self._stream: PacketStream | None = None
        self._ended: asyncio.Future[tuple[str, str | None]] = self._loop.create_future()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reading: int | None = None  # the descriptor that is watched
        self._writing = False

    @property
    def connected(self) -> bool:
        """Whether the connection stands, as far as is known."""
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
        stream.want_write = self._want_write
        keepalive_s = self._settings.keepalive.total_seconds()
        stream.set_user_timeout(int(keepalive_s * 3000))
        self._reading = stream.fileno()
        self._loop.add_reader(self._reading, self._read)
        if stream.pending():
            self._loop.call_soon(self._read)
        if not stream.flush():
            self._want_write()
        await handshake.connected(self._ended)
        self._arm()

    async def publish(self, topic: str, payload: bytes) -> int:
        """The reason code of the PUBACK: below 0x80 the broker has the message, 0x10 says that nobody is subscribed to
        it (MQTT 5.0 section 3.4.2.1). Waits as long as the connection stands; raises ConnectError when it ends."""
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
        """Say goodbye and let go of the connection. Does not wait; a second time is fine."""
        self._end("requested", None)
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()
            client.let_go()
        if self._stream is not None:
            self._stream.flush()
            self._stream.close()
        elif client is not None:
            client.abort()

    def _end(self, label: str, detail: str | None) -> None:
        if self._ended.done():
            return
        self._ended.set_result((label, detail))
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._loop.remove_reader(self._reading)
            if self._writing:
                self._loop.remove_writer(self._reading)
                self._writing = False

    # --- the socket --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        stream, client = self._stream, self._client
        if stream is None or client is None or stream.closed or self._ended.done():
            return
        data = stream.read()
        if data is None:
            return
        stream.control += data
        while stream.control and not stream.closed:
            client.loop_read()
        if not stream.closed and client.want_write():
            client.loop_write()
        if not data or stream.closed:
            self._end("closed", words(stream.failure) if stream.failure else "the broker closed the connection")
        elif stream.pending():
            self._loop.call_soon(self._read)

    def _want_write(self) -> None:
        if self._reading is not None and not self._writing and not self._ended.done():
            self._writing = True
            self._loop.add_writer(self._reading, self._write)

    def _write(self) -> None:
        stream = self._stream
        if stream is not None and self._reading is not None and stream.flush():
            self._loop.remove_writer(self._reading)
            self._writing = False

    def _arm(self) -> None:
        interval_s = self._settings.keepalive.total_seconds() / _CHECKS_IN_KEEPALIVE
        self._timer = self._loop.call_later(interval_s, self._keep_alive)

    def _keep_alive(self) -> None:
        """All packets pass through paho here, so that its own clocks are right."""
        client = self._client
        if client is None or self._ended.done():
            return
        client.loop_misc()
        if not self._ended.done():
            self._arm()

    # --- paho's callbacks --------------------------------------------------------------------------------------------

    def _on_publish(self, _client: object, _data: object, packet_id: int, reason: ReasonCode, _more: object) -> None:
        if (answer := self._waiting.get(packet_id)) is not None and not answer.done():
            answer.set_result(reason.value)

    def _on_disconnect(self, _client: object, _data: object, _flags: Any, reason: ReasonCode, _more: object) -> None:
        self._loop.call_soon_threadsafe(self._end, "closed", f"{reasons.words(reason.value)}")
