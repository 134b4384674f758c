"""What may be stored: names, groups, attributes. Each check returns the value as it is stored, or raises StoreError."""

from __future__ import annotations

__all__ = [
    "check_address",
    "check_attributes",
    "check_groups",
    "check_identity",
    "check_number",
    "check_tenant_name",
    "check_text",
    "check_user_identity",
]

import json
import re
from typing import TYPE_CHECKING, Final

from auth.errors import StoreError
from auth.networks import canonical_network
from auth.wording import NAME_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TEXT_BYTES: Final = 65_535  # MQTT 5.0 section 1.5.4
_NAME_BYTES: Final = 256
_MOST: Final = 100  # groups, or attributes, of one user: all of them travel in each question of EMQX
_ATTRIBUTE_BYTES: Final = 4096
_ATTRIBUTE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)  # what EMQX takes as a client attribute
_RESERVED: Final = frozenset({"tenant", "groups"})  # client attributes of our own
_ABSENT: Final = "undefined"  # what EMQX writes for an attribute that a client does not have


def check_text(what: str, text: str, *, limit: int = TEXT_BYTES, empty: bool = False) -> str:
    """``text``, if a client can have it at all: UTF-8 without null, no longer than ``limit`` bytes."""
    if not text and not empty:
        raise StoreError(f"{what} is empty, which no client matches.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise StoreError(f"{what} is not UTF-8, and MQTT carries nothing else.") from None
    if "\0" in text:
        raise StoreError(f"{what} holds a null character, which MQTT does not allow.")
    if size > limit:
        raise StoreError(f"{what} has {size} bytes; {limit} is the most.")
    return text


def check_address(what: str, text: str) -> str:
    """A network in its one spelling."""
    try:
        return canonical_network(text)
    except ValueError as error:
        raise StoreError(f"{what} is no address: {error}.") from None


def check_identity(kind: str, identity: str) -> str:
    """What a user, a ban or a rule names."""
    if kind == "address":
        return check_address("The address", identity)
    return check_text(f"The {kind}", identity)


def check_user_identity(kind: str, identity: str) -> str:
    """What a user is found by. A name that a password is looked up by has ``NAME_MAX`` characters at most."""
    if kind in {"username", "clientid"} and len(identity) > NAME_MAX:
        raise StoreError(
            f"The {kind} has {len(identity)} characters; {NAME_MAX} is the most for users, since nobody with a longer "
            "one is looked up."
        )
    return check_identity(kind, identity)


def check_tenant_name(name: str) -> str:
    """A tenant's name is put into topics and travels in a list of values, so it is neither a wildcard nor a list."""
    check_text("The tenant's name", name, limit=_NAME_BYTES)
    _forbid("The tenant's name", name, "+#/,")
    _present("The tenant's name", name)
    return name


def check_groups(groups: Iterable[str]) -> str:
    """Groups as they are stored and travel: sorted, joined by commas."""
    names = sorted(set(groups))
    if len(names) > _MOST:
        raise StoreError(f"{len(names)} groups are too many for one user; {_MOST} is the most.")
    for name in names:
        check_text("A group's name", name, limit=_NAME_BYTES)
        _forbid("A group's name", name, ",")
        _present("A group's name", name)
        if name != name.strip():
            raise StoreError(f"The group {name!r} begins or ends with a space.")
    return ",".join(names)


def check_attributes(attributes: Mapping[str, str]) -> str:
    """Client attributes as they are stored: a JSON object, sorted, or nothing."""
    if len(attributes) > _MOST:
        raise StoreError(f"{len(attributes)} attributes are too many; {_MOST} is the most.")
    for name, value in attributes.items():
        if not _ATTRIBUTE_NAME.fullmatch(name):
            raise StoreError(f"The attribute {name[:64]!r} has a name EMQX does not take: letters, digits, _ and -.")
        if name in _RESERVED:
            raise StoreError(f"The attribute {name} has a setting of its own: use --{name.removesuffix('s')}.")
        check_text(f"The attribute {name}", value, limit=_ATTRIBUTE_BYTES, empty=True)
        _present(f"The value of the attribute {name}", value)
    return json.dumps(dict(sorted(attributes.items())), ensure_ascii=False) if attributes else ""


def check_number(what: str, number: int | None) -> int | None:
    """A count or a moment that fits into the database."""
    if number is not None and not 0 <= number < 1 << 53:
        raise StoreError(f"{what} is out of any range.")
    return number


def _forbid(what: str, text: str, characters: str) -> None:
    for character in characters:
        if character in text:
            raise StoreError(f"{what}, {text!r}, holds {character!r}, which has a meaning of its own there.")


def _present(what: str, text: str) -> None:
    if text == _ABSENT:
        raise StoreError(f"{what} is {_ABSENT!r}, which is what EMQX writes where there is none: it would be lost.")
