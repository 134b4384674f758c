"""A user's record from a foreign database: its columns or fields, checked, and the verdict.

Others write that table, so every value is checked. An unreadable record refuses its own user. The user exists, so no
other authenticator is asked. Other users of the backend are not affected.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from auth.model import Allow, Deny, Verdict
from auth.ports import PasswordHasher

FIELDS: Final = ("password_hash", "salt", "is_superuser", "tenant", "groups", "attributes")

_HASH_BYTES: Final = 8192
_NAME_BYTES: Final = 256
_ATTRIBUTE_BYTES: Final = 4096
_MOST: Final = 100  # groups, or attributes, of one user: all of them travel in each question of EMQX
_ATTRIBUTE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)  # what EMQX takes as a client attribute
_RESERVED: Final = frozenset({"tenant", "groups"})  # client attributes that have columns of their own
_YES: Final = frozenset({"1", "t", "true", "y", "yes", "on"})
_NO: Final = frozenset({"", "0", "f", "false", "n", "no", "off"})


class RecordError(ValueError):
    """A column or field that cannot be used. The sentence names it and never has a hash."""


@dataclass(frozen=True, slots=True)
class Record:
    """A user's record. An empty ``password_hash`` means no password."""

    password_hash: str = field(default="", repr=False)
    salt: str = field(default="", repr=False)
    is_superuser: bool = False
    tenant: str = ""
    groups: frozenset[str] = frozenset()
    attributes: Mapping[str, str] = field(default_factory=dict)


def read_record(row: Mapping[str, Any]) -> Record:
    """The record in ``row``: values of client libraries, text or bytes; absent ones are None or missing.

    Raises RecordError. Ignores columns outside ``FIELDS``.
    """
    return Record(
        password_hash=_text("password_hash", row.get("password_hash"), _HASH_BYTES),
        salt=_text("salt", row.get("salt"), _HASH_BYTES),
        is_superuser=_yes("is_superuser", row.get("is_superuser")),
        tenant=_tenant(row.get("tenant")),
        groups=_groups(row.get("groups")),
        attributes=_attributes(row.get("attributes")),
    )


@dataclass(frozen=True, slots=True)
class Verification:
    """Checks the passwords of a backend; ``backend`` is its name in the chain."""

    backend: str
    hasher: PasswordHasher
    algorithm: str = "auto"
    salt_position: str = "prefix"
    iterations: int = 0

    async def judge(self, row: Mapping[str, Any] | RecordError, *, user: str, password: str) -> Verdict:
        """The verdict on the user of ``row`` with this password. Raises OverloadedError."""
        try:
            if isinstance(row, RecordError):
                raise row
            record = read_record(row)
            if not record.password_hash:
                return Deny(self.backend, "bad_password", user, detail="There is no password_hash for this user.")
            good = await self.hasher.verify(
                record.password_hash,
                password,
                salt=record.salt,
                algorithm=self.algorithm,
                salt_position=self.salt_position,
                iterations=self.iterations,
            )
        except ValueError as error:  # a RecordError, or a hash of no known kind
            return Deny(self.backend, "refused", user, detail=f"The user's record cannot be used: {error}.")
        if not good:
            return Deny(self.backend, "bad_password", user, hashed=True)
        return Allow(
            self.backend,
            user,
            tenant=record.tenant,
            groups=record.groups,
            attributes=record.attributes,
            is_superuser=record.is_superuser,
        )


def _text(name: str, value: object, limit: int) -> str:
    """A column's text; empty for NULL. Raises RecordError."""
    if value is None:
        return ""
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            value = bytes(value).decode()
        except UnicodeDecodeError:
            raise RecordError(f"{name} is not UTF-8") from None
    if not isinstance(value, str):
        raise RecordError(f"{name} is no text but {type(value).__name__}")
    if "\0" in value:
        raise RecordError(f"{name} holds a null character")
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON may have half a surrogate pair, which no answer can carry to EMQX
        raise RecordError(f"{name} is not UTF-8") from None
    if len(value) > limit:
        raise RecordError(f"{name} has {len(value)} characters; {limit} is the most")
    return value


def _yes(name: str, value: object) -> bool:
    """Whether a column says yes, in the forms of all servers; NULL is no. Raises RecordError."""
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    if isinstance(value, bytes | bytearray) and bytes(value) in {b"\0", b"\1"}:  # MySQL's BIT(1)
        return bytes(value) == b"\1"
    if isinstance(value, int):
        if value in (0, 1):
            return value == 1
        raise RecordError(f"{name} is {value}, which is neither 0 nor 1")
    word = _text(name, value, 16).strip().lower()
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise RecordError(f"{name} is neither true nor false")


def _tenant(value: object) -> str:
    """The tenant's name; empty for NULL. Raises RecordError."""
    name = _text("tenant", value, _NAME_BYTES)
    for character in "+#/,":  # it becomes part of topics, and of a list
        if character in name:
            raise RecordError(f"tenant holds {character!r}, which has a meaning of its own in topics")
    return name


def _groups(value: object) -> frozenset[str]:
    """The groups of an array, a JSON list or a text with commas. Raises RecordError."""
    if value is None:
        return frozenset()
    parts: Iterable[object]
    if isinstance(value, list | tuple):  # an array of PostgreSQL
        parts = value
    else:
        text = _text("groups", value, _MOST * _NAME_BYTES).strip()
        parts = _parsed("groups", text, list) if text.startswith("[") else text.split(",")
    names = {_text("groups", part, _NAME_BYTES).strip() for part in parts} - {""}
    if any("," in name for name in names):
        raise RecordError("a group's name holds a comma, by which EMQX tells groups apart")
    if len(names) > _MOST:
        raise RecordError(f"groups has {len(names)} names; {_MOST} is the most")
    return frozenset(names)


def _attributes(given: object) -> dict[str, str]:
    """The attributes of a JSON object, decoded or as text. Raises RecordError."""
    if isinstance(given, dict):
        value = given
    else:
        text = _text("attributes", given, _MOST * _ATTRIBUTE_BYTES)
        value = _parsed("attributes", text, dict) if text.strip() else {}
    if len(value) > _MOST:
        raise RecordError(f"attributes has {len(value)} entries; {_MOST} is the most")
    found: dict[str, str] = {}
    for name, one in value.items():
        if not isinstance(name, str) or not _ATTRIBUTE_NAME.fullmatch(name):
            raise RecordError("attributes has a name that EMQX does not take: letters, digits, _ and -")
        if name in _RESERVED:
            raise RecordError(f"attributes names {name}, which has a column of its own")
        if not isinstance(one, str):
            raise RecordError(f"attributes.{name} is no text but {type(one).__name__}; EMQX takes text alone")
        found[name] = _text(f"attributes.{name}", one, _ATTRIBUTE_BYTES)
    return found


def _parsed(name: str, text: str, kind: type) -> Any:
    """JSON of this kind. Raises RecordError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise RecordError(f"{name} is no JSON") from None
    if not isinstance(value, kind):
        raise RecordError(f"{name} is JSON, but no {'object' if kind is dict else 'list'}")
    return value
