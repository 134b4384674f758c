"""Which readings silver cannot have yet, so that the job appends them without a look.

A reading without a device's message id is a copy only of itself, read again. Its place in Kafka tells. The note
``silver.reach.json`` in the lake's folder has for each partition the offset from which on silver's rows are this
checkpoint's, of earlier batches. Readings from there on are new.

The job reads the note and appends while it holds the lock ``silver.lock`` beside it. Whoever else inserts raises the
note first, under the same lock. So the job has appended before, and the other's MERGE finds the rows; or it reads the
raised note, and looks them up by a MERGE itself. Where files are not on a disk of this machine there is no such lock,
and all readings are looked up.

The note is made from the offsets of silver and its quarantine if there is none, if it is another checkpoint's, or if
silver has the mark of a batch that is still to be written: the batch is repeated after a crash, or the checkpoint came
from a backup.
"""

import fcntl
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming.lake.lake import DeltaTable
from streaming.lake.storage import LocalFolder, is_local

_NOTE: Final = "silver.reach.json"

Offsets = dict[str, dict[str, int]]
"""Topic -> partition -> offset, as JSON has them."""


class Note(NamedTuple):
    checkpoint: str  # Spark's id of the one it holds for, empty for none
    writer: str  # whose transaction marks the appended batches carry
    offsets: Offsets  # from where on rows are new


class Reach:
    """The note of a lake's table silver. Blocks for files, and while another process writes."""

    def __init__(self, silver: DeltaTable, quarantine: DeltaTable) -> None:
        self._silver, self._quarantine = silver, quarantine
        self._is_checked = False
        self._folder = LocalFolder(silver.url.rpartition("/")[0]) if is_local(silver.url) else None

    @contextmanager
    def held(self, checkpoint: str, batch: int) -> Iterator[Note | None]:
        """The note, as it is for the whole block; None where nothing may be appended."""
        if self._folder is None:
            yield None
            return
        with self._lock(self._folder) as note:
            is_ours = note.checkpoint == checkpoint
            if not self._is_checked and not (is_ours and self._silver.last_batch(note.writer) < batch):
                # Of all rows, but three columns. For none at all the first Spark job of a process would take seconds.
                tables = (it for it in (self._silver, self._quarantine) if not it.is_empty())
                found = [end for table in tables for end in _ends(table.read())]
                offsets = _raised(note.offsets, found)
                note = Note(checkpoint, uuid.uuid4().hex, offsets)
                self._folder.write_text(_NOTE, json.dumps(note._asdict()))
                is_ours = True
            # Taken over once while this process runs: two jobs would take it from each other for ever.
            self._is_checked = True
            yield note if is_ours else None

    def raise_note(self, rows: DataFrame) -> None:
        """Notes that these readings may be in silver from now on: called before they are inserted. Runs a Spark job."""
        if self._folder is None:
            return
        found = _ends(rows.where("message_id IS NULL"))
        with self._lock(self._folder) as note:
            changed = note._replace(offsets=_raised(note.offsets, found))
            self._folder.write_text(_NOTE, json.dumps(changed._asdict()))

    @contextmanager
    def _lock(self, folder: LocalFolder) -> Iterator[Note]:  # an empty one, if there is none
        with folder.path("silver.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                note = Note(**json.loads(folder.read_text(_NOTE) or ""))
            except ValueError:
                note = Note("", "", {})
            yield note


def is_new(offsets: Mapping[str, Mapping[str, int]]) -> Column:
    """Whether silver cannot have a reading, by its columns ``message_id`` and ``kafka_…``. Never null."""
    return F.col("message_id").isNull() & is_unread(offsets)


def is_unread(offsets: Mapping[str, Mapping[str, int]]) -> Column:
    """Whether neither table can have a record, by its place. Never null."""
    unread = F.lit(True)
    for topic, of in offsets.items():
        firsts = ", ".join(f"{of.get(str(partition), 0)}L" for partition in range(max(map(int, of)) + 1))
        first = F.coalesce(F.expr(f"get(array({firsts}), kafka_partition)"), F.lit(0))
        unread = unread & ((F.col("kafka_topic") != topic) | (F.col("kafka_offset") >= first))
    return F.coalesce(unread, F.lit(False))


def _ends(rows: DataFrame) -> list[Row]:
    return rows.groupBy("kafka_topic", "kafka_partition").agg(F.max("kafka_offset").alias("last")).collect()


def _raised(offsets: Offsets, ends: Iterable[Row]) -> Offsets:
    """The offsets, each behind its partition's end at least."""
    raised = {topic: dict(of) for topic, of in offsets.items()}
    for it in ends:
        of = raised.setdefault(it.kafka_topic, {})
        of[str(it.kafka_partition)] = max(of.get(str(it.kafka_partition), 0), it.last + 1)
    return raised
