"""The plain job that silver is measured against: the same decoding, appended to a Delta table in one pass. It looks for
no copies, counts nothing, and has no quarantine."""

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from config.settings import Settings
from streaming.decoding.decode import GOOD
from streaming.decoding.device_schemas import load_device_schemas
from streaming.job import JobContext
from streaming.kafka.source import read_records, trigger
from streaming.lake.lake import DeltaTable
from streaming.runtime.checkpoint import prepare_checkpoint
from streaming.silver.job import registered_rows
from streaming.silver.rows import CLOCKED, REJECT
from streaming.silver.schema import PARTITIONS


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it."""
    records = read_records(spark, settings, allow_data_loss=context.allow_data_loss)
    schemas = load_device_schemas(settings.stream.silver.schemas)
    rows = registered_rows(records, settings, schemas).drop(REJECT, CLOCKED, GOOD)
    table = DeltaTable(spark, settings.stream, "plain")
    table.create(rows.schema, PARTITIONS)
    query: StreamingQuery = (
        rows.writeStream.queryName("plain")
        .format("delta")
        .option("checkpointLocation", prepare_checkpoint(spark, settings.stream, "plain").url)
        .trigger(**trigger(settings.stream))
        .start(table.url)
    )
    return query
