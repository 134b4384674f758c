"""What the built-in database holds, as values."""

from __future__ import annotations

__all__ = [
    "AuditEntry",
    "IdentityKind",
    "StoredRule",
    "User",
    "ban_of",
    "tenant_of",
    "user_of",
]

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from auth.model import Ban, Tenant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from auth.model import Rule

IdentityKind = Literal["username", "clientid", "common_name", "address"]

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class User:
    """A device or a person. The key is ``kind`` and ``identity`` together, compared byte for byte. Not to be changed,
    and not frozen for the reason in ``auth.model``."""

    kind: IdentityKind
    identity: str  # of kind address: a network in its canonical spelling
    password: str = field(default="", repr=False)  # auth.passwords; "" has none, and so cannot log in with one
    tenant: str = ""
    groups: frozenset[str] = _NOBODY
    attributes: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    is_superuser: bool = False
    disabled: bool = False
    expires_at_s: int | None = None  # Unix seconds; from then on refused
    created_s: int = 0
    changed_s: int = 0
    revision: int = 0  # the version of the database that its last change made


class StoredRule(NamedTuple):
    """A rule and where it stands in the list."""

    id: int
    position: int
    rule: Rule


class AuditEntry(NamedTuple):
    """Who changed what, and when. Never holds a secret."""

    id: int
    at_s: int
    by: str
    action: str  # "user add", "ban remove", …
    subject: str
    detail: str


def attributes_of(text: str) -> Mapping[str, str]:
    """Attributes as they are stored: a JSON object, or nothing."""
    return json.loads(text) if text else _NOTHING


def user_of(row: Sequence[Any]) -> User:
    """A row of USER_COLUMNS."""
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


def tenant_of(row: Sequence[Any]) -> Tenant:
    """A row of TENANT_COLUMNS."""
    return Tenant(row[0], row[1] != 0, row[2], row[3], attributes_of(row[4]), row[5], row[6], row[7])


def ban_of(row: Sequence[Any]) -> Ban:
    """A row of BAN_COLUMNS."""
    return Ban(*row)
