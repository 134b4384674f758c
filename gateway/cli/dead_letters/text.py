"""Dead letters as text and JSON."""

import string
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from bridge.dead_letters.reading import DeadLetter
from bridge.dead_letters.replay_marks import Marks, Replay
from bridge.kafka.reader import TopicFacts
from config.values.grammar import format_duration
from gateway.base.moments import moment_ms
from gateway.cli.table import cut, shown, table_lines

_PRINTABLE = frozenset(string.printable) - frozenset("\r\x0b\x0c")
_HEX_WIDTH = 16
_COLUMNS = ("PLACE", "RECEIVED", "ROUTE", "REASON", "BYTES", "REPLAYED", "MQTT TOPIC", "ERROR")


def short_place(letter: DeadLetter, default_topic: str) -> str:
    """The shortest form that ``dlq show`` takes."""
    at = letter.place
    return f"{at.partition}:{at.offset}" if at.topic == default_topic else str(at)


def replay_state(replay: Replay | None) -> str:
    if replay is None:
        return "no"
    return "yes" if replay.done else "begun"


def table(letters: Sequence[DeadLetter], marks: Marks, default_topic: str, width: int | None) -> Iterator[str]:
    """Lines with a heading; cut to ``width`` characters if given."""
    rows = [
        (
            short_place(letter, default_topic),
            moment_ms(letter.first_seen_ms)[:19],
            letter.route or None,
            letter.reason,
            f"{letter.size}" if letter.complete else f"{letter.size} ({len(letter.places)}/{letter.parts})",
            replay_state(marks.of(*letter.place)),
            shown(letter.mqtt_topic or "-"),
            shown(letter.error),
        )
        for letter in letters
    ]
    for line in table_lines(_COLUMNS, rows):
        yield cut(line.rstrip("\n"), width)


def retention(facts: Iterable[TopicFacts]) -> Iterator[str]:
    """A sentence for each topic on the retention of dead letters."""
    for topic in facts:
        if topic.retention_ms is None:
            life = "its retention is unknown (the right DescribeConfigs is missing)"
        elif topic.retention_ms < 0:
            life = "it keeps records for ever (retention.ms = -1)"
        else:
            length = format_duration(timedelta(milliseconds=topic.retention_ms))
            life = f"dead letters expire {length} after receipt (retention.ms = {topic.retention_ms}), replayed or not"
        compacted = ""
        if "compact" in (topic.cleanup_policy or ""):
            compacted = (
                f"; it is COMPACTED ({topic.cleanup_policy}), so Kafka keeps only the last of each key: change that"
            )
        yield f"{topic.name}: {life}{compacted}."


def as_json(letter: DeadLetter, marks: Marks) -> dict[str, Any]:
    """A dead letter for JSON, without the payload."""
    replay = marks.of(*letter.place)
    return {
        "place": str(letter.place),
        "received": moment_ms(letter.first_seen_ms),
        "reason": letter.reason,
        "error_class": letter.error_class,
        "error": letter.error,
        "attempts": letter.attempts,
        "route": letter.route or None,
        "gateway": letter.gateway,
        "kafka_topic": letter.kafka_topic,
        "mqtt_topic": letter.mqtt_topic,
        "qos": letter.flags >> 1 & 3,
        "retain": bool(letter.flags & 1),
        "device": letter.device,
        "key": None if letter.key is None else readable(letter.key),
        "bytes": letter.size,
        "parts": letter.parts,
        "complete": letter.complete,
        "replay": None if replay is None else {"id": replay.id, "done": replay.done, "at": moment_ms(replay.at_ms)},
    }


def describe(letter: DeadLetter, marks: Marks, *, is_command: bool = False) -> Iterator[str]:
    """One dead letter in full, line by line. A command came from a Kafka topic, so it has no MQTT topic and QoS."""
    replay = marks.of(*letter.place)
    qos_and_retain = f"{letter.flags >> 1 & 3}, {'yes' if letter.flags & 1 else 'no'}"
    rows = [
        ("place", ", ".join(map(str, letter.places))),
        ("received", moment_ms(letter.first_seen_ms)),
        ("reason", letter.reason),
        ("error", f"{letter.error_class}: {letter.error}"),
        ("attempts", str(letter.attempts)),
        ("commands" if is_command else "route", letter.route or "(none matched)"),
        ("gateway", letter.gateway),
        ("kafka topic", letter.kafka_topic or "(was not known)"),
        ("mqtt topic", letter.mqtt_topic or "(not known: the route's metadata_headers leave it out)"),
        ("qos, retain", qos_and_retain),
        ("key", "(none)" if letter.key is None else readable(letter.key)),
        ("replayed", _replayed(replay)),
    ]
    left_out = ("mqtt topic", "qos, retain") if is_command else ()
    yield from (f"{name:<12} {shown(text)}" for name, text in rows if name not in left_out)
    yield "headers"
    for name, value in letter.headers:
        yield f"  {shown(name)}: {'(null)' if value is None else readable(value)}"
    if not letter.complete:
        yield f"payload: {len(letter.places)} of {letter.parts} parts are there, so it is not whole"
    if letter.value is None:
        yield "payload: null (a tombstone)" if not letter.size else f"payload: {letter.size} bytes"
        return
    yield f"payload, {letter.size} bytes:"
    yield from _payload(letter.value)


def _replayed(replay: Replay | None) -> str:
    if replay is None:
        return "no"
    if replay.done:
        return f"yes, at {moment_ms(replay.at_ms)} (replay {replay.id})"
    return f"begun at {moment_ms(replay.at_ms)} (replay {replay.id}); whether it was written is not known"


def _payload(value: bytes) -> Iterator[str]:
    text = _as_text(value)
    if text is not None:
        yield text
        return
    for start in range(0, len(value), _HEX_WIDTH):
        row = value[start : start + _HEX_WIDTH]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:08x}  {row.hex(' '):<{3 * _HEX_WIDTH}} {shown}"


def _as_text(value: bytes) -> str | None:
    """The value as text, if it is text that a terminal can show."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in _PRINTABLE for char in text) else None


def readable(value: bytes) -> str:
    """Bytes on one line: as text, or in hexadecimal digits."""
    text = _as_text(value)
    return shown(text) if text is not None else f"0x{value.hex()}"
