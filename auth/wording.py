"""Names that strangers chose, made fit for logs, memory and terminals."""

from __future__ import annotations

__all__ = ["bounded", "shown"]

import hashlib
from typing import Final

_SHOWN: Final = 64
_BOUNDED: Final = 64


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
