"""Schemas of what is read and written: the devices' JSON (fields as in ``bridge.wire``) and the tables' columns."""

from __future__ import annotations

__all__ = [
    "CORRUPT",
    "MEASUREMENTS",
    "QUARANTINE",
    "RECORD",
    "REQUIRED",
    "TELEMETRY",
    "WHOLE",
    "WINDOWS",
    "column_name",
    "wrapped_payload",
]

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bridge.wire import TELEMETRY_FIELDS

if TYPE_CHECKING:
    from bridge.wire import Field

RECORD = "record"
WHOLE = "whole"
CORRUPT = "_corrupt"
REQUIRED = tuple(field for field in TELEMETRY_FIELDS if field.required)
MEASUREMENTS = tuple(field for field in TELEMETRY_FIELDS if not field.required)
"""The numbers a device measures, each optional. A field named ``a.b`` is field ``b`` of the object ``a``."""

_TABLE_TYPES: dict[str, DataType] = {"string": StringType(), "long": LongType(), "double": DoubleType()}


def column_name(field: Field) -> str:
    """The table column of a field: its own name, without the objects it is nested in."""
    return field.name.rpartition(".")[2]


def wrapped_payload() -> StructType:
    """Schema of a payload put into an object, ``{"record": PAYLOAD, "whole": true}``.

    Optional integers are read as doubles: JSON has one kind of number, and senders write -70 and -70.0 alike.
    """
    payload = StructType()
    for field in TELEMETRY_FIELDS:
        kind: DataType = _TABLE_TYPES[field.kind]
        if field.kind == "long" and not field.required:
            kind = DoubleType()
        _put(payload, field.name.split("."), kind)
    return StructType(
        [StructField(RECORD, payload), StructField(WHOLE, BooleanType()), StructField(CORRUPT, StringType())]
    )


def _put(into: StructType, path: list[str], kind: DataType) -> None:
    name, *rest = path
    if not rest:
        into.add(name, kind)
        return
    if name not in into.names:
        into.add(name, StructType())
    inner = into[name].dataType
    assert isinstance(inner, StructType)
    _put(inner, rest, kind)


_KAFKA = [
    StructField("kafka_topic", StringType()),
    StructField("kafka_partition", IntegerType()),
    StructField("kafka_offset", LongType()),
    StructField("kafka_time", TimestampType()),
]
_PARTITIONING = [StructField("ingest_date", DateType()), StructField("batch", LongType())]

TELEMETRY = StructType(
    [
        StructField("device", StringType()),
        StructField("type", StringType()),
        StructField("seq", LongType()),
        StructField("device_time", TimestampType()),
        StructField("event_time", TimestampType()),
        *(StructField(column_name(field), _TABLE_TYPES[field.kind]) for field in MEASUREMENTS),
        StructField("mqtt_topic", StringType()),
        StructField("message_id", StringType()),
        *_KAFKA,
        *_PARTITIONING,
    ]
)

QUARANTINE = StructType(
    [
        StructField("reason", StringType()),
        StructField("detail", StringType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
        *_KAFKA,
        *_PARTITIONING,
    ]
)

WINDOWS = StructType(
    [
        StructField("window_start", TimestampType()),
        StructField("window_end", TimestampType()),
        StructField("type", StringType()),
        StructField("rows", LongType()),
        *(
            StructField(f"{column_name(field)}_{what}", LongType() if what == "count" else DoubleType())
            for field in MEASUREMENTS
            for what in ("count", "mean", "min", "max")
        ),
        StructField("window_date", DateType()),
        StructField("batch", LongType()),
    ]
)
