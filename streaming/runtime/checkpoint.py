"""Where a query keeps how far it is, and what is fixed once it has begun.

``<stream.checkpoint>/<query>/`` is Spark's. Beside it ``<query>.json`` is ours: the version of the jobs that began it,
whose it is, what its state depends on and the topics it reads; ``<query>.lock`` is held by the process that runs it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from config.errors import ConfigError
from config.settings import StreamSettings
from streaming.errors import tell
from streaming.kafka.source import trigger
from streaming.lake.lake import DeltaTable
from streaming.lake.storage import Folder, location
from streaming.runtime import job_lock
from streaming.runtime.checkpoint_log import read_note

VERSION = 1  # raised when a new version of the jobs cannot go on from an old checkpoint


class Checkpoint(Folder):
    @cached_property
    def id(self) -> str:
        """Spark's id of it, from the first batch on. One that begins anew has another: its batches are others."""
        metadata = self.read_text("metadata")
        assert metadata is not None, "Spark writes a checkpoint's id before its first batch"
        return str(json.loads(metadata)["id"])

    def start(
        self, rows: DataFrame, stream: StreamSettings, write: Callable[[DataFrame, int], None], *, mode: str = "append"
    ) -> StreamingQuery:
        """Starts the query. ``write`` is called with the rows and the number of each batch, in the query's thread."""
        name = self.url.rpartition("/")[2]
        # Of the fair scheduler; the query's thread takes it over from the one that starts it.
        rows.sparkSession.sparkContext.setLocalProperty("spark.scheduler.pool", name)
        query: StreamingQuery = (
            rows.writeStream.queryName(name)
            .outputMode(mode)
            .option("checkpointLocation", self.url)
            .trigger(**trigger(stream))
            .foreachBatch(write)
            .start()
        )
        return query


def prepare_checkpoint(
    spark: SparkSession,
    stream: StreamSettings,
    query: str,
    fixed: Mapping[str, str | int] | None = None,
    *,
    topics: Sequence[str] = (),
    doubled: str | None = None,
) -> Checkpoint:
    """The query's checkpoint folder, locked for this process.

    Args:
        fixed: what the state and tables of the query depend on: settings by name, and the version of its state.
        topics: Kafka's topics that it reads. A change is told, since Spark would begin or fail without a word.
        doubled: the table whose rows a checkpoint that begins anew would write a second time.

    To be called before the table of the query's name is made. Raises ConfigError if another process runs the query, if
    the checkpoint was begun by a newer version, for another query or with other settings, or if checkpoint and tables
    do not belong together.
    """
    beside = Folder(spark, location(stream.checkpoint))
    folder = Checkpoint(spark, f"{beside.url}/{query}")
    job_lock.hold(beside.url, query)
    _require_its_tables(folder, *(DeltaTable(spark, stream, name) for name in (query, doubled) if name))
    read = {"topics": sorted(topics)} if topics else {}
    wanted: dict[str, Any] = {"version": VERSION, "query": query, **(fixed or {}), **read}
    try:
        begun = read_note(beside, query) if folder.exists("metadata") else {}
    except ValueError as error:
        way_out = _way_out(query, "Bring a copy of it back")
        raise ConfigError(f"{error}: what the checkpoint was begun with is not known.{way_out}") from error
    if begun:
        _require_fitting(folder.url, query, begun, wanted)
        oldest = "the oldest record that Kafka holds"
        place = f"where it left them, else from {oldest}" if doubled else oldest
        _tell_topics(query, begun.get("topics"), wanted.get("topics"), place)
        wanted = begun | wanted
        if wanted == begun:
            return folder
    beside.write_text(f"{query}.json", json.dumps(wanted))
    return folder


def _require_its_tables(checkpoint: Checkpoint, table: DeltaTable, doubled: DeltaTable | None = None) -> None:
    if checkpoint.names("commits") and not table.exists():
        raise ConfigError(
            f"The checkpoint {checkpoint.url} is in the middle of what the job reads, but there is no table at"
            f" {table.url}: what lies before would be missing from it. Was the table moved, or stream.lake.path"
            f" changed?{_way_out(table.name, 'Bring it back')}"
        )
    if doubled and not checkpoint.exists("metadata") and doubled.exists() and not doubled.read().isEmpty():
        raise ConfigError(
            f"{doubled.url} holds data, but the checkpoint {checkpoint.url} that says how far it goes is not there, so"
            " all that can still be read would be written a second time. Was the checkpoint deleted, or"
            " stream.checkpoint changed? Bring it back, or give stream.lake.path and stream.checkpoint new folders."
        )


def _way_out(query: str, other: str) -> str:
    return (
        f" {other}, or begin anew: gateway stream reset {query} puts the checkpoint aside and says what that means for"
        " the tables."
    )


def _require_fitting(url: str, query: str, begun: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if begun.get("version", 0) > VERSION:
        raise ConfigError(
            f"The checkpoint {url} was begun by a newer version of the gateway (its form is {begun['version']}, this"
            f" one knows {VERSION}). Run the job with that version again.{_way_out(query, 'Set that back')}"
        )
    if begun.get("query", query) != query:
        raise ConfigError(
            f"The checkpoint {url} belongs to the query {begun['query']}, not to {query}: was a folder copied or"
            f" renamed? Put it back, or give this job another stream.checkpoint."
        )
    may_differ = {"version", "query", "topics"}
    if changed := [name for name in wanted if name not in may_differ and begun.get(name) != wanted[name]]:
        differences = ", ".join(f"{name} is now {wanted[name]}, was {begun.get(name)}" for name in changed)
        raise ConfigError(
            f"The checkpoint {url} was begun with other settings: {differences}. What it has computed so far would not"
            f" fit.{_way_out(query, 'Set that back')}"
        )


def _tell_topics(query: str, begun: Sequence[str] | None, wanted: Sequence[str] | None, place: str) -> None:
    if begun is None or wanted is None:  # not noted, or it reads none
        return
    if added := sorted(set(wanted) - set(begun)):
        tell(f"note: {query} reads {', '.join(added)} from now on, from {place}.")
    if removed := sorted(set(begun) - set(wanted)):
        tell(
            f"note: {query} does not read {', '.join(removed)} any more. If it ends, for Spark takes a missing topic"
            " for lost data, start once with --allow-data-loss. What was read of it stays in the tables."
        )
