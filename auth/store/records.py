"""Users, tenants, bans, rules and audit entries of the built-in database, as values."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from auth.model import Ban, Rule, Tenant

IdentityKind = Literal["username", "clientid", "common_name", "address"]

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class User:
    """A device or a person. The key is ``kind`` and ``identity`` together, compared byte for byte.

    Never changed. Not frozen, because that would slow down its creation (``auth.model``)."""

    kind: IdentityKind
    identity: str  # for kind address a network in its canonical form
    password: str = field(default="", repr=False)  # as in auth.passwords; "": no login by password
    tenant: str = ""
    groups: frozenset[str] = _NOBODY
    attributes: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    is_superuser: bool = False
    disabled: bool = False
    expires_at_s: int | None = None  # Unix seconds; logins are refused from then on
    created_s: int = 0
    changed_s: int = 0
    revision: int = 0  # version of the database at its last change


class StoredRule(NamedTuple):
    """A rule and its position in the list."""

    id: int
    position: int
    rule: Rule


class AuditEntry(NamedTuple):
    """A change with its time and author. Never holds a secret."""

    id: int
    at_s: int
    by: str
    action: str  # "user add", "ban remove", …
    subject: str
    detail: str


def attributes_of(text: str) -> Mapping[str, str]:
    """Attributes from their stored form: a JSON object, or an empty text."""
    return json.loads(text) if text else _NOTHING


def user_of(row: Sequence[Any]) -> User:
    """The user of a row of USER_COLUMNS."""
    groups = row[4]
    return User(
        row[0],
        row[1],
        row[2],
        row[3],
        frozenset(groups.split(",")) if groups else _NOBODY,
        attributes_of(row[5]),
        row[6] != 0,
        row[7] != 0,
        row[8],
        row[9],
        row[10],
        row[11],
    )


def login_user_of(kind: IdentityKind, identity: str, row: Sequence[Any]) -> User:
    """The user of a row of LOGIN_COLUMNS, without its dates: a login needs none, and each column takes time."""
    groups = row[2]
    return User(
        kind,
        identity,
        row[0],
        row[1],
        frozenset(groups.split(",")) if groups else _NOBODY,
        attributes_of(row[3]) if row[3] else _NOTHING,
        row[4] != 0,
        row[5] != 0,
        row[6],
        revision=row[7],
    )


def tenant_of(row: Sequence[Any]) -> Tenant:
    return Tenant(row[0], row[1] != 0, row[2], row[3], attributes_of(row[4]), row[5], row[6], row[7])


def ban_of(row: Sequence[Any]) -> Ban:
    return Ban(*row)
