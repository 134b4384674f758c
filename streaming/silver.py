"""The job ``silver``: Kafka's records as typed readings, each once, and those that are none in quarantine.

    gateway stream silver
    spark-submit --master … --packages … streaming/silver.py --config gateway.toml

Exactly once in effect: silver is written by a MERGE that inserts what it does not have, so a batch that is run again
adds nothing; the quarantine has the number of the last batch in its log and takes none twice. Silver comes first. A
crash between the two leaves the batch uncommitted, and when it is run again only the quarantine is written.
"""

from __future__ import annotations

__all__ = ["main", "start", "start_from"]

import json
import sys
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from streaming import driver
from streaming.checkpoint import prepare_checkpoint
from streaming.decode import decoded
from streaming.device_schemas import load_device_schemas
from streaming.held import held
from streaming.kafka import topics
from streaming.registry import Registry
from streaming.silver_rows import enriched, judged, rejects
from streaming.silver_table import arrivals, prepare_tables
from streaming.source import read_records, trigger
from streaming.tally import BatchCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from config.settings import Settings
    from streaming.device_schemas import DeviceSchemas
    from streaming.job import JobContext
    from streaming.silver_table import SilverTables
    from streaming.storage import Folder

QUERY = "silver"
_MOST_RECORDS = 1_000_000
"""Of one batch, where ``stream.max_offsets_per_trigger`` does not say: it is held, 500 bytes a record, in memory and
what does not fit on disk. Beside its rows a batch costs some 2.5 CPU seconds (plans, commits, code compiled anew):
with 400,000 a row took 17.5 and 18.8 µs of CPU, with these 13.6 to 14.7."""


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError if schemas, registry, tables or checkpoint do not fit."""
    source = settings
    if settings.stream.max_offsets_per_trigger is None:
        bounded = settings.stream.model_copy(update={"max_offsets_per_trigger": _MOST_RECORDS})
        source = settings.model_copy(update={"stream": bounded})
    records = read_records(spark, source, allow_data_loss=context.allow_data_loss)
    return start_from(records, settings, context, topics(settings))


def start_from(records: DataFrame, settings: Settings, context: JobContext, read: Sequence[str] = ()) -> StreamingQuery:
    """The same over any stream that has Kafka's columns. ``read``: the topics it comes from."""
    spark, stream = records.sparkSession, settings.stream
    schemas = load_device_schemas(stream.silver.schemas)
    registry = None if stream.silver.registry is None else Registry(spark, stream.silver.registry)
    if registry is not None:
        registry.devices()
    tables = prepare_tables(spark, stream, schemas.columns)
    checkpoint = prepare_checkpoint(spark, stream, QUERY, topics=read)
    writer = _BatchWriter(settings, context, tables, registry, checkpoint)
    query: StreamingQuery = (
        silver_rows(records, settings, schemas)
        .writeStream.queryName(QUERY)
        .option("checkpointLocation", checkpoint.url)
        .trigger(**trigger(stream))
        .foreachBatch(writer.write)
        .start()
    )
    return query


def silver_rows(records: DataFrame, settings: Settings, schemas: DeviceSchemas) -> DataFrame:
    """Kafka's records decoded and judged: what ``silver_rows.judged`` says."""
    return decoded(records, schemas).transform(
        judged,
        signals=schemas.columns.names,
        max_ahead=settings.stream.max_ahead,
        clocked=_clocked(schemas),
    )


def _clocked(schemas: DeviceSchemas) -> Column:
    """Whether a record's type is one whose readings carry a time of their own."""
    timed = {kind.name: kind.time.kind != "received" for kind in schemas.types.values()}
    if schemas.other is not None and schemas.other.time.kind == "received":
        return F.col("type").isin([name for name, has in timed.items() if has])
    return ~F.col("type").isin([name for name, has in timed.items() if not has])


class _BatchWriter:
    """Writes batches. Called by the query's thread alone."""

    def __init__(
        self,
        settings: Settings,
        context: JobContext,
        tables: SilverTables,
        registry: Registry | None,
        checkpoint: Folder,
    ) -> None:
        self._settings, self._context = settings.stream, context
        self._tables, self._registry, self._checkpoint = tables, registry, checkpoint
        self._query_id: str | None = None

    def write(self, rows: DataFrame, batch: int) -> None:
        """Writes one batch: the readings, then the rejects."""
        if self._registry is not None:
            rows = rows.transform(enriched, self._registry.devices())
        with held(rows) as kept:
            brought = arrivals(kept, clockless_within=self._settings.silver.clockless_within)
            new = self._tables.insert(kept, brought) if brought.readings else 0
            if brought.bad:
                self._tables.reject(rejects(kept), query=self._checkpoint_id(), batch=batch)
        self._context.tally.put(
            QUERY,
            batch,
            BatchCounts(
                brought.readings + brought.bad,
                brought.bad,
                duplicates=brought.readings - new,
                strangers=brought.strangers if self._registry is not None else 0,
            ),
        )

    def _checkpoint_id(self) -> str:
        """Spark's id of the checkpoint: batches of one that begins anew are others, though they have old numbers."""
        if self._query_id is None:
            told = self._checkpoint.read_text("metadata")
            assert told is not None, "Spark writes a checkpoint's id before its first batch"
            self._query_id = str(json.loads(told)["id"])
        return self._query_id


def main(argv: list[str] | None = None) -> int:
    """Runs the query until it ends or a signal comes. Returns the exit status (``config.errors.ExitStatus``)."""
    return driver.main(QUERY, (start,), argv)


if __name__ == "__main__":
    sys.exit(main())
