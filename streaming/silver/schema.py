"""Columns of the tables ``silver`` and ``silver_quarantine``; who reads silver needs nothing else to know it."""

from collections.abc import Iterable
from typing import Final

from pyspark.sql.types import DataType, StructField, StructType

from streaming.lake.columns import HEADERS, columns

FIXED: Final = columns(
    "device string, type string, site string, seq long, device_time timestamp, event_time timestamp,"
    " clock_ahead boolean, received_at timestamp, message_id string, record_id string required, mqtt_topic string,"
    " kafka_topic string, kafka_partition integer, kafka_offset long, event_date date, ingested_at timestamp,"
    " gateway string"
)
"""What every row of silver has, before its signals. docs/streaming.md says what each is."""

PARTITIONS: Final = ("event_date", "clock_ahead")
"""Wrong clocks are apart: among others' rows they would stretch a file's range of device times to the year 2036, and no
file could be passed over by its range any more."""

QUARANTINE: Final = columns(
    "reason string, detail string, key binary, value binary, headers headers, kafka_topic string,"
    " kafka_partition integer, kafka_offset long, kafka_time timestamp, ingest_date date, ingested_at timestamp",
    headers=HEADERS,
)
"""Records that could not be decoded, as they came. ``ingest_date`` is the day of ``kafka_time``, the record's."""

QUARANTINE_PARTITIONS: Final = ("ingest_date",)


def signals_of(silver: StructType, *kinds: type[DataType]) -> list[str]:
    """The columns behind the fixed ones that are of these kinds."""
    return [it.name for it in silver if it.name not in FIXED.names and isinstance(it.dataType, kinds)]


def silver_schema(signals: Iterable[StructField]) -> StructType:
    """The table's columns: the fixed ones, then one nullable column per signal of the device schemas."""
    return StructType([*FIXED.fields, *(StructField(field.name, field.dataType) for field in signals)])
