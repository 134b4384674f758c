"""Records of ``gateway tail``: a line each, without characters that a terminal obeys."""

import json
from typing import Any

from pydantic_core import from_json

from bridge import wire
from bridge.dead_letters.reading import DeadLetter
from gateway.base.moments import moment_ms
from gateway.cli.dead_letters.text import readable
from gateway.cli.table import bytes_data, cut, shown

_TOPIC_CELLS = 40
_DEVICE_CELLS = 24
_PAYLOAD_CELLS = 160


class LinePrinter:
    """Makes lines with steady columns: a column grows with its longest value, up to a limit."""

    def __init__(self, width: int | None, *, topics: bool) -> None:
        """``width`` cuts lines for a terminal. ``topics``: whether lines have the Kafka topic."""
        self._width = width
        self._topics = topics
        self._widths: dict[str, int] = {}

    def line(self, letter: DeadLetter, latency_ms: int | None) -> str:
        """Time (UTC), place, MQTT topic, device, size, latency, payload. ``latency_ms`` is None for
        earlier records."""
        at, at_time = letter.place, moment_ms(letter.timestamp_ms)
        place = f"{at.topic}/{at.partition}:{at.offset}" if self._topics else f"{at.partition}:{at.offset}"
        parts = "" if letter.complete else f" ({len(letter.places)}/{letter.parts})"
        cells = [
            at_time.partition("T")[2].rstrip("Z") or at_time,
            self._pad("place", place, 60),
            self._pad("topic", shown(letter.mqtt_topic or "-"), _TOPIC_CELLS),
            self._pad("device", shown(letter.device or _key(letter)), _DEVICE_CELLS),
            self._pad("size", f"{letter.size} B{parts}", 18, right=True),
            self._pad("latency", "-" if latency_ms is None else f"{latency_ms} ms", 12, right=True),
        ]
        if letter.reason:
            cells.append(self._pad("reason", shown(letter.reason), 20))
        limit = _PAYLOAD_CELLS if self._width is None else self._width
        cells.append(_payload(letter, limit))
        return cut("  ".join(cells), self._width)

    def _pad(self, column: str, text: str, limit: int, *, right: bool = False) -> str:
        width = self._widths[column] = min(limit, max(self._widths.get(column, 0), len(text)))
        text = cut(text, width)
        return text.rjust(width) if right else text.ljust(width)


def _key(letter: DeadLetter) -> str:
    return "-" if letter.key is None else f"key {readable(letter.key)}"


def _payload(letter: DeadLetter, limit: int) -> str:
    if letter.value is None:
        return "(null)"
    # Only the shown part is decoded: a payload may have megabytes. A half character at the end would make text look
    # like binary, so it is removed.
    head = letter.value[: 4 * limit]
    if len(head) < len(letter.value):
        head = head.decode(errors="ignore").encode() if _is_text(head) else head
    text = readable(head)
    return text if len(text) <= limit and len(head) == len(letter.value) else text[: limit - 1] + "…"


def _is_text(cut: bytes) -> bool:
    """Whether bytes that may end within a character are UTF-8."""
    for end in range(4):
        try:
            cut[: len(cut) - end].decode()
        except UnicodeDecodeError:
            continue
        return True
    return False


def as_json_line(letter: DeadLetter, latency_ms: int | None) -> str:
    """The whole record as one line of JSON in ASCII.

    ``payload`` is the JSON value where the payload is JSON, else its text, else ``{"base64": …}``."""
    headers: dict[str, Any] = {}
    for name, value in letter.headers:
        text = bytes_data(value)
        if name in headers:  # Kafka allows repeats: then all of them, in order
            standing = headers[name]
            headers[name] = [*standing, text] if isinstance(standing, list) else [standing, text]
        else:
            headers[name] = text
    document: dict[str, Any] = {
        "topic": letter.place.topic,
        "partition": letter.place.partition,
        "offset": letter.place.offset,
        "time": moment_ms(letter.timestamp_ms),
        "latency_ms": latency_ms,
        "key": bytes_data(letter.key),
        "mqtt_topic": letter.mqtt_topic,
        "device": letter.device,
        "bytes": letter.size,
        "headers": headers,
        "payload": _document(letter.value),
    }
    if letter.said:  # by headers of a dead letter
        document["dead_letter"] = {
            name.removeprefix("dlq."): bytes_data(value)
            for name, value in letter.said.items()
            if name != wire.GATEWAY_ID
        }
        document["complete"] = letter.complete
    try:
        return _dumped(document)
    except ValueError:  # a number of more digits than Python writes, or none that JSON has, such as 1e999
        return _dumped(document | {"payload": bytes_data(letter.value)})


def _dumped(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _document(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        return bytes_data(value)
