"""Writes small files atomically: after a crash they have the old or the new content."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import structlog

from bridge.spool.segments import sync_folder
from config.error_words import words

log = structlog.get_logger("identity")


def write(path: Path, text: str) -> None:
    """Replace the file's content durably. Blocks for two fsyncs.

    The caller must hold a lock for the path, because the draft always has the same name. So crashes leave at most one
    draft, which the next write overwrites.
    """
    draft = path.with_name(f"{path.name}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()  # not os.write: a disk that is nearly full takes a part, and raises for the next one
            # Before the rename. Otherwise the name could reach the disk before the content, and a power cut would leave
            # an empty file.
            os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error tells
            draft.unlink()
        raise
    sync_folder(path.parent)


def note_end(path: Path, text: str) -> None:
    """Note an orderly end for the next start. The end itself does not fail by a disk that takes no note."""
    try:
        write(path, text)
    except OSError as error:
        consequence = "the next start takes this end for a crash"
        log.warning("end_not_noted", file=path.name, error=words(error), consequence=consequence)


def create(path: Path, text: str) -> None:
    """Write a new file; after a failure there is none. Blocks for two fsyncs. Raises FileExistsError, OSErrors."""
    with new_file(path, 0o644) as file:  # in place: a draft could be a file of the user's own
        file.write(text)


def remove(path: Path) -> bool:
    """Remove the file durably. Returns whether it existed. Blocks for an fsync."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True


@contextlib.contextmanager
def new_file(path: Path, mode: int) -> Iterator[TextIO]:
    """A file that was not there, durable at the end. After a failure there is none, since a part could be taken for all
    of it. Raises FileExistsError, and other OSErrors."""
    with open(path, "x", encoding="utf-8", newline="\n", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
