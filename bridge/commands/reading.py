"""Reads records: commands, devices' answers, acknowledgements that EMQX reports, and births."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge import wire
from bridge.commands.model import Answer
from bridge.commands.plan import UNSENDABLE, CommandPlan, forbidden
from bridge.wire import DeadLetterReason

if TYPE_CHECKING:
    from bridge.dead_letters.reading import LoggedRecord, Place

CONTENT_TYPE: Final = "content-type"
EXPIRES_AT: Final = "expires-at"
COMMAND_ID: Final = "command-id"
STATUS: Final = "status"  # the user property with an answer's code
MOST_ID_BYTES: Final = 512
_MOST_LEVEL_BYTES: Final = 1024
_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"false", "0", "no", ""})


class BadCommandError(ValueError):
    """A record that can never be a command. ``reason`` is that of its dead letter; the text is a sentence."""

    def __init__(self, reason: DeadLetterReason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Request:
    """What a record asks for. ``own_id`` is None where the record has none."""

    device: str
    own_id: str | None
    subject: str
    deadline_ms: int
    is_answer_asked: bool
    is_ordered: bool
    content_type: str | None
    user: tuple[tuple[str, str], ...]


def read_request(record: LoggedRecord, plan: CommandPlan, now_ms: int) -> Request:
    """The command in a record. Raises BadCommandError."""
    settings = plan.settings
    names = {
        settings.device_header, settings.id_header, settings.subject_header, settings.response_header,
        settings.expiry_header, CONTENT_TYPE,
    }  # fmt: skip
    found: dict[str, str] = {}
    user = []
    for name, value in record.headers:
        if "\ufffd" in name:  # see bridge.kafka.fetched
            raise BadCommandError(DeadLetterReason.INVALID_RECORD, f"A header's name, {name[:40]!r}, is not UTF-8.")
        text = _text(value or b"", f"header {name[:40]!r}")
        if name in names:
            found[name] = text
        else:
            user.append((name, text))
    device = found.get(settings.device_header)
    if device is None:
        device = _text(record.key or b"", "key")
    _check_level(device, f"the device's name ({settings.device_header!r}, else the key)")
    subject = found.get(settings.subject_header, "")
    if subject:
        _check_level(subject, f"the subject ({settings.subject_header!r})")
    own_id = found.get(settings.id_header) or None
    if own_id is not None and len(own_id.encode()) > MOST_ID_BYTES:
        raise BadCommandError(
            DeadLetterReason.INVALID_RECORD, f"The id ({settings.id_header!r}) is longer than {MOST_ID_BYTES} bytes."
        )
    content_type = found.get(CONTENT_TYPE)
    for name, text in (*user, (settings.id_header, own_id or ""), (CONTENT_TYPE, content_type or "")):
        if character := UNSENDABLE.search(name + text):
            raise BadCommandError(
                DeadLetterReason.INVALID_RECORD,
                f"Header {name[:40]!r} contains {character[0]!r}, which no text of MQTT should have.",
            )
    size = len(record.value or b"")
    if size > settings.max_payload_bytes:
        raise BadCommandError(
            DeadLetterReason.TOO_LARGE,
            f"The payload has {size:,} bytes, more than max_payload_bytes ({settings.max_payload_bytes:,}).",
        )
    return Request(
        device=sys.intern(device),  # many have the same, and 100,000 may wait
        own_id=own_id,
        subject=sys.intern(subject),
        deadline_ms=_deadline(record, plan, found.get(settings.expiry_header), now_ms),
        is_answer_asked=_is_answer_asked(plan, found.get(settings.response_header)),
        is_ordered=record.key == device.encode(),
        content_type=content_type,
        user=tuple(user),
    )


def _text(value: bytes, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadCommandError(DeadLetterReason.INVALID_RECORD, f"The record's {what} is not UTF-8.") from None


def _check_level(text: str, what: str) -> None:
    """Raise BadCommandError for a text that cannot be a level of a topic. ``what``: its name in the sentence."""
    if not text:
        raise BadCommandError(DeadLetterReason.MISSING_VALUE, f"The record has no text for {what}.")
    if (character := forbidden(text)) is not None:
        raise BadCommandError(
            DeadLetterReason.INVALID_TOPIC, f"{what} contains {character!r}, which cannot stand in an MQTT topic."
        )
    if len(text.encode()) > _MOST_LEVEL_BYTES:
        raise BadCommandError(DeadLetterReason.INVALID_TOPIC, f"{what} is longer than {_MOST_LEVEL_BYTES} bytes.")


def _deadline(record: LoggedRecord, plan: CommandPlan, given: str | None, now_ms: int) -> int:
    """When a command expires, in ms since 1970: as its header says (``given``), or by the plan's ``expiry_ms``."""
    if given is None:
        # Python allocates a sum with a spare digit, 16 bytes more; ``| 0`` copies it without. 100,000 may wait.
        return (min(record.timestamp_ms, now_ms) + plan.expiry_ms) | 0
    if not (given.isascii() and given.isdigit() and len(given) <= 15):
        raise BadCommandError(
            DeadLetterReason.INVALID_RECORD,
            f"Header {plan.settings.expiry_header!r} is {given[:40]!r}; it must be a time in ms since 1970.",
        )
    return int(given)


def _is_answer_asked(plan: CommandPlan, given: str | None) -> bool:
    """Whether an answer is asked for: by the header (``given``), or the settings. Raises BadCommandError."""
    settings = plan.settings
    asked = settings.response_required if given is None else given.strip().lower() in _TRUE
    if given is not None and given.strip().lower() not in _TRUE | _FALSE:
        raise BadCommandError(
            DeadLetterReason.INVALID_RECORD,
            f"Header {settings.response_header!r} is {given[:40]!r}; it must be true or false.",
        )
    if asked and settings.answers is None:
        raise BadCommandError(
            DeadLetterReason.INVALID_RECORD,
            f"The record asks for an answer, but commands {settings.name!r} have no setting answers, the route that "
            "brings them.",
        )
    # A message of QoS 0 is sent, and nothing more is claimed of it.
    return asked and settings.qos > 0


# --- the way back ------------------------------------------------------------------------------------------------


def read_answer(record: LoggedRecord) -> Answer | None:
    """A device's answer; None for a record that is none.

    MQTT 5: the correlation data are the token, and the user property ``status`` is the code, 200 without it. With
    MQTT 3.1.1 the topic ends with ``/TOKEN/CODE``.
    """
    headers = {name: value or b"" for name, value in record.headers}
    topic = headers.get(wire.MQTT_TOPIC, b"").decode("utf-8", "replace")
    token = headers.get(wire.MQTT_CORRELATION_DATA, b"").decode("ascii", "replace")
    code = headers.get(wire.MQTT_USER_PREFIX + STATUS, b"200").decode("ascii", "replace")
    if not token:
        above, _, code = topic.rpartition("/")
        token = above.rpartition("/")[2]
    device = headers.get(wire.GATEWAY_DEVICE, b"").decode("utf-8", "replace")
    if not (token and device):
        return None
    is_known = len(code) == 3 and code.isascii() and code.isdigit() and code[0] in "1245"
    content_type = headers.get(wire.MQTT_CONTENT_TYPE)
    return Answer(
        record.place,
        token,
        device,
        int(code) if is_known else 0,
        record.value or b"",
        None if content_type is None else content_type.decode("utf-8", "replace"),
        record.timestamp_ms,
    )


@dataclass(frozen=True, slots=True)
class Delivery:
    """EMQX's report that a client acknowledged a message. ``place`` is the report's own record."""

    place: Place
    token: str
    device: str


def read_delivery(record: LoggedRecord) -> Delivery | None:
    """EMQX's event ``message_acked`` as the rule in ``deploy/emqx`` publishes it: a JSON object with ``token``. The
    device is the one of its topic."""
    fields = _object(record.value)
    token = fields.get("token")
    device = _device(record)
    return Delivery(record.place, token, device) if isinstance(token, str) and token and device else None


@dataclass(frozen=True, slots=True)
class Presence:
    """A device came or left. ``is_online`` is None for a report that says neither, such as a subscription."""

    device: str
    is_online: bool | None


_BIRTHS: Final = frozenset({"online", "connected", "birth", "up", "alive", "true", "1"})
_DEATHS: Final = frozenset({"offline", "disconnected", "death", "down", "lost", "dead", "false", "0"})


def read_presence(record: LoggedRecord) -> Presence | None:
    """A birth, a death or a subscription: by EMQX's event in the last level of the topic, by
    ``_PRESENCE_FIELDS`` of a JSON object, or by the payload as a word. None without a device."""
    device = _device(record)
    if not device:
        return None
    topic = next((value or b"" for name, value in record.headers if name == wire.MQTT_TOPIC), b"")
    fields = _object(record.value)
    words = [topic.decode("utf-8", "replace").rpartition("/")[2], *(fields.get(name) for name in _PRESENCE_FIELDS)]
    if not fields:
        words.append((record.value or b"").decode("utf-8", "replace").strip())
    for word in words:
        text = str(word).lower().rpartition("client.")[2]
        if text in _BIRTHS | _DEATHS:
            return Presence(device, text in _BIRTHS)
    return Presence(device, None)


_PRESENCE_FIELDS: Final = ("event", "status", "state", "online", "connected")


def _device(record: LoggedRecord) -> str:
    value = next((value or b"" for name, value in record.headers if name == wire.GATEWAY_DEVICE), b"")
    return value.decode("utf-8", "replace")


def _object(value: bytes | None) -> dict[str, object]:
    """The fields of a JSON object; none for any other value."""
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
