"""The command lines of what is done to the lake beside the jobs: ``gateway stream status``, ``maintain``… No pyspark.

Tool NAME is the module ``streaming.upkeep.NAME``, or ``streaming.report.job``, with ``run(spark, settings, arguments)
-> int``, an exit status. Its product goes to standard output.
"""

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from streaming.options import LAKE_JOBS, Options, add_common_arguments, flag, page


def _moment_ms(text: str) -> int:
    """Milliseconds since 1970 of a day or a moment in ISO 8601."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no time: write 2026-11-20, 2026-11-20T08:30 or …+01:00") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _whole_number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _name(text: str) -> str:
    if not text:
        raise ArgumentTypeError("a device has a name")
    return text


def _stretch(**more: Any) -> Options:
    def bound(dest: str, when: str) -> Mapping[str, Any]:
        text = f"only what was received {when}: 2026-11-20, 2026-11-20T08:30, UTC unless it says otherwise"
        return {"dest": dest, "type": _moment_ms, "metavar": "TIME", "help": text, **more}

    return {"--from": bound("since_ms", "at this time or later"), "--to": bound("until_ms", "before this time")}


_DRY_RUN: Final[Options] = {"--dry-run": flag("say what would be done, and end")}
TOOLS: Final[Mapping[str, tuple[str, Options]]] = {
    "status": ("show how far each query is, and what the tables hold", {
        "--offline": flag("do not ask Kafka how far its topics go"),
        "--json": flag("print one JSON object instead of text"),
    }),
    "maintain": ("put small files together, delete what is past its retention", {
        **_DRY_RUN,
        "--table": {"action": "append", "metavar": "NAME", "help": "this table alone; may be repeated"},
    }),
    "forget": ("delete a device's rows from all tables", {
        "device": {"type": _name, "metavar": "DEVICE", "help": "the device's own name, as in the column device"},
        "--dry-run": flag("say how many rows would go, and end"),
        "--now": flag(
            "remove the files as well, at once instead of after stream.lake.vacuum_after: stop all jobs first"
        ),
    }),
    "backfill": ("read a stretch of time again from bronze or Kafka, and fill what silver lacks", {
        **_stretch(required=True),
        "--max-days": {"type": _whole_number, "metavar": "N", "default": 7,
                       "help": "refuse a longer stretch (default: 7)"},
    }),
    "replay": ("take records out of silver's quarantine that can be decoded by now", {
        "--reason": {"action": "append", "metavar": "WORD",
                     "help": "only records in quarantine for this; may be repeated"},
        "--topic": {"action": "append", "metavar": "NAME", "dest": "kafka_topic",
                    "help": "only of this Kafka topic; may be repeated"},
        **_stretch(),
        "--limit": {"type": _whole_number, "metavar": "N", "help": "no more than this many, the oldest first"},
        "--dry-run": flag("say how many would be good now, and end"),
    }),
    "reset": ("begin a job anew: put its checkpoint aside", {
        "job_name": {"metavar": "JOB", "choices": LAKE_JOBS, "help": f"one of {', '.join(LAKE_JOBS)}"},
        "--yes": flag("do it without asking"),
        **_DRY_RUN,
    }),
    "prepare": ("write Spark's class data, by which its later starts are quicker: once, into an image", {}),
    "report": ("write an HTML page with plots about devices, anomalies, late and lost data", {
        "--output": {"type": page, "metavar": "FILE", "dest": "file", "default": "stream-report.html",
                     "help": "the HTML file to write (default: stream-report.html)"},
        **_stretch(),
        "--device": {"metavar": "NAME", "help": "only this device"},
    }),
}  # fmt: skip
"""Name -> what it does, for ``--help``, and its own options."""


def add_tool_arguments(parser: ArgumentParser, tool: str) -> None:
    add_common_arguments(parser, TOOLS[tool][1])
