"""What is made of silver's readings: aggregates over windows of event time. Each function returns the DataFrame it is
named for; no session, no I/O.

    rows ─▶ panes ─▶ rolled_up ─▶ gold_rows

A *pane* is the tumbling window of the greatest common length of all windows (``config.values.window_shapes.step_of``),
per level, key and signal. Longer windows are put together from panes, not from readings: an hour of a busy type is
sixty rows to read again when a reading comes, instead of millions.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import NumericType

from config.values.window_shapes import WindowShape
from streaming.lake.columns import columns
from streaming.lake.ranges import TimeRange
from streaming.silver.schema import signals_of

LEVELS: Final = ("device", "type", "site")
"""What readings are put together by: the values of the column ``level``, each a column of silver."""

GOLD: Final = columns(
    "window_date date, window string, window_start timestamp, window_end timestamp, level string, key string,"
    " signal string, unit string, readings long, mean double, min double, max double, stddev double, first double,"
    " last double"
)
"""The table: one row per window, level, key and signal that has a reading. ``stddev`` is of a sample, null for a single
reading; ``first`` and ``last`` are by event time, of equal ones by Kafka's offset."""

_SERIES: Final = ("level", "key", "signal")
_FIGURES: Final = ("readings", "mean", "min", "max", "stddev", "first", "last")

# What decides which of a pane's readings is first, in one number, for an aggregate over numbers is far cheaper than one
# over structs: 22 bits of milliseconds within the pane, an hour at the most, 33 of the offset, 8 of the partition.
# Offsets of one millisecond that are 8 billion apart would compare the wrong way round.
_MS_FACTOR: Final = 1 << 41
_OFFSET_FACTOR: Final = 1 << 8
_OFFSETS: Final = 1 << 33


def touched_panes(rows: DataFrame, step: WindowShape) -> DataFrame:
    """The panes with a reading of ``rows``: ``level``, ``key`` and ``start`` (µs since 1970)."""
    start = _floor(F.unix_micros("event_time"), step.length).alias("start")
    return rows.select(start, F.inline(_levels())).where("key IS NOT NULL").distinct()


def panes(rows: DataFrame, step: WindowShape, only: DataFrame | None = None) -> DataFrame:
    """The panes of readings: ``level``, ``key``, ``signal``, ``start`` (µs since 1970) and the figures.

    ``only``: just those among these, as :func:`touched_panes` gives them; they are handed to every task.

    A row with a reading per signal is taken apart into one per reading: however many signals the types of a table have
    together, a row costs what it carries.
    """
    signals = signals_of(rows.schema, NumericType)
    if not signals:
        signals, rows = ["none"], rows.withColumn("none", F.lit(None).cast("double"))
    names = F.array(*map(F.lit, signals))
    # Under names of our own: a device type may well have a signal called level, or start.
    values = {f"_{number}": F.col(name).cast("double") for number, name in enumerate(signals)}
    readings = F.array(
        *(F.struct(F.lit(number).alias("signal"), F.col(name).alias("value")) for number, name in enumerate(values))
    )
    at = F.unix_micros("event_time")
    start = _floor(at, step.length)
    order = (
        F.floor((at - start) / F.lit(1000)) * _MS_FACTOR
        + F.pmod("kafka_offset", F.lit(_OFFSETS)) * _OFFSET_FACTOR
        + F.pmod("kafka_partition", F.lit(_OFFSET_FACTOR))
    )
    own = [column.alias(name) for name, column in {"start": start, "order": order, **values}.items()]
    taken = rows.select(*own, F.inline(_levels())).where("key IS NOT NULL")
    if only is not None:
        taken = taken.join(F.broadcast(only), only.columns, "left_semi")
    return (
        taken.select("start", "order", "level", "key", F.inline(readings))
        .where("value IS NOT NULL")
        .groupBy(*_SERIES, "start")
        .agg(
            F.count("value").alias("readings"),
            F.mean("value").alias("mean"),
            F.min("value").alias("min"),
            F.max("value").alias("max"),
            F.stddev_samp("value").alias("stddev"),
            F.min_by("value", "order").alias("first"),
            F.max_by("value", "order").alias("last"),
        )
        .withColumn("signal", F.get(names, F.col("signal")))
        .select(*_SERIES, "start", *_FIGURES)
    )


def rolled_up(parts: DataFrame, windows: Sequence[WindowShape], fresh_within: Sequence[TimeRange]) -> DataFrame:
    """Windows put together from panes: ``window``, ``level``, ``key``, ``signal``, ``start`` (µs) and the figures.

    ``parts`` are panes with a column ``fresh``. A window that has a fresh pane comes out, and all its panes have to be
    there; the others need not, and do not. ``fresh_within``: when the fresh panes are, which spares adding up the other
    windows first. A pane of 0 readings makes its windows come out and adds nothing to them.

    A standard deviation out of those of the parts needs how far the parts' means are from that of the whole, squared.
    Means far from 0 would cancel each other out beyond a double's precision, so they are taken from the median of their
    series, which one broken reading does not move.
    """
    middle = F.median("mean").over(Window.partitionBy(*_SERIES))
    total = F.sum("readings")
    off = F.try_divide(F.sum(F.col("readings") * F.col("off")), total)
    squares = F.sum("squares") + F.sum(F.col("readings") * F.col("off") * F.col("off")) - total * off * off
    filled = F.when(F.col("readings") > 0, F.col("start"))
    labels = F.array(*(F.lit(shape.label) for shape in windows))
    within = F.coalesce(F.col("stddev") * F.col("stddev") * (F.col("readings") - 1), F.lit(0.0))
    return (
        parts.withColumns({"middle": middle, "squares": within})
        .withColumn("off", F.col("mean") - F.col("middle"))
        .select("*", F.inline(_instances(F.col("start"), windows)))
        .where(_overlapping(windows, fresh_within))
        .groupBy(*_SERIES, "shape", "whole")
        .agg(
            F.max("fresh").alias("fresh"),
            total.alias("readings"),
            F.try_divide(F.sum(F.col("readings") * F.col("mean")), total).alias("mean"),
            F.min("min").alias("min"),
            F.max("max").alias("max"),
            F.when(total > 1, F.sqrt(F.greatest(squares, F.lit(0.0)) / (total - 1))).alias("stddev"),
            F.min_by("first", filled).alias("first"),
            F.max_by("last", filled).alias("last"),
        )
        .where("fresh")
        .select(F.get(labels, F.col("shape")).alias("window"), *_SERIES, F.col("whole").alias("start"), *_FIGURES)
    )


def emptied(before: DataFrame, parts: DataFrame, touched: DataFrame) -> DataFrame:
    """Panes of ``before`` that are among the ``touched`` ones and not among ``parts`` any more: as fresh ones of 0
    readings."""
    gone = before.join(touched, touched.columns, "left_semi").join(
        parts.select(*_SERIES, "start"), [*_SERIES, "start"], "left_anti"
    )
    nothing = {name: F.lit(None).cast("double") for name in _FIGURES}
    changed = gone.withColumns({**nothing, "readings": F.lit(0).cast("long"), "fresh": F.expr("true")})
    return changed.select(*_SERIES, "start", *_FIGURES, "fresh")


def gold_rows(figures: DataFrame, windows: Sequence[WindowShape], units: Mapping[str, str | None]) -> DataFrame:
    """Rows of the table, from windows as :func:`rolled_up` gives them, of the shapes ``windows``."""
    ends = F.create_map(*(F.lit(it) for shape in windows for it in (shape.label, _us(shape.length))))
    known = [F.lit(it) for signal, unit in units.items() if unit for it in (signal, unit)]
    unit = F.try_element_at(F.create_map(*known), F.col("signal")) if known else F.lit(None).cast("string")
    start, end = F.timestamp_micros("start"), F.timestamp_micros(F.col("start") + ends[F.col("window")])
    made = {"window_start": start, "window_end": end, "window_date": F.to_date(start), "unit": unit}
    return figures.withColumns(made).select(*GOLD.names)


def panes_of_gold(gold: DataFrame, step: WindowShape) -> DataFrame:
    """The panes that the table has, as :func:`panes` gives them."""
    return gold.where(F.col("window") == step.label).select(
        *_SERIES, F.unix_micros("window_start").alias("start"), *_FIGURES
    )


def _levels() -> Column:
    return F.array(*(F.struct(F.lit(level).alias("level"), F.col(level).alias("key")) for level in LEVELS))


def _instances(at: Column, windows: Sequence[WindowShape]) -> Column:
    """The windows a moment (µs) is in, each the number of its ``shape`` and the begin of the ``whole`` (µs)."""
    return F.array(
        *(
            F.struct(F.lit(number).alias("shape"), (_floor(at, shape.every) - F.lit(back)).alias("whole"))
            for number, shape in enumerate(windows)
            for back in range(0, _us(shape.length), _us(shape.every))
        )
    )


def _overlapping(windows: Sequence[WindowShape], ranges: Sequence[TimeRange]) -> Column:
    """Whether the window that begins at ``whole`` has a part of the ranges."""
    end = F.col("whole") + F.get(F.array(*(F.lit(_us(shape.length)) for shape in windows)), F.col("shape"))
    return reduce(or_, ((F.col("whole") < one.end) & (end > one.first) for one in ranges))


def _floor(at: Column, step: timedelta) -> Column:
    return at - F.pmod(at, F.lit(_us(step)))


def _us(length: timedelta) -> int:
    return length // timedelta(microseconds=1)
