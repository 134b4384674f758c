"""Reads a spool without opening it, also while a gateway uses it."""

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import SpoolError
from bridge.spool.files import Files
from bridge.spool.index import Index, Totals
from bridge.spool.segments import Segments
from config.error_words import words


@dataclass(frozen=True, slots=True)
class SpoolStatus:
    """A spool by its index. After a kill the last appends may be missing."""

    folder: Path
    instance: str
    holder: str  # the process that uses it, "" if none does
    clean: bool  # whether it was closed properly
    disk_bytes: int
    partitions: tuple[Totals, ...]

    @property
    def batches(self) -> int:
        return sum(one.batches for one in self.partitions)

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.partitions)


def inspect(folder: Path) -> SpoolStatus | None:
    """The status of a spool, None when there is none. Reads the whole index; raises SpoolError."""
    files = Files(folder)
    if not files.index.exists():
        if folder.exists() and Segments(folder, "").numbers():
            raise SpoolError(
                f"The spool in {folder.absolute()} has batches, and their index is missing. The next start of the "
                "gateway makes it anew from them; delete nothing."
            )
        return None
    holder = files.holder()
    try:
        index = Index.read_only(files.index)
        try:
            names = {number: (topic, partition) for number, topic, partition, _ in index.partitions()}
            sums, _ = index.survey()
            partitions = tuple(
                sorted(
                    Totals(*names[number], found.batches, found.messages, found.bytes, found.oldest_ms)
                    for number, found in sums.items()
                )
            )
            instance, clean = index.fact("instance"), index.fact("clean") == "yes"
        finally:
            index.release()
    except (sqlite3.Error, KeyError) as error:
        raise SpoolError(
            f"The index {files.index.absolute()} cannot be read ({words(error)}). A start of the gateway repairs what "
            "can be repaired, and says what is lost."
        ) from error
    disk = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return SpoolStatus(folder, instance, holder, clean, disk, partitions)


def imported(folder: Path, export: str) -> int:
    """The number of batches of an export that a spool has stored; 0 where its index cannot be read."""
    try:
        index = Index.read_only(Files(folder).index)
        try:
            return index.imported(export)
        finally:
            index.release()
    except sqlite3.Error:
        return 0


def unreadable(folder: Path) -> list[Totals]:
    """Read every batch of the index. Returns the unreadable ones by partition. Only while no gateway uses the spool."""
    files = Files(folder)
    segments = Segments(folder, "")
    index = Index.read_only(files.index)
    bad = []
    try:
        for number, topic, partition, _ in index.partitions():
            batches = messages = size = 0
            for row in index.of_partition(number):
                try:
                    found = segments.read(row.segment, row.offset, row.id)
                except OSError:  # of a disk that fails
                    found = None
                if found is None:
                    batches, messages, size = batches + 1, messages + row.messages, size + row.size
            if batches:
                bad.append(Totals(topic, partition, batches, messages, size, 0))
    except sqlite3.Error as error:
        raise SpoolError(f"The index {files.index.absolute()} cannot be read ({words(error)}).") from error
    finally:
        index.release()
        segments.close()
    return bad
