"""A record on its way through the interceptors, with the message it was made from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticSerializationError, from_json, to_json

from bridge.errors import BridgeError

if TYPE_CHECKING:
    from bridge.message import MessageView
    from bridge.ports import Headers

_UNSET: Final[Any] = object()


class NotJsonError(BridgeError):
    """A record's value is no JSON, where an interceptor needs some; or a document cannot be written as JSON."""


class Record:
    """One Kafka record to be, and the MQTT message behind it. Built once per message, so it is no dataclass.

    - ``message``: the MQTT message as it came: topic, QoS, retain, properties, payload; several records may share it;
    - ``topic``, ``key``, ``value``, ``headers``, ``timestamp_ms``: what Kafka gets. A value None deletes the key in a
      compacted topic, a key None takes any partition.

    A record and its parts are never changed in place: ``replace`` and ``with_json`` return a new one. So a failing
    interceptor changes nothing, and records of one message may share parts.
    """

    __slots__ = ("_json", "headers", "key", "message", "timestamp_ms", "topic", "value")

    def __init__(
        self,
        message: MessageView,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> None:
        self.message = message
        self.topic = topic
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self._json: Any = _UNSET

    def json(self) -> Any:
        """The value as JSON with real numbers: integers exact, others floats. Parsed once, then shared: do not change
        it. Raises NotJsonError."""
        document = self._json
        if document is not _UNSET:
            return document
        value = self.value
        if value is None:
            raise NotJsonError("The record has no value (null), so there is no JSON in it.")
        try:
            document = self._json = from_json(value, allow_inf_nan=False)
        except ValueError as error:
            raise NotJsonError(f"The value of {len(value)} bytes is not JSON: {error}.") from None
        return document

    def replace(
        self,
        *,
        topic: str = _UNSET,
        key: bytes | None = _UNSET,
        value: bytes | None = _UNSET,
        headers: Headers = _UNSET,
        timestamp_ms: int = _UNSET,
    ) -> Record:
        """The same record with other parts."""
        record = Record(
            self.message,
            self.topic if topic is _UNSET else topic,
            self.key if key is _UNSET else key,
            self.value if value is _UNSET else value,
            self.headers if headers is _UNSET else headers,
            self.timestamp_ms if timestamp_ms is _UNSET else timestamp_ms,
        )
        if value is _UNSET:
            record._json = self._json
        return record

    def with_json(self, document: Any) -> Record:
        """The same record with ``document``, written compactly, as its value. Raises NotJsonError for what JSON cannot
        say."""
        record = self.replace(value=dump_json(document))
        record._json = document  # noqa: SLF001 - one of our own
        return record

    def __repr__(self) -> str:
        size = "null" if self.value is None else f"{len(self.value)} bytes"
        return f"<Record for {self.topic} from {self.message.topic!r}, {size}, {len(self.headers)} headers>"


def check_parts(record: Record) -> None:
    """Make sure that a batch can take the record: nothing raises once the first record of a message is appended.

    What has an obvious meaning is put right in place: a bytearray or memoryview becomes bytes, a tuple of headers a
    list, a float timestamp an int. Raises TypeError, ValueError or OverflowError, with a sentence, for everything else.
    """
    value, key, headers = record.value, record.key, record.headers
    if type(value) is not bytes and value is not None:
        record.value = _bytes_of("value", value)
        record._json = _UNSET  # noqa: SLF001 - one of our own
    if type(key) is not bytes and key is not None:
        record.key = _bytes_of("key", key)
    timestamp_ms = record.timestamp_ms
    if type(timestamp_ms) is not int:
        if not isinstance(timestamp_ms, int | float):
            raise TypeError(f"timestamp_ms is {_kind(timestamp_ms)}: an int is wanted")
        timestamp_ms = record.timestamp_ms = int(timestamp_ms)
    if not -1 << 63 <= timestamp_ms < 1 << 63:
        raise ValueError(f"timestamp_ms is {timestamp_ms}: more than 64 bits")
    topic = record.topic
    if type(topic) is not str:
        raise TypeError(f"topic is {_kind(topic)}: a str is wanted")
    if not topic.isascii():
        topic.encode()
    if type(headers) is not list:
        if not isinstance(headers, list | tuple):
            raise TypeError(f"headers is {_kind(headers)}: a list of (name, value) is wanted")
        headers = record.headers = list(headers)
    for header in headers:
        if type(header) is not tuple or len(header) != 2:
            raise TypeError(f"a header is {_kind(header)}: a tuple of name and value is wanted")
        name, content = header
        if type(name) is not str:
            raise TypeError(f"a header's name is {_kind(name)}: a str is wanted")
        if type(content) is not bytes and content is not None:
            raise TypeError(f"the header {name!r} is {_kind(content)}: bytes are wanted")
        if not name.isascii():
            name.encode()


def _bytes_of(part: str, found: object) -> bytes:
    if not isinstance(found, bytes | bytearray | memoryview):
        raise TypeError(f"{part} is {_kind(found)}: bytes are wanted")
    return bytes(found)


def _kind(found: object) -> str:
    return f"of type {type(found).__name__}"


def dump_json(document: Any) -> bytes:
    """``document`` as compact JSON. Raises NotJsonError for values that JSON does not know, infinities among them."""
    try:
        text = to_json(document)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise NotJsonError(f"The document cannot be written as JSON: {error}") from None
    # A number beyond a double's range (1e400) is read as infinity, for which JSON has no word.
    if (b"Infinity" in text or b"NaN" in text) and not _finite(document):
        raise NotJsonError("The document holds a number too large for a double (or NaN), which JSON cannot say.")
    return text


def _finite(document: Any) -> bool:
    """Whether no float in the document is infinite or NaN."""
    if isinstance(document, float):
        return math.isfinite(document)
    if isinstance(document, dict):
        return all(_finite(value) for value in document.values())
    if isinstance(document, list | tuple):
        return all(_finite(value) for value in document)
    return True
