"""A job that reads silver, on readings of a fleet that are written right before it starts."""

import json
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DoubleType, StructField, StructType

from config.settings import Settings
from streaming.devices import job as devices
from streaming.gold import job as gold
from streaming.job import Job, JobContext
from streaming.lake.delta_upkeep import DeltaUpkeep
from streaming.lake.lake import DeltaTable
from streaming.silver.schema import silver_schema
from streaming.silver.tables import SilverTables
from tests.bench.workload_devices import FLEET, GATEWAYS, Readings

_SIGNALS: Final = StructType([StructField(name, DoubleType()) for name in ("temperature", "humidity")])
STARTS: Final[dict[str, Job]] = {"devices": devices.start, "gold": gold.start}
"""Taken when this module is imported: ``spark_subject`` then puts :func:`start` in the place of one of them."""
_BEGIN_MS: Final = 1_772_366_400_000
_SORTED_BYTES: Final = 2 << 20
"""Files of less than a megabyte would be put together again, unsorted, by the next batch."""


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Adds some minutes to silver, a reading of each device and a commit each, and starts the job."""
    silver = SilverTables(spark, settings.stream, _SIGNALS).silver
    readings, job = Readings(*json.loads(spark.conf.get(FLEET) or "")), spark.conf.get(f"{FLEET}.job") or ""
    if readings.is_sorted:
        _sort(spark, settings, job)
    number = F.col("id")
    for minute in range(readings.first, readings.first + readings.minutes):
        at_ms = _BEGIN_MS + (minute - readings.first + readings.minute) * 60_000
        at = F.timestamp_millis(F.lit(at_ms) + number % 60_000)
        columns = {
            "device": F.format_string("sensor-%08d", number),
            "type": F.lit("pump"),
            "gateway": F.format_string("gateway-%d", number % GATEWAYS),
            "seq": F.lit(minute),
            "record_id": F.concat_ws("-", number, F.lit(minute)),
            **dict.fromkeys(("device_time", "event_time", "received_at", "ingested_at"), at),
            "event_date": F.to_date(at),
            "clock_ahead": F.lit(False),
            **dict.fromkeys(_SIGNALS.names, F.rand(minute)),
        }
        rows = spark.range(*readings[:3]).select(
            *(columns.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
              for field in silver_schema(_SIGNALS))
        )  # fmt: skip
        silver.append(rows, query="fleet", batch=minute)
    return STARTS[job](spark, settings, context)


def _sort(spark: SparkSession, settings: Settings, job: str) -> None:
    """What ``maintain`` does to days that are over, with smaller files."""
    for name, column in (("silver", "device"), (job, "key" if job == "gold" else "device")):
        upkeep = DeltaUpkeep(spark, DeltaTable(spark, settings.stream, name))
        for day in upkeep.days(0):
            upkeep.optimize(day.day, _SORTED_BYTES, column)
