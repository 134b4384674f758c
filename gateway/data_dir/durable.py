"""Small files that a crash leaves either as they were or as they were to become."""

from __future__ import annotations

__all__ = ["remove", "write"]

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replace the file's content; when this returns, a power cut leaves the new one. Blocks for two fsyncs.

    Whoever writes a path holds a lock that keeps others from it: the draft's name is always the same, so that crashes
    leave one behind at most, which the next write overwrites.
    """
    draft = path.with_name(f"{path.name}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
        # Before the rename: else the name may be on the disk before the content, and a power cut leaves an empty file.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(path)
    _sync_directory(path.parent)


def remove(path: Path) -> bool:
    """Remove the file for good; whether it was there. Blocks for an fsync."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    _sync_directory(path.parent)
    return True


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
