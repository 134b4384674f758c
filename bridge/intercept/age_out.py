"""``age_out``: drops what has come too late to be of use."""

from __future__ import annotations

__all__ = ["AgeOut", "AgeOutOptions"]

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from bridge.errors import BridgeError
from bridge.intercept.paths import parse_path
from bridge.interceptors import Drop, Interceptor
from config.values.grammar import Duration  # noqa: TC001 - pydantic reads the annotation
from config.values.model import Table

if TYPE_CHECKING:
    from bridge.interceptors import Context
    from bridge.record import Record

_EXPIRED = Drop("expired")
_MS_PER = {"s": 1000.0, "ms": 1.0, "us": 0.001, "ns": 0.000_001}


class AgeOutOptions(Table):
    timestamp: str = ""  # JSON path of the time the device measured; empty: only the message's own expiry counts
    unit: Literal["s", "ms", "us", "ns"] = "ms"  # of that time, since 1970
    max_age: Annotated[Duration, Field(gt=timedelta(0))] | None = None


class NoTimestampError(BridgeError):
    """A message without the number that says how old it is."""


class AgeOut(Interceptor):
    """Drops a message whose expiry interval has run out on its way (the broker sends what is left of it, MQTT 5.0
    section 3.3.2.3.3), and with ``timestamp`` one that
    was older than ``max_age`` when it was received.

    A time ahead of ours is no age: a device whose clock is fast is not punished for it."""

    Options = AgeOutOptions
    drop_reasons = (_EXPIRED.reason,)

    def configure(self, options: AgeOutOptions, context: Context) -> None:
        del context
        if options.max_age is not None and not options.timestamp:
            raise ValueError("max_age: an age needs the time the message was made; give timestamp, the field with it")
        if options.timestamp and options.max_age is None:
            raise ValueError("timestamp: it is compared with max_age, which is not given")
        try:
            self._path = parse_path(options.timestamp) if options.timestamp else None
        except ValueError as error:
            raise ValueError(f"timestamp: {error}") from None
        self._factor = _MS_PER[options.unit]
        self._max_age_ms = options.max_age / timedelta(milliseconds=1) if options.max_age is not None else 0.0

    def on_send(self, record: Record) -> Record | Drop:
        if record.message.properties.message_expiry == 0:
            return _EXPIRED
        if self._path is None:
            return record
        made: Any = self._path.get(record.json())
        if isinstance(made, bool) or not isinstance(made, int | float):
            raise NoTimestampError(f"There is no number at {self._path.text!r}, so the message's age is unknown.")
        age_ms = record.message.received_ms - made * self._factor
        return _EXPIRED if age_ms > self._max_age_ms else record
