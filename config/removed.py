"""Settings that earlier versions had, each with what takes its place."""

from collections.abc import Mapping
from typing import Final

from config.schema import Path

_INGEST: Final = "was for the job `ingest`, which is gone (docs/upgrade.md):"
_DELTA: Final = "is no setting any more: bronze is always a Delta table (docs/upgrade.md); leave it out"

REMOVED: Final[Mapping[Path, str]] = {
    ("stream", "output"): f"{_INGEST} readings are in the table silver, below stream.lake.path",
    ("stream", "quarantine"): f"{_INGEST} bad records are in the table silver_quarantine, below stream.lake.path",
    ("stream", "window"): f"{_INGEST} windows are those of stream.gold.windows",
    ("stream", "watermark"): f"{_INGEST} the job gold has no watermark, late readings correct its windows",
    ("stream", "lake", "retention", "telemetry"): f"{_INGEST} stream.lake.retention.silver takes its place",
    ("stream", "lake", "retention", "quarantine"): f"{_INGEST} stream.lake.retention.silver_quarantine takes its place",
    ("stream", "bronze"): _DELTA,
    ("stream", "bronze", "format"): _DELTA,
}
"""Setting -> a sentence about it, without its name."""
