"""Upkeep of the Parquet tables that jobs write batch by batch: days of small files put together, old days deleted.

A table's folders are ``DAY/…/batch=N``. What stands above the batches (a day, or a topic of a day) is a *leaf*. It is
written anew aside and changes places with the old one in one step (``streaming.swap``): a reader that lists it finds
every row once. A reader that has listed the old one and opens its files only then finds them gone, and has to read
again; tables with a log (Delta) spare it that.

A job beside it may write at any time. A batch that is not committed may be written again under its own number: a leaf
with such a batch is left alone; a batch that arrives while a leaf is written anew ends up in the old one, and is moved.
"""

from __future__ import annotations

__all__ = ["Leaf", "ParquetDays"]

import json
import shutil
import uuid
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from streaming.swap import can_exchange, exchange, local_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_DRAFT: Final = ".upkeep-"
_NOTE: Final = "replaced.json"
_BATCH: Final = "batch="


@dataclass(frozen=True, slots=True)
class Leaf:
    """Files of one day (and topic) that may be put together."""

    path: Path
    day: date
    files: int
    size: int
    batches: tuple[int, ...]
    """Numbers of its batches, in order."""


class ParquetDays:
    """One such table on the local disk. Raises ValueError for another file system's URL."""

    def __init__(self, spark: SparkSession, url: str, schema: StructType, order: Sequence[str] = ()) -> None:
        root = local_path(url)
        if root is None:
            raise ValueError(f"{url} is not on the local disk")
        self._spark, self._root, self._order = spark, root, tuple(order)
        self._schema = schema
        self._exchanges: bool | None = None

    @property
    def can_replace(self) -> bool:
        """Whether this file system can put a folder in another's place in one step."""
        if self._exchanges is None:
            self._exchanges = can_exchange(self._root)
        return self._exchanges

    def leaves(self) -> list[Leaf]:
        """All leaves, the oldest day first. Reads names and sizes, no rows."""
        return sorted(self._leaves(), key=lambda leaf: (leaf.day, str(leaf.path)))

    def _leaves(self) -> Iterator[Leaf]:
        for day in self._root.glob("*_date=*"):
            try:
                of = date.fromisoformat(day.name.partition("=")[2])
            except ValueError:
                continue  # rows without a time are under no day: __HIVE_DEFAULT_PARTITION__
            for path in sorted({batch.parent for batch in day.glob(f"**/{_BATCH}*") if batch.is_dir()}):
                files = [it.stat().st_size for it in path.glob(f"{_BATCH}*/*.parquet")]
                batches = sorted(int(it.name.removeprefix(_BATCH)) for it in path.glob(f"{_BATCH}*"))
                yield Leaf(path, of, len(files), sum(files), tuple(batches))

    def recover(self) -> None:
        """Finishes what an upkeep that was cut off left aside. Only while no other upkeep runs."""
        for draft in self._root.glob(f"{_DRAFT}*"):
            note = draft / _NOTE
            if note.exists():
                told = json.loads(note.read_text())
                self._discard(draft, self._root / told["leaf"], set(told["batches"]))
            shutil.rmtree(draft, ignore_errors=True)

    def compact(self, leaf: Leaf, files: int) -> int:
        """Puts a leaf's batches together into so many files, under the last one's number. Returns how many there are
        then. Blocks for as long as reading and writing its rows takes."""
        batches = [leaf.path / f"{_BATCH}{number}" for number in leaf.batches]
        rows = self._read(batches)
        if self._order:
            spread = rows.repartitionByRange(files, *self._order) if files > 1 else rows.coalesce(1)
            rows = spread.sortWithinPartitions(*self._order)
        else:
            rows = rows.coalesce(files)
        return self._replace(leaf, rows, self._read(batches).count())

    def delete_day(self, day: date) -> int:
        """Removes all of a day; returns how many files that were. A reader finds all of it or none."""
        files = 0
        for folder in self._root.glob(f"*_date={day.isoformat()}"):
            files += sum(1 for _ in folder.glob("**/*.parquet"))
            draft = self._root / f"{_DRAFT}{uuid.uuid4().hex}"
            folder.rename(draft)
            shutil.rmtree(draft)
        return files

    def _read(self, batches: Sequence[Path]) -> DataFrame:
        inside = {part.partition("=")[0] for part in batches[0].relative_to(self._root).parts}
        stored = StructType([field for field in self._schema if field.name not in inside])
        return self._spark.read.schema(stored).parquet(*map(str, batches))

    def _replace(self, leaf: Leaf, rows: DataFrame, expected: int) -> int:
        draft = self._root / f"{_DRAFT}{uuid.uuid4().hex}"
        new = draft / "data"
        whole = new / f"{_BATCH}{leaf.batches[-1]}"
        rows.write.parquet(str(whole))
        written = self._spark.read.parquet(str(whole)).count()
        if written != expected:
            shutil.rmtree(draft)
            raise OSError(f"{leaf.path} was read with {expected} rows and written with {written}; it stays as it is")
        told = {"leaf": str(leaf.path.relative_to(self._root)), "batches": leaf.batches}
        (draft / _NOTE).write_text(json.dumps(told))
        exchange(new, leaf.path)
        self._discard(draft, leaf.path, set(leaf.batches))
        shutil.rmtree(draft)
        return sum(1 for _ in leaf.path.glob(f"{_BATCH}{leaf.batches[-1]}/*.parquet"))

    @staticmethod
    def _discard(draft: Path, leaf: Path, replaced: set[int]) -> None:
        """Removes the batches that were replaced; what else is there came meanwhile, and belongs into the leaf.

        Until the folder is gone: a job may have found its way into it before the exchange, and put a batch there after.
        """
        old = draft / "data"
        while old.exists():
            for batch in list(old.iterdir()):
                if batch.name.startswith(_BATCH) and int(batch.name.removeprefix(_BATCH)) not in replaced:
                    batch.rename(leaf / batch.name)
                elif batch.is_dir():
                    shutil.rmtree(batch)
                else:
                    batch.unlink()
            try:
                old.rmdir()
            except OSError:
                continue  # one more came
