"""``gateway stream prepare``: runs silver once over a few records of its own, in a folder that goes, so that the class
data that Spark's JVM writes at its end have what a job needs. For images, whose files are made when they are built."""

import argparse
import queue
import tempfile
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from config.errors import ConfigError, ExitStatus
from config.settings import Settings, StreamSettings
from config.tables.stream_jobs import LakeSettings, SilverSettings
from streaming.job import JobContext
from streaming.runtime.queries import run_queries
from streaming.silver import job as silver

# The first is bad: so the second look, too, and a MERGE load their classes.
_RECORDS: Final = """
    SELECT CAST(CONCAT('d', id) AS binary) key,
        CAST(IF(id = 0, '{', to_json(struct(CONCAT('d', id) device, 'thermostat' type, id seq, unix_millis(now()) ts)))
            AS binary) value,
        'telemetry' topic, 0 partition, id offset, now() timestamp, 0 timestampType,
        array(struct('gateway.id' key, CAST('g' AS binary) value)) headers
    FROM range(1000)
"""


def run(spark: SparkSession, settings: Settings, _arguments: argparse.Namespace) -> int:
    """Runs silver over sample records. Takes schemas alone from the settings. Raises ConfigError on a cluster."""
    if not settings.stream.master.startswith("local"):
        raise ConfigError("class data are of a Spark in one JVM: set stream.master (--master) to local[2]")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stream = StreamSettings(
            available_now=True,
            checkpoint=folder / "checkpoints",
            lake=LakeSettings(path=folder / "lake"),
            silver=SilverSettings(schemas=settings.stream.silver.schemas),
            group="",
        )
        records = spark.sql(_RECORDS)
        records.write.parquet(str(folder / "records"))

        def start(session: SparkSession, chosen: Settings, context: JobContext) -> StreamingQuery:
            source = session.readStream.schema(records.schema).parquet(str(folder / "records"))
            return silver.start_from(source, chosen, context)

        run_queries(spark, Settings(stream=stream), (start,), JobContext(lambda _event: None), queue.SimpleQueue())
    return ExitStatus.OK
