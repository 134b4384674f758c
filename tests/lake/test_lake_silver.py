"""The job ``silver``: every reading once, whatever came twice, late, with a wrong clock or broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streaming import lake_tables
from streaming.progress import BatchEvent
from streaming.silver_table import SilverTables
from tests.lake.silver_support import DAY_MS, NOON_MS, Sent, batch_of, expected_rows, found_rows, run, settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

YEAR_2036_MS = 2_085_000_000_000


def traffic() -> list[list[Sent]]:
    """Three batches. Offsets count on; a copy has all that its original has, but offset and time of receipt."""

    def reading(offset: int, seq: int, *, late_ms: int = 0, device: str = "sensor-1", ahead_ms: int = 0) -> Sent:
        ts = NOON_MS + seq * 1000 + ahead_ms
        return Sent(offset, NOON_MS + seq * 1000 + 50 + late_ms, device, seq, ts, f"{device}-{seq}")

    first = [
        *(reading(n, n) for n in range(20)),
        reading(20, 7, late_ms=3),  # a copy in the same batch
        reading(21, 1, device="clock-2036", ahead_ms=YEAR_2036_MS - NOON_MS),
        # Six minutes ahead, six minutes before midnight: on the day before, for its copy comes after midnight.
        reading(22, 2, device="clock-6", late_ms=DAY_MS // 2 - 360_000, ahead_ms=DAY_MS // 2),
        Sent(23, NOON_MS, "honest", 1, NOON_MS, None, values={"temperature": 20.0}),
        Sent(24, NOON_MS, "honest", 1, NOON_MS, None, values={"temperature": 20.0}),  # equal, and not the same
        Sent(25, NOON_MS, "delivery", 1, NOON_MS, "gw-1-77", "delivery"),
        Sent(26, NOON_MS, raw=b'{"device":"sensor-1",'),
        Sent(27, NOON_MS, raw=b""),
    ]
    second = [
        *(reading(30 + n, 20 + n) for n in range(10)),
        reading(40, 3, late_ms=3_600_000),  # a copy of the batch before
        reading(41, 1, device="clock-2036", ahead_ms=YEAR_2036_MS - NOON_MS, late_ms=90_000),
        reading(42, 2, device="clock-6", late_ms=DAY_MS // 2 + 60_000, ahead_ms=DAY_MS // 2),
        Sent(43, NOON_MS, "delivery", 1, NOON_MS, "gw-1-77", "delivery"),  # another delivery may have any id
        # A counter that began again: the same id, another time.
        Sent(44, NOON_MS + 5_000, "sensor-1", 3, NOON_MS + 4_321, "sensor-1-3"),
        # The same characters, cut differently.
        Sent(45, NOON_MS, "a", 1, NOON_MS, "b:c"),
        Sent(46, NOON_MS, "a:b", 1, NOON_MS, "c"),
        Sent(47, NOON_MS, "sensor-1", 1, raw=b"[1,2]"),
    ]
    third = [
        *(reading(50 + n, n - 300_000, late_ms=300_000_000, device="offline-site") for n in range(5)),
        reading(55, 0, late_ms=3 * DAY_MS),
        reading(56, 29, late_ms=3 * DAY_MS),
    ]
    return [first, second, third]


def test_the_table_is_what_plain_python_makes_of_the_records(spark: SparkSession, tmp_path: Path) -> None:
    registry = tmp_path / "registry.csv"
    registry.write_text("device,type,site,floor\nsensor-1,thermostat,plant,2\nhonest,,campus,1\nsensor-1,,plant,3\n")
    chosen = settings(tmp_path, registry=registry)
    batches = traffic()
    for sent in batches:
        batch_of(spark, tmp_path, sent)

    events = run(spark, tmp_path, chosen)

    every = [it for sent in batches for it in sent]
    expected = expected_rows(every, {"sensor-1": "plant", "honest": "campus"})
    assert found_rows(spark, chosen) == expected
    bad = lake_tables.silver_quarantine(spark, chosen.stream).selectExpr("kafka_offset", "reason", "value").collect()
    assert sorted((it.kafka_offset, it.reason, bytes(it.value)) for it in bad) == [
        (26, "not_json", b'{"device":"sensor-1",'),
        (27, "empty", b""),
        (47, "not_an_object", b"[1,2]"),
    ]
    told = [event for event in events if isinstance(event, BatchEvent)]
    assert [(it.rows, it.quarantined) for it in told] == [(28, 2), (18, 1), (7, 0)]
    gateways = lake_tables.silver(spark, chosen.stream).select("gateway", "mqtt_topic", "temperature").distinct()
    assert {it.gateway for it in gateways.collect()} == {"gw-1"}

    # Everything once more, from a checkpoint that begins anew: nothing is added.
    (tmp_path / "checkpoints").rename(tmp_path / "put-aside")
    run(spark, tmp_path, chosen)
    assert found_rows(spark, chosen) == expected


def test_a_crash_between_the_tables_leaves_neither_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(tmp_path)
    first, *_ = traffic()
    batch_of(spark, tmp_path, first)
    reject = SilverTables.reject

    def before(*_: object, **__: object) -> None:
        raise OSError("the power went before the quarantine was written")

    def after(self: SilverTables, *given: object, **named: object) -> None:
        reject(self, *given, **named)  # type: ignore[arg-type]
        raise OSError("the power went after the quarantine was written")

    for broken in (before, after):
        with monkeypatch.context() as patch:
            patch.setattr(SilverTables, "reject", broken)
            with pytest.raises(Exception, match="the power went"):
                run(spark, tmp_path, chosen)
        assert found_rows(spark, chosen) == expected_rows(first)
    run(spark, tmp_path, chosen)

    assert found_rows(spark, chosen) == expected_rows(first)
    assert lake_tables.silver_quarantine(spark, chosen.stream).count() == 2
