"""A few numbers per partition beside the index, so that after damage it can be said exactly what is missing.

One slot of 48 bytes for each partition, rewritten in place after each change and not synced: the numbers outlive the
process, and are a witness of their own when the index or the log is damaged. They are no part of what is delivered.
"""

from __future__ import annotations

__all__ = ["Slot", "Tally"]

import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from pathlib import Path

_SLOT: Final = struct.Struct("<4sIIQQQQ4x")
_MAGIC: Final = b"MKGT"
_CHECKED_FROM: Final = 8


class Slot(NamedTuple):
    """What is stored for a partition, by its number."""

    number: int
    removed: int  # every batch up to this sequence number is delivered
    last: int  # the last sequence number that was given
    batches: int
    messages: int


class Tally:
    """The file, open. ``write`` and ``read`` raise OSError."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)

    def read(self) -> dict[int, Slot]:
        """The slots whose checksum is right, by partition number."""
        content = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        found = {}
        for at in range(0, len(content) - _SLOT.size + 1, _SLOT.size):
            magic, crc, *numbers = _SLOT.unpack_from(content, at)
            if magic == _MAGIC and crc == crc32(content[at + _CHECKED_FROM : at + _SLOT.size]):
                slot = Slot(*numbers)
                found[slot.number] = slot
        return found

    def write(self, slot: Slot) -> None:
        """Set the slot of a partition. Numbers count from 1."""
        checked = _SLOT.pack(_MAGIC, 0, *slot)[_CHECKED_FROM:]
        content = _MAGIC + crc32(checked).to_bytes(4, "little") + checked
        os.pwrite(self._fd, content, (slot.number - 1) * _SLOT.size)

    def sync(self) -> None:
        """Make it durable."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
