"""Commands and their statuses as text and JSON."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from bridge.commands.model import Status
from bridge.commands.reading import Request
from bridge.commands.status_reading import AnswerView, StatusView
from bridge.dead_letters.reading import LoggedRecord
from gateway.base.moments import moment_ms
from gateway.cli.table import bytes_data, cut, shown, table_lines

_COLUMNS: Final = ("ID", "DEVICE", "STATUS", "AT (UTC)", "WHY")
_WIDTHS: Final = (24, 16)  # of an id and a device; the whole is in --json
_PAYLOAD_SHOWN: Final = 60
GOOD: Final = frozenset({Status.SENT, Status.DELIVERED, Status.SUCCEEDED})
"""Terminal statuses of a command that did what was asked."""

_MEANINGS: Final = {
    Status.ACCEPTED: "it waits for its turn",
    Status.WAITING: "nobody subscribes to its topic; it is sent again until its deadline",
    Status.SENT: "the broker took it, and some subscription matched",
    Status.DELIVERED: "the device has it",
    Status.IN_PROGRESS: "the device works on it",
    Status.SUCCEEDED: "the device did it",
    Status.REJECTED: "the device does not accept it",
    Status.FAILED: "the device could not do it",
    Status.TIMED_OUT: "it was sent, and nothing came back in time",
    Status.EXPIRED: "its deadline passed before it was sent",
    Status.UNDELIVERABLE: "it cannot be sent",
    Status.REFUSED: "the gateway does not take it",
}
_RECEIVERS: Final = {"online": "the device was connected", "away": "the device was away"}


def when(ms: int | None) -> str | None:
    return None if ms is None else moment_ms(ms)


def why(status: StatusView) -> str:
    """What a status means, in words."""
    parts = [_MEANINGS[status.status] if status.reason is None else status.reason]
    if status.answer is not None:
        parts.append(_answer(status.answer))
    if status.is_late:
        parts.append("it came late, after timed_out")
    if status.status is Status.SENT and status.receiver in _RECEIVERS:
        parts.append(_RECEIVERS[status.receiver])
    if status.code:
        parts.append(f"MQTT reason code 0x{status.code:02X}")
    return "; ".join(parts)


def _answer(answer: AnswerView) -> str:
    text = f"answer {answer.code}"
    if answer.payload:
        payload = shown(answer.payload.decode(errors="backslashreplace"))
        text += f": {cut(payload, _PAYLOAD_SHOWN)}"
    return text


def _end_of(text: str, width: int) -> str:
    """The last characters of a text, at most ``width``. The end of a place tells more than its beginning."""
    return text if len(text) <= width else f"…{text[1 - width :]}"


def line(status: StatusView) -> str:
    """A status on one line, for somebody who waits for it."""
    at = (when(status.at_ms) or "")[11:23]
    return f"{at}  {status.status:<13}  {why(status)}"


def table(statuses: Iterable[StatusView], width: int) -> Iterator[str]:
    """Lines with a heading, each cut to ``width`` characters."""
    rows = [
        (
            _end_of(shown(one.id), _WIDTHS[0]),
            cut(shown(one.device or "-"), _WIDTHS[1]),
            one.status + (" (late)" if one.is_late else ""),
            (when(one.at_ms) or "")[5:19].replace("T", " "),
            shown(why(one)),
        )
        for one in statuses
    ]
    for text in table_lines(_COLUMNS, rows):
        yield cut(text.rstrip("\n"), width)


def describe(
    history: Sequence[StatusView], record: LoggedRecord | None, request: Request | str | None, answers: Sequence[Any]
) -> Iterator[str]:
    """One command in full: its record, its statuses, and the devices' answers. ``request`` is a sentence where the
    record is no command."""
    last = history[-1] if history else None
    first: list[tuple[str, str | None]] = []
    if last is not None:
        first = [
            ("id", last.id),
            ("record", str(last.place)),
            ("commands", last.route),
            ("device", last.device),
            ("order", None if last.is_ordered else "not kept: the record's key is not the device"),
            ("deadline", when(last.deadline_ms)),
        ]
    elif record is not None:
        first = [("record", str(record.place))]
    yield from (f"{name:<9} {shown(text)}" for name, text in first if text is not None)
    yield from _record(record, request)
    yield "statuses"
    yield from (f"  {shown(line(one))}" for one in history)
    if not history:
        yield "  none: no worker has taken it yet"
    elif not last.is_terminal:  # type: ignore[union-attr]
        yield "  (it is not finished)"
    if answers:
        yield "answers, as the devices sent them"
    for answer in answers:
        payload = shown(answer.payload.decode(errors="backslashreplace"))
        code = answer.code or "unreadable"
        yield f"  {when(answer.timestamp_ms)}  {code}  {answer.place}  {shown(answer.device)}: {payload}"


def _record(record: LoggedRecord | None, request: Request | str | None) -> Iterator[str]:
    if record is None:
        yield "payload   (Kafka has deleted the record)"
        return
    yield f"written   {when(record.timestamp_ms)}"
    for name, value in record.headers:
        yield f"header    {shown(name)}: {shown((value or b'').decode(errors='backslashreplace'))}"
    if isinstance(request, str):
        yield f"problem   {request}"
    payload = record.value or b""
    yield f"payload   {len(payload)} bytes{': ' if payload else ''}{shown(payload.decode(errors='backslashreplace'))}"


def as_data(status: StatusView) -> dict[str, Any]:
    answer = status.answer
    return {
        "id": status.id,
        "command": str(status.place),
        "commands": status.route,
        "device": status.device,
        "status": str(status.status),
        "terminal": status.is_terminal,
        "at": when(status.at_ms),
        "deadline": when(status.deadline_ms),
        "attempt": status.attempt,
        "mqtt_reason_code": status.code,
        "reason": status.reason,
        "late": status.is_late,
        "receiver": status.receiver,
        "ordered": status.is_ordered,
        "answer": None
        if answer is None
        else {
            "status": answer.code,
            "record": None if answer.record is None else str(answer.record),
            "at": when(answer.at_ms),
            "content_type": answer.content_type,
            "payload": bytes_data(answer.payload),
            "truncated_bytes": answer.bytes_all,  # None: the payload is whole
        },
        "record": str(status.record),
    }
