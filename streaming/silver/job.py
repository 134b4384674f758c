"""The job ``silver``: Kafka's records as typed readings, each once, and those that are none in quarantine.

    gateway stream silver

Exactly once in effect: both tables are written by a MERGE that inserts what they do not have. Readings that are good
at first look and that silver cannot have yet (see ``reach``) are appended instead, in the pass that decodes them.
Silver comes first. A crash between the two leaves the batch uncommitted, and when it is run again only the quarantine
is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.streaming.query import StreamingQuery

from config.settings import Settings, StreamSettings
from streaming.decoding.decode import GOOD, Decoding
from streaming.decoding.device_schemas import DeviceSchemas, load_device_schemas
from streaming.decoding.registry import Registry
from streaming.decoding.schema_index import ReceivedTable
from streaming.job import JobContext
from streaming.kafka.options import topics
from streaming.kafka.source import read_records
from streaming.kafka.topic_ids import require_same_topics
from streaming.lake.forgotten import Forgotten
from streaming.lake.lake import held
from streaming.metrics import BatchCounts
from streaming.runtime.checkpoint import Checkpoint, prepare_checkpoint
from streaming.silver.reach import is_new, is_unread
from streaming.silver.rows import enriched, judged, readings
from streaming.silver.tables import SilverTables

QUERY = "silver"
_APPENDED = "_appended"


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError if schemas, registry, tables or checkpoint do not fit."""
    records = read_records(spark, settings, allow_data_loss=context.allow_data_loss)
    return start_from(records, settings, context, topics(settings))


def start_from(records: DataFrame, settings: Settings, context: JobContext, read: Sequence[str] = ()) -> StreamingQuery:
    """Starts the query over any stream that has Kafka's columns. ``read``: the topics it comes from."""
    spark, stream = records.sparkSession, settings.stream
    schemas = load_device_schemas(stream.silver.schemas)
    if (registry := _registry(spark, stream)) is not None:
        registry.devices()  # raises if it cannot be read
    checkpoint = prepare_checkpoint(spark, stream, QUERY, topics=read)
    if read:
        require_same_topics(spark, settings, QUERY, read, allow_data_loss=context.allow_data_loss)
    tables = SilverTables(spark, stream, schemas.columns)
    rows = partial(_rows, settings=settings, schemas=schemas, registry=registry)
    writer = _BatchWriter(context, tables, checkpoint, Decoding(schemas), rows)
    return checkpoint.start(records, stream, writer.write)


def registered_rows(records: DataFrame, settings: Settings, schemas: DeviceSchemas) -> DataFrame:
    """Kafka's records as silver's rows, for tools, which have all records at once."""
    decoded = Decoding(schemas).decoded(records)
    return _rows(decoded, settings, schemas, _registry(records.sparkSession, settings.stream))


def _registry(spark: SparkSession, stream: StreamSettings) -> Registry | None:
    return None if stream.silver.registry is None else Registry(spark, stream.silver.registry)


def _rows(decoded: DataFrame, settings: Settings, schemas: DeviceSchemas, registry: Registry | None) -> DataFrame:
    """What ``rows.judged`` says of decoded records, with the registry's types and sites, and without forgotten devices'
    readings."""
    ahead = settings.stream.max_ahead
    rows = judged(decoded, signals=schemas.columns.names, max_ahead=ahead, clocked=_clocked(schemas))
    if registry is not None:
        rows = rows.transform(enriched, registry.devices())
    return Forgotten(rows.sparkSession, settings.stream).without(rows)


def _clocked(schemas: DeviceSchemas) -> Column:
    """Whether a record's type is one whose readings carry a time of their own."""
    timed = {kind.name: not isinstance(kind.time, ReceivedTable) for kind in schemas.types.values()}
    if schemas.other is not None and isinstance(schemas.other.time, ReceivedTable):
        return F.col("type").isin([name for name, has in timed.items() if has])
    return ~F.col("type").isin([name for name, has in timed.items() if not has])


@dataclass
class _BatchWriter:
    """Writes batches. Called by the query's thread alone. ``rows``: decoded records as silver's rows. ``is_plain``:
    whether the next batch is tried in one pass: of the batch before, at most half needed the second look; none at all,
    if it was not tried itself."""

    context: JobContext
    tables: SilverTables
    checkpoint: Checkpoint
    decoding: Decoding
    rows: Callable[[DataFrame], DataFrame]
    is_plain: bool = True

    def write(self, records: DataFrame, batch: int) -> None:  # called for each batch
        counts = self._in_one_pass(records, batch) if self.is_plain else None
        if counts is None:
            counts, others = self._write_rows(records, batch)
            self.is_plain = not others
        self.context.counts[QUERY, batch] = counts

    def _in_one_pass(self, records: DataFrame, batch: int) -> BatchCounts | None:
        """Appends what silver cannot have while it is decoded, as far as it is good at first look. Decodes the stretch
        with all other records once more, which are none or few. None if nothing may be appended now; then nothing was
        done."""
        with self.tables.reach.held(self.checkpoint.id, batch) as note:
            if note is None:
                return None
            rows, seen = self.rows(self.decoding.first_look(records)), Observation()
            watched = rows.withColumn(_APPENDED, F.col(GOOD) & is_new(note.offsets)).observe(
                seen,
                F.count(F.lit(1)).alias("rows"),
                *(
                    of(F.when(~F.col(_APPENDED), F.col(f"kafka_{name}"))).alias(f"{end}_{name}")
                    for name in ("partition", "offset")
                    for end, of in (("first", F.min), ("last", F.max))
                ),
            )
            self.tables.append(watched.where(_APPENDED), note.writer, batch)
        found = seen.get
        counts = BatchCounts(found["rows"])
        if found["first_offset"] is None:
            return counts
        stretch = [
            F.col(name).between(found[f"first_{name}"], found[f"last_{name}"]) for name in ("partition", "offset")
        ]
        again, _ = self._write_rows(records.where(stretch[0] & stretch[1]), batch, is_appended=True)
        self.is_plain = 2 * again.rows <= counts.rows
        return counts._replace(quarantined=again.quarantined)

    def _write_rows(self, records: DataFrame, batch: int, *, is_appended: bool = False) -> tuple[BatchCounts, int]:
        """Decodes the records once and reads them several times. Returns also how many :meth:`_in_one_pass` would have
        left. ``is_appended``: the others are there already."""
        with held(self.rows(self.decoding.decoded(records))) as kept:
            with self.tables.reach.held(self.checkpoint.id, batch) as note:
                new = None if note is None else is_new(note.offsets)
                known = F.lit(False) if note is None else ~is_unread(note.offsets)
                if new is not None and is_appended:
                    new = new & F.col(GOOD)
                brought = self.tables.arrivals(kept, new, known)
                if note is not None and new is not None and brought.new and not is_appended:
                    self.tables.append(readings(kept.where(new)), note.writer, batch)
            if brought.readings > brought.new:
                rest = kept if new is None else kept.where(~new)
                if new is None or is_appended:  # where a first look found fault, readings are new to the note
                    self.tables.insert(rest, brought)
                else:
                    self.tables.merge(rest, brought)
            if brought.bad:
                self.tables.reject(kept, brought)
        counts = BatchCounts(brought.readings + brought.bad, brought.bad)
        return counts, counts.rows - brought.plain
