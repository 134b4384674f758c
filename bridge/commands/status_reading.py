"""Reads the status topic: what its records say of commands."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bridge.commands.model import DUPLICATE, Status
from bridge.dead_letters.reading import Place

if TYPE_CHECKING:
    from bridge.dead_letters.reading import LoggedRecord


@dataclass(frozen=True, slots=True)
class AnswerView:
    """A device's answer as a status has it. ``bytes_all`` is the payload's size where the status has only its
    beginning."""

    code: int
    record: Place | None
    at_ms: int
    content_type: str | None
    payload: bytes
    bytes_all: int | None


@dataclass(frozen=True, slots=True)
class StatusView:
    """A record of the status topic. ``record`` is its own place, ``place`` the command's. The other fields are those
    of ``bridge.commands.model.StatusRecord``."""

    record: Place
    id: str
    place: Place
    route: str
    device: str | None
    status: Status
    is_terminal: bool
    at_ms: int
    deadline_ms: int | None
    attempt: int
    code: int | None
    reason: str | None
    is_late: bool
    receiver: str | None
    is_ordered: bool
    answer: AnswerView | None

    @property
    def is_duplicate(self) -> bool:
        """Whether the command was a duplicate: another command had its id before."""
        return self.reason == DUPLICATE


def parse_place(text: str) -> Place | None:
    """The place in ``topic/partition:offset``; None for other text."""
    topic, slash, rest = text.rpartition("/")
    partition, colon, offset = rest.partition(":")
    if not (topic and slash and colon and _is_number(partition) and _is_number(offset)):
        return None
    return Place(topic, int(partition), int(offset))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def read_status(record: LoggedRecord) -> StatusView | None:
    """The status in a record; None for a tombstone, and for a record of other software."""
    try:
        fields: dict[str, Any] = json.loads(record.value or b"")
        place = parse_place(fields["command"])
        if place is None:
            return None
        return StatusView(
            record=record.place,
            id=str(fields["id"]),
            place=place,
            route=str(fields["route"]),
            device=fields["device"],
            status=Status(fields["status"]),
            is_terminal=fields["terminal"] is True,
            at_ms=int(fields["at_ms"]),
            deadline_ms=fields["deadline_ms"],
            attempt=int(fields["attempt"]),
            code=fields.get("mqtt_reason_code"),
            reason=fields.get("reason"),
            is_late=fields.get("late") is True,
            receiver=fields.get("receiver"),
            is_ordered=fields.get("ordered") is not False,
            answer=_answer(fields.get("answer")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _answer(fields: dict[str, Any] | None) -> AnswerView | None:
    """The answer in a status; a payload that cannot be decoded is empty."""
    if fields is None:
        return None
    try:
        payload = base64.b64decode(fields["payload_base64"]) if "payload_base64" in fields else None
    except binascii.Error:
        payload = b""
    return AnswerView(
        code=int(fields["status"]),
        record=parse_place(fields["record"]),
        at_ms=int(fields["at_ms"]),
        content_type=fields.get("content_type"),
        payload=fields["payload"].encode() if payload is None else payload,
        bytes_all=fields.get("truncated_bytes"),
    )
