"""The tool ``report``: one HTML file about the tables, that needs nothing else to be looked at.

gateway stream report --output report.html --from 2026-11-20 --to 2026-11-21T06:00 --device oslo-meter-0004
"""

import sys
from argparse import Namespace

from pyspark.sql import SparkSession

from config.errors import ConfigError, ExitStatus
from config.settings import Settings
from streaming.lake.storage import location
from streaming.report.lake import read_lake
from streaming.report.page import write_page


def run(spark: SparkSession, settings: Settings, arguments: Namespace) -> int:
    """Reads the tables, writes the page and prints its path. Returns the exit status: 4 if there was nothing to read.
    Raises ConfigError for an empty stretch of time, or a file that cannot be written."""
    since_s, until_s = (None if ms is None else ms / 1000 for ms in (arguments.since_ms, arguments.until_ms))
    if since_s is not None and until_s is not None and since_s >= until_s:
        raise ConfigError("--from is not before --to, so there is no time to report on.")
    report = read_lake(spark, settings.stream, since_s=since_s, until_s=until_s, device=arguments.device)
    path = write_page(report, arguments.file)
    print(path)  # noqa: T201 (standard output is the tool's product)
    if not report.findings:
        where = location(settings.stream.lake.path)
        print(f"Nothing was found to report on: no tables, or no rows of that time, in {where}.", file=sys.stderr)  # noqa: T201
    return ExitStatus.OK if report.findings else ExitStatus.NOT_FOUND
