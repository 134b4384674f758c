"""A received message as templates and slow routes see it."""

import json
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

_UNSET: Final = object()


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# Numbers stay text: a key must not change when 1.10 passes through a float, and no digit run costs quadratic time.
_DECODER: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse_constant)


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of a PUBLISH (MQTT 5.0 section 3.3.2.3) that apply beyond the connection.

    Made once per distinct property bytes, not per message.
    """

    user: tuple[tuple[str, str], ...] = ()
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    payload_format: int = 0
    message_expiry: int | None = None  # seconds left


NO_PROPERTIES: Final = Properties()


@dataclass(slots=True)
class MessageView:
    """One message as templates and slow routes see it; built only where a route needs more than the topic.

    ``flags`` is the low nibble of the PUBLISH fixed header (DUP 8, QoS 6, RETAIN 1). ``received_ms`` is wall-clock
    milliseconds. ``delivery_id`` identifies this delivery; it is empty where the route does not use it.
    """

    topic: str
    flags: int = 0
    properties: Properties = NO_PROPERTIES
    payload: bytes = b""
    received_ms: int = 0
    delivery_id: bytes = b""
    _json: Any = field(default=_UNSET, repr=False)

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    def json(self) -> Any:
        """The payload as JSON with numbers as their text (so 1.0 stays 1.0), parsed once. Raises ValueError or
        RecursionError."""
        if self._json is _UNSET:
            self._json = _DECODER.decode(self.payload.decode())
        return self._json

    def __repr__(self) -> str:
        return f"MessageView({self.topic!r}, qos={self.qos}, {len(self.payload)} bytes)"
