"""The identity of a record, by which it is found in another topic, and its compared parts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic_core import from_json

from bridge import wire
from bridge.intercept.paths import MISSING, Path, parse_path

if TYPE_CHECKING:
    from bridge.dead_letters.reading import LoggedRecord

_DIGEST_BYTES: Final = 16
_SHORT_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Identity:
    """The parts of a record that identify it. ``paths`` are JSON fields, for the kind ``json``."""

    kind: Literal["message_id", "key+value", "value", "json"]
    paths: tuple[Path, ...] = ()

    @property
    def is_of_a_message(self) -> bool:
        """Whether it is one message's alone. Of equal values each may be a message."""
        return self.kind in {"message_id", "json"}


def parse_identity(text: str) -> Identity:
    """``message_id``, ``key+value``, ``value``, or ``json:device,seq``. Raises ValueError with a sentence."""
    match text:
        case "message_id" | "key+value" | "value":
            return Identity(text)
        case _ if text.startswith("json:") and text != "json:":
            return Identity("json", tuple(parse_path(part.strip()) for part in text[5:].split(",")))
        case _:
            raise ValueError(f"{text!r} is none of message_id, key+value, value, json:FIELD,FIELD")


@dataclass(frozen=True, slots=True)
class Reading:
    """The digests of a record. ``identity`` is None for a record without one."""

    identity: bytes | None
    device: bytes
    key: bytes
    value: bytes
    headers: bytes


class Reader:
    """Reads the records of one side. ``field`` is the JSON field with the payload, None for the value itself. By
    default EMQX puts payloads into an envelope."""

    def __init__(self, identity: Identity, field: str | None) -> None:
        self._identity = identity
        self._field = None if field is None else parse_path(field)

    def read(self, record: LoggedRecord) -> Reading:
        value = record.value if self._field is None else _inner(record.value, self._field)
        # Writer, time and delivery flags may differ between two bridges.
        headers = sorted(
            (n, v or b"") for n, v in record.headers if not n.startswith("gateway.") and n != wire.MQTT_DUP
        )
        key = record.key or b""
        device = next((content for name, content in record.headers if name == wire.GATEWAY_DEVICE), None) or key
        return Reading(
            identity=self._digest_by_identity(record, value),
            device=_short(device),
            key=_short(key),
            value=b"" if value is None else _short(value),
            headers=_short(repr(headers).encode()),
        )

    def _digest_by_identity(self, record: LoggedRecord, value: bytes | None) -> bytes | None:
        """A digest of what identifies the message; None if the record lacks it."""
        match self._identity.kind:
            case "message_id":
                found = next((content for name, content in record.headers if name == wire.GATEWAY_MESSAGE_ID), None)
                return None if found is None else _digest(found)
            case "value":
                return None if value is None else _digest(value)
            case "key+value":
                key = record.key or b""
                return None if value is None else _digest(len(key).to_bytes(4) + key + value)
            case "json":
                return self._by_fields(value)

    def _by_fields(self, value: bytes | None) -> bytes | None:
        """A digest of the fields that ``json:…`` names; None if the value lacks one."""
        document = _document(value)
        found = [path.get(document) for path in self._identity.paths]
        if any(one is MISSING for one in found):
            return None
        return _digest(json.dumps(found, sort_keys=True).encode())


def _inner(value: bytes | None, path: Path) -> bytes | None:
    """The envelope's field as bytes: a text unchanged, other values as compact JSON; None if missing."""
    found = path.get(_document(value))
    if found is MISSING or found is None:
        return None
    return found.encode() if isinstance(found, str) else json.dumps(found, separators=(",", ":")).encode()


def _document(value: bytes | None) -> Any:
    try:
        return from_json(value or b"", allow_inf_nan=False)
    except ValueError:
        return MISSING


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _short(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SHORT_BYTES).digest()
