"""A stretch of time filled from bronze and from Kafka: what is missing comes, what is there stays, again and again."""

import argparse
import fcntl
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from config.errors import ConfigError
from config.settings import KafkaSettings, Settings, StreamSettings
from config.tables.stream_jobs import GoldSettings, LakeSettings
from gateway.local.embedded.kafka import KafkaCluster
from streaming import lake_tables
from streaming.bronze.job import BRONZE, GAPS
from streaming.gold import job as gold
from streaming.kafka.topic_ids import TopicIds
from streaming.lake.forgotten import Forgotten
from streaming.lake.lake import DeltaTable
from streaming.upkeep import backfill
from tests.brokers.topics import delete_before
from tests.chaos.harness import FULL
from tests.integration.streaming_support import Message, produce

FIRST = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def payload(number: int, at: datetime) -> bytes:
    reading = {"device": f"d{number % 3}", "type": "pump", "seq": number, "ts": ms(at) + 50, "temperature": 20.5}
    return b"{broken" if number % 10 == 9 else json.dumps(reading).encode()


def moments(count: int) -> list[datetime]:
    """One each ten minutes, over midnight."""
    return [FIRST + timedelta(minutes=10 * number) for number in range(count)]


def told(first: datetime, end: datetime, max_days: int = 7) -> argparse.Namespace:
    return argparse.Namespace(since_ms=ms(first), until_ms=ms(end), max_days=max_days)


def settings_for(folder: Path, **more: Any) -> Settings:
    lake, windows = LakeSettings(path=folder / "lake"), GoldSettings(windows=("1h tumbling",))
    stream = StreamSettings(lake=lake, gold=windows, checkpoint=folder / "checkpoints", **more.pop("stream", {}))
    return Settings(stream=stream, **more)


def of_kafka(kafka: KafkaCluster, topic: str) -> dict[str, Any]:
    return {"stream": {"topics": (topic,)}, "kafka": KafkaSettings(bootstrap_servers=(kafka.bootstrap,))}


def write_bronze(spark: SparkSession, settings: Settings, received: list[datetime], topic: str = "t") -> None:
    rows = [
        (None, payload(number, at), 0, number, at, 0, [("mqtt.topic", b"x")], at.date(), topic, 0)
        for number, at in enumerate(received)
    ]
    table = spark.createDataFrame(rows, BRONZE).coalesce(1)
    writer = table.write.format("delta").partitionBy("ingest_date", "topic")
    writer.save(f"{settings.stream.lake.path}/bronze")


@pytest.mark.skipif(not FULL, reason="takes minutes: CHAOS=full")
async def test_what_is_missing_is_filled_once(
    spark: SparkSession, kafka: KafkaCluster, make_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(tmp_path, **of_kafka(kafka, await make_topic(partitions=1)))
    write_bronze(spark, settings, moments(24))  # 22:00 to 01:50; 9 and 19 are broken
    stretch = told(FIRST + timedelta(minutes=30), FIRST + timedelta(hours=3))  # 3 to 17
    assert backfill.run(spark, settings, stretch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "2026-03-01 22:30 to 2026-03-02 00:00 from bronze: 8 readings, 8 of them new in silver; 1"
    )
    assert lines[1].startswith(
        "2026-03-02 00:00 to 2026-03-02 01:00 from bronze: 6 readings, 6 of them new in silver; 0"
    )
    assert len(lines) == 2, "there is no gold to compute again"
    silver = lake_tables.silver(spark, settings.stream)
    assert sorted(row.kafka_offset for row in silver.collect()) == [n for n in range(3, 18) if n != 9]

    gold._Gold(spark, settings)  # makes the table
    assert (
        backfill.run(spark, settings, told(moments(2)[1], FIRST + timedelta(hours=2))) == 0
    )  # some of it again, and before
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("10 readings, 2 of them new in silver; 1 bad, 0 of them new in quarantine")
    assert said[-1] == "gold: the windows of 10 readings are computed again"
    assert lake_tables.silver(spark, settings.stream).count() == 16
    assert lake_tables.silver_quarantine(spark, settings.stream).count() == 1
    types = lake_tables.gold(spark, settings.stream).where("level = 'type' AND signal = 'temperature'").collect()
    assert {it.window_start.astimezone(UTC): it.readings for it in types} == {FIRST: 5, FIRST + timedelta(hours=1): 5}


async def test_without_bronze_it_comes_from_kafka(
    spark: SparkSession, kafka: KafkaCluster, make_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = await make_topic(partitions=2)
    # Of one day, at whatever hour the test runs: each day is filled, and told, by itself.
    base = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=4)
    places = [base + timedelta(minutes=number) for number in range(8)]
    # Partition 1 has nothing behind the stretch's beginning; the others waited in a spool for three days.
    batch = [Message(payload(number, at), ms(at), int(number < 2)) for number, at in enumerate(places)]
    later = base + timedelta(days=3)
    produce(kafka.bootstrap, topic, [Message(payload(20, later), ms(later), 0), *batch])
    settings = settings_for(tmp_path, **of_kafka(kafka, topic))
    assert backfill.run(spark, settings, told(places[3], places[7])) == 0
    assert "from Kafka: 4 readings, 4 of them new in silver" in capsys.readouterr().out

    write_bronze(spark, settings, moments(2))  # of long ago: it stopped before the stretch, which Kafka has
    produce(kafka.bootstrap, topic, [Message(payload(number, places[5]), ms(places[5]), 0) for number in (8, 10)])
    Forgotten(spark, settings.stream).add("d2")  # whose are 5 and 8; Kafka has them still
    assert backfill.run(spark, settings, told(places[3], places[7])) == 0
    from_bronze, from_kafka = capsys.readouterr().out.splitlines()
    assert "from bronze: 0 readings, 0 of them new" in from_bronze
    assert "from Kafka: 4 readings, 1 of them new" in from_kafka

    delete_before(kafka.bootstrap, topic, 0, 2)  # of places[2] and [3]; partition 1 has all it ever had
    assert backfill.run(spark, settings, told(places[3], places[7])) == 6
    assert f"Kafka has deleted {topic}/0 before offset 2." in capsys.readouterr().err
    assert backfill.run(spark, settings, told(places[5], places[7])) == 0, "its first record is from before the stretch"


async def test_each_record_of_kafka_is_read_once_however_many_days_there_are(
    spark: SparkSession, kafka: KafkaCluster, make_topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await make_topic(partitions=1)
    settings, read = settings_for(tmp_path, **of_kafka(kafka, topic)), backfill._kafka
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    days = [noon - timedelta(days=4 - number) for number in range(4)]
    # That of the first day in between waited in a spool.
    batch = [Message(payload(number, at), ms(at), 0) for number, at in enumerate([*days[:3], days[0], days[3]])]
    produce(kafka.bootstrap, topic, batch)
    counts = []

    def counted(*given: Any) -> Any:
        counts.append(read(*given).count())
        return read(*given)

    monkeypatch.setattr(backfill, "_kafka", counted)
    assert backfill.run(spark, settings, told(days[0], days[3])) == 0
    assert counts == [1, 1, 2, 1]
    assert sorted(row.kafka_offset for row in lake_tables.silver(spark, settings.stream).collect()) == [0, 1, 2, 3]


async def test_what_bronze_has_not_read_of_one_partition_comes_from_kafka(
    spark: SparkSession, kafka: KafkaCluster, make_topic: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = await make_topic(partitions=2)
    settings = settings_for(tmp_path, **of_kafka(kafka, topic))
    base = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=4)
    places = [base + timedelta(minutes=number) for number in range(4)]
    batch = [Message(payload(number, at), ms(at), 0) for number, at in enumerate(places)]
    produce(kafka.bootstrap, topic, [*batch, Message(payload(5, places[1]), ms(places[1]), 1)])
    write_bronze(spark, settings, places, topic)
    for kind in ("offsets", "commits"):
        (tmp_path / "checkpoints" / "bronze" / kind).mkdir(parents=True)
    (tmp_path / "checkpoints" / "bronze" / "commits" / "0").write_text("v1\n{}")
    for read, told_of_kafka in ((0, ["from Kafka: 1 readings, 1 of them new"]), (1, [])):
        offsets = json.dumps({topic: {"0": 4, "1": read}})
        (tmp_path / "checkpoints" / "bronze" / "offsets" / "0").write_text(f"v1\n{{}}\n{offsets}")
        assert backfill.run(spark, settings, told(places[1], places[3])) == 0
        from_bronze, *more = capsys.readouterr().out.splitlines()
        assert "from bronze: 2 readings" in from_bronze
        assert [text in line for text, line in zip(told_of_kafka, more, strict=True)] == [True] * len(told_of_kafka)
    # A day of the stretch is gone from bronze, though one that came late from before it is there.
    DeltaTable(spark, settings.stream, "bronze").note_whole_since(base.date() + timedelta(days=1))
    assert backfill.run(spark, settings, told(places[1], places[3])) == 0
    assert "from Kafka: 1 readings, 0 of them new" in capsys.readouterr().out
    # It may begin within the stretch: all of Kafka is looked at, and what bronze has is not decoded twice.
    assert backfill.run(spark, settings, told(base - timedelta(minutes=1), places[3])) == 0
    from_bronze, from_kafka = capsys.readouterr().out.splitlines()
    assert "from bronze: 3 readings" in from_bronze
    assert "from Kafka: 1 readings, 0 of them new" in from_kafka


async def test_of_a_topic_made_anew_kafka_is_asked_for_what_bronze_stepped_over(
    spark: SparkSession, kafka: KafkaCluster, make_topic: Any, tmp_path: Path
) -> None:
    """Bronze goes on at the old topic's offset, here 4, and has not read yet, or has met, that the topic is another."""
    topic = await make_topic(partitions=1)
    settings = settings_for(tmp_path, **of_kafka(kafka, topic))
    at = moments(6)
    produce(kafka.bootstrap, topic, [Message(payload(number, it), ms(it), 0) for number, it in enumerate(at)])
    write_bronze(spark, settings, at[:2], topic)
    bronze = tmp_path / "checkpoints" / "bronze"
    for kind, text in (("offsets", json.dumps({topic: {"0": 4}})), ("commits", "{}")):
        (bronze / kind).mkdir(parents=True)
        (bronze / kind / "0").write_text(f"v1\n{{}}\n{text}")

    def from_kafka(first: datetime = at[1], end: datetime = at[5]) -> tuple[list[int], list[str]]:
        (found,), cut = backfill.records_between(spark, settings, [(first, end)])
        return [row.offset for row in found["Kafka"].sort("offset").collect()], cut

    assert from_kafka() == ([4], [])
    TopicIds(spark, settings, "bronze").keep({topic: "the old one's"}, 0)
    # What it had behind the last record that bronze read nobody knows.
    assert from_kafka() == ([2, 3, 4], [f"an earlier topic {topic}"])
    assert from_kafka(at[0], at[1]) == ([], []), "its later records have been read"
    (tmp_path / "checkpoints" / "bronze_topics.json").unlink()
    for seen_at, stepped_over in ((at[0], []), (at[5], [2, 3])):
        lost = [(topic, 0, 2, 3, "recreated", seen_at, 1)]
        DeltaTable(spark, settings.stream, "bronze_gaps").replace(spark.createDataFrame(lost, GAPS))
        assert from_kafka() == ([*stepped_over, 4], [f"an earlier topic {topic}"][: len(stepped_over)])


async def test_files_of_another_time_are_passed_over_and_what_bronze_lost_is_told(
    spark: SparkSession, kafka: KafkaCluster, make_topic: Any, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=1)
    settings = settings_for(tmp_path, **of_kafka(kafka, topic))
    write_bronze(spark, settings, moments(12), topic)  # all of one day
    days = [(moments(2)[1], FIRST + timedelta(minutes=30))]  # offsets 1 and 2
    # The first was lost before the stretch, the third after it; of the others nobody knows.
    lost = [(topic, partition, at, at, "deleted", FIRST + timedelta(days=1), 0)
            for partition, at in ((0, 0), (0, 2), (0, 4), (1, 7))]  # fmt: skip
    DeltaTable(spark, settings.stream, "bronze_gaps").replace(spark.createDataFrame(lost, GAPS))
    _, cut = backfill.records_between(spark, settings, days)
    assert cut == [f"{topic}/0 from offset 2 to 2", f"{topic}/1 from offset 7 to 7"]

    bronze = f"{settings.stream.lake.path}/bronze"
    later = lake_tables.bronze(spark, settings.stream).withColumn("timestamp", F.expr("timestamp + INTERVAL 6 HOURS"))
    later.write.format("delta").mode("append").save(bronze)
    (found,), _ = backfill.records_between(spark, settings, days)
    assert {source: len(records.inputFiles()) for source, records in found.items()} == {"bronze": 1}


def test_a_stretch_that_is_none_or_too_long_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    with pytest.raises(ConfigError, match="nothing is between"):
        backfill.run(spark, settings, told(FIRST, FIRST))
    with pytest.raises(ConfigError, match="--max-days 7"):
        backfill.run(spark, settings, told(FIRST, FIRST + timedelta(days=8)))
    (tmp_path / "checkpoints").mkdir()
    with (tmp_path / "checkpoints" / "forget.lock").open("a") as forget:
        fcntl.flock(forget, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="in use by"):
            backfill.run(spark, settings, told(FIRST, FIRST + timedelta(days=1)))
