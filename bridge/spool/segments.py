"""The spool's log: files of some 16 MiB, each written once, and removed when no batch needs it.

Called from the spool's thread only; every function blocks on the disk.
"""

import contextlib
import os
import re
import struct
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from bridge.errors import SpoolError
from bridge.spool.record import FIXED_BYTES, MAGIC, Head, SpoolBatch, decode, head_bytes

FORMAT: Final = 1
SEGMENT_BYTES: Final = 16 << 20  # freed at a time; 64 files for the default of 1 GiB
_HEADER: Final = struct.Struct("<8sII64s48x")  # magic, format, CRC-32 of the instance's name, the name
_MAGIC: Final = b"MKGSPOOL"
HEADER_BYTES: Final = _HEADER.size
_OPEN_FILES: Final = 8
_VECTOR: Final = 1024  # IOV_MAX: pieces that one call writes
_WINDOW: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """A record in a segment, or bytes that are no record (``head`` is None).

    ``intact`` is False for changed bytes, and for a record whose batch has changed. Bytes of an interrupted write are
    intact.
    """

    offset: int
    end: int
    head: Head | None
    intact: bool = True


class Segments:
    """The folder of segments. One is open for writing; ``write`` starts another when it is full."""

    def __init__(self, folder: Path, instance: str) -> None:
        self.folder = folder
        self._instance = instance
        self._files: OrderedDict[int, int] = OrderedDict()  # descriptors for reading, the one used last at the end
        self._fd = -1  # of the active segment, for writing
        self.active = 0  # number of the segment being written; 0: none
        self.end = 0  # where its next record goes
        self.last = 0  # the highest number ever used here
        self.uncut: dict[int, int] = {}  # segments with unacknowledged bytes behind their end
        self.took_ns = 0  # time of the last write

    def path(self, number: int) -> Path:
        return self.folder / f"{number:012d}.log"

    def numbers(self) -> list[int]:
        """The existing segments, oldest first."""
        names = (re.fullmatch(r"(\d{12})\.log", path.name) for path in self.folder.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def size(self, number: int) -> int:
        """Bytes in a segment; 0 without a file."""
        try:
            return self.path(number).stat().st_size
        except FileNotFoundError:
            return 0

    def write(self, pieces: Sequence[bytes]) -> int:
        """Append the pieces and make them durable; returns their offset in the ``active`` segment.

        Raises OSError, and then none of them is stored.
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
            # A crash must not restore these bytes, and fdatasync may have left them on disk. So the file is cut. If
            # that fails too, no more is written to it, and it is cut later.
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
        """Try again to truncate segments."""
        for number, end in tuple(self.uncut.items()):
            try:
                os.truncate(self.path(number), end)
            except FileNotFoundError:
                pass
            except OSError:
                continue
            del self.uncut[number]

    def seal(self) -> None:
        if self.active:
            os.close(self._fd)
            self._fd, self.active, self.end = -1, 0, 0

    def _start(self) -> None:
        """Create the next segment and make it the active one."""
        number = self.last + 1
        path = self.path(number)
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o640)
        try:
            os.write(fd, make_header(self._instance))
            os.fsync(fd)
            sync_folder(self.folder)
        except OSError:
            os.close(fd)
            try:
                path.unlink()
            except OSError:
                self.last = number  # the next segment needs another name; a start removes this file
            raise
        self._fd, self.active, self.end, self.last = fd, number, HEADER_BYTES, number

    def read(self, number: int, offset: int, id_: int) -> SpoolBatch | None:
        """The batch of this id at an offset; None when it has changed or the segment is missing. Raises OSError."""
        try:
            fd = self._reader(number)
        except FileNotFoundError:
            return None
        head = _read_head(fd, offset)
        if head is None or head.id != id_:
            return None
        return head.with_data(os.pread(fd, head.data_bytes, offset + head.head_bytes))

    def scan(self, number: int, offset: int) -> Iterator[Span]:
        """Records from an offset on, those with damaged data included, and the stretches without a record. After
        damage it goes on at the next record."""
        fd = self._reader(number)
        end = os.fstat(fd).st_size
        bad = None
        while offset < end:
            head = _read_head(fd, offset)
            if head is not None and offset + head.size <= end:
                if bad is not None:
                    yield Span(bad, offset, None, intact=False)
                    bad = None
                intact = head.is_of(os.pread(fd, head.data_bytes, offset + head.head_bytes))
                yield Span(offset, offset + head.size, head, intact)
                offset += head.size
            else:
                bad = offset if bad is None else bad
                offset = _next_magic(fd, offset + 1, end)
        if bad is not None:
            yield Span(bad, end, None, _is_cut_short(fd, bad, end))

    def drop(self, number: int, *, keep_as: str = "") -> None:
        """Remove a segment; with ``keep_as`` rename it instead, for analysis."""
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
        self._cut()
        self.seal()
        while self._files:
            os.close(self._files.popitem()[1])

    def _reader(self, number: int) -> int:
        """A descriptor for reading a segment. The latest ones stay open. Raises OSError."""
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
    """Write the pieces one behind another; returns the offset behind the last."""
    for first in range(0, len(pieces), _VECTOR):
        some = pieces[first : first + _VECTOR]
        wanted = sum(map(len, some))
        written = os.pwritev(fd, some, offset)
        if written != wanted:  # the disk is nearly full: the rest fits, or raises
            rest = memoryview(b"".join(some))
            while written < wanted:
                written += os.pwrite(fd, rest[written:], offset + written)
        offset += wanted
    return offset


def _read_head(fd: int, offset: int) -> Head | None:
    """Header and names of the record at an offset; None when there is none, or it is damaged."""
    start = os.pread(fd, FIXED_BYTES + 256, offset)  # 256: topic and route of most; one call instead of two
    size = head_bytes(start)
    if not size:
        return None
    return decode(start[:size] if size <= len(start) else os.pread(fd, size, offset))


def _is_cut_short(fd: int, offset: int, end: int) -> bool:
    """Whether the last bytes of a file are the beginning of a record, or zeros after a power cut."""
    start = os.pread(fd, min(FIXED_BYTES, end - offset), offset)
    if not any(start):
        return True
    if len(start) < FIXED_BYTES:
        return start.startswith(MAGIC) or MAGIC.startswith(start)
    size = head_bytes(start)
    return bool(size) and (size > end - offset or decode(os.pread(fd, size, offset)) is not None)


def _next_magic(fd: int, offset: int, end: int) -> int:
    """Where the next record may begin, from ``offset`` on; ``end`` when nowhere."""
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
    """Whether a segment's header is intact. Raises SpoolError for a newer format or another instance."""
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
    """Make created and removed file names of a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
