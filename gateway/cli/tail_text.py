"""Records as ``gateway tail`` shows them: a line each, safe for a terminal whatever a device put in them."""

from __future__ import annotations

__all__ = ["LinePrinter", "as_json_line"]

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from bridge import wire
from gateway.cli.dead_letters.text import moment, one_line, readable

if TYPE_CHECKING:
    from bridge.dead_letters.reading import DeadLetter

_TOPIC_CELLS = 40
_DEVICE_CELLS = 24
_PAYLOAD_CELLS = 160


class LinePrinter:
    """Makes lines whose columns stay in place: a column grows with what it has to hold, up to a limit."""

    def __init__(self, width: int | None, *, topics: bool) -> None:
        """``width`` cuts lines for a terminal; ``topics``: whether the Kafka topic is told as well."""
        self._width = width
        self._topics = topics
        self._widths: dict[str, int] = {}

    def line(self, letter: DeadLetter, latency_ms: int | None) -> str:
        """Time (UTC), place, MQTT topic, device, size, latency, payload. ``latency_ms`` None for what was there
        before."""
        at = letter.place
        place = f"{at.topic}/{at.partition}:{at.offset}" if self._topics else f"{at.partition}:{at.offset}"
        cells = [
            f"{datetime.fromtimestamp(letter.timestamp_ms / 1000, UTC):%H:%M:%S.%f}"[:-3],
            self._pad("place", place, 60),
            self._pad("topic", one_line(letter.mqtt_topic or "-"), _TOPIC_CELLS),
            self._pad("device", one_line(letter.device or _key(letter)), _DEVICE_CELLS),
            self._pad("size", f"{letter.size} B", 12, right=True),
            self._pad("latency", "-" if latency_ms is None else f"{latency_ms} ms", 12, right=True),
        ]
        if letter.reason:
            cells.append(self._pad("reason", one_line(letter.reason), 20))
        limit = _PAYLOAD_CELLS if self._width is None else self._width
        cells.append(_payload(letter, limit))
        text = "  ".join(cells)
        return text if self._width is None or len(text) <= self._width else text[: self._width - 1] + "…"

    def _pad(self, column: str, text: str, limit: int, *, right: bool = False) -> str:
        width = self._widths[column] = min(limit, max(self._widths.get(column, 0), len(text)))
        if len(text) > width:
            text = text[: width - 1] + "…"
        return text.rjust(width) if right else text.ljust(width)


def _key(letter: DeadLetter) -> str:
    return "-" if letter.key is None else f"key {readable(letter.key)}"


def _payload(letter: DeadLetter, limit: int) -> str:
    if letter.value is None:
        return "(null)"
    # More than is shown is not decoded: a payload may have megabytes. A character cut in half at the end would make
    # text look like binary, so what is beyond the last whole one is left out.
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
    """The whole record as one line of JSON, ASCII alone, so that no terminal obeys it.

    ``payload`` is the JSON value where the payload is JSON, else its text, else ``{"base64": …}``."""
    headers: dict[str, Any] = {}
    for name, value in letter.headers:
        text = _plain(value)
        if name in headers:  # Kafka allows repeats: then all of them, in order
            standing = headers[name]
            headers[name] = [*standing, text] if isinstance(standing, list) else [standing, text]
        else:
            headers[name] = text
    document: dict[str, Any] = {
        "topic": letter.place.topic,
        "partition": letter.place.partition,
        "offset": letter.place.offset,
        "time": moment(letter.timestamp_ms),
        "latency_ms": latency_ms,
        "key": _plain(letter.key),
        "mqtt_topic": letter.mqtt_topic,
        "device": letter.device,
        "bytes": letter.size,
        "headers": headers,
        "payload": _document(letter.value),
    }
    if letter.said:
        document["dead_letter"] = {
            name.removeprefix("dlq."): _plain(value) for name, value in letter.said.items() if name != wire.GATEWAY_ID
        }
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"))


def _document(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        return _plain(value)


def _plain(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
