"""What silver makes of decoded records. Each function returns the DataFrame it is named for; no session, no I/O.

    decoded ─▶ judged ─▶ enriched ─┬─▶ readings ─▶ firsts ─▶ (MERGE into silver)
                                   └─▶ rejects ─▶ (silver_quarantine)

No expression here may raise: one poisoned record would then stop the stream for ever."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)

from bridge.wire import GATEWAY_ID, GATEWAY_MESSAGE_ID, GATEWAY_MESSAGE_ID_KIND, MQTT_TOPIC, MessageIdKind
from streaming.decoding.decode import GOOD
from streaming.decoding.shapes import MAX_TS_MS, header
from streaming.silver.schema import FIXED, QUARANTINE

REJECT: Final = "_reject"
CLOCKED: Final = "_clocked"
WAS: Final = "_was"
"""The reason a record is in quarantine for, where it comes from there."""
PLACE: Final = ("received_at", "kafka_topic", "kafka_partition", "kafka_offset")
"""A record's. With its time, because a topic that is deleted and made again has the same offsets again."""
_ID_HASH = "_id_hash"


def judged(decoded: DataFrame, *, signals: Sequence[str], max_ahead: timedelta, clocked: Column) -> DataFrame:
    """Silver's columns but ``ingested_at``, and ``_reject``: quarantine's but ``ingested_at``, null if good. One
    DataFrame for both, so that a record is decoded once. Of a first look (``Decoding.first_look``) there is no
    ``_reject``. ``site`` is null as yet. ``clocked``, kept as ``_clocked``: whether a row's type is one whose readings
    carry a time of their own. ``_good`` and a column ``_was`` are carried along."""
    # Also of a bad record this is computed, and of a time beyond the years Spark knows it would raise.
    device_time = F.timestamp_millis(F.when(F.col("ts_ms").between(0, MAX_TS_MS), F.col("ts_ms")))
    latest = F.timestamp_micros(F.unix_micros("timestamp") + F.lit(max_ahead // timedelta(microseconds=1)))
    message_id = F.when(
        header(GATEWAY_MESSAGE_ID_KIND) == F.lit(MessageIdKind.DEVICE.value),
        F.nullif(header(GATEWAY_MESSAGE_ID), F.lit("")),  # an empty one names nothing
    )
    place = {"kafka_topic": F.col("topic"), "kafka_partition": F.col("partition"), "kafka_offset": F.col("offset")}
    aside = {**place, "kafka_time": F.col("timestamp"), "ingest_date": F.to_date("timestamp")}
    reject = F.struct(*(aside.get(name, F.col(name)).alias(name) for name in QUARANTINE.names if name != "ingested_at"))
    reject_column = {REJECT: F.when(F.col("reason").isNotNull(), reject)} if "reason" in decoded.columns else {}
    kept = [CLOCKED, *reject_column, GOOD, *([WAS] if WAS in decoded.columns else [])]
    return (
        decoded.withColumns(
            {
                "site": F.lit(None).cast("string"),
                "device_time": device_time,
                "event_time": F.least(device_time, latest),
                "clock_ahead": F.coalesce(device_time > latest, F.lit(False)),
                "received_at": F.col("timestamp"),
                "message_id": message_id,
                "mqtt_topic": header(MQTT_TOPIC),
                **place,
                "gateway": header(GATEWAY_ID),
                CLOCKED: F.coalesce(clocked, F.lit(True)),
                **reject_column,
            }
        )
        .withColumns({"record_id": _record_id(), "event_date": F.to_date("event_time")})
        .select(*(name for name in FIXED.names if name != "ingested_at"), *signals, *kept)
    )


def readings(rows: DataFrame) -> DataFrame:
    """The good records as silver's rows, all columns but ``ingested_at``."""
    return rows.where(F.col(REJECT).isNull()).drop(REJECT, CLOCKED, GOOD, WAS)


def rejects(rows: DataFrame) -> DataFrame:
    """The bad records as quarantine's rows, all columns but ``ingested_at``."""
    return rows.where(F.col(REJECT).isNotNull()).select(f"{REJECT}.*")


def enriched(rows: DataFrame, registry: DataFrame) -> DataFrame:
    """The rows with the registry's site and type; what a device says of its type counts where the registry has none."""
    # Spark sends a registry below spark.sql.autoBroadcastJoinThreshold (10 MB in memory) to all executors.
    known = registry.select(*(F.col(name).alias(f"_{name}") for name in ("device", "type", "site")))
    joined = rows.join(known, F.col("device") == F.col("_device"), "left")
    return joined.withColumns({"type": F.coalesce("_type", "type"), "site": F.col("_site")}).select(*rows.columns)


def repeated_ids(rows: DataFrame) -> DataFrame:
    """Hashes of the record ids that occur more than once, ``_id_hash``; very rarely also two ids with one hash. To
    group by numbers costs a fraction of grouping by texts, and nearly always nothing repeats."""
    own = rows.where(F.col("message_id").isNotNull())  # others cannot repeat
    return own.groupBy(F.xxhash64("record_id").alias(_ID_HASH)).count().where("count > 1").select(_ID_HASH)


def firsts(rows: DataFrame, repeated: DataFrame, apart_us: int) -> DataFrame:
    """The rows without those that repeat another one. Of a Kafka partition the lowest offset stays; receive times need
    not grow with offsets, and the row that stays must not depend on where a batch ends. Of several partitions' lowest
    ones the earliest received stays. ``repeated``: :func:`repeated_ids` of the rows; others are not sorted or moved.
    ``apart_us``: a longer pause in an id's device times ends its copies; those of one with a time of its own are equal.
    """
    by_time, at = Window.partitionBy("record_id").orderBy("device_time"), F.unix_micros("device_time")
    here = Window.partitionBy("record_id", "_run", "kafka_topic", "kafka_partition").orderBy("kafka_offset")
    order = Window.partitionBy("record_id", "_run").orderBy(F.col("_here") > 1, *PLACE)
    suspects = (
        rows.where(F.col("message_id").isNotNull())
        .select("record_id", "device_time", *PLACE, F.xxhash64("record_id").alias(_ID_HASH))
        .join(F.broadcast(repeated), _ID_HASH, "left_semi")
        .withColumn("_pause", at - F.lag(at).over(by_time))
        .withColumn("_run", F.count(F.when(F.col("_pause") > apart_us, 1)).over(by_time))
    )
    ranked = suspects.withColumn("_here", F.row_number().over(here)).withColumn("_nth", F.row_number().over(order))
    later = ranked.where("_nth > 1").select(*PLACE)
    return rows.join(F.broadcast(later), list(PLACE), "left_anti").select(*rows.columns)


def _record_id() -> Column:
    """``m:LENGTH:DEVICE:TIME:ID`` where there is a device's message id, ``k:TOPIC:PARTITION:OFFSET:TIME`` where not.

    The length keeps device ``a`` with id ``b:c`` apart from device ``a:b`` with id ``c``. The device's time, empty
    without a clock, is part of it because counters start again: the same id at another time is another reading."""
    device = F.coalesce(F.col("device"), F.lit(""))
    at = F.when(F.col(CLOCKED) & F.col("ts_ms").isNotNull(), F.col("ts_ms").cast("string")).otherwise(F.lit(""))
    own = F.concat(F.lit("m:"), F.length(device), F.lit(":"), device, F.lit(":"), at, F.lit(":"), "message_id")
    place = F.concat(
        F.lit("k:"), "topic", F.lit(":"), "partition", F.lit(":"), "offset", F.lit(":"), F.unix_millis("timestamp")
    )
    return F.coalesce(own, place)
