"""The job ``gold``: aggregates of silver's signals over windows of event time, per device, type and site.

    gateway stream gold

Silver's new rows say which windows are touched; those are computed again from silver as it is then, and take the place
of what the table has. So data that comes days late corrects the windows it belongs to, and a batch that is run again
(after a crash before or after the write) writes the same or nothing: exactly once in effect, without batch numbers.

Silver only gains readings while this job watches; who takes readings away (``forget``) calls :func:`forget_device`.
What retention took from silver stays in gold: a reading that comes for such a day is counted as late and changes
nothing.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.streaming.query import StreamingQuery

from config.settings import Settings
from config.values.window_shapes import WindowShape, parse_window, step_of
from streaming import lake_tables
from streaming.decoding.device_schemas import load_device_schemas
from streaming.gold import transforms as gold_transforms
from streaming.job import JobContext
from streaming.lake.lake import DeltaTable, retried
from streaming.lake.ranges import EPOCH, MOST_RANGES, TimeRange, aligned, between, joined, moment, timestamp
from streaming.metrics import BatchCounts
from streaming.runtime.checkpoint import prepare_checkpoint

QUERY: Final = "gold"
_MOST_NAMED: Final = 8  # stretches with their keys: Spark compiles the condition anew for each batch
_MOST_PANES: Final = 500_000
"""Touched panes that are handed to every task, some 100 bytes each. Beyond, all panes of the touched times are
computed: the same rows, and cheaper than to sort readings by key."""
_BATCH_BYTES: Final = "1g"  # of silver's files: a table that has been there for years is taken in pieces
_HOUR_US: Final = 3_600_000_000
_KEY: Final = ("window_date", "window", "window_start", "level", "key", "signal")
_VALUES: Final = tuple(name for name in gold_transforms.GOLD.names if name not in _KEY)


class _Stretch(NamedTuple):
    """A stretch of time, and of each level the first and the last key that panes in it are touched of."""

    time: TimeRange
    keys: dict[str, tuple[bytes, bytes]]


class _Gold:
    """The tables, of which its own is made if it is not there, and the shapes of the windows: ``step``, that of the
    panes, and the ``longer`` ones."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        stream = settings.stream
        self.silver, self.table = DeltaTable(spark, stream, "silver"), DeltaTable(spark, stream, "gold")
        windows = tuple(map(parse_window, stream.gold.windows))
        self.step = step_of(windows)
        self.longer = tuple(shape for shape in windows if shape != self.step)
        self.shapes = (self.step, *self.longer)
        signals = load_device_schemas(stream.silver.schemas).signals
        self.units = {name: signal.unit or None for name, signal in signals.items()}
        self._kept = stream.lake.retention.silver  # None: for ever
        # With deletion vectors: an open window is replaced in every batch, and would else take the other rows of its
        # file along, all day long.
        properties = {"delta_enableDeletionVectors": "true", "delta_autoOptimize_autoCompact": "true"}
        self.table.create(gold_transforms.GOLD, ("window_date",), **properties)

    @property
    def whole_since(self) -> datetime:
        """From when on silver has all readings it ever had. Retention may have been shorter than it is now."""
        kept = datetime.now(UTC) - self._kept if self._kept is not None else EPOCH
        return datetime.combine(max(kept.date(), self.silver.whole_since()), time.min, UTC)

    def reach(self, touched: Sequence[_Stretch]) -> list[_Stretch]:
        """When the windows are that a part of ``touched`` is in."""
        us, ranges = timedelta(microseconds=1), [one.time for one in touched]
        wide = (one for shape in self.shapes for one in aligned(ranges, shape.length // us, shape.every // us))
        return _with_keys(joined(wide, MOST_RANGES), touched)


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError without silver, or if the checkpoint has other windows."""
    stream = settings.stream
    lake_tables.existing(spark, stream, "silver", job="silver")
    checkpoint = prepare_checkpoint(spark, stream, QUERY, {"stream.gold.windows": ", ".join(stream.gold.windows)})
    gold = _Gold(spark, settings)

    def write(new: DataFrame, batch: int) -> None:
        context.counts[QUERY, batch] = _write(gold, new)

    own = stream.model_copy(update={"trigger": stream.gold.trigger})
    return checkpoint.start(gold.silver.read_stream(maxBytesPerTrigger=_BATCH_BYTES), own, write)


def recompute(spark: SparkSession, settings: Settings, readings: DataFrame) -> int:
    """Computes the windows that these rows of silver are in again, from all of silver, and returns of how many rows:
    not of those that are late. May be done again, and while the job runs."""
    counts = _write(_Gold(spark, settings), readings)
    return counts.rows - counts.late


def forget_device(spark: SparkSession, settings: Settings, device: str) -> None:
    """Takes a device's readings out of the windows of its type and site, and its own rows of the days that silver has.

    To be called before its rows are deleted from silver, which say where it took part; doing it again does no harm.
    The job must not run meanwhile: it would compute windows with the readings that silver still has.
    """
    gold = _Gold(spark, settings)
    readings = gold.silver.read()
    # Not by the setting: silver has all of the days that maintain has not deleted yet.
    kept = readings.where(f"event_date >= DATE'{gold.silver.whole_since()}'")
    mine = kept.where(F.col("device") == device)
    _replace(gold, mine, readings.where(F.col("device") != device), takes_away=True)


def _write(gold: _Gold, new: DataFrame) -> BatchCounts:
    """Brings the table up to date with a batch of silver's new rows. Those of days that silver does not keep are late:
    it has no others of their windows any more, which stay as they are."""

    def replaced() -> BatchCounts:
        while True:
            seen, before, since = Observation(), gold.table.version(), F.lit(gold.whole_since)
            late = F.count_if(F.col("event_time") < since)
            watched = new.observe(seen, F.count(F.lit(1)).alias("rows"), late.alias("late"))
            _replace(gold, watched.where(F.col("event_time") >= since), gold.silver.read())
            # A backfill and the job may write at once. Where the other's figures of newer silver came between our look
            # at silver and our MERGE, Delta sees no conflict, and ours, which are older, took their place.
            if gold.table.changes_since(before) <= 1:
                return BatchCounts(seen.get["rows"], 0, late=seen.get["late"])

    return retried(replaced)  # what is computed anew is right, whatever compaction or forget has written between


def _replace(gold: _Gold, changed: DataFrame, silver: DataFrame, *, takes_away: bool = False) -> None:
    """Computes the windows that the readings ``changed`` are in from ``silver``, and puts them into the table.
    ``takes_away``: windows that no reading is left of are deleted."""
    touched = gold_transforms.touched_panes(changed, gold.step).persist()
    parts = None
    try:
        stretches, count = _extent(touched, gold.step)
        if not stretches:
            return
        if count > _MOST_PANES or len(stretches) > _MOST_NAMED:
            stretches = [_Stretch(one.time, {}) for one in stretches]  # by time alone, of all keys
        rows = silver.where(_within("event_date", "event_time", stretches))
        only = touched if count <= _MOST_PANES else None  # None: all panes of the time
        parts = gold_transforms.panes(rows, gold.step, only).withColumn("fresh", F.expr("true")).persist()
        reach = gold.reach(stretches)  # with the longer windows
        known = gold.table.read().where(_within("window_date", "window_start", reach, "key"))
        before = gold_transforms.panes_of_gold(known, gold.step).withColumn("fresh", F.expr("false"))
        computed = parts.unionByName(gold_transforms.emptied(before, parts, touched)) if takes_away else parts
        _merge(gold, _figures(gold, computed, before, [one.time for one in stretches]), reach)
    finally:
        touched.unpersist()
        if parts is not None:
            parts.unpersist()


def _figures(gold: _Gold, parts: DataFrame, before: DataFrame, ranges: Sequence[TimeRange]) -> DataFrame:
    """Rows of the table: of ``parts``, the panes computed anew, all within ``ranges``, and of the longer windows that
    they are in. Such a window also needs its other panes, which are ``before``, of the same level, key and signal."""
    figures = parts.withColumn("window", F.lit(gold.step.label)).drop("fresh")
    if gold.longer:
        series = ["level", "key", "signal"]
        alike = before.join(parts.select(series).distinct(), series, "left_semi")
        others = alike.join(parts.select(*series, "start"), [*series, "start"], "left_anti")
        figures = figures.unionByName(gold_transforms.rolled_up(parts.unionByName(others), gold.longer, ranges))
    return gold_transforms.gold_rows(figures, gold.shapes, gold.units)


def _extent(touched: DataFrame, step: WindowShape) -> tuple[list[_Stretch], int]:
    """When the touched panes are, and how many there are. One row per hour and level comes here."""
    length = step.length // timedelta(microseconds=1)
    key = F.col("key").cast("binary")
    first, last = F.min("start").alias("first"), F.max("start").alias("last")
    keys = F.min(key).alias("first_key"), F.max(key).alias("last_key")
    by_hour = touched.groupBy(F.floor(F.col("start") / F.lit(_HOUR_US)), "level")
    hours = by_hour.agg(first, last, *keys, F.count(F.lit(1)).alias("panes")).collect()
    found = [
        _Stretch(TimeRange(it["first"], it["last"] + length), {it["level"]: (it["first_key"], it["last_key"])})
        for it in hours
    ]
    times = joined((one.time for one in found), MOST_RANGES)
    return _with_keys(times, found), sum(it["panes"] for it in hours)


def _with_keys(times: Sequence[TimeRange], parts: Iterable[_Stretch]) -> list[_Stretch]:
    """Each of these disjoint times, which are in order, with the keys of the parts that begin in it."""
    found = [_Stretch(time, {}) for time in times]
    begins = [time.first for time in times]
    for part in parts:
        keys = found[bisect_right(begins, part.time.first) - 1].keys
        for level, (first, last) in part.keys.items():
            known = keys.get(level, (first, last))
            keys[level] = min(known[0], first), max(known[1], last)
    return found


def _within(date: str, time: str, stretches: Sequence[_Stretch], key: str | None = None) -> str:
    """SQL: a row's time is in one of the stretches, and its key, in a column of its level's name if ``key`` names none,
    between those of it. The date is said too, for it is what folders are chosen by."""
    return " OR ".join(
        f"({date} BETWEEN DATE '{moment(one.time.first):%Y-%m-%d}' AND DATE '{moment(one.time.end):%Y-%m-%d}'"
        f" AND {time} >= {timestamp(one.time.first)} AND {time} < {timestamp(one.time.end)}"
        f" AND ({' OR '.join(between(key or level, *span) for level, span in one.keys.items()) or 'true'}))"
        for one in stretches
    )


def _merge(gold: _Gold, rows: DataFrame, reach: Sequence[_Stretch]) -> None:
    """Puts the rows in the place of those of the same window, level, key and signal; deletes those without readings.
    What has not changed is not written."""
    same = " AND ".join(f"t.{name} = s.{name}" for name in _KEY)
    differs = " OR ".join(f"t.{name} IS DISTINCT FROM s.{name}" for name in _VALUES)
    files = _within("t.window_date", "t.window_start", reach, "t.key")  # that have to be looked into
    gold.table.merge(
        rows,  # MERGE reads them twice, and keeps them for that
        f"({files}) AND {same}",
        "WHEN MATCHED AND s.readings = 0 THEN DELETE",
        f"WHEN MATCHED AND ({differs}) THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in _VALUES)}",
        "WHEN NOT MATCHED AND s.readings > 0 THEN INSERT *",
        attempts=1,  # after a conflict the figures may be older than the table's
    )
