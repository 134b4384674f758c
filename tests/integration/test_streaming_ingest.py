"""The job on a real Kafka, in one Spark session: what is in Kafka is in the tables once, whatever is in it."""

from __future__ import annotations

import json
import queue
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pydantic import SecretStr

from config.settings import KafkaSettings, SaslSettings, Settings, StreamSettings, TlsSettings
from gateway.local.runtime.jars import resolve
from streaming import ingest, tables, windows
from streaming.errors import DataLossError, KafkaRefusedError, KafkaUnavailableError
from streaming.job import JobContext
from streaming.progress import BatchEvent, StartedEvent, WindowEvent
from streaming.queries import run_queries
from tests.integration.streaming_support import (
    BAD,
    PLACES,
    Message,
    base_ms,
    messages,
    offsets_in,
    produce,
    reading,
    rows_in,
)
from tests.spark import one_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from gateway.local.embedded.kafka import KafkaCluster
    from streaming.job import Job
    from streaming.progress import Event
    from tests.brokers.fixtures import MakeTopic

BOTH: tuple[Job, ...] = (ingest.start, windows.start)
INGEST: tuple[Job, ...] = (ingest.start,)
WINDOWS: tuple[Job, ...] = (windows.start,)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with one_spark(resolve("spark"), {}) as session:
        yield session


def settings(folder: Path, topic: str, kafka: KafkaSettings, **stream: Any) -> Settings:
    places = {name: folder / place for name, place in PLACES.items()}
    chosen: dict[str, Any] = {"topics": (topic,), "available_now": True, **places, **stream}
    return Settings(kafka=kafka, stream=StreamSettings(**chosen))


def plain(cluster: KafkaCluster) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=tuple(cluster.bootstrap.split(",")))


def run(spark: SparkSession, chosen: Settings, jobs: Sequence[Job], *, allow_data_loss: bool = False) -> list[Event]:
    """Reads what there is, and returns what was reported."""
    events: list[Event] = []
    context = JobContext(events.append, allow_data_loss=allow_data_loss)
    run_queries(spark, chosen, jobs, context, queue.SimpleQueue())
    return events


def batches(events: Sequence[Event], query: str) -> list[BatchEvent]:
    return [event for event in events if isinstance(event, BatchEvent) and event.query == query]


def expected_windows(sent: Sequence[Message], length_ms: int) -> dict[tuple[int, str], dict[str, Any]]:
    """The aggregates, computed without Spark."""
    values: defaultdict[tuple[int, str], defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for message in sent:
        fields = json.loads(message.value)
        group = values[fields["ts"] // length_ms * length_ms, fields["type"]]
        group["rows"].append(1)
        for name in ("temperature", "humidity", "voltage", "rssi"):
            group[name].append(fields[name])
    return {
        key: {
            "rows": len(group.pop("rows")),
            **{name: (len(found), fmean(found), min(found), max(found)) for name, found in group.items()},
        }
        for key, group in values.items()
    }


def assert_windows(found: dict[tuple[int, str], dict[str, Any]], sent: Sequence[Message]) -> None:
    expected = expected_windows(sent, 10_000)
    assert found.keys() == expected.keys()
    for key, aggregates in expected.items():
        for name, value in aggregates.items():
            assert found[key][name] == pytest.approx(value), f"{name} of window {key}"


async def test_what_is_in_kafka_is_in_the_tables_once(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=3)
    chosen = settings(tmp_path, topic, plain(kafka))
    first = messages(range(1_200), base_ms(), 3)
    bad = [Message(value, base_ms() + 20 * at, at % 3) for at, value in enumerate(BAD.values())]
    mixed = [*first]
    for at, message in enumerate(bad):
        mixed.insert(100 * at + 50, message)
    produce(kafka.bootstrap, topic, mixed)

    events = run(spark, chosen, BOTH)

    rows, aside = rows_in(tmp_path / "telemetry"), rows_in(tmp_path / "quarantine")
    assert sorted((row["device"], row["seq"]) for row in rows) == sorted(
        (fields["device"], fields["seq"]) for fields in (json.loads(message.value) for message in first)
    )
    assert sorted((row["reason"], row["value"]) for row in aside) == sorted(BAD.items())
    assert offsets_in([*rows, *aside]) == {
        partition: list(range(sum(message.partition == partition for message in mixed))) for partition in range(3)
    }
    assert {row["kafka_topic"] for row in [*rows, *aside]} == {topic}
    for row in rows:
        received = row["kafka_time"].replace(tzinfo=UTC)
        assert str(row["ingest_date"]) == str(received.date()), f"offset {row['kafka_offset']} lies in the wrong folder"
    assert len({row["ingest_date"] for row in rows}) == 2, "the readings around midnight are on two dates"

    assert isinstance(events[0], StartedEvent)
    assert events[0].queries == ("ingest", "windows")
    (batch,) = batches(events, "ingest")
    assert (batch.batch, batch.rows, batch.quarantined) == (0, len(mixed), len(bad))
    assert sum(batch.end_offsets[topic].values()) == len(mixed)
    assert_windows(printed_windows(events), first)

    # A later run goes on where this one ended.
    second = messages(range(1_200, 1_500), base_ms() + 8_000, 3)
    produce(kafka.bootstrap, topic, second)
    events = run(spark, chosen, BOTH)
    (batch,) = batches(events, "ingest")
    assert (batch.batch, batch.rows, batch.quarantined) == (1, 300, 0)
    rows = rows_in(tmp_path / "telemetry")
    assert len(rows) == len({(row["device"], row["seq"]) for row in rows}) == 1_500
    assert_windows(stored_windows(spark, chosen), [*first, *second])

    # And one with nothing to read changes nothing.
    assert not batches(run(spark, chosen, INGEST), "ingest")
    assert len(rows_in(tmp_path / "telemetry")) == 1_500


def printed_windows(events: Sequence[Event]) -> dict[tuple[int, str], dict[str, Any]]:
    return {
        (event.start_ms, event.type): {
            "rows": event.rows,
            **{name: (it.count, it.mean, it.min, it.max) for name, it in event.measurements.items()},
        }
        for event in events
        if isinstance(event, WindowEvent)
    }


def stored_windows(spark: SparkSession, chosen: Settings) -> dict[tuple[int, str], dict[str, Any]]:
    newest = tables.windows(spark, chosen.stream).selectExpr("*", "unix_millis(window_start) start_ms").collect()
    return {
        (row.start_ms, row.type): {
            "rows": row.rows,
            **{
                name: tuple(row[f"{name}_{what}"] for what in ("count", "mean", "min", "max"))
                for name in ("temperature", "humidity", "voltage", "rssi")
            },
        }
        for row in newest
    }


async def test_a_batch_that_was_not_committed_is_written_again_in_its_place(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """What a crash between writing and committing leaves: rows are there, the checkpoint does not know it."""
    topic = await make_topic(partitions=2)
    chosen = settings(tmp_path, topic, plain(kafka), max_offsets_per_trigger=300)
    sent = messages(range(900), base_ms() + 10_000, 2)
    produce(kafka.bootstrap, topic, [*sent, Message(BAD["not_json"], sent[-1].at_ms)])
    run(spark, chosen, BOTH)
    before = offsets_in(rows_in(tmp_path / "telemetry")), stored_windows(spark, chosen)
    for query in ("ingest", "windows"):
        commits = tmp_path / "checkpoints" / query / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        assert last >= 2
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink()

    events = run(spark, chosen, BOTH)

    assert [event.batch for event in batches(events, "ingest")] == [last]
    assert (offsets_in(rows_in(tmp_path / "telemetry")), stored_windows(spark, chosen)) == before
    assert len(rows_in(tmp_path / "quarantine")) == 1
    assert_windows(before[1], sent)


async def test_one_wrong_clock_makes_nobody_else_late(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=1)
    chosen = settings(
        tmp_path,
        topic,
        plain(kafka),
        max_offsets_per_trigger=10,
        watermark=timedelta(minutes=5),
        max_ahead=timedelta(minutes=5),
    )
    start_ms = base_ms() + 5_000 - 3_600_000

    def batch(received_ms: int, first: int, **changes: Any) -> list[Message]:
        """Ten readings, as many as a batch takes; the first one with the changes."""
        fields = [reading(first + at, received_ms, type="pump", ts=received_ms) for at in range(10)]
        return [
            Message(json.dumps(one | (changes if at == 0 else {})).encode(), received_ms)
            for at, one in enumerate(fields)
        ]

    in_2036 = int(datetime(2036, 1, 1, tzinfo=UTC).timestamp() * 1000)
    buffered = start_ms - 240_000  # measured four minutes before it was sent: less than the watermark allows
    ancient = start_ms - 1_200_000
    produce(
        kafka.bootstrap,
        topic,
        [
            *batch(start_ms, 0, ts=in_2036),
            *batch(start_ms + 1_000, 10, ts=buffered, type="meter"),
            *batch(start_ms + 2_000, 20, ts=ancient, type="thermostat"),
        ],
    )

    events = run(spark, chosen, BOTH)

    rows = rows_in(tmp_path / "telemetry")
    assert len(rows) == 30, "a wrong clock costs no row of the table"
    (clamped,) = [row for row in rows if row["device_time"].replace(tzinfo=UTC).year == 2036]
    assert clamped["event_time"] - clamped["kafka_time"] == timedelta(minutes=5)
    found = printed_windows(events)
    assert found[buffered // 10_000 * 10_000, "meter"]["rows"] == 1
    assert found[(start_ms + 300_000) // 10_000 * 10_000, "pump"]["rows"] == 1, (
        "the clamped one is in a window of its own"
    )
    assert not [kind for _, kind in found if kind == "thermostat"], "what is later than the watermark is in no window"
    assert [event.late for event in batches(events, "windows")] == [0, 0, 1]
    # The watermark never passes what is received now, less what may be late, although one clock is ten years ahead.
    assert max(event.watermark_ms or 0 for event in batches(events, "windows")) == start_ms - 300_000


async def test_records_that_vanished_are_told_and_not_stepped_over(
    spark: SparkSession, kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = await make_topic(partitions=1)
    chosen = settings(tmp_path, topic, plain(kafka))
    produce(kafka.bootstrap, topic, messages(range(50), base_ms(), 1))
    run(spark, chosen, INGEST)
    produce(kafka.bootstrap, topic, messages(range(50, 100), base_ms(), 1))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 80)]).values():
        deleted.result(timeout=30)

    with pytest.raises(DataLossError, match="--allow-data-loss"):
        run(spark, chosen, INGEST)
    assert offsets_in(rows_in(tmp_path / "telemetry")) == {0: list(range(50))}

    run(spark, chosen, INGEST, allow_data_loss=True)
    assert offsets_in(rows_in(tmp_path / "telemetry")) == {0: [*range(50), *range(80, 100)]}


async def test_a_topic_that_is_not_there_is_named(
    spark: SparkSession, kafka: KafkaCluster, unique: str, tmp_path: Path
) -> None:
    with pytest.raises(KafkaUnavailableError, match=unique):
        run(spark, settings(tmp_path, unique, plain(kafka)), INGEST)


@pytest.mark.slow
async def test_a_secured_kafka_is_read_with_password_and_certificate(
    spark: SparkSession, make_kafka: Callable[..., KafkaCluster], make_topic: MakeTopic, tmp_path: Path
) -> None:
    cluster = make_kafka(sasl=True, tls=True, users={"spark": 'qu"ote\\d'})
    topic = await make_topic(partitions=1, cluster=cluster)
    produce(cluster.bootstrap, topic, messages(range(20), base_ms(), 1))
    assert cluster.certificates is not None

    def secured(password: str, ca: Path | None) -> KafkaSettings:
        return KafkaSettings(
            bootstrap_servers=(cluster.sasl_tls_bootstrap,),
            security="SASL_SSL",
            sasl=SaslSettings(mechanism="SCRAM-SHA-512", username="spark", password=SecretStr(password)),
            tls=TlsSettings(ca_file=ca),
        )

    ca_file = cluster.certificates.ca_file
    run(spark, settings(tmp_path / "right", topic, secured('qu"ote\\d', ca_file)), INGEST)
    assert len(rows_in(tmp_path / "right" / "telemetry")) == 20
    with pytest.raises(KafkaRefusedError, match=r"kafka\.sasl"):
        run(spark, settings(tmp_path / "wrong", topic, secured("wrong", ca_file)), INGEST)
    with pytest.raises(KafkaRefusedError, match=r"kafka\.tls"):
        run(spark, settings(tmp_path / "unknown", topic, secured('qu"ote\\d', None)), INGEST)
