"""Counts per partition beside the index. After damage they give the exact number of lost messages.

Each partition has a slot of 48 bytes, rewritten after each change without fsync: it survives the process. The counts
are independent of index and log. Delivery does not use them.
"""

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

_SLOT: Final = struct.Struct("<4sIIQQQQ4x")
_MAGIC: Final = b"MKGT"
_CHECKED_FROM: Final = 8


class Slot(NamedTuple):
    """The counts of a partition, by its number."""

    number: int
    removed: int  # every batch up to this sequence number is delivered
    last: int  # the highest sequence number so far
    batches: int
    messages: int


class Tally:
    """The open file. ``write`` and ``read`` raise OSError."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)

    def read(self) -> dict[int, Slot]:
        """The slots with a right checksum, by partition number."""
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
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
