"""A job that reads silver, on readings of a fleet that are written right before it starts."""

import importlib
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DoubleType, StructField, StructType

from config.settings import Settings
from streaming.job import JobContext
from streaming.silver.schema import silver_schema
from streaming.silver.tables import prepare_tables
from tests.bench.workload_devices import FLEET, GATEWAYS, MINUTES

_SIGNALS: Final = StructType([StructField(name, DoubleType()) for name in ("temperature", "humidity")])
_BEGIN_MS: Final = 1_772_366_400_000


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Adds some minutes to silver, a reading of each device and a commit each, and starts the job."""
    silver = prepare_tables(spark, settings.stream, _SIGNALS).silver
    devices, every, first = (int(spark.conf.get(name) or 0) for name in (FLEET, f"{FLEET}.every", f"{FLEET}.from"))
    number = F.col("id")
    for minute in range(first, first + MINUTES):
        at = F.timestamp_millis(F.lit(_BEGIN_MS + minute * 60_000) + number % 60_000)
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
        rows = spark.range(0, devices, every).select(
            *(columns.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
              for field in silver_schema(_SIGNALS))
        )  # fmt: skip
        silver.append(rows, query="fleet", batch=minute)
    job: Any = importlib.import_module(f"streaming.{spark.conf.get(f'{FLEET}.job')}.job")
    query: StreamingQuery = job.start(spark, settings, context)
    return query
