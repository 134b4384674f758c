"""Settings of each Spark job beside ``[stream]``, a table each."""

__all__ = [
    "AnomalySettings",
    "AuditSettings",
    "BronzeSettings",
    "DevicesSettings",
    "GoldSettings",
    "LakeSettings",
    "SilverSettings",
]

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from config.grammar import Duration
from config.model import Table
from config.window_shapes import check_windows


class LakeSettings(Table):
    path: Path = Path("data/lake")
    """Folder (or URL of a file system that Spark knows, such as `s3a://bucket/lake`) with one folder per table."""

    catalog: Annotated[str, Field(min_length=1)] | None = None
    """Catalog and schema (`main.iot`, `spark_catalog.default`) in which the Delta tables are named, instead of being
    known by their folders alone. The catalog itself is configured with `--conf spark.sql.catalog.…`."""


class BronzeSettings(Table):
    format: Literal["parquet", "delta"] = "parquet"
    """How raw records are kept. Parquet is the cheapest to write; Delta has one log for every reader."""


class SilverSettings(Table):
    schemas: Path | None = None
    """Folder with a schema for each device type. Unset: the schemas that come with the gateway."""


class GoldSettings(Table):
    windows: Annotated[tuple[str, ...], Field(min_length=1, max_length=8), AfterValidator(check_windows)] = (
        "1m tumbling",
        "1h tumbling",
        "15m sliding 5m",
    )
    """The windows of the aggregates, by event time, each `LENGTH tumbling` or `LENGTH sliding STEP`, aligned to UTC.
    All are put together from their greatest common length (an hour at the most), which is kept as a window too: 1 min
    with the defaults. Shorter steps make more rows. They are fixed once the job has begun."""


class DevicesSettings(Table):
    offline_after: Annotated[Duration, Field(gt=timedelta(0), le=timedelta(days=366))] = timedelta(minutes=10)
    """Silence after which a device counts as offline, if it did not say goodbye before."""


class AnomalySettings(Table):
    topic: Annotated[str, Field(min_length=1, max_length=249)] = "anomalies"
    """Kafka topic that scores and alerts are written to."""


class AuditSettings(Table):
    settle: Annotated[Duration, Field(ge=timedelta(0), le=timedelta(hours=24))] = timedelta(minutes=5)
    """How long after a minute's end it is judged: the ledger is written once a minute, and records may be on their
    way."""
