"""Gold against plain Python: aggregates, late data, batches in any order, a crash after the write, forgetting."""

import json
import math
import random
import statistics
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import DoubleType, LongType, StringType, StructField

from config.errors import ConfigError
from config.settings import Settings
from config.values.window_shapes import WindowShape, parse_window, step_of
from streaming import jvm
from streaming.gold import job as gold
from streaming.gold import transforms as gold_transforms
from streaming.gold.transforms import GOLD
from streaming.job import JobContext
from streaming.lake.delta_upkeep import DeltaUpkeep
from streaming.lake.lake import DeltaTable
from streaming.lake.ranges import TimeRange
from streaming.runtime import job_lock
from streaming.silver.schema import PARTITIONS, silver_schema
from streaming.upkeep import forget, maintain
from tests.chaos.harness import in_full_form

SILVER = silver_schema(
    [
        StructField("temperature", DoubleType()),
        StructField("state", StringType()),  # no number: not aggregated
        StructField("energy", LongType()),
    ]
)
SIGNALS = ("temperature", "energy")
WINDOWS = ("1m tumbling", "1h tumbling", "15m sliding 5m")
BEGIN = datetime(2026, 11, 20, 23, 40, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Reading(NamedTuple):
    """A row of silver, as far as it matters here."""

    device: str
    type: str
    site: str | None
    at: datetime
    offset: int
    temperature: float | None
    energy: int | None
    partition: int = 0


def readings(count: int, *, seed: int, over: timedelta = timedelta(hours=2)) -> list[Reading]:
    """Readings of a few devices, some at the same moment, some without a signal, energy far from 0."""
    chance = random.Random(seed)
    made = []
    for offset in range(count):
        number = chance.randrange(4)
        at = BEGIN + timedelta(milliseconds=1000 * chance.randrange(round(over.total_seconds())))
        temperature = round(chance.gauss(20, 5), 3) if chance.random() < 0.8 else None
        energy = 1_000_000_000 + chance.randrange(50) if chance.random() < 0.8 else None
        site = (None, "north", "south", "south")[number]
        made.append(Reading(f"d{number}", ("pump", "meter")[number % 2], site, at, offset, temperature, energy))
    return made


def rows(spark: SparkSession, batch: Sequence[Reading]) -> DataFrame:
    return spark.createDataFrame([tuple(row(it).values()) for it in batch], SILVER)


def row(it: Reading) -> dict[str, Any]:
    return dict.fromkeys(SILVER.names) | {
        "device": it.device,
        "type": it.type,
        "site": it.site,
        "event_time": it.at,
        "clock_ahead": False,
        "record_id": f"{it.partition}-{it.offset}",
        "kafka_topic": "t",
        "kafka_partition": it.partition,
        "kafka_offset": it.offset,
        "event_date": it.at.date(),
        "temperature": it.temperature,
        "energy": it.energy,
        "state": "on",
    }


def instances(at: datetime, shape: WindowShape) -> list[datetime]:
    """The starts of all windows of a shape that ``at`` is in."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    last = at - (at - epoch) % shape.every
    return [start for n in range(shape.instances) if (start := last - n * shape.every) <= at < start + shape.length]


def expected(all_readings: Iterable[Reading], windows: Sequence[str] = WINDOWS) -> dict[tuple[Any, ...], Any]:
    """What the table has to hold: figures by window, start, level, key and signal, reading by reading."""
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    shapes = [parse_window(text) for text in windows]
    shapes = sorted({step_of(tuple(shapes)), *shapes})
    for it in all_readings:
        for shape in shapes:
            for start in instances(it.at, shape):
                for level in ("device", "type", "site"):
                    for signal in SIGNALS:
                        key, value = getattr(it, level), getattr(it, signal)
                        if key is not None and value is not None:
                            place = (shape.label, start, level, key, signal)
                            found.setdefault(place, []).append((it.at, it.offset, it.partition, float(value)))
    return {place: figures(sorted(values)) for place, values in found.items()}


def figures(values: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    numbers = [value for *_, value in values]
    spread = statistics.stdev(numbers) if len(numbers) > 1 else None
    return (len(numbers), statistics.fmean(numbers), min(numbers), max(numbers), spread, numbers[0], numbers[-1])


def table(frame: DataFrame) -> dict[tuple[Any, ...], Any]:
    """The rows of gold, as :func:`expected` has them. Fails if two are the same window's, or its end or date is off."""
    found = {}
    for it in frame.selectExpr("*", "unix_micros(window_start) AS a", "unix_micros(window_end) AS b").collect():
        start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=it["a"])
        assert it["b"] - it["a"] == parse_window(it["window"]).length // timedelta(microseconds=1)
        assert it["window_date"] == start.date()
        place = (it["window"], start, it["level"], it["key"], it["signal"])
        assert place not in found, f"twice: {place}"
        found[place] = tuple(it[n] for n in ("readings", "mean", "min", "max", "stddev", "first", "last"))
    return found


def assert_same(got: Mapping[tuple[Any, ...], Any], wanted: Mapping[tuple[Any, ...], Any]) -> None:
    assert got.keys() == wanted.keys(), (
        f"only in gold: {sorted(got.keys() - wanted.keys())[:3]}; missing: {sorted(wanted.keys() - got.keys())[:3]}"
    )
    for place, figured in wanted.items():
        for name, one, other in zip(
            ("n", "mean", "min", "max", "stddev", "first", "last"), got[place], figured, strict=True
        ):
            same = one == other if None in (one, other) else math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6)
            assert same, f"{name} of {place} is {one}, not {other}"


def lake(folder: Path, **more: Any) -> Settings:
    stream = {"lake": {"path": str(folder / "lake")}, "checkpoint": str(folder / "checkpoints"), "available_now": True}
    return Settings.model_validate({"stream": {**stream, **more}})


def append(spark: SparkSession, settings: Settings, batch: Sequence[Reading]) -> None:
    silver = DeltaTable(spark, settings.stream, "silver")
    silver.create(SILVER, PARTITIONS)
    silver.append(rows(spark, batch), query=f"test-{batch[0].offset}-{len(batch)}", batch=0)


def run(spark: SparkSession, settings: Settings) -> None:
    """The job, until all of silver is taken in. Raises what it fails with."""
    gold.start(spark, settings, JobContext(lambda _event: None)).awaitTermination()


def aggregated(readings: DataFrame, windows: Sequence[WindowShape], units: Mapping[str, str | None]) -> DataFrame:
    """What the table is to hold if these are all there is."""
    step = step_of(tuple(windows))
    longer = [shape for shape in windows if shape != step]
    parts = gold_transforms.panes(readings, step)
    whole = gold_transforms.rolled_up(parts.withColumn("fresh", F.lit(True)), longer, [TimeRange(0, 1 << 60)])
    figures = parts.withColumn("window", F.lit(step.label)).unionByName(whole)
    return gold_transforms.gold_rows(figures, (step, *longer), units)


def test_aggregates_are_those_of_plain_python(spark: SparkSession) -> None:
    """Also of windows beside one with a broken reading, the greatest number of 32 bits."""
    batch = [*readings(400, seed=1), Reading("d0", "pump", None, BEGIN + timedelta(hours=1), 1000, 3.4e38, None)]
    shapes = [parse_window(text) for text in WINDOWS]
    made = aggregated(rows(spark, batch), shapes, {"temperature": "°C"})
    assert made.schema.names == gold_transforms.GOLD.names
    assert_same(table(made), expected(batch))
    units = {(it["signal"], it["unit"]) for it in made.select("signal", "unit").distinct().collect()}
    assert units == {("temperature", "°C"), ("energy", None)}


def test_windows_that_are_no_multiple_of_each_other_are_put_together_from_their_greatest_common_length(
    spark: SparkSession,
) -> None:
    batch = [*readings(150, seed=2), Reading("d0", "pump", None, BEGIN, 1000, 1.5, None, partition=3)]
    windows = ("10m tumbling", "45m sliding 15m")
    made = aggregated(rows(spark, batch), [parse_window(text) for text in windows], {})
    assert {place[0] for place in table(made)} == {"5m tumbling", *windows}
    assert_same(table(made), expected(batch, windows))


def test_signals_may_be_called_as_columns_are(spark: SparkSession) -> None:
    """A pump has a level."""
    step = parse_window("1m tumbling")
    plain = rows(spark, readings(20, seed=2))
    odd = plain.withColumnsRenamed({"temperature": "level", "energy": "start"})
    only = gold_transforms.touched_panes(odd, step)
    called = {"temperature": "level", "energy": "start"}
    wanted = {(one.level, one.key, called[one.signal], one.start, one.mean)
              for one in gold_transforms.panes(plain, step).collect()}  # fmt: skip
    got = {(one.level, one.key, one.signal, one.start, one.mean)
           for one in gold_transforms.panes(odd, step, only).collect()}  # fmt: skip
    assert got == wanted
    assert len(got) > 20


def test_touched_panes_are_those_with_a_reading(spark: SparkSession) -> None:
    batch = readings(60, seed=3)
    step = parse_window("5m tumbling")
    found = gold_transforms.touched_panes(rows(spark, batch), step).collect()
    wanted = {
        (round(start.timestamp()) * 1_000_000, level, key)
        for it in batch
        for start in instances(it.at, step)
        for level in ("device", "type", "site")
        if (key := getattr(it, level)) is not None
    }
    assert sorted((it.start, it.level, it.key) for it in found) == sorted(wanted)


def test_late_data_corrects_its_windows_and_a_crash_after_the_write_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three days late, among readings of now; the first attempt at that batch ends after its write."""
    settings = lake(tmp_path)
    old, now = readings(80, seed=4), readings(160, seed=5)
    late = [it._replace(offset=it.offset + 1000) for it in old[::2]]
    current = [it._replace(at=it.at + timedelta(days=3), offset=it.offset + 2000) for it in now]
    append(spark, settings, old[1::2] + current[:80])
    run(spark, settings)
    first = DeltaTable(spark, settings.stream, "gold")
    assert_same(table(first.read()), expected(old[1::2] + current[:80]))

    append(spark, settings, late + current[80:])
    written = gold._merge

    def crash(*arguments: Any) -> None:
        written(*arguments)
        raise OSError("the power is gone")

    with monkeypatch.context() as patched:
        patched.setattr(gold, "_merge", crash)
        with pytest.raises(StreamingQueryException):
            run(spark, settings)
    after_crash = table(first.read())
    run(spark, settings)
    assert_same(table(first.read()), expected(old[1::2] + current + late))
    assert table(first.read()) == after_crash

    # Other windows than the checkpoint began with are refused.
    with pytest.raises(ConfigError, match=r"stream\.gold\.windows is now 2m tumbling, was 1m tumbling"):
        gold.start(spark, lake(tmp_path, gold={"windows": ["2m"]}), JobContext(lambda _event: None))


def test_a_late_reading_opens_golds_files_of_its_time_and_its_names_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Also of a day that is sorted by name: the others are not there meanwhile."""
    settings = lake(tmp_path, gold={"windows": ["1m tumbling"]})
    part = gold._Gold(spark, settings)
    early = readings(80, seed=10, over=timedelta(minutes=5))
    later = [it._replace(at=it.at + timedelta(minutes=10), offset=it.offset + 100) for it in early]
    upkeep = DeltaUpkeep(spark, part.table)
    for batch in (early, later):
        append(spark, settings, batch)
        gold._write(part, rows(spark, batch))
        if batch is early:
            (day,) = upkeep.days(0)
            upkeep.optimize(day.day, day.size // 8, "key")
    late = next(it._replace(offset=500) for it in early if it.site == "north")
    append(spark, settings, [late])
    folder = tmp_path / "lake" / "gold"
    hidden = []
    for file in jvm.delta_files(spark, part.table.url).collect():
        least, most = (json.loads(file["stats"])[f"{end}Values"] for end in ("min", "max"))
        named = any(least["key"] <= it <= most["key"] for it in (late.device, late.type, late.site))
        at = f"{late.at:%Y-%m-%dT%H:%M}"
        if not named or not least["window_start"][:16] <= at <= most["window_start"][:16]:
            hidden.append(folder / file["path"])
            hidden[-1].rename(hidden[-1].with_suffix(".hidden"))
    assert len(hidden) > 3
    assert gold._write(part, rows(spark, [late])).rows == 1
    for path in hidden:
        path.with_suffix(".hidden").rename(path)
    assert_same(table(part.table.read()), expected([*early, *later, late], ["1m tumbling"]))


def test_of_two_that_write_at_once_neither_puts_older_figures_over_newer_ones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one commits between our look at silver and our MERGE."""
    settings = lake(tmp_path, gold={"windows": ["1m tumbling"]})
    part, merge = gold._Gold(spark, settings), gold._merge
    ours = readings(20, seed=8, over=timedelta(minutes=3))
    theirs = [it._replace(offset=it.offset + 100) for it in ours]
    append(spark, settings, ours)

    def late(*given: Any) -> None:
        monkeypatch.setattr(gold, "_merge", merge)
        append(spark, settings, theirs)
        gold._write(part, rows(spark, theirs))
        merge(*given)

    monkeypatch.setattr(gold, "_merge", late)
    assert gold._write(part, rows(spark, ours)).rows == 20
    assert_same(table(part.table.read()), expected([*ours, *theirs], ["1m tumbling"]))


def test_after_a_conflict_the_figures_are_computed_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that met it may be older than what the other has written."""
    settings = lake(tmp_path, gold={"windows": ["1m tumbling"]})
    part, replace, sql = gold._Gold(spark, settings), gold._replace, SparkSession.sql
    batch = readings(20, seed=8, over=timedelta(minutes=3))
    looks: list[DataFrame] = []

    def conflict(session: SparkSession, statement: str, **more: Any) -> DataFrame:
        if statement.startswith("MERGE"):
            monkeypatch.setattr(SparkSession, "sql", sql)
            raise RuntimeError("[DELTA_CONCURRENT_APPEND] another came first")
        return sql(session, statement, **more)

    def look(part: gold._Gold, changed: DataFrame, silver: DataFrame) -> None:
        looks.append(silver)
        replace(part, changed, silver)

    append(spark, settings, batch)
    monkeypatch.setattr(SparkSession, "sql", conflict)
    monkeypatch.setattr(gold, "_replace", look)
    assert gold._write(part, rows(spark, batch)).rows == 20
    assert len(looks) == 2
    assert_same(table(part.table.read()), expected(batch, ["1m tumbling"]))


@in_full_form
@given(order=st.permutations(range(24)), cuts=st.sets(st.integers(1, 23), min_size=1, max_size=1), repeat=st.booleans())
@hypothesis_settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
def test_any_split_into_batches_in_any_order_gives_the_same(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, order: list[int], cuts: set[int], *, repeat: bool
) -> None:
    settings = lake(tmp_path_factory.mktemp("split"))
    every = readings(24, seed=6, over=timedelta(minutes=40))
    part = gold._Gold(spark, settings)
    bounds = [0, *sorted(cuts), len(every)]
    for begin, end in pairwise(bounds):
        batch = [every[n] for n in order[begin:end]]
        append(spark, settings, batch)
        for _ in range(1 + repeat):
            assert gold._write(part, rows(spark, batch)).rows == len(batch)
    assert_same(table(part.table.read()), expected(every))


def test_a_forgotten_device_is_in_no_window_any_more(spark: SparkSession, tmp_path: Path) -> None:
    settings = lake(tmp_path)
    name = "it's d\\1"
    batch = [it._replace(device=name) if it.device == "d1" else it for it in readings(40, seed=7)]
    append(spark, settings, batch)
    run(spark, settings)
    kept = DeltaTable(spark, settings.stream, "gold")
    old = {"window_date": date(2020, 1, 1), "level": "device", "key": name, "readings": 1}  # of no day of silver's
    kept.append(spark.createDataFrame([old], GOLD), query="test", batch=0)
    job_lock.let_go(str(settings.stream.checkpoint), gold.QUERY)  # as the end of the job's process does
    assert forget.run(spark, settings, Namespace(device=name, dry_run=False, now=False)) == 0
    assert_same(table(kept.read()), expected(it for it in batch if it.device != name))

    # Of days that silver has still, whatever retention says; and not while gold would lose files that it is to read.
    lost = lake(tmp_path, lake={"path": str(tmp_path / "lake"), "retention": {"silver": "1d"}})
    append(spark, settings, [it._replace(offset=it.offset + 100) for it in batch])
    told = Namespace(device="d0", dry_run=False, now=True)
    with pytest.raises(ConfigError, match=r"1 commit of silver\. The job gold has read up to version 1\."):
        forget.run(spark, lost, told)
    run(spark, settings)
    job_lock.let_go(str(settings.stream.checkpoint), gold.QUERY)
    assert forget.run(spark, lost, told) == 0
    run(spark, settings)
    others = [it for it in batch if it.device not in (name, "d0")]
    left = [*others, *(it._replace(offset=it.offset + 100) for it in batch if it.device != "d0")]
    assert_same(table(kept.read()), expected(left))


def test_a_reading_of_a_day_that_silver_no_longer_has_is_counted_and_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of yesterday midnight on silver is whole; what is older would be computed from what is left."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    settings = lake(tmp_path, lake={"path": str(tmp_path / "lake"), "retention": {"silver": "1d"}})
    whole = Reading("d0", "pump", None, today - timedelta(days=1), 1, 1.0, None)
    old = whole._replace(at=whole.at - timedelta(seconds=1), offset=2)
    append(spark, settings, [whole, old])
    part = gold._Gold(spark, settings)
    counts = gold._write(part, rows(spark, [whole, old]))
    assert (counts.rows, counts.late) == (2, 1)
    assert gold.recompute(spark, settings, rows(spark, [whole, old])) == 1, "what a backfill prints"
    silver = DeltaTable(spark, settings.stream, "silver")
    assert "deleted" in next(maintain.due(spark, settings.stream, silver, datetime.now(UTC), dry_run=False))
    for_ever = gold._Gold(spark, lake(tmp_path))  # which brings back nothing of what is deleted
    assert gold._write(for_ever, rows(spark, [old])).late == 1
    replace = gold._replace

    def conflict(*_: object) -> None:  # with maintain, which deletes another day
        monkeypatch.setattr(gold, "_replace", replace)
        silver.note_whole_since(today.date())
        raise RuntimeError("DELTA_CONCURRENT_APPEND")

    monkeypatch.setattr(gold, "_replace", conflict)
    assert gold._write(part, rows(spark, [whole])).late == 1
    assert_same(table(part.table.read().where("window = '1m tumbling'")), expected([whole], ["1m tumbling"]))
