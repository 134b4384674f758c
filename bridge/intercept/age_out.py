"""``age_out``: drops messages that are too old."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from bridge.errors import BridgeError
from bridge.intercept.paths import parse_path
from bridge.interceptors import Context, Drop, Interceptor
from bridge.record import Record
from config.values.grammar import Duration
from config.values.model import Table

_EXPIRED = Drop("expired")
_MS_PER = {"s": 1000.0, "ms": 1.0, "us": 0.001, "ns": 0.000_001}


class AgeOutOptions(Table):
    timestamp: str = ""  # JSON path of the device's time of measurement; empty: only the message's expiry counts
    unit: Literal["s", "ms", "us", "ns"] = "ms"  # of that time, since 1970
    max_age: Annotated[Duration, Field(gt=timedelta(0))] | None = None


class NoTimestampError(BridgeError):
    """A message without a time of measurement."""


class AgeOut(Interceptor):
    """Drops a message whose expiry interval has ended (the broker sends the rest of it, MQTT 5.0 section 3.3.2.3.3),
    and with ``timestamp`` a message that was older than ``max_age`` when it was received.

    A time in the future counts as new, so a fast clock loses nothing."""

    Options = AgeOutOptions
    drop_reasons = (_EXPIRED.reason,)

    def configure(self, options: AgeOutOptions, context: Context) -> None:
        del context
        if options.max_age is not None and not options.timestamp:
            raise ValueError("max_age: the age needs the time of measurement; give timestamp, the field with it")
        if options.timestamp and options.max_age is None:
            raise ValueError("timestamp: it has no effect without max_age; give both")
        self._path = parse_path(options.timestamp, "timestamp") if options.timestamp else None
        self._factor = _MS_PER[options.unit]  # milliseconds in a unit of the timestamp
        self._max_age_ms = options.max_age / timedelta(milliseconds=1) if options.max_age is not None else 0.0

    def on_send(self, record: Record) -> Record | Drop:
        """The record, or its drop: its MQTT expiry is over, or its measurement is older than ``max_age``."""
        if record.message.properties.message_expiry == 0:
            return _EXPIRED
        if self._path is None:
            return record
        measured: Any = self._path.get(record.json())
        if isinstance(measured, bool) or not isinstance(measured, int | float):
            raise NoTimestampError(f"There is no number at {self._path.text!r}, so the message's age is unknown.")
        age_ms = record.message.received_ms - measured * self._factor
        return _EXPIRED if age_ms > self._max_age_ms else record
