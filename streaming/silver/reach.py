"""Which readings silver cannot have yet, so that the job appends them without a look.

A reading without a device's message id is a copy only of itself: read again after a reset, or brought by a ``backfill``
or a ``replay``. Its place in Kafka tells. The note ``silver.reach.json`` in the lake's folder has for each partition
the offset from which on silver's rows are this checkpoint's, of earlier batches. Readings from there on are new.

The job reads the note and appends while it holds the lock ``silver.lock`` beside it. Whoever else inserts raises the
note first, under the same lock. So the job has appended before, and the other's MERGE finds the rows; or it reads the
raised note, and looks them up by a MERGE itself. Where files are not on a disk of this machine there is no such lock,
and all readings are looked up.

The note is made from the table's own offsets if there is none, if it is another checkpoint's, or if the table has the
mark of a batch that is still to be written: the batch is repeated after a crash, or the checkpoint came from a backup.
"""

import fcntl
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming.lake.lake import DeltaTable
from streaming.lake.storage import LocalFolder, is_local

_NOTE: Final = "silver.reach.json"
_MOST_PARTITIONS: Final = 100

Offsets = dict[str, dict[str, int]]
"""Topic -> partition -> offset, as JSON has them."""


class Note(NamedTuple):
    """``checkpoint``: Spark's id of the one it holds for, empty for none; ``writer``: whose transaction marks the
    appended batches carry; ``offsets``: from where on rows are new."""

    checkpoint: str
    writer: str
    offsets: Offsets


class Reach:
    """The note of a lake's table silver. Blocks for files, and while another process writes."""

    def __init__(self, silver: DeltaTable) -> None:
        self._silver = silver
        self._is_checked = False
        self._folder = LocalFolder(silver.url.rpartition("/")[0]) if is_local(silver.url) else None

    @contextmanager
    def held(self, checkpoint: str, batch: int) -> Iterator[Note | None]:
        """The note, as it is for the whole block; None where nothing may be appended."""
        if self._folder is None:
            yield None
            return
        with self._lock(self._folder) as note:
            if note is None or note.checkpoint != checkpoint:
                # While this process runs it is taken over once: two jobs would take it from each other for ever.
                made = None if self._is_checked else self._made(checkpoint, note)
            elif not self._is_checked and self._silver.last_batch(note.writer) >= batch:
                made = self._made(checkpoint, note)
            else:
                made = note
            self._is_checked = True
            yield made

    def raise_note(self, rows: DataFrame) -> None:
        """Notes that these readings may be in silver from now on: called before they are inserted. Runs a Spark job."""
        if self._folder is None:
            return
        found = _ends(rows.where("message_id IS NULL"))
        with self._lock(self._folder) as note:
            known = note or Note("", "", {})
            changed = known._replace(offsets=_highest(known.offsets, found))
            self._folder.write_text(_NOTE, json.dumps(changed._asdict()))

    def _made(self, checkpoint: str, old: Note | None) -> Note:
        """A new note, written too, from all rows of silver: reads three columns of them."""
        assert self._folder is not None
        offsets = _highest(old.offsets if old else {}, _ends(self._silver.read()))
        note = Note(checkpoint, uuid.uuid4().hex, offsets)
        self._folder.write_text(_NOTE, json.dumps(note._asdict()))
        return note

    @contextmanager
    def _lock(self, folder: LocalFolder) -> Iterator[Note | None]:  # None: there is no note
        with folder.path("silver.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                note = Note(**json.loads(folder.read_text(_NOTE) or ""))
            except ValueError:
                note = None
            yield note


def is_new(offsets: Mapping[str, Mapping[str, int]]) -> Column:
    """Whether silver cannot have a reading, by its columns ``message_id`` and ``kafka_…``. Never null."""
    new = F.col("message_id").isNull()
    few = sum(len(of) for of in offsets.values()) <= _MOST_PARTITIONS
    for topic, of in offsets.items():
        its = F.col("kafka_topic") == topic
        if few:
            for partition, first in of.items():
                new = new & ~((F.col("kafka_offset") < first) & (F.col("kafka_partition") == int(partition)) & its)
        else:
            new = new & ~((F.col("kafka_offset") < max(of.values())) & its)
    return F.coalesce(new, F.lit(False))


def _ends(rows: DataFrame) -> Offsets:
    found: Offsets = {}
    for it in rows.groupBy("kafka_topic", "kafka_partition").agg(F.max("kafka_offset").alias("last")).collect():
        found.setdefault(it.kafka_topic, {})[str(it.kafka_partition)] = it.last + 1
    return found


def _highest(one: Mapping[str, Mapping[str, int]], other: Mapping[str, Mapping[str, int]]) -> Offsets:  # by partition
    topics = {**one, **other}
    return {
        topic: {
            partition: max(of.get(topic, {}).get(partition, 0) for of in (one, other))
            for partition in {**one.get(topic, {}), **other.get(topic, {})}
        }
        for topic in topics
    }
