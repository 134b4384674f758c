"""Folders on the local disk that change places in one step, so that a reader finds the one or the other, never none.

Linux has a system call for it, ``renameat2`` with ``RENAME_EXCHANGE``; ext4, xfs, btrfs and tmpfs know it, network file
systems do not.
"""

from __future__ import annotations

__all__ = ["can_exchange", "exchange", "local_path"]

import ctypes
import os
import uuid
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def local_path(url: str) -> Path | None:
    """The folder on this machine that a URL or path names; None if it names one elsewhere."""
    if url.startswith("/"):
        return Path(url)
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in {"", "localhost"} else None


def exchange(one: Path, other: Path) -> None:
    """Has the two change places. Raises OSError, with neither moved, where the file system cannot."""
    call: Any = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise OSError("this system has no renameat2")
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


def can_exchange(folder: Path) -> bool:
    """Whether folders inside this one can change places. Tries it with two empty ones."""
    pair = [folder / f".exchange-{uuid.uuid4().hex}" for _ in range(2)]
    try:
        for one in pair:
            one.mkdir()
        exchange(*pair)
    except OSError:
        return False
    else:
        return True
    finally:
        for one in pair:
            if one.exists():
                one.rmdir()
