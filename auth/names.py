"""Names that clients chose: shortened for logs and memory, and folded for lock-outs and bans."""

import hashlib
import unicodedata
from typing import Final

_SHOWN: Final = 64
_BOUNDED: Final = 64
_UNSEEN: Final = frozenset({"Mn", "Me", "Cf", "Cc"})
_UNSEEN_TOO: Final = frozenset("\u1806\ufffc")  # directories leave them out (RFC 4518 section 2.2)

NAME_MAX: Final = 256
"""The longest name by which a password is looked up. Longer names find no user.

``lock_name`` does not fold longer names, because that is slow. Without folding each spelling of a directory's user
would have its own count of failures."""


def shown(text: str) -> str:
    """``text`` for a log or a terminal: at most 64 characters, all printable. A client id may hold control characters
    that clear a screen or imitate a log line."""
    cut = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    if cut.isprintable():
        return cut
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "replace").decode() for one in cut)


def bounded(text: str) -> str:
    """A short key for ``text``: the text itself, or its digest if it is long. Names have up to 64 KiB, and 100,000 of
    them would use all memory."""
    if len(text) <= _BOUNDED:
        return text
    return f"blake2b:{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=24).hexdigest()}"


def lock_name(username: str, clientid: str) -> str:
    """The key for counting a user's failures: the user name, else the client id, folded as directories compare names.

    LDAP and many databases take ``Lamp``, ``lamp`` and ``lamp`` with a trailing space for one user. With a count for
    each spelling a guesser would have more tries. Users whose names differ only so share a count. Names longer than
    ``NAME_MAX`` are not folded.
    """
    name = username or clientid
    if len(name) > NAME_MAX:
        return bounded(name)
    folded = name
    if name.isascii() and name.isprintable():
        if " " not in name:  # the usual one, in a third of the time
            return bounded(name.lower())
    else:
        # RFC 4518 and collations ignore accents and invisible characters: soft hyphens, joiners. Capitals come first,
        # because i and the dotless i have the same capital, and many databases compare capitals.
        plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", name).upper().casefold())
        folded = "".join(
            one
            for one in plain
            if one.isspace() or (one not in _UNSEEN_TOO and unicodedata.category(one) not in _UNSEEN)
        )
    return bounded(" ".join(folded.casefold().split()) or name)


def ban_name(kind: str, value: str) -> str:
    """The key of a ban: a name folded as for lock-outs, an address unchanged."""
    return value if kind == "address" else lock_name(value, "")
