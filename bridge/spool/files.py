"""The files of the spool's folder, its lock, and the small file of topics."""

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Final
from zlib import crc32

from bridge.errors import SpoolError
from bridge.spool.segments import sync_folder
from config import process_lock
from config.error_words import NO_ROOM

# Kept free for the index: on a full disk delivered batches must be removable, and the gateway able to start.
RESERVE_BYTES: Final = 4 << 20
_SIDE_FILES: Final = ("", "-wal", "-shm", "-journal")


class Files:
    """The names of the files, and the lock on the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "index.db"
        self.tally = folder / "tally"
        self.topics = folder / "topics.json"
        self._reserve_path = folder / "reserve"
        self._lock_path = folder / "lock"
        self._lock = -1  # descriptor; -1: not locked

    def lock(self) -> None:
        """Create the folder and lock it. Raises SpoolError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = process_lock.take(self._lock_path, 0o640)
        except process_lock.HeldError as held:
            raise SpoolError(
                f"The spool in {self.folder.absolute()} is in use by process {held.process}. Stop that gateway first."
            ) from None
        except OSError as error:
            if error.errno in NO_ROOM:
                raise  # as for whatever comes after the lock
            raise SpoolError(
                f"The spool's folder {self.folder.absolute()} cannot be used ({error.strerror}). data_dir must be a "
                "folder this user may write; in a container, a mounted volume."
            ) from error

    def free_bytes(self) -> int:
        """Free bytes of the disk for this user. Raises OSError."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def reserve(self) -> None:
        """Reserve some space for a full disk. Does nothing without enough free space."""
        if self._reserve_path.exists():
            return
        with contextlib.suppress(OSError):
            if self.free_bytes() < 3 * RESERVE_BYTES:
                return
            fd = os.open(self._reserve_path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o640)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)

    def free_reserve(self) -> bool:
        """Free the reserved space. Returns whether there was any."""
        try:
            self._reserve_path.unlink()
        except OSError:
            return False
        return True

    def remove_index(self) -> None:
        """Remove an index that is not whole, if the disk lets it."""
        with contextlib.suppress(OSError):
            for suffix in _SIDE_FILES:
                self.index.with_name(self.index.name + suffix).unlink(missing_ok=True)

    def unlock(self) -> None:
        """Unlock the folder. The lock file stays: its removal would race with the next owner."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def holder(self) -> str:
        """The process that has the lock, or "". Takes no lock."""
        return process_lock.holder(self._lock_path)


class Topics:
    """The last known number of partitions of each topic, for a start without Kafka."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damaged = False
        self.counts: dict[str, int] = self._read()

    def _read(self) -> dict[str, int]:
        """The number of partitions by topic; none when the file is missing, or damaged."""
        try:
            content = json.loads(self._path.read_text())
            counts = {str(topic): int(count) for topic, count in content["topics"].items()}
            if content["checksum"] == _checksum(counts):
                return counts
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        self.damaged = True  # Kafka will be asked again
        return {}

    def write(self, counts: dict[str, int]) -> None:
        """Write the file, durable on return. Raises OSError, and then the old file remains."""
        draft = self._path.with_suffix(".draft")
        with draft.open("w") as file:
            json.dump({"topics": counts, "checksum": _checksum(counts)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        sync_folder(self._path.parent)
        self.counts = counts


def _checksum(counts: dict[str, int]) -> int:
    return crc32(json.dumps(sorted(counts.items())).encode())


def put_aside(path: Path) -> Path:
    """Rename a damaged database with its companion files; returns the new name."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    number = 0
    while (aside := path.with_name(f"{path.name}.damaged-{stamp}" + (f"-{number}" if number else ""))).exists():
        number += 1
    for suffix in _SIDE_FILES:
        old = path.with_name(path.name + suffix)
        if old.exists():
            old.rename(aside.with_name(aside.name + suffix))
    return aside
