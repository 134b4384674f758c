"""Gives a spool to another instance, with the data directory that it takes over."""

import os
import sqlite3
from pathlib import Path

from bridge.errors import SpoolError
from bridge.spool.files import Files
from bridge.spool.index import Index
from bridge.spool.segments import HEADER_BYTES, Segments, make_header, read_owner
from config.error_words import words


def adopt_spool(folder: Path, instance: str) -> bool:
    """Write the instance's name into every file that has an owner. True when it was another's. Blocks.

    May be called again after an interruption. The next start judges a segment with a damaged header. Raises
    SpoolError while a process uses the folder, for a newer format, or when the disk fails.
    """
    files = Files(folder)
    files.lock()
    try:
        changed = _adopt_log(Segments(folder, instance), instance)
        return _adopt_index(files.index, instance) or changed
    except (OSError, sqlite3.Error) as error:
        raise SpoolError(
            f"The spool in {folder.absolute()} cannot be given to {instance!r} ({words(error)})."
        ) from error
    finally:
        files.unlock()


def _adopt_log(segments: Segments, instance: str) -> bool:
    """Write the instance's name into the segments of another. True when there was one."""
    changed = False
    for number in segments.numbers():
        path = segments.path(number)
        owner = read_owner(path)
        if owner is None or owner == instance:
            continue
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            written = os.pwrite(fd, make_header(instance), 0)
            assert written == HEADER_BYTES
            os.fsync(fd)
        finally:
            os.close(fd)
        changed = True
    return changed


def _adopt_index(path: Path, instance: str) -> bool:
    """Write the instance's name into the index. True when it was another's; False without an index."""
    if not path.exists():
        return False
    index = Index(path, instance)
    try:
        if index.fact("instance") == instance:
            return False
        with index.transaction():
            index.note("instance", instance)
        return True
    finally:
        index.release()
