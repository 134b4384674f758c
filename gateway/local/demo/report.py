"""The page with plots that a demo ends with, made from the tables that its Spark job has written."""

from __future__ import annotations

__all__ = ["write_report"]

from typing import TYPE_CHECKING

from config.error_words import words
from config.errors import GatewayError
from gateway.local.runtime.cache import cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_NAME = "demo-report.html"


def write_report(root: Path, keep: Path | None, warn: Callable[[str], None]) -> Path | None:
    """Writes the page into the kept folder or, since the demo's own is removed, into the cache, in the place of the
    last one's. Its path; None, and a warning, if it could not be made: the account matters more. Blocks for seconds."""
    try:
        from streaming.report_files import read_files
        from streaming.report_write import write_page

        report = read_files(root / "telemetry", root / "quarantine", "what the demo's Spark job has written")
        return write_page(report, (keep or cache_directory()) / _NAME)
    except (GatewayError, ImportError, OSError, ValueError) as error:
        warn(f"There is no report: {words(error)}.")
        return None
