"""The spool's log: files of some 16 MiB, written once from front to end, removed when nothing in them is needed.

Called from the spool's thread only; every function blocks on the disk.
"""

from __future__ import annotations

__all__ = ["HEADER_BYTES", "Segments", "Span", "check_header", "make_header", "read_owner"]

import contextlib
import os
import re
import struct
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zlib import crc32

from bridge.errors import SpoolError
from bridge.spool.record import FIXED_BYTES, MAGIC, Head, check_data, decode, head_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FORMAT: Final = 1
SEGMENT_BYTES: Final = 16 << 20  # what is freed at a time; 64 files for the default of 1 GiB
_HEADER: Final = struct.Struct("<8sII64s48x")  # magic, format, CRC-32 of the instance's name, the name
_MAGIC: Final = b"MKGSPOOL"
HEADER_BYTES: Final = _HEADER.size
_OPEN_FILES: Final = 8
_VECTOR: Final = 1024  # IOV_MAX: pieces that one call writes
_WINDOW: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """A record in a segment, or bytes that are none (``head`` is None)."""

    offset: int
    end: int
    head: Head | None


class Segments:
    """The folder of segments. One is open for writing; ``write`` starts another when it is full."""

    def __init__(self, folder: Path, instance: str) -> None:
        self.folder = folder
        self._instance = instance
        self._files: OrderedDict[int, int] = OrderedDict()  # descriptors for reading, the one used last at the end
        self._fd = -1
        self.active = 0  # number of the segment being written; 0: none
        self.end = 0  # where its next record goes
        self.last = 0  # the highest number ever used here
        self.uncut: dict[int, int] = {}  # segments that go on behind their end with what nobody was told is stored
        self.took_ns = 0  # what the disk took for the last write

    def path(self, number: int) -> Path:
        """Where a segment is."""
        return self.folder / f"{number:012d}.log"

    def numbers(self) -> list[int]:
        """The segments there are, oldest first."""
        names = (re.fullmatch(r"(\d{12})\.log", path.name) for path in self.folder.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def size(self, number: int) -> int:
        """Bytes in a segment; 0 if it is not there."""
        try:
            return self.path(number).stat().st_size
        except FileNotFoundError:
            return 0

    def write(self, pieces: Sequence[bytes]) -> int:
        """Append the pieces and make them durable; returns their offset in the ``active`` segment.

        Raises OSError, and then nothing of them is there.
        """
        self._cut()
        if self.active and self.end >= SEGMENT_BYTES:
            self.seal()
        if not self.active:
            self._start()
        offset = self.end
        began_ns = time.monotonic_ns()
        try:
            end = _write_all(self._fd, pieces, offset)
            os.fdatasync(self._fd)
        except OSError:
            # What was written must not be there, or a crash would bring it back. Whether fdatasync left it on the disk
            # nobody knows, so the file is cut; if that fails too, it is written no more, and cut as soon as it can be.
            try:
                os.ftruncate(self._fd, offset)
            except OSError:
                self.uncut[self.active] = offset
                self.seal()
            raise
        finally:
            self.took_ns = time.monotonic_ns() - began_ns
        self.end = end
        return offset

    def _cut(self) -> None:
        """Try again to cut what could not be cut."""
        for number, end in tuple(self.uncut.items()):
            try:
                os.truncate(self.path(number), end)
            except FileNotFoundError:
                pass
            except OSError:
                continue
            del self.uncut[number]

    def seal(self) -> None:
        """Write no more to the active segment."""
        if self.active:
            os.close(self._fd)
            self._fd, self.active, self.end = -1, 0, 0

    def _start(self) -> None:
        number = self.last + 1
        path = self.path(number)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o640)
        try:
            os.write(fd, make_header(self._instance))
            os.fsync(fd)
            sync_folder(self.folder)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._fd, self.active, self.end, self.last = fd, number, HEADER_BYTES, number

    def read(self, number: int, offset: int) -> tuple[Head, bytes] | None:
        """The record at an offset; None when it is not there as it was written. Raises OSError."""
        try:
            fd = self._reader(number)
        except FileNotFoundError:
            return None
        head = _read_head(fd, offset)
        if head is None:
            return None
        data = os.pread(fd, head.data_bytes, offset + head.head_bytes)
        return (head, data) if check_data(head, data) else None

    def scan(self, number: int, offset: int) -> Iterator[Span]:
        """Records from an offset on, and between them what is none. Never ends early: after damage it finds the next
        whole record."""
        fd = self._reader(number)
        end = os.fstat(fd).st_size
        bad = None
        while offset < end:
            head = _read_head(fd, offset)
            if head is not None and check_data(head, os.pread(fd, head.data_bytes, offset + head.head_bytes)):
                if bad is not None:
                    yield Span(bad, offset, None)
                    bad = None
                yield Span(offset, offset + head.size, head)
                offset += head.size
            else:
                bad = offset if bad is None else bad
                offset = _next_magic(fd, offset + 1, end)
        if bad is not None:
            yield Span(bad, end, None)

    def drop(self, number: int, *, keep_as: str = "") -> None:
        """Remove a segment; with ``keep_as`` rename it, for somebody to look at."""
        if number == self.active:
            self.seal()
        fd = self._files.pop(number, None)
        if fd is not None:
            os.close(fd)
        path = self.path(number)
        with contextlib.suppress(FileNotFoundError):
            if keep_as:
                path.rename(self.folder / keep_as)
            else:
                path.unlink()

    def close(self) -> None:
        """Close every file."""
        self._cut()
        self.seal()
        while self._files:
            os.close(self._files.popitem()[1])

    def _reader(self, number: int) -> int:
        fd = self._files.get(number)
        if fd is None:
            fd = os.open(self.path(number), os.O_RDONLY | os.O_CLOEXEC)
            self._files[number] = fd
            if len(self._files) > _OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
        else:
            self._files.move_to_end(number)
        return fd


def _write_all(fd: int, pieces: Sequence[bytes], offset: int) -> int:
    for first in range(0, len(pieces), _VECTOR):
        some = pieces[first : first + _VECTOR]
        wanted = sum(map(len, some))
        written = os.pwritev(fd, some, offset)
        if written != wanted:  # the disk is nearly full: what is left says so by an error, or fits after all
            rest = memoryview(b"".join(some))
            while written < wanted:
                written += os.pwrite(fd, rest[written:], offset + written)
        offset += wanted
    return offset


def _read_head(fd: int, offset: int) -> Head | None:
    start = os.pread(fd, FIXED_BYTES + 256, offset)  # 256: topic and route of most; one call instead of two
    size = head_bytes(start)
    if not size:
        return None
    return decode(start[:size] if size <= len(start) else os.pread(fd, size, offset))


def _next_magic(fd: int, offset: int, end: int) -> int:
    while offset < end:
        window = os.pread(fd, _WINDOW + len(MAGIC) - 1, offset)
        found = window.find(MAGIC)
        if found >= 0:
            return offset + found
        offset += _WINDOW
    return end


def make_header(instance: str) -> bytes:
    """The first bytes of a segment."""
    name = instance.encode()
    return _HEADER.pack(_MAGIC, FORMAT, crc32(name.ljust(64, b"\0")), name)


def read_owner(path: Path) -> str | None:
    """The instance that a segment belongs to, None when its header is not whole. Raises SpoolError for a newer
    format."""
    with path.open("rb") as file:
        start = file.read(HEADER_BYTES)
    if len(start) < HEADER_BYTES:
        return None
    magic, format_, crc, name = _HEADER.unpack(start)
    if magic != _MAGIC or crc32(name) != crc:
        return None
    if format_ > FORMAT:
        raise SpoolError(
            f"{path} has the spool's format {format_}; this gateway knows {FORMAT}. A newer gateway wrote it: run that "
            "one until the spool is empty, or move the folder away."
        )
    return str(name.rstrip(b"\0").decode(errors="replace"))


def check_header(path: Path, instance: str) -> bool:
    """Whether a segment's header is whole. Raises SpoolError when a newer gateway or another instance wrote it."""
    owner = read_owner(path)
    if owner is None:
        return False
    if owner != instance:
        raise SpoolError(
            f"The spool in {path.parent} belongs to instance {owner!r}, not {instance!r}. Set data_dir or instance "
            "right; to deliver what another instance left, use gateway spool export and import."
        )
    return True


def sync_folder(folder: Path) -> None:
    """Make new and removed names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
