"""Commands, their statuses, and the answers of devices."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic_core import to_json

if TYPE_CHECKING:
    from bridge.dead_letters.reading import Place

VERSION: Final = 1
"""Field ``v`` of every record on the status topic. It rises when a field changes its meaning; new fields do not."""

ANSWER_LIMIT: Final = 16 * 1024
"""Bytes of an answer's payload that its status holds. The topic of answers has all of it."""


class Status(StrEnum):
    """What is known of a command."""

    ACCEPTED = "accepted"  # taken from Kafka; it waits for its turn
    WAITING = "waiting"  # the broker had no subscriber for it; it is sent again until its deadline
    SENT = "sent"  # the broker took it, and some subscription matched
    DELIVERED = "delivered"  # the device acknowledged the MQTT message to the broker
    IN_PROGRESS = "in_progress"  # the device answered 1xx
    SUCCEEDED = "succeeded"  # the device answered 2xx
    REJECTED = "rejected"  # the device answered 4xx
    FAILED = "failed"  # the device answered 5xx
    TIMED_OUT = "timed_out"  # sent, and no answer came in time; a late one may still come
    EXPIRED = "expired"  # its deadline passed before it was sent
    UNDELIVERABLE = "undeliverable"  # the broker refuses it, or nobody subscribes and it is not to wait
    REFUSED = "refused"  # not taken: no device, a copy of an unfinished command, too many wait


OUTCOMES: Final = (
    Status.SENT,
    Status.DELIVERED,
    Status.SUCCEEDED,
    Status.REJECTED,
    Status.FAILED,
    Status.TIMED_OUT,
    Status.EXPIRED,
    Status.UNDELIVERABLE,
    Status.REFUSED,
)
"""The statuses that may be terminal. ``sent`` and ``delivered`` are terminal where no more is asked."""

DUPLICATE: Final = "duplicate"
"""The reason of a command that is refused because another one with its id is not finished."""

Receiver = Literal["online", "away", "unknown"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A device's answer, as the topic of answers has it.

    ``place`` is its own record. ``token`` is the text that identifies the command (``bridge.commands.tokens``),
    ``device`` is from the MQTT topic. ``code`` is like an HTTP status, or 0: unreadable, which decides nothing.
    """

    place: Place
    token: str
    device: str
    code: int
    payload: bytes
    content_type: str | None
    timestamp_ms: int


class StatusRecord(NamedTuple):
    """A record of the status topic.

    ``id`` is the command's (header ``correlation-id``), or its record's place. ``attempt`` counts publications from 1,
    0 before the first. ``code`` is the MQTT reason code of the last PUBACK or PUBREC, None without one. ``receiver`` is
    what is known of the device now, None before the first sending. ``is_ordered`` says that the record's key is the
    device, so that its commands are in order. Times are ms since 1970.
    """

    id: str
    place: Place
    route: str
    device: str | None
    status: Status
    terminal: bool
    at_ms: int
    deadline_ms: int | None
    attempt: int = 0
    code: int | None = None
    reason: str | None = None
    late: bool = False
    receiver: Receiver | None = None
    is_ordered: bool = True
    answer: Answer | None = None

    def key(self) -> bytes:
        """The record's key: the command's id. Of a refused copy its place: the id's last status is the original's."""
        return (str(self.place) if self.reason == DUPLICATE else self.id).encode()

    def value(self, answer_limit: int = ANSWER_LIMIT) -> bytes:
        """The record's value: a JSON object, with so many bytes of the answer's payload."""
        document: dict[str, Any] = {
            "v": VERSION,
            "id": self.id,
            "command": str(self.place),
            "route": self.route,
            "device": self.device,
            "status": str(self.status),  # to_json is slow with enums
            "terminal": self.terminal,
            "at_ms": self.at_ms,
            "deadline_ms": self.deadline_ms,
            "attempt": self.attempt,
        }
        if self.code is not None:
            document["mqtt_reason_code"] = self.code
        if self.reason is not None:
            document["reason"] = self.reason
        if self.late:
            document["late"] = True
        if self.receiver is not None:
            document["receiver"] = self.receiver
        if not self.is_ordered:
            document["ordered"] = False
        if self.answer is not None:
            document["answer"] = _answer(self.answer, answer_limit)
        return to_json(document)


def _answer(answer: Answer, limit: int) -> dict[str, Any]:
    """A device's answer for the status document, with at most ``limit`` bytes of its payload."""
    found: dict[str, Any] = {"status": answer.code, "record": str(answer.place), "at_ms": answer.timestamp_ms}
    if answer.content_type is not None:
        found["content_type"] = answer.content_type
    payload = answer.payload[:limit]
    if len(answer.payload) > limit:
        found["truncated_bytes"] = len(answer.payload)
    try:
        found["payload"] = payload.decode()
    except UnicodeDecodeError:
        found["payload_base64"] = base64.b64encode(payload).decode()
    return found
