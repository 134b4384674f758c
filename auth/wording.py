"""Names that strangers chose, made fit for logs, memory and terminals."""

from __future__ import annotations

__all__ = ["bounded", "lock_name", "shown"]

import hashlib
import unicodedata
from typing import Final

_SHOWN: Final = 64
_BOUNDED: Final = 64
_UNSEEN: Final = frozenset({"Mn", "Me", "Cf", "Cc"})
_FOLDED: Final = 256  # no directory has longer names, and folding takes time


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
    """
    name = username or clientid
    if len(name) > _FOLDED:
        return bounded(name)
    folded = name
    if not (name.isascii() and name.isprintable()):
        # RFC 4518 and collations look past accents, and past characters that nobody sees: soft hyphens, joiners.
        plain = unicodedata.normalize("NFKD", name.casefold())
        folded = "".join(one for one in plain if unicodedata.category(one) not in _UNSEEN or one.isspace())
    return bounded(" ".join(folded.casefold().split()) or name)
