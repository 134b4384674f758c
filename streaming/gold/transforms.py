"""What is made of silver's readings: aggregates over windows of event time. Each function returns the DataFrame it is
named for; no session, no I/O.

    rows ─▶ panes ─▶ rolled_up ─▶ gold_rows

A *pane* is the tumbling window of the greatest common length of all windows (``config.values.window_shapes.step_of``),
per level, key and signal. Longer windows are put together from panes, not from readings: an hour of a busy type is
sixty rows to read again when a reading comes, instead of millions. Counts, means and standard deviations of parts add
up to those of the whole exactly, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import NumericType, StructType

from config.values.window_shapes import WindowShape
from streaming.lake.columns import columns
from streaming.silver.schema import FIXED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from streaming.lake.time_ranges import TimeRange

LEVELS: Final = ("device", "type", "site")
"""What readings are put together by: the values of the column ``level``, each a column of silver."""

GOLD: Final = columns(
    "window_date date, window string, window_start timestamp, window_end timestamp, level string, key string,"
    " signal string, unit string, readings long, mean double, min double, max double, stddev double, first double,"
    " last double, first_order long, last_order long"
)
"""The table: one row per window, level, key and signal that has a reading. ``stddev`` is of a sample, null for a single
reading; ``first`` and ``last`` are by event time, of equal ones by Kafka's offset. ``first_order`` and ``last_order``
are their places in a pane. A type's or a site's pane has them where it is made of the devices' panes that the table
has, and of nothing else."""

GOLD_PARTITIONS: Final = ("window_date",)

_SERIES: Final = ("level", "key", "signal")
_PANE: Final = (*_SERIES, "start")
_ORDERS: Final = ("first_order", "last_order")
_FIGURES: Final = ("readings", "mean", "min", "max", "stddev", "first", "last", *_ORDERS)

# What decides which of a pane's readings is first, in one number, for an aggregate over numbers is far cheaper than one
# over structs: 22 bits of milliseconds within the pane, an hour at the most, 33 of the offset, 8 of the partition.
# Offsets of one millisecond that are 8 billion apart would compare the wrong way round.
_MS_FACTOR: Final = 1 << 41
_OFFSET_FACTOR: Final = 1 << 8
_OFFSETS: Final = 1 << 33


def gold_signals(silver: StructType) -> tuple[str, ...]:
    """The columns of silver that are aggregated: those behind the fixed ones that are numbers."""
    fixed = set(FIXED.names)
    return tuple(it.name for it in silver if it.name not in fixed and isinstance(it.dataType, NumericType))


def touched_panes(rows: DataFrame, step: WindowShape) -> DataFrame:
    """The panes with a reading of ``rows``: ``level``, ``key``, ``start`` (µs since 1970), and ``pane``, a number that
    stands for the three. Different panes may have the same, so those chosen by it may be more than were meant."""
    start = _floor(F.unix_micros("event_time"), step.length).alias("start")
    of = rows.select(start, F.explode(_levels()).alias("of")).select("start", "of.level", "of.key")
    # Readings without a device have a pane too: a type's has them beside those of its devices.
    return of.where("key IS NOT NULL OR level = 'device'").distinct().withColumn("pane", _pane())


def panes(rows: DataFrame, step: WindowShape, only: DataFrame | None = None) -> DataFrame:
    """The panes of readings: ``level``, ``key``, ``signal``, ``start`` (µs since 1970) and the figures.

    ``only``: just those among these, as :func:`touched_panes` gives them; they are handed to every task.
    """
    taken, signals = _taken(rows, step)
    each = taken.withColumn("of", F.explode(_levels())).select("start", "order", "of.*", "values")
    found = _aggregated(each.where("key IS NOT NULL"), signals, ("level", "key"), only)
    return found.withColumns({name: F.when(F.col("level") == "device", F.col(name)) for name in _ORDERS})


def device_panes(rows: DataFrame, step: WindowShape, only: DataFrame | None = None) -> DataFrame:
    """The same of devices alone, with ``type`` and ``site``: one for each that its readings have."""
    taken, signals = _taken(rows, step)
    each = taken.withColumns({"level": F.lit("device"), "key": F.col("device")})
    return _aggregated(each, signals, ("level", "key", "type", "site"), only)


def _taken(rows: DataFrame, step: WindowShape) -> tuple[DataFrame, tuple[str, ...]]:
    """Readings with ``start`` and ``order`` in their pane, and ``values`` of the signals, whose names come beside."""
    signals = gold_signals(rows.schema)
    if not signals:
        signals, rows = ("none",), rows.withColumn("none", F.lit(None).cast("double"))
    at = F.unix_micros("event_time")
    start = _floor(at, step.length)
    order = (
        F.floor((at - start) / F.lit(1000)) * _MS_FACTOR
        + F.pmod("kafka_offset", F.lit(_OFFSETS)) * _OFFSET_FACTOR
        + F.pmod("kafka_partition", F.lit(_OFFSET_FACTOR))
    )
    values = F.array(
        *(
            F.struct(F.lit(number).alias("signal"), F.col(f"`{name}`").cast("double").alias("value"))
            for number, name in enumerate(signals)
        )
    )
    # Under names of our own: a device type may well have a signal called level, or start.
    return rows.select(start.alias("start"), order.alias("order"), *LEVELS, values.alias("values")), signals


def _aggregated(each: DataFrame, signals: Sequence[str], by: Sequence[str], only: DataFrame | None) -> DataFrame:
    """The figures of readings. A row with a reading per signal is taken apart into one per reading: however many
    signals the types of a table have together, a row costs what it carries."""
    if only is not None:
        each = each.withColumn("pane", _pane()).join(F.broadcast(only.select("pane").distinct()), "pane", "left_semi")
    return (
        each.select("start", "order", *by, F.explode("values").alias("of"))
        .select("start", "order", *by, "of.signal", "of.value")
        .where("value IS NOT NULL")
        .groupBy(*by, "signal", "start")
        .agg(
            F.count("value").alias("readings"),
            F.mean("value").alias("mean"),
            F.min("value").alias("min"),
            F.max("value").alias("max"),
            F.stddev_samp("value").alias("stddev"),
            F.min_by("value", "order").alias("first"),
            F.max_by("value", "order").alias("last"),
            F.min("order").alias("first_order"),
            F.max("order").alias("last_order"),
        )
        .withColumn("signal", F.get(F.array(*map(F.lit, signals)), F.col("signal")))
        .select(*by, "signal", "start", *_FIGURES)
    )


def corrected(new: DataFrame, known: DataFrame, *, afresh: bool, are_few: bool) -> DataFrame:
    """The panes of all levels that are other than before, as :func:`panes` has them, with ``was``, the readings that
    gold has of each, and ``unsure``.

    ``new``: of devices, as :func:`device_panes` makes them of all their readings. ``known``: what gold has of those
    devices, their types and sites. A type's pane is what it was, without its devices' panes as they were, with those as
    they are. So nobody else's readings are needed, and where nothing is other, nothing comes out. ``afresh``: panes of
    types and sites are made of the new ones alone, which have to be of all devices. ``are_few``: those panes can be
    handed to every task.

    ``unsure``: panes of which this cannot be told, and their figures mean nothing. A device has changed its type or
    site within the pane, or has no name; readings have gone, or are no numbers; or gold's pane has others than those of
    its devices' panes.
    """
    of_pane = Window.partitionBy("key", "start")
    kinds = F.struct("type", "site")
    mixed = F.col("key").isNull() | ~F.min(kinds).over(of_pane).eqNullSafe(F.max(kinds).over(of_pane))
    old = known.where("level = 'device'").select(*_PANE, F.struct(F.lit(-1).alias("sign"), *_FIGURES).alias("old"))
    devices = (
        new.select(*new.columns, F.struct(F.lit(1).alias("sign"), *_FIGURES).alias("new"), mixed.alias("mixed"))
        .join(old, list(_PANE), "left")
        .withColumn("was", F.coalesce("old.readings", F.lit(0)))
        .where(F.lit(afresh) | F.col("mixed") | (F.col("readings") != F.col("was")))
    )
    levels = [F.struct(F.lit(level).alias("level"), F.col(name).alias("key"))
              for level, name in (("type", "type"), ("site", "site"), ("device", "key"))]  # fmt: skip
    of = F.array(*levels[:2], F.when(F.col("mixed"), levels[2]))
    changes = (
        devices.select(
            "signal", "start", (F.col("mixed") | (F.col("was") > F.col("readings"))).alias("unsure"),
            F.explode(of).alias("of"), F.array("new", *([] if afresh else ["old"])).alias("both"),
        )
        .select("of.level", "of.key", "signal", "start", "unsure", F.explode("both").alias("it"))
        .where("key IS NOT NULL AND it IS NOT NULL")
        .select(*_PANE, "unsure", "it.*", F.lit(0).cast("long").alias("was"))
    )  # fmt: skip
    kept = known.where("level <> 'device'").join(changes.select(*_PANE).distinct(), list(_PANE), "left_semi")
    kept = kept.select(
        *_PANE, (F.lit(not afresh) & F.col("first_order").isNull()).alias("unsure"),
        F.lit(0 if afresh else 1).alias("sign"),
        *(F.when(F.lit(not afresh), F.col(name)).alias(name) for name in _FIGURES), F.col("readings").alias("was"),
    )  # fmt: skip
    parts = kept.unionByName(changes)
    taken_away = F.coalesce(F.sum(F.when(F.col("sign") < 0, F.col("readings"))), F.lit(0))
    middle = parts.groupBy(*_PANE).agg(F.mean("mean").alias("middle"))
    others = (
        parts.join(F.broadcast(middle) if are_few else middle, list(_PANE))
        .withColumns({"n": F.col("sign") * F.col("readings"), "squares": F.col("sign") * _squares()})
        .groupBy(*_PANE)
        .agg(
            *_put_together(F.col("n"), F.col("first_order"), F.col("last_order")),
            F.min("first_order").alias("first_order"),
            F.max("last_order").alias("last_order"),
            F.max("was").alias("was"),
            (F.max("unsure") | (taken_away > F.max("was"))).alias("unsure"),
        )
        .withColumn("unsure", F.col("unsure") | ~(F.abs("mean") < F.lit(math.inf)))
    )
    plain = devices.where("NOT mixed").select(*_PANE, *_FIGURES, "was", F.lit(False).alias("unsure"))
    return plain.unionByName(others.select(*plain.columns))


def _squares() -> Column:
    """How far a part's readings are from its mean, squared and added up."""
    return F.coalesce(F.col("stddev") * F.col("stddev") * (F.col("readings") - 1), F.lit(0.0))


def _put_together(readings: Column, first: Column, last: Column) -> list[Column]:
    """The figures of parts as a whole; their columns ``middle`` and ``squares`` are beside. Readings below 0 are taken
    away.

    A standard deviation out of those of the parts needs how far the parts' means are from that of the whole, squared
    and added up. Means that are far from 0 would cancel each other out beyond a double's precision, so they are
    taken from a mean here, of the pane's parts or of the series.
    """
    total, from_middle = F.sum(readings), F.col("mean") - F.col("middle")
    off = F.try_divide(F.sum(readings * from_middle), total)
    squares = F.sum("squares") + F.sum(readings * from_middle * from_middle) - total * off * off
    return [
        total.alias("readings"),
        (F.max("middle") + off).alias("mean"),
        F.min("min").alias("min"),
        F.max("max").alias("max"),
        F.when(total > 1, F.sqrt(F.greatest(squares, F.lit(0.0)) / (total - 1))).alias("stddev"),
        F.min_by("first", first).alias("first"),
        F.max_by("last", last).alias("last"),
    ]


def rolled_up(parts: DataFrame, windows: Sequence[WindowShape], fresh_within: Sequence[TimeRange]) -> DataFrame:
    """Windows put together from panes: ``window``, ``level``, ``key``, ``signal``, ``start`` (µs) and the figures.

    ``parts`` are panes with a column ``fresh``. A window that has a fresh pane comes out, and all its panes have to be
    there; the others need not, and do not. ``fresh_within``: when the fresh panes are, which spares adding up the other
    windows first. A pane of 0 readings makes its windows come out and adds nothing to them.
    """
    middle = F.mean("mean").over(Window.partitionBy(*_SERIES))
    filled = F.when(F.col("readings") > 0, F.col("start"))
    labels = F.array(*(F.lit(shape.label) for shape in windows))
    nothing = [F.lit(None).cast("long").alias(name) for name in _ORDERS]
    return (
        parts.withColumns({"middle": middle, "squares": _squares()})
        .withColumn("in", F.explode(_instances(F.col("start"), windows)))
        .where(_overlapping(windows, fresh_within))
        .groupBy(*_SERIES, "in.number", F.col("in.start").alias("whole"))
        .agg(F.max("fresh").alias("fresh"), *_put_together(F.col("readings"), filled, filled))
        .where("fresh")
        .withColumns({"window": F.get(labels, F.col("number")), "start": F.col("whole")})
        .select("window", *_PANE, *_FIGURES[: -len(_ORDERS)], *nothing)
    )


def emptied(before: DataFrame, parts: DataFrame, touched: DataFrame) -> DataFrame:
    """Panes of ``before`` that are among the ``touched`` ones and not among ``parts`` any more: of 0 readings."""
    gone = (
        before.withColumn("pane", _pane())
        .join(touched.select("pane").distinct(), "pane", "left_semi")
        .join(parts.select(*_SERIES, "start"), [*_SERIES, "start"], "left_anti")
    )
    nothing = {name: F.lit(None).cast("long" if name in _ORDERS else "double") for name in _FIGURES}
    return gone.withColumns({**nothing, "readings": F.lit(0).cast("long")}).select(*_PANE, *_FIGURES)


def gold_rows(figures: DataFrame, windows: Sequence[WindowShape], units: Mapping[str, str | None]) -> DataFrame:
    """Rows of the table, from windows as :func:`rolled_up` gives them, of the shapes ``windows``."""
    ends = F.create_map(*(F.lit(it) for shape in windows for it in (shape.label, _us(shape.length))))
    known = [F.lit(it) for signal, unit in units.items() if unit for it in (signal, unit)]
    unit = F.try_element_at(F.create_map(*known), F.col("signal")) if known else F.lit(None).cast("string")
    made = figures.withColumns(
        {
            "window_start": F.timestamp_micros("start"),
            "window_end": F.timestamp_micros(F.col("start") + ends[F.col("window")]),
            "window_date": F.to_date(F.timestamp_micros("start")),
            "unit": unit,
        }
    )
    return made.select(*GOLD.names, *(name for name in ("was",) if name in figures.columns))


def panes_of_gold(gold: DataFrame, step: WindowShape) -> DataFrame:
    """The panes that the table has, as :func:`panes` gives them."""
    return gold.where(F.col("window") == step.label).select(
        *_SERIES, F.unix_micros("window_start").alias("start"), *_FIGURES
    )


def numbered(panes: DataFrame) -> DataFrame:
    """Panes as :func:`touched_panes` has them."""
    return panes.select("level", "key", "start", _pane().alias("pane"))


def _pane() -> Column:
    return F.xxhash64("level", "key", "start")


def _levels() -> Column:
    return F.array(*(F.struct(F.lit(level).alias("level"), F.col(level).alias("key")) for level in LEVELS))


def _instances(at: Column, windows: Sequence[WindowShape]) -> Column:
    """The windows a moment (µs) is in, each ``number`` of its shape and ``start`` (µs)."""
    return F.array(
        *(
            F.struct(F.lit(number).alias("number"), (_floor(at, shape.every) - F.lit(back)).alias("start"))
            for number, shape in enumerate(windows)
            for back in range(0, _us(shape.length), _us(shape.every))
        )
    )


def _overlapping(windows: Sequence[WindowShape], ranges: Sequence[TimeRange]) -> Column:
    """Whether the window ``in`` has a part of the ranges."""
    start = F.col("in.start")
    end = start + F.get(F.array(*(F.lit(_us(shape.length)) for shape in windows)), F.col("in.number"))
    return reduce(or_, ((start < one.end) & (end > one.first) for one in ranges))


def _floor(at: Column, step: timedelta) -> Column:
    return at - F.pmod(at, F.lit(_us(step)))


def _us(length: timedelta) -> int:
    return length // timedelta(microseconds=1)
