"""paho's client, with our stream in place of its socket, and what its refusals mean in words."""

from __future__ import annotations

__all__ = ["PahoClient", "connect_in_thread", "refusal_words"]

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as paho

from gateway.mqtt.errors import MqttError
from gateway.mqtt.stream import PacketStream

if TYPE_CHECKING:
    from collections.abc import Callable


class PahoClient(paho.Client):
    """One connection's client: made anew for each, so that nothing of the last one is left in it."""

    def __init__(self, *args: Any, want_write: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._want_write_callback = want_write
        self.stream: PacketStream | None = None

    def _create_socket(self) -> Any:
        try:
            create = super()._create_socket
        except AttributeError:
            raise MqttError(
                f"paho-mqtt {paho.__package__} has no Client._create_socket any more; install the version requirements name (2.2)."
            ) from None
        self.stream = PacketStream(create(), self._want_write_callback)
        return self.stream


async def connect_in_thread(connect: Callable[[], object]) -> None:
    """Run paho's blocking connect beside the event loop. A daemon thread: a process that ends does not wait for a
    silent host."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(error: BaseException | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            connect()
        except BaseException as raised:  # noqa: BLE001 - carried to the loop, whatever it is
            error = raised
        try:
            loop.call_soon_threadsafe(finish, error)
        except RuntimeError:
            return  # the loop has closed meanwhile: nobody asks any more

    threading.Thread(target=run, name="mqtt-connect", daemon=True).start()
    await done


_CONNACK_3 = {
    1: "it does not speak this protocol version",
    2: "it does not accept this client id",
    3: "it is not available now",
    4: "bad user name or password",
    5: "not authorised",
}
_REASONS = {
    0x80: "unspecified error", 0x81: "malformed packet", 0x82: "protocol error", 0x83: "implementation specific error",
    0x84: "unsupported protocol version", 0x85: "client identifier not valid", 0x86: "bad user name or password",
    0x87: "not authorised", 0x88: "server unavailable", 0x89: "server busy", 0x8A: "banned", 0x8B: "server shutting down",
    0x8C: "bad authentication method", 0x8D: "keep alive timeout", 0x8E: "session taken over", 0x8F: "topic filter invalid",
    0x90: "topic name invalid", 0x91: "packet identifier in use", 0x93: "receive maximum exceeded", 0x94: "topic alias invalid",
    0x95: "packet too large", 0x96: "message rate too high", 0x97: "quota exceeded", 0x98: "administrative action",
    0x99: "payload format invalid", 0x9A: "retain not supported", 0x9B: "QoS not supported", 0x9C: "use another server",
    0x9D: "server moved", 0x9E: "shared subscriptions not supported", 0x9F: "connection rate exceeded",
    0xA0: "maximum connect time", 0xA1: "subscription identifiers not supported", 0xA2: "wildcard subscriptions not supported",
}  # fmt: skip


def refusal_words(code: int, *, connack_3: bool = False) -> str:
    """A reason code in the specification's words (MQTT 5.0 section 2.4; MQTT 3.1.1 table 3.1)."""
    if connack_3:
        return _CONNACK_3.get(code, f"return code {code}")
    return f"{_REASONS.get(code, 'unknown reason')} (0x{code:02X})"
