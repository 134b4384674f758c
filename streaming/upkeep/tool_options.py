"""The command lines of what is done to the lake beside the jobs: ``gateway stream status``, ``maintain``… No pyspark.

Tool NAME is the module ``streaming.NAME`` with ``run(spark, settings, arguments) -> int``, an exit status. Of
``arguments`` it has what :func:`add_tool_arguments` adds. It prints its product to standard output.
"""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from streaming.options import JOBS, add_common_arguments

RESETTABLE: Final = tuple(name for name in JOBS if name != "all")
"""Each of the jobs that ``all`` runs has a checkpoint of its own."""


def _add_status(parser: ArgumentParser) -> None:
    parser.add_argument("--offline", action="store_true", help="do not ask Kafka how far its topics go")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _add_reset(parser: ArgumentParser) -> None:
    parser.add_argument("job_name", metavar="JOB", choices=RESETTABLE, help=f"one of {', '.join(RESETTABLE)}")
    parser.add_argument("--yes", action="store_true", help="do it without asking")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and end")


def _add_maintain(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and end")
    parser.add_argument("--table", action="append", metavar="NAME", help="this table alone; may be repeated")


def _add_forget(parser: ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help="the device's own name, as in the column device")
    parser.add_argument("--dry-run", action="store_true", help="say how many rows would go, and end")
    parser.add_argument(
        "--now",
        action="store_true",
        help="remove the files as well, at once instead of after stream.lake.vacuum_after: stop all jobs first",
    )


def _add_report(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        metavar="FILE",
        dest="file",
        default="stream-report.html",
        help="the HTML file to write (default: stream-report.html)",
    )
    _add_stretch(parser)
    parser.add_argument("--device", metavar="NAME", help="only this device")


def _add_stretch(parser: ArgumentParser, *, required: bool = False) -> None:
    for name, dest, when in (("--from", "since_ms", "at this time or later"), ("--to", "until_ms", "before this time")):
        parser.add_argument(
            name,
            dest=dest,
            type=_moment_ms,
            required=required,
            metavar="TIME",
            help=f"only what was received {when}: 2026-11-20, 2026-11-20T08:30, UTC unless it says otherwise",
        )


def _add_backfill(parser: ArgumentParser) -> None:
    _add_stretch(parser, required=True)
    parser.add_argument("--max-days", type=int, default=7, help="refuse a longer stretch (default: 7)")


def _moment_ms(text: str) -> int:
    """Milliseconds since 1970 of a day or a moment in ISO 8601."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no time: write 2026-11-20, 2026-11-20T08:30 or …+01:00") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _add_replay(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--reason", action="append", metavar="WORD", help="only records in quarantine for this; may be repeated"
    )
    parser.add_argument(
        "--topic", action="append", metavar="NAME", dest="kafka_topic", help="only of this Kafka topic; may be repeated"
    )
    _add_stretch(parser)
    parser.add_argument("--limit", type=_whole_number, metavar="N", help="no more than this many, the oldest first")
    parser.add_argument("--dry-run", action="store_true", help="say how many would be good now, and end")


def _whole_number(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


TOOLS: Final[Mapping[str, tuple[str, Callable[[ArgumentParser], None]]]] = {
    "status": ("show how far each query is, and what the tables hold", _add_status),
    "maintain": ("put small files together, delete what is past its retention", _add_maintain),
    "forget": ("delete a device's rows from all tables", _add_forget),
    "backfill": ("read a stretch of time again from bronze or Kafka, and fill what silver lacks", _add_backfill),
    "replay": ("take records out of silver's quarantine that can be decoded by now", _add_replay),
    "reset": ("begin a job anew: put its checkpoint aside", _add_reset),
    "report": ("write an HTML page with plots about devices, anomalies, late and lost data", _add_report),
}
"""Name -> what it does, for ``--help``, and what adds its own options."""


def add_tool_arguments(parser: ArgumentParser, tool: str) -> None:
    """Adds the tool's options and those all have in common."""
    add_common_arguments(parser)
    TOOLS[tool][1](parser)
