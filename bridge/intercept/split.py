"""``split``: a record for each element of a JSON array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from bridge import wire
from bridge.errors import BridgeError
from bridge.intercept.paths import MISSING, Path, parse_path
from bridge.interceptors import Context, Drop, Interceptor
from bridge.record import Record, dump_json
from config.values.grammar import Count
from config.values.model import Table

if TYPE_CHECKING:
    from bridge.ports import Headers

EMPTY = Drop("empty_array")


class SplitOptions(Table):
    path: str = ""  # place of the array; empty: the value itself
    copy_fields: dict[str, str] = Field(default={})  # path in the message to path in each element
    key: str = ""  # path in the element of the record's key; empty: the message's key
    otherwise: Literal["error", "pass"] = "error"  # for a value without such an array
    max_records: Annotated[Count, Field(ge=1, le=100_000)] = 1000


class NotSplitError(BridgeError):
    """A value without the array, an array that is too long, or an element without its key."""


class Split(Interceptor):
    """Splits an array. The records keep the message's headers; the element's number is added to the message id."""

    Options = SplitOptions
    drop_reasons = (EMPTY.reason,)

    def configure(self, options: SplitOptions, context: Context) -> None:
        del context
        self._path = parse_path(options.path, "path") if options.path else None
        self._key = parse_path(options.key, "key") if options.key else None
        self._copied = [
            (parse_path(a, "copy_fields"), parse_path(b, "copy_fields")) for a, b in options.copy_fields.items()
        ]
        self._passes = options.otherwise == "pass"
        self._limit = options.max_records

    def on_send(self, record: Record) -> Record | Sequence[Record] | Drop:
        """A record for each element; a drop for none. What is no array passes, or raises NotSplitError."""
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
        """The record of element ``number``, with ``copied`` (path, value) put in, and its own id and key."""
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
        """The key of element ``number`` by a path within it. Raises NotSplitError without one."""
        value = path.get(element)
        if value is MISSING or value is None or value == "":
            raise NotSplitError(f"Element {number} has no value at {path.text!r} for its key.")
        return value.encode() if isinstance(value, str) else dump_json(value)


def _identified(headers: Headers, number: int) -> Headers:
    """Headers with a message id for each element. With one id for all, readers would drop the others as copies."""
    return [
        (name, b"%b/%d" % (value, number) if name == wire.GATEWAY_MESSAGE_ID and value is not None else value)
        for name, value in headers
    ]
