"""One user of an import file: checks its fields and makes a ``User``.

Known columns are EMQX's (``user_id``, ``password`` or ``password_hash``, ``salt``, ``is_superuser``) and those of this
service's exports. An unknown column is an error: it may be a misspelt ``disabled``.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from auth import passwords
from auth.errors import StoreError
from auth.model import Tenant
from auth.moments import parse_expiry
from auth.store.records import IdentityKind, User
from auth.store.values import check_attributes, check_groups, check_number, check_tenant_name, check_user_identity

A = TypeVar("A")
T = TypeVar("T")
_IDENTITIES: Final = ("user_id", "username", "clientid", "common_name", "address")
COLUMNS: Final = (
    *_IDENTITIES,
    "password",
    "password_hash",
    "salt",
    "is_superuser",
    "tenant",
    "groups",
    "attributes",
    "disabled",
    "expires_at",
)
_TENANT_COLUMNS: Final = frozenset({"name", "enabled", "logins_per_second", "users_max", "attributes"})
_WITH_PASSWORDS: Final = frozenset({"username", "clientid"})
_BARE: Final = frozenset({"md5", "sha", "sha256", "sha512"})


class EntryError(ValueError):
    """An unusable field. ``column`` names it; the sentence never holds a password or hash."""

    def __init__(self, column: str, sentence: str) -> None:
        super().__init__(sentence)
        self.column = column


@dataclass(frozen=True, slots=True)
class HashForm:
    """How ``password_hash`` was made, for hashes that do not tell it (as in ``auth.postgresql``)."""

    algorithm: str = "auto"
    salt_position: str = "prefix"
    pbkdf2_digest: str = "sha256"
    pbkdf2_iterations: int = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    """A user of a file. ``plain`` is its readable password, which has to be hashed before it is stored."""

    line: int
    user: User
    plain: str | None = field(default=None, repr=False)


def read_entry(fields: Mapping[str, Any], line: int, form: HashForm, kind: IdentityKind) -> Entry:
    """The user in ``fields``, which are CSV texts or JSON values. ``kind`` is the kind of ``user_id``.

    Raises EntryError.
    """
    for column in fields:
        if column not in COLUMNS:
            raise EntryError(column, f"there is no such column; there are {', '.join(COLUMNS)}")
    found_kind, identity = _identity(fields, kind)
    plain = _text(fields, "password")
    stored, plain = _password(fields, form, plain)
    if (stored or plain is not None) and found_kind not in _WITH_PASSWORDS:
        raise EntryError("password_hash", f"a user found by {found_kind} has no password")
    user = User(
        found_kind,
        identity,
        stored,
        _checked("tenant", check_tenant_name, tenant) if (tenant := _text(fields, "tenant") or "") else "",
        _groups(fields.get("groups")),
        _attributes(fields.get("attributes")),
        _yes(fields, "is_superuser"),
        _yes(fields, "disabled"),
        _moment(fields.get("expires_at")),
    )
    return Entry(line, user, plain)


def read_tenant(fields: Mapping[str, Any]) -> Tenant:
    """The tenant in a line of an export. Raises EntryError."""
    for column in fields:
        if column not in _TENANT_COLUMNS:
            raise EntryError(
                column, f"there is no such field of a tenant; there are {', '.join(sorted(_TENANT_COLUMNS))}"
            )
    return Tenant(
        _checked("name", check_tenant_name, _text(fields, "name") or ""),
        _yes(fields, "enabled") if "enabled" in fields else True,
        _number(fields, "logins_per_second"),
        _number(fields, "users_max"),
        _attributes(fields.get("attributes")),
    )


def _identity(fields: Mapping[str, Any], kind: IdentityKind) -> tuple[IdentityKind, str]:
    """How the user is found, and its name. Raises EntryError unless exactly one column names it."""
    named = [(column, text) for column in _IDENTITIES if (text := _text(fields, column))]
    if len(named) != 1:
        raise EntryError(
            named[1][0] if named else _IDENTITIES[0],
            f"a user is named by exactly one of {', '.join(_IDENTITIES)}, not by {len(named)}",
        )
    ((column, text),) = named
    found = kind if column == "user_id" else cast("IdentityKind", column)
    return found, _checked(column, lambda value: check_user_identity(found, value), text)


def _password(fields: Mapping[str, Any], form: HashForm, plain: str | None) -> tuple[str, str | None]:
    """The password to store, or the readable one that still has to be hashed."""
    hashed, salt = _text(fields, "password_hash"), _text(fields, "salt") or ""
    if plain is not None and hashed:
        raise EntryError("password", "a user has a password or a password_hash, not both")
    if plain is not None:
        _check_plain("password", plain)
        return "", plain
    if not hashed:
        return "", None
    if form.algorithm == "plain":
        _check_plain("password_hash", hashed)
        return "", hashed
    try:
        if form.algorithm in _BARE:
            return passwords.salted_text(
                hashed, salt=salt, algorithm=form.algorithm, salt_position=form.salt_position
            ), None
        if form.algorithm == "pbkdf2" and not hashed.startswith("$"):
            return passwords.pbkdf2_text(
                hashed, salt=salt, digest=form.pbkdf2_digest, iterations=form.pbkdf2_iterations
            ), None
        passwords.parse(hashed)
    except ValueError as error:
        raise EntryError("password_hash", str(error)) from None
    return hashed, None


def _check_plain(column: str, plain: str) -> None:
    """Raises EntryError for a readable password that MQTT cannot carry."""
    try:
        size = len(plain.encode())
    except UnicodeEncodeError:
        raise EntryError(column, "the password is not UTF-8, and MQTT carries nothing else") from None
    if not plain or size > passwords.PASSWORD_BYTES:
        raise EntryError(column, f"a password has 1 to {passwords.PASSWORD_BYTES} bytes")


def _text(fields: Mapping[str, Any], column: str) -> str | None:
    """A column's text; None if it is missing. Raises EntryError."""
    value = fields.get(column)
    if value is None:
        return None
    if not isinstance(value, str):
        raise EntryError(column, f"this is text, and not {_kind(value)}")
    return value


def _yes(fields: Mapping[str, Any], column: str) -> bool:
    """Whether a column says true; missing or empty means false. Raises EntryError."""
    value = fields.get(column)
    if value is None or value == "":
        return False
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false", "1", "0"}:
        return value.lower() in {"true", "1"}
    raise EntryError(column, "this is true or false")


def _number(fields: Mapping[str, Any], column: str) -> int | None:
    """A whole number; None if it is missing. Raises EntryError."""
    value = fields.get(column)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise EntryError(column, "this is a whole number, or null")
    return _checked(column, lambda number: check_number(column, number), value)


def _groups(value: object) -> frozenset[str]:
    """Groups of a list, or of a text with commas. Raises EntryError."""
    if value is None or value == "":
        return frozenset()
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise EntryError("groups", "this is a list of texts")
    return frozenset(_checked("groups", check_groups, [name.strip() for name in names]).split(",")) - {""}


def _attributes(value: object) -> dict[str, str]:
    """Attributes of an object, or of its JSON. Raises EntryError."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise EntryError("attributes", "this is no JSON object") from None
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise EntryError("attributes", "this is an object of texts; EMQX takes texts alone")
    text = _checked("attributes", check_attributes, value)
    return cast("dict[str, str]", json.loads(text)) if text else {}


def _moment(value: object) -> int | None:
    """Unix seconds of a number or a text; None for never. Raises EntryError."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked("expires_at", lambda number: check_number("the expiry", number), value)
    if isinstance(value, str):
        if value.isascii() and value.isdigit() and len(value) < 17:
            return _moment(int(value))
        try:
            moment = parse_expiry(value)
        except ValueError as error:
            raise EntryError("expires_at", str(error)) from None
        return _checked("expires_at", lambda number: check_number("the expiry", number), moment)
    raise EntryError("expires_at", "this is a moment, as Unix seconds or as text with its zone")


def _checked(column: str, check: Callable[[A], T], value: A) -> T:
    """The value in its stored form. A StoreError becomes an EntryError that names the column."""
    try:
        return check(value)
    except StoreError as error:
        raise EntryError(column, str(error).removesuffix(".")) from None


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "what it is")
