"""``split``: a record for each element of a JSON array."""

from __future__ import annotations

__all__ = ["Split", "SplitOptions"]

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from bridge import wire
from bridge.errors import BridgeError
from bridge.intercept.paths import MISSING, Path, parse_path
from bridge.interceptors import Drop, Interceptor
from bridge.record import dump_json
from config.values.model import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.interceptors import Context
    from bridge.ports import Headers
    from bridge.record import Record

EMPTY = Drop("empty_array")


class SplitOptions(Table):
    path: str = ""  # where the array is; empty: the value itself
    copy_fields: dict[str, str] = Field(default={})  # path in the message to path in each element
    key: str = ""  # path in the element of what becomes the record's key; empty: the message's key
    otherwise: Literal["error", "pass"] = "error"  # for a value without such an array
    max_records: Annotated[int, Field(ge=1, le=100_000)] = 1000


class NotSplitError(BridgeError):
    """A value that has no array where one is wanted, one that is too long, or an element without its key."""


class Split(Interceptor):
    """Splits an array. The records keep the message's headers; an identity the device gave is told apart by the
    element's number."""

    Options = SplitOptions
    drop_reasons = (EMPTY.reason,)

    def configure(self, options: SplitOptions, context: Context) -> None:
        del context
        self._path = _path("path", options.path) if options.path else None
        self._key = _path("key", options.key) if options.key else None
        self._copied = [(_path("copy_fields", a), _path("copy_fields", b)) for a, b in options.copy_fields.items()]
        self._passes = options.otherwise == "pass"
        self._limit = options.max_records

    def on_send(self, record: Record) -> Record | Sequence[Record] | Drop:
        document = record.json()
        elements = document if self._path is None else self._path.get(document)
        if type(elements) is not list:
            if self._passes:
                return record
            where = "the value" if self._path is None else f"what is at {self._path.text!r}"
            raise NotSplitError(f"There is nothing to split: {where} is no array.")
        if len(elements) > self._limit:
            raise NotSplitError(
                f"The array has {len(elements)} elements; max_records allows {self._limit}. Raise it, or send fewer."
            )
        if not elements:
            return EMPTY
        copied = [(target, source.get(document)) for source, target in self._copied]
        return [self._record(record, number, element, copied) for number, element in enumerate(elements)]

    def _record(self, record: Record, number: int, element: Any, copied: list[tuple[Path, Any]]) -> Record:
        for target, value in copied:
            if value is not MISSING:
                element = target.put(element, value)
        made = record.with_json(element)
        made.headers = _identified(record.headers, number)
        if self._key is not None:
            made.key = self._key_of(element, self._key, number)
        return made

    @staticmethod
    def _key_of(element: Any, path: Path, number: int) -> bytes:
        value = path.get(element)
        if value is MISSING or value is None or value == "":
            raise NotSplitError(f"Element {number} has nothing at {path.text!r} to make its key of.")
        return value.encode() if isinstance(value, str) else dump_json(value)


def _identified(headers: Headers, number: int) -> Headers:
    """Headers with the message's identity made the element's: else downstream would take all but one for copies."""
    return [
        (name, b"%b/%d" % (value, number) if name == wire.GATEWAY_MESSAGE_ID and value is not None else value)
        for name, value in headers
    ]


def _path(option: str, text: str) -> Path:
    try:
        return parse_path(text)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
