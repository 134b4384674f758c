"""The tool ``report``: one HTML file about the tables, that needs nothing else to be looked at.

gateway stream report --output report.html --from 2026-11-20 --to 2026-11-21T06:00 --device oslo-meter-0004
"""

from __future__ import annotations

__all__ = ["run"]

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from config.errors import ConfigError, ExitStatus
from streaming.report_lake import read_lake
from streaming.report_write import write_page
from streaming.storage import location

if TYPE_CHECKING:
    from argparse import Namespace

    from pyspark.sql import SparkSession

    from config.settings import Settings


def run(spark: SparkSession, settings: Settings, arguments: Namespace) -> int:
    """Reads the tables, writes the page and prints its path. Returns the exit status: 4 if there was nothing to read.
    Raises ConfigError for times that are none, or a file that cannot be written."""
    since_s = _moment("--from", arguments.begin)
    until_s = _moment("--to", arguments.end)
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise ConfigError("--from is not before --to, so there is no time to report on.")
    where = location(settings.stream.lake.path)
    report = read_lake(
        spark,
        settings.stream,
        f"the lake {where}" if settings.stream.lake.catalog is None else f"the catalog {settings.stream.lake.catalog}",
        since_s=since_s,
        until_s=until_s,
        device=arguments.device,
        units=_units(settings),
    )
    path = write_page(report, Path(arguments.file))
    print(path)  # noqa: T201 (standard output is the tool's product)
    if not report.findings:
        print(f"Nothing was found to report on: no tables, or no rows of that time, in {where}.", file=sys.stderr)  # noqa: T201
    return ExitStatus.OK if report.findings else ExitStatus.NOT_FOUND


def _moment(option: str, text: str | None) -> float | None:
    """Seconds since 1970 of ``2026-11-21`` or ``2026-11-21T06:00``, UTC unless it says otherwise."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is no time: write 2026-11-21 or 2026-11-21T06:00 (UTC).") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _units(settings: Settings) -> dict[str, str | None]:
    from streaming.device_schemas import load_device_schemas

    return {name: signal.unit for name, signal in load_device_schemas(settings.stream.silver.schemas).signals.items()}
