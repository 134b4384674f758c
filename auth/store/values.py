"""Checks of stored values: names, groups, attributes. Each returns the value to store, or raises StoreError."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from auth.errors import StoreError
from auth.names import NAME_MAX
from auth.networks import canonical_network

TEXT_BYTES: Final = 65_535  # MQTT 5.0 section 1.5.4
_NAME_BYTES: Final = 256
_MOST: Final = 100  # groups or attributes of one user: each question of EMQX has all of them
_ATTRIBUTE_BYTES: Final = 4096
_ATTRIBUTE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)  # EMQX's client attributes
_RESERVED: Final = frozenset({"tenant", "groups"})  # client attributes that the service sets
_ABSENT: Final = "undefined"  # EMQX's text for a missing attribute


def check_text(what: str, text: str, *, limit: int = TEXT_BYTES, empty: bool = False) -> str:
    """``text``, if MQTT can carry it: UTF-8 without null, at most ``limit`` bytes."""
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
    """A network in its canonical form."""
    try:
        return canonical_network(text)
    except ValueError as error:
        raise StoreError(f"{what} is no address: {error}.") from None


def check_identity(kind: str, identity: str) -> str:
    """The name in a user, a ban or a rule."""
    if kind == "address":
        return check_address("The address", identity)
    return check_text(f"The {kind}", identity)


def check_user_identity(kind: str, identity: str) -> str:
    """The name of a user. With a password it has ``NAME_MAX`` characters at most."""
    if kind in {"username", "clientid"} and len(identity) > NAME_MAX:
        raise StoreError(
            f"The {kind} has {len(identity)} characters; {NAME_MAX} is the most for users, since nobody with a longer "
            "one is looked up."
        )
    return check_identity(kind, identity)


def check_tenant_name(name: str) -> str:
    """A tenant's name, without wildcards and commas, because it becomes part of topics and lists."""
    check_text("The tenant's name", name, limit=_NAME_BYTES)
    _forbid("The tenant's name", name, "+#/,")
    _present("The tenant's name", name)
    return name


def check_groups(groups: Iterable[str]) -> str:
    """Groups in their stored form: sorted, joined by commas."""
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
    """Client attributes in their stored form: a sorted JSON object, or empty."""
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
    """A count or time that fits into the database."""
    if number is not None and not 0 <= number < 1 << 53:
        raise StoreError(f"{what} is out of any range.")
    return number


def _forbid(what: str, text: str, characters: str) -> None:
    for character in characters:
        if character in text:
            raise StoreError(f"{what}, {text!r}, holds {character!r}, which has a meaning of its own there.")


def _present(what: str, text: str) -> None:
    if text == _ABSENT:
        raise StoreError(f"{what} is {_ABSENT!r}, which EMQX writes for an absent value: it would be lost.")
