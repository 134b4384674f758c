"""Names that strangers chose, made fit for logs, memory and terminals."""

from __future__ import annotations

__all__ = ["NAME_MAX", "ban_name", "bounded", "lock_name", "shown"]

import hashlib
import unicodedata
from typing import Final

_SHOWN: Final = 64
_BOUNDED: Final = 64
_UNSEEN: Final = frozenset({"Mn", "Me", "Cf", "Cc"})
_UNSEEN_TOO: Final = frozenset("\u1806\ufffc")  # directories leave them out (RFC 4518 section 2.2)

NAME_MAX: Final = 256
"""Characters of a name that a password is looked up by. Longer names find nobody. Folding them costs too much; and
unfolded, each spelling would have tries of its own at what is one user to a directory."""


def shown(text: str) -> str:
    """``text`` as a log or a terminal may show it: 64 characters at most, and none that is not printable. A client id
    can hold what clears a screen, or a line that looks like ours."""
    cut = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    if cut.isprintable():
        return cut
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "replace").decode() for one in cut)


def bounded(text: str) -> str:
    """A text that stands for ``text`` in a table and takes little room, however long that is: itself, if it is short,
    else a digest. A name has up to 64 KiB, and 100,000 of those would be all the memory there is."""
    if len(text) <= _BOUNDED:
        return text
    return f"blake2b:{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=24).hexdigest()}"


def lock_name(username: str, clientid: str) -> str:
    """By what the failures of a user are counted: the user name, else the client id, as a directory compares names.

    To LDAP and many a database ``Lamp``, ``lamp`` and ``lamp`` with a space behind it are one user; counted apart, each
    spelling would give a guesser as many tries again. Two users whose names differ in nothing else share a count.
    A name longer than ``NAME_MAX`` finds nobody, and is not folded.
    """
    name = username or clientid
    if len(name) > NAME_MAX:
        return bounded(name)
    folded = name
    if not (name.isascii() and name.isprintable()):
        # RFC 4518 and collations look past accents, and past characters that nobody sees: soft hyphens, joiners.
        # By the capitals first: the dotless i has the same one as i, and many a database compares by them.
        plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).upper().casefold())
        folded = "".join(
            one
            for one in plain
            if one.isspace() or (one not in _UNSEEN_TOO and unicodedata.category(one) not in _UNSEEN)
        )
    return bounded(" ".join(folded.casefold().split()) or name)


def ban_name(kind: str, value: str) -> str:
    """By what a ban is found: a name as lock-outs compare it, an address as it is."""
    return value if kind == "address" else lock_name(value, "")
