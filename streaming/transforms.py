"""What is made of Kafka's records. Each function returns the DataFrame it is named for; no session, no I/O.

    records ─▶ parsed_records ─┬─▶ readings ─┬─▶ telemetry
                               │             └─▶ type_windows
                               └─▶ quarantined

A record is judged once, in :func:`parsed_records`: ``reason`` is null for a good one. No expression here may raise,
because one poisoned record would then stop the stream for ever; Spark's ANSI casts and indexes do raise.
"""

from __future__ import annotations

__all__ = ["BadRecord", "parsed_records", "quarantined", "readings", "telemetry", "type_windows"]

from datetime import timedelta
from enum import StrEnum
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from bridge.wire import GATEWAY_MESSAGE_ID, GATEWAY_MESSAGE_ID_KIND, MQTT_TOPIC, MessageIdKind
from streaming.decode_shapes import MAX_TS_MS, header, may_be_no_string
from streaming.schemas import (
    CORRUPT,
    MEASUREMENTS,
    QUARANTINE,
    RECORD,
    REQUIRED,
    TELEMETRY,
    WHOLE,
    column_name,
    wrapped_payload,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

    from bridge.wire import Field

_JSON_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": CORRUPT,
    # Spark's reader is more generous than JSON; a NaN would turn every mean of its window into NaN.
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
}


class BadRecord(StrEnum):
    """Why a record is in quarantine: the values of the column ``reason``."""

    EMPTY = "empty"  # no payload, or one of no bytes
    NOT_UTF8 = "not_utf8"  # bytes that are no text
    NOT_JSON = "not_json"  # not one JSON value: cut off, several in a row, NaN
    NOT_AN_OBJECT = "not_an_object"  # JSON, but a list, a number, null …
    MISSING_FIELD = "missing_field"  # a required field is absent or null; detail names it
    WRONG_TYPE = "wrong_type"  # a field is not of its type; detail names it
    OUT_OF_RANGE = "out_of_range"  # ts before 1970 or after 9999, or a number too large for a double; detail names it
    # In silver, which knows the types of devices:
    UNKNOWN_TYPE = "unknown_type"  # no schema for the type; detail names it
    SCHEMA = "schema"  # a value is not what the type's schema allows, or the format is not the type's; detail names it
    NOT_AVRO = "not_avro"  # bytes that the type's Avro schemas cannot read
    NOT_PROTOBUF = "not_protobuf"  # bytes that the type's Protobuf message cannot read


def parsed_records(records: DataFrame) -> DataFrame:
    """Kafka's records with ``payload`` (the JSON's fields, typed) and ``reason`` (a :class:`BadRecord`, null if good).

    The payload is parsed inside an object of its own, ``{"record": …, "whole": true}``: Spark's reader stops after the
    first JSON value and would drop what follows it, such as the other lines of several readings sent as lines.

    The observation at the end keeps Spark from moving a filter on ``reason`` to before the parsing, and with it a copy
    of the parsing for each place ``reason`` names a field: it would parse a record twenty times. Its name may occur
    once in a plan, so join streams before they are parsed.
    """
    wrapped = F.concat(F.lit(f'{{"{RECORD}":'), _text(), F.lit(f',"{WHOLE}":true}}'))
    return (
        records.withColumn("parsed", F.from_json(wrapped, wrapped_payload(), _JSON_OPTIONS))
        .withColumn("payload", F.when(F.col(f"parsed.{WHOLE}"), F.col(f"parsed.{RECORD}")))
        .withColumn("reason", _reason())
        .drop("parsed")
        .observe("parsed_records", F.count(F.lit(1)).alias("rows"), F.count("reason").alias("bad"))
    )


def readings(parsed: DataFrame, *, max_ahead: timedelta) -> DataFrame:
    """The good records with what their payloads say: the table's columns from ``device`` to the measurements.

    ``event_time`` is the device's time, but at most ``max_ahead`` after the Kafka record's own timestamp, which is when
    the gateway received the message.
    """
    device_time = F.timestamp_millis(F.col("payload.ts"))
    latest = F.timestamp_micros(F.unix_micros("timestamp") + F.lit(_microseconds(max_ahead)))
    return parsed.where(F.col("reason").isNull()).withColumns(
        {
            "device": F.col("payload.device"),
            "type": F.col("payload.type"),
            "seq": F.col("payload.seq"),
            "device_time": device_time,
            "event_time": F.least(device_time, latest),
            **{column_name(field): F.col(f"payload.{field.name}").cast(field.kind) for field in MEASUREMENTS},
        }
    )


def telemetry(parsed: DataFrame, *, max_ahead: timedelta) -> DataFrame:
    """The good records as rows of the table, all columns but ``batch``: :func:`readings`, and where they came from."""
    by_device = header(GATEWAY_MESSAGE_ID_KIND) == F.lit(MessageIdKind.DEVICE.value)
    return (
        readings(parsed, max_ahead=max_ahead)
        .withColumns(
            {
                "mqtt_topic": header(MQTT_TOPIC),
                "message_id": F.when(by_device, header(GATEWAY_MESSAGE_ID)),
                **_kafka_columns(),
            }
        )
        .select(*(name for name in TELEMETRY.names if name != "batch"))
    )


def quarantined(parsed: DataFrame) -> DataFrame:
    """The bad records as they came, with reason and the fields that are to blame, all columns but ``batch``."""
    return (
        parsed.where(F.col("reason").isNotNull())
        .withColumns({"detail": _detail(), **_kafka_columns()})
        .select(*(name for name in QUARANTINE.names if name != "batch"))
    )


def type_windows(rows: DataFrame, *, window: timedelta, lateness: timedelta) -> DataFrame:
    """Count, mean, minimum and maximum of each measurement, per device type and tumbling window of event time.

    ``lateness`` is how far the newest event time seen may run ahead of a row that still counts.
    """
    aggregates = [F.count(F.lit(1)).alias("rows")]
    for name in map(column_name, MEASUREMENTS):
        value = F.col(name).cast("double")
        aggregates += [
            F.count(value).alias(f"{name}_count"),
            F.avg(value).alias(f"{name}_mean"),
            F.min(value).alias(f"{name}_min"),
            F.max(value).alias(f"{name}_max"),
        ]
    return (
        rows.withWatermark("event_time", f"{_microseconds(lateness)} microseconds")
        .groupBy(F.window("event_time", f"{_microseconds(window)} microseconds"), "type")
        .agg(*aggregates)
        .withColumns({"window_start": F.col("window.start"), "window_end": F.col("window.end")})
        .withColumn("window_date", F.to_date("window_start"))
        .drop("window")
    )


def _text() -> Column:
    return F.col("value").cast("string")


def _reason() -> Column:
    """The first thing that is wrong with a record; null if nothing is.

    Most records are plainly good. The closer look is the body of a higher-order function, which Spark does not compile
    into the code for every row.
    """
    good = [
        F.col(f"parsed.{CORRUPT}").isNull(),
        F.is_valid_utf8(_text()),
        *(~_is_missing(field) for field in REQUIRED),
        *(~_may_be_no_string(field) for field in REQUIRED if field.kind == "string"),
        *(~_is_faulty(field) for field in MEASUREMENTS),
        ~_ts_is_out_of_range(),
    ]
    looked = F.transform(F.array(F.try_parse_json(_text())), _verdict)
    return F.when(~F.coalesce(reduce(and_, good), F.lit(False)), F.get(looked, F.lit(0)))


def _verdict(whole: Column) -> Column:
    """The closer look; ``whole``: the payload as a variant, null if it is no JSON."""
    wrong = [~_is_string(field, whole) for field in REQUIRED if field.kind == "string"]
    wrong += [_is_fraction(field) for field in MEASUREMENTS if field.kind == "long"]
    beyond = [_ts_is_out_of_range(), *map(_is_too_large, MEASUREMENTS)]
    return (
        F.when(F.col("value").isNull() | (F.length("value") == 0), F.lit(BadRecord.EMPTY.value))
        .when(~F.is_valid_utf8(_text()), F.lit(BadRecord.NOT_UTF8.value))
        .when(whole.isNull(), F.lit(BadRecord.NOT_JSON.value))
        .when(~F.schema_of_variant(whole).startswith("OBJECT"), F.lit(BadRecord.NOT_AN_OBJECT.value))
        .when(F.col("payload").isNull(), F.lit(BadRecord.NOT_JSON.value))  # an object, and something behind it
        .when(F.col(f"parsed.{CORRUPT}").isNotNull(), F.lit(BadRecord.WRONG_TYPE.value))
        .when(_any(map(_is_missing, REQUIRED)), F.lit(BadRecord.MISSING_FIELD.value))
        .when(_any(wrong), F.lit(BadRecord.WRONG_TYPE.value))
        .when(_any(beyond), F.lit(BadRecord.OUT_OF_RANGE.value))
    )


def _detail() -> Column:
    """The fields a bad record is bad for, in words; null where the reason says it all."""
    whole = F.try_parse_json(_text())

    def found(field: Field) -> Column:
        return F.try_variant_get(whole, f"$.{field.name}", "variant")

    missing = [F.when(_is_missing(field), F.lit(field.name)) for field in REQUIRED]
    wrong = []
    for field in (*REQUIRED, *MEASUREMENTS):
        present = found(field).isNotNull() & (F.schema_of_variant(found(field)) != "VOID")
        misfit = ~_is_string(field, whole) if field.kind == "string" else F.col(f"payload.{field.name}").isNull()
        if field.kind == "long" and not field.required:
            misfit = misfit | _is_fraction(field)
        seen = F.concat(F.lit(f"{field.name} is no {field.kind} but "), F.lower(F.schema_of_variant(found(field))))
        wrong.append(F.when(present & misfit, seen))
    beyond = [
        F.when(_ts_is_out_of_range(), F.concat(F.lit("ts is "), F.col("payload.ts").cast("string"))),
        *(F.when(_is_too_large(field), F.lit(f"{field.name} is too large")) for field in MEASUREMENTS),
    ]
    return (
        F.when(F.col("reason") == F.lit(BadRecord.MISSING_FIELD.value), F.concat_ws(", ", *missing))
        .when(F.col("reason") == F.lit(BadRecord.WRONG_TYPE.value), F.substring(F.concat_ws(", ", *wrong), 1, 1000))
        .when(F.col("reason") == F.lit(BadRecord.OUT_OF_RANGE.value), F.concat_ws(", ", *beyond))
    )


def _is_missing(field: Field) -> Column:
    return F.col(f"payload.{field.name}").isNull()


def _is_string(field: Field, whole: Column) -> Column:
    return F.schema_of_variant(F.try_variant_get(whole, f"$.{field.name}", "variant")) == "STRING"


def _may_be_no_string(field: Field) -> Column:
    return may_be_no_string(F.col(f"payload.{field.name}"), _text(), column_name(field))


def _is_faulty(field: Field) -> Column:
    """Whether a measurement is no number of its kind; false where there is none."""
    test = _is_too_large(field)
    if field.kind == "long":
        test = test | _is_fraction(field)
    return F.coalesce(test, F.lit(False))


def _is_fraction(field: Field) -> Column:
    value = F.col(f"payload.{field.name}")
    return value.isNotNull() & (value != F.rint(value))


def _is_too_large(field: Field) -> Column:
    """Whether a number has no place in its column: a cast of 1e300 to a long would raise."""
    return F.abs(F.col(f"payload.{field.name}")) >= (2.0**63 if field.kind == "long" else float("inf"))


def _ts_is_out_of_range() -> Column:
    return ~F.col("payload.ts").between(0, MAX_TS_MS)


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(or_, conditions, F.lit(False))


def _kafka_columns() -> dict[str, Column]:
    return {
        "kafka_topic": F.col("topic"),
        "kafka_partition": F.col("partition"),
        "kafka_offset": F.col("offset"),
        "kafka_time": F.col("timestamp"),
        "ingest_date": F.to_date("timestamp"),
    }


def _microseconds(length: timedelta) -> int:
    return length // timedelta(microseconds=1)
