"""The transforms, the tables and the checkpoint's note, on one local Spark without Kafka."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as arrow
import pytest

from config.errors import ConfigError
from config.settings import StreamSettings
from streaming import tables, transforms
from streaming.checkpoint import prepare_checkpoint
from streaming.schemas import QUARANTINE, TELEMETRY, WINDOWS
from streaming.storage import Folder, location
from streaming.tables import BatchTable, require_matching
from tests.spark import one_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

RECORDS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>"
)
RECEIVED = datetime(2026, 3, 1, 23, 59, 58, 250_000, tzinfo=UTC)
RECEIVED_MS = int(RECEIVED.timestamp() * 1000)
FIVE_MINUTES = timedelta(minutes=5)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with one_spark([], {"spark.driver.memory": "512m"}) as session:
        yield session


def records(
    spark: SparkSession,
    values: Sequence[bytes | None],
    *,
    received: datetime = RECEIVED,
    headers: Sequence[tuple[str, bytes | None]] | None = None,
) -> DataFrame:
    """Kafka's records with these values, at offsets from 0."""
    rows = [(b"key", value, "telemetry", 3, offset, received, 0, headers) for offset, value in enumerate(values)]
    return spark.createDataFrame(rows, RECORDS).coalesce(1)


def reading(**changes: Any) -> dict[str, Any]:
    return {"device": "sensor-1", "type": "thermostat", "seq": 7, "ts": RECEIVED_MS - 500, **changes}


def encoded(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def telemetry(frame: DataFrame) -> list[Row]:
    return frame.transform(transforms.parsed_records).transform(transforms.telemetry, max_ahead=FIVE_MINUTES).collect()


# What a device may send, and what is wrong with it: None, or the reason and the fields named in detail.
GOOD = None
PAYLOADS: dict[str, tuple[bytes | None, tuple[str, str | None] | None]] = {
    "all fields": (encoded(reading(temperature=21.5, humidity=40, voltage=2.9, rssi=-70)), GOOD),
    "required fields alone": (encoded(reading()), GOOD),
    "unknown fields": (encoded(reading(firmware="1.4", nested={"a": [1, {"b": None}]})), GOOD),
    "space around": (b" \n" + encoded(reading()) + b"\t\r\n", GOOD),
    "an integer written as a fraction": (encoded(reading(rssi=-70.0)), GOOD),
    "a measurement of null": (encoded(reading(temperature=None)), GOOD),
    "largest sequence": (encoded(reading(seq=2**63 - 1)), GOOD),
    "epoch": (encoded(reading(ts=0)), GOOD),
    "last millisecond": (encoded(reading(ts=253_402_300_799_999)), GOOD),
    "a NUL and quotes in a name": (encoded(reading(device='a\u0000"\\b')), GOOD),
    "no payload": (None, ("empty", None)),
    "empty payload": (b"", ("empty", None)),
    "spaces": (b"   ", ("not_json", None)),
    "text": (b"hello", ("not_json", None)),
    "cut off": (encoded(reading())[:-5], ("not_json", None)),
    "two readings as lines": (encoded(reading()) + b"\n" + encoded(reading(seq=8)), ("not_json", None)),
    "something behind": (encoded(reading()) + b" OK", ("not_json", None)),
    "a comma and a reading": (encoded(reading()) + b"," + encoded(reading(seq=8)), ("not_json", None)),
    "an extra brace": (encoded(reading()) + b"}", ("not_json", None)),
    "NaN": (b'{"device":"d","type":"t","seq":1,"ts":1,"temperature":NaN}', ("not_json", None)),
    "Infinity": (b'{"device":"d","type":"t","seq":1,"ts":1,"temperature":-Infinity}', ("not_json", None)),
    "single quotes": (b"{'device':'d','type':'t','seq':1,'ts':1}", ("not_json", None)),
    "a byte order mark": (b"\xef\xbb\xbf" + encoded(reading()), ("not_json", None)),
    "half a surrogate": (encoded(reading(device="\ud800")), ("not_json", None)),
    "nested too deep": (b'{"a":' * 3000 + b"1" + b"}" * 3000, ("not_json", None)),
    "a number of 5000 digits": (encoded(reading())[:-1] + b',"x":' + b"1" * 5000 + b"}", ("not_json", None)),
    "a list": (b"[" + encoded(reading()) + b"]", ("not_an_object", None)),
    "a number": (b"42", ("not_an_object", None)),
    "a string": (b'"hello"', ("not_an_object", None)),
    "null": (b"null", ("not_an_object", None)),
    "broken text": (encoded(reading()).replace(b"sensor", b"s\xff"), ("not_utf8", None)),
    "latin-1": (encoded(reading()).replace(b"sensor", "wärme".encode("latin-1")), ("not_utf8", None)),
    "no device": (encoded(reading(device=...)), ("missing_field", "device")),
    "a device of null": (encoded(reading(device=None)), ("missing_field", "device")),
    "no seq, no ts": (encoded(reading(seq=..., ts=...)), ("missing_field", "seq, ts")),
    "no type": (encoded(reading(type=...)), ("missing_field", "type")),
    "an empty object": (b"{}", ("missing_field", "device, type, seq, ts")),
    "names in capitals": (b'{"Device":"d","type":"t","seq":1,"ts":1}', ("missing_field", "device")),
    "a device of number": (encoded(reading(device=17)), ("wrong_type", "device is no string but bigint")),
    "a device of object": (encoded(reading(device={"id": 1})),
                           ("wrong_type", "device is no string but object<id: bigint>")),
    "a sequence of text": (encoded(reading(seq="7")), ("wrong_type", "seq is no long but string")),
    "a sequence with fraction": (encoded(reading(seq=7.5)), ("wrong_type", "seq is no long but decimal(2,1)")),
    "a sequence beyond long": (encoded(reading(seq=2**63)), ("wrong_type", "seq is no long but decimal(19,0)")),
    "a time of text": (encoded(reading(ts="2026-03-01T00:00:00Z")), ("wrong_type", "ts is no long but string")),
    "a temperature of text": (encoded(reading(temperature="21.5")),
                              ("wrong_type", "temperature is no double but string")),
    "a signal with fraction": (encoded(reading(rssi=-70.5)), ("wrong_type", "rssi is no long but decimal(3,1)")),
    "two wrong types": (
        encoded(reading(seq=[], humidity=True)),
        ("wrong_type", "seq is no long but array<void>, humidity is no double but boolean"),
    ),
    "before 1970": (encoded(reading(ts=-1)), ("out_of_range", "ts is -1")),
    "the largest time": (encoded(reading(ts=2**63 - 1)), ("out_of_range", f"ts is {2**63 - 1}")),
    "a number beyond double": (
        encoded(reading())[:-1] + b',"temperature":1e999}',
        ("out_of_range", "temperature is too large"),
    ),
    "a whole number beyond 64 bits": (encoded(reading(rssi=1e300)), ("out_of_range", "rssi is too large")),
    "the first beyond 64 bits": (encoded(reading(rssi=2.0**63)), ("out_of_range", "rssi is too large")),
}  # fmt: skip


def test_every_record_is_good_or_quarantined_with_its_reason(spark: SparkSession) -> None:
    values = [value for value, _ in PAYLOADS.values()]
    parsed = records(spark, values).transform(transforms.parsed_records).persist()
    kept = {row.kafka_offset for row in parsed.transform(transforms.telemetry, max_ahead=FIVE_MINUTES).collect()}
    aside = {row.kafka_offset: row for row in parsed.transform(transforms.quarantined).collect()}
    found = {
        name: GOOD if offset in kept else (aside[offset].reason, aside[offset].detail)
        for offset, name in enumerate(PAYLOADS)
    }
    assert found == {name: verdict for name, (_, verdict) in PAYLOADS.items()}
    assert not kept & aside.keys()
    for offset, row in aside.items():
        assert row.value == values[offset], f"the bytes of {list(PAYLOADS)[offset]!r} changed on their way"


def test_quarantine_keeps_where_a_record_came_from(spark: SparkSession) -> None:
    frame = records(spark, [b"x"], headers=[("mqtt.topic", b"a/b"), ("empty", None)])
    (row,) = frame.transform(transforms.parsed_records).transform(transforms.quarantined).collect()
    assert (row.kafka_topic, row.kafka_partition, row.kafka_offset) == ("telemetry", 3, 0)
    assert row.key == b"key"
    assert [(header.key, header.value) for header in row.headers] == [("mqtt.topic", b"a/b"), ("empty", None)]
    assert row.ingest_date == date(2026, 3, 1)


def test_a_reading_becomes_a_row(spark: SparkSession) -> None:
    headers = [
        ("mqtt.topic", b"devices/sensor-1/telemetry"),
        ("gateway.message_id", b"sensor-1-7"),
        ("gateway.message_id_kind", b"device"),
        ("mqtt.topic", b"a second one of the same name"),
    ]
    value = encoded(reading(temperature=21.5, humidity=40, voltage=2.9, rssi=-70.0))
    frame = records(spark, [value], headers=headers).transform(transforms.parsed_records)
    rows = frame.transform(transforms.telemetry, max_ahead=FIVE_MINUTES)
    (row,) = rows.selectExpr(
        "*",
        "unix_micros(device_time) device_us",
        "unix_micros(event_time) event_us",
        "unix_micros(kafka_time) kafka_us",
    ).collect()
    assert {name: row[name] for name in ("device", "type", "seq", "temperature", "humidity", "voltage", "rssi")} == {
        "device": "sensor-1",
        "type": "thermostat",
        "seq": 7,
        "temperature": 21.5,
        "humidity": 40.0,
        "voltage": 2.9,
        "rssi": -70,
    }
    assert row.device_us == row.event_us == (RECEIVED_MS - 500) * 1000
    assert row.kafka_us == RECEIVED_MS * 1000
    assert row.ingest_date == date(2026, 3, 1)
    assert (row.mqtt_topic, row.message_id) == ("devices/sensor-1/telemetry", "sensor-1-7")
    assert (row.kafka_topic, row.kafka_partition, row.kafka_offset) == ("telemetry", 3, 0)
    assert [(field.name, field.dataType) for field in rows.schema] == [
        (field.name, field.dataType) for field in TELEMETRY if field.name != "batch"
    ]


def test_a_delivery_id_is_no_message_id(spark: SparkSession) -> None:
    headers = [("gateway.message_id", b"gw-0-0:17"), ("gateway.message_id_kind", b"delivery")]
    (row,) = telemetry(records(spark, [encoded(reading())], headers=headers))
    assert row.message_id is None
    assert row.mqtt_topic is None


@pytest.mark.parametrize(
    ("ahead_ms", "expected_ms"),
    [
        (-86_400_000 * 365, -86_400_000 * 365),
        (0, 0),
        (299_999, 299_999),
        (300_000, 300_000),
        (300_001, 300_000),
        (10 * 365 * 86_400_000, 300_000),
    ],
)
def test_event_time_is_at_most_max_ahead_of_the_receive_time(
    spark: SparkSession, ahead_ms: int, expected_ms: int
) -> None:
    value = encoded(reading(ts=RECEIVED_MS + ahead_ms))
    frame = records(spark, [value]).transform(transforms.parsed_records)
    (row,) = (
        frame.transform(transforms.telemetry, max_ahead=FIVE_MINUTES)
        .selectExpr("unix_millis(event_time) event_ms", "unix_millis(device_time) device_ms")
        .collect()
    )
    assert row.event_ms - RECEIVED_MS == expected_ms
    assert row.device_ms - RECEIVED_MS == ahead_ms


def test_windows_aggregate_each_type_by_event_time(spark: SparkSession) -> None:
    start_ms = RECEIVED_MS // 10_000 * 10_000
    values = [
        encoded(reading(ts=start_ms, temperature=20.0, rssi=-70)),
        encoded(reading(ts=start_ms + 9_999, temperature=24.0)),
        encoded(reading(ts=start_ms + 10_000, temperature=30.0)),
        encoded(reading(ts=start_ms + 1, type="meter", voltage=230.5)),
    ]
    frame = records(spark, values).transform(transforms.parsed_records)
    rows = frame.transform(transforms.telemetry, max_ahead=FIVE_MINUTES)
    windows = rows.transform(transforms.type_windows, window=timedelta(seconds=10), lateness=FIVE_MINUTES)
    assert set(windows.columns) == set(WINDOWS.names) - {"batch"}
    found = {
        (row.start_ms - start_ms, row.type): row
        for row in windows.selectExpr("*", "unix_millis(window_start) start_ms").collect()
    }
    assert sorted(found) == [(0, "meter"), (0, "thermostat"), (10_000, "thermostat")]
    room = found[0, "thermostat"]
    assert (room.rows, room.temperature_count) == (2, 2)
    assert (room.temperature_mean, room.temperature_min, room.temperature_max) == (22.0, 20.0, 24.0)
    assert (room.rssi_count, room.rssi_mean) == (1, -70.0)
    assert (room.voltage_count, room.voltage_mean, room.voltage_min) == (0, None, None)
    assert found[0, "meter"].voltage_max == 230.5
    assert found[0, "meter"].window_end - found[0, "meter"].window_start == timedelta(seconds=10)


def test_parsing_is_done_once_per_record(spark: SparkSession) -> None:
    """Spark pushes filters below projections and would parse once to filter and once more to read."""
    frame = records(spark, [encoded(reading())]).transform(transforms.parsed_records)
    windows = frame.transform(transforms.telemetry, max_ahead=FIVE_MINUTES).transform(
        transforms.type_windows, window=timedelta(seconds=10), lateness=FIVE_MINUTES
    )
    plan = windows._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json") == 1, plan


def arrow_rows(folder: Path) -> list[dict[str, Any]]:
    """What a reader that knows nothing of Spark sees."""
    return arrow.dataset(folder, partitioning="hive").to_table().to_pylist()


def good_rows(spark: SparkSession, sequences: Sequence[int]) -> DataFrame:
    values = [encoded(reading(seq=seq)) for seq in sequences]
    frame = records(spark, values).transform(transforms.parsed_records)
    return frame.transform(transforms.telemetry, max_ahead=FIVE_MINUTES)


def test_a_batch_written_again_replaces_its_rows_and_no_others(spark: SparkSession, tmp_path: Path) -> None:
    table = BatchTable(spark, str(tmp_path / "telemetry"), "ingest_date")
    assert table.is_empty()
    table.write(good_rows(spark, [1, 2]), 0)
    table.write(good_rows(spark, [3, 4, 5]), 1)
    table.write(good_rows(spark, [3, 4, 5]), 1)
    assert not table.is_empty()
    rows = arrow_rows(tmp_path / "telemetry")
    assert sorted((row["batch"], row["seq"]) for row in rows) == [(0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
    assert {str(row["ingest_date"]) for row in rows} == {"2026-03-01"}


def test_a_batch_around_midnight_utc_goes_to_two_dates(spark: SparkSession, tmp_path: Path) -> None:
    table = BatchTable(spark, str(tmp_path / "telemetry"), "ingest_date")
    later = records(spark, [encoded(reading(seq=2))], received=RECEIVED + timedelta(seconds=2))
    both = records(spark, [encoded(reading(seq=1))]).union(later).transform(transforms.parsed_records)
    table.write(both.transform(transforms.telemetry, max_ahead=FIVE_MINUTES), 0)
    assert sorted(path.name for path in (tmp_path / "telemetry").glob("ingest_date=*")) == [
        "ingest_date=2026-03-01",
        "ingest_date=2026-03-02",
    ]


def test_what_a_cut_off_batch_left_aside_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    table = BatchTable(spark, str(tmp_path), "ingest_date")
    (tmp_path / ".spark-staging-1234" / "ingest_date=2026-03-01").mkdir(parents=True)
    (tmp_path / "ingest_date=2026-03-01" / "batch=0").mkdir(parents=True)
    (tmp_path / "mine.txt").touch()
    table.clean()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ingest_date=2026-03-01", "mine.txt"]


def test_other_readers_find_plain_times_and_zstd(spark: SparkSession, tmp_path: Path) -> None:
    BatchTable(spark, str(tmp_path), "ingest_date").write(good_rows(spark, [1]), 0)
    (row,) = arrow_rows(tmp_path)
    assert row["kafka_time"].replace(tzinfo=UTC) == RECEIVED
    assert not list(tmp_path.rglob("_SUCCESS"))
    assert [path.name.split(".")[-2] for path in tmp_path.rglob("part-*.parquet")] == ["zstd"]


def stream(folder: Path, **changes: Any) -> StreamSettings:
    places = {name: folder / name for name in ("output", "quarantine", "checkpoint")}
    return StreamSettings(**{**places, **changes})


def test_tables_are_read_by_their_names(spark: SparkSession, tmp_path: Path) -> None:
    settings = stream(tmp_path)
    for table in (tables.telemetry, tables.quarantine, tables.windows):
        assert table(spark, settings).count() == 0, f"{table.__name__} of a job that wrote nothing is empty"
    BatchTable(spark, str(tmp_path / "output"), "ingest_date").write(good_rows(spark, [1, 2]), 4)
    frame = tables.telemetry(spark, settings)
    assert frame.columns == TELEMETRY.names
    assert [(row.seq, row.batch) for row in frame.orderBy("seq").collect()] == [(1, 4), (2, 4)]
    assert tables.quarantine(spark, settings).columns == QUARANTINE.names


def test_the_newest_state_of_each_window_counts(spark: SparkSession, tmp_path: Path) -> None:
    settings = stream(tmp_path)
    table = BatchTable(spark, str(tmp_path / "windows"), "window_date")
    for batch in (0, 1, 2):
        values = [encoded(reading(seq=seq, temperature=20.0 + seq)) for seq in range(batch + 1)]
        if batch == 1:
            values.append(encoded(reading(type="meter")))
        frame = records(spark, values).transform(transforms.parsed_records)
        rows = frame.transform(transforms.telemetry, max_ahead=FIVE_MINUTES)
        table.write(rows.transform(transforms.type_windows, window=timedelta(seconds=10), lateness=FIVE_MINUTES), batch)
    newest = {row.type: row for row in tables.windows(spark, settings).collect()}
    assert {kind: (row.rows, row.batch) for kind, row in newest.items()} == {"thermostat": (3, 2), "meter": (1, 1)}
    assert newest["thermostat"].temperature_max == 22.0


def test_windows_may_not_share_a_folder_with_another_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"stream\.quarantine"):
        tables.windows_location(stream(tmp_path, quarantine=tmp_path / "windows"))


def test_windows_lie_beside_the_telemetry() -> None:
    assert tables.windows_location(StreamSettings(output="s3a://bucket/telemetry")) == "s3a://bucket/windows"
    assert tables.windows_location(StreamSettings(output="/data/telemetry/")) == "/data/windows"
    with pytest.raises(ConfigError, match="nothing beside it"):
        tables.windows_location(StreamSettings(output="s3a://bucket"))


def test_a_new_checkpoint_is_refused_beside_old_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = BatchTable(spark, str(tmp_path / "telemetry"), "ingest_date")
    checkpoint = Folder(spark, str(tmp_path / "checkpoint"))
    require_matching(table, checkpoint)
    table.write(good_rows(spark, [1]), 0)
    with pytest.raises(ConfigError, match="a second time"):
        require_matching(table, checkpoint)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"1"}')
    require_matching(table, checkpoint)


def test_a_checkpoint_keeps_the_settings_it_was_begun_with(spark: SparkSession, tmp_path: Path) -> None:
    settings = stream(tmp_path)
    begun = prepare_checkpoint(spark, settings, "windows", {"stream.window": "0:00:10"})
    assert begun.url == str(tmp_path / "checkpoint" / "windows")
    # Not begun until Spark has written to it: until then settings may change.
    prepare_checkpoint(spark, settings, "windows", {"stream.window": "0:00:20"})
    (tmp_path / "checkpoint" / "windows").mkdir()
    (tmp_path / "checkpoint" / "windows" / "metadata").write_text('{"id":"1"}')
    prepare_checkpoint(spark, settings, "windows", {"stream.window": "0:00:20"})
    with pytest.raises(ConfigError, match=r"stream\.window is now 0:00:30, was 0:00:20"):
        prepare_checkpoint(spark, settings, "windows", {"stream.window": "0:00:30"})


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("/data/telemetry", "/data/telemetry"),
        ("s3a://bucket/telemetry", "s3a://bucket/telemetry"),
        ("hdfs://name:8020/telemetry", "hdfs://name:8020/telemetry"),
        ("file:///data/telemetry", "file:///data/telemetry"),
    ],
)
def test_folders_are_told_to_spark_as_they_were_written(written: str, url: str) -> None:
    assert location(StreamSettings(output=written).output) == url


def test_a_relative_folder_is_relative_to_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert location(StreamSettings().output) == str(tmp_path / "data" / "telemetry")
