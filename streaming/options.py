"""The command lines of jobs and tools, the same for ``gateway stream NAME`` and for the process that it becomes.

Tool NAME is the module ``streaming.upkeep.NAME``, or ``streaming.report.lake``, with ``run(spark, settings, arguments)
-> int``, an exit status. Its product goes to standard output. No pyspark here.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from argparse import Namespace

    from config.settings import Settings


JOBS: Final[Mapping[str, str]] = {
    "bronze": "keep every record of Kafka as it came",
    "silver": "decode, type, enrich and keep every reading once",
    "gold": "aggregate silver's readings over windows of time",
    "devices": "keep what is known of each device: last values, online or offline, gaps",
    "anomalies": "find readings that do not fit those before, and devices gone silent",
    "audit": "count what is in Kafka against the gateway's ledger",
    "all": "several of these jobs in one process",
}
"""Name -> what it does, for ``--help``. Job NAME is the module ``streaming.NAME.job``."""
LAKE_JOBS: Final = ("silver", "bronze", "audit", "gold", "devices", "anomalies")
"""What ``all`` runs unless told, in the order in which they are started: silver's table is there before its readers,
and its first batch, which takes longest, has begun before bronze's."""
Options = Mapping[str, Mapping[str, Any]]
"""What ``ArgumentParser.add_argument`` is given, by the option's name."""


def _flag(text: str) -> Mapping[str, Any]:
    return {"action": "store_true", "help": text}


def _setting(name: str, text: str, **more: Any) -> Mapping[str, Any]:  # its dest tells ``overrides``
    return {"dest": name, "help": f"{name}: {text}", **more}


def _page(text: str) -> Path:  # refused now where it cannot be written, for that is done when all else is
    path = Path(text).absolute()
    folder = next((one for one in path.parents if one.exists()), path)
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ArgumentTypeError(f"{text!r} cannot be written: name a file in a folder that you may write to")
    return path


def _moment_ms(text: str) -> int:  # since 1970
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


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise ArgumentTypeError(f"{text!r} is no property of Spark: write spark.NAME=VALUE")
    return name, value


def _stretch(**more: Any) -> Options:  # --from and --to
    def bound(dest: str, when: str) -> Mapping[str, Any]:
        text = f"only what was received {when}: 2026-11-20, 2026-11-20T08:30, UTC unless it says otherwise"
        return {"dest": dest, "type": _moment_ms, "metavar": "TIME", "help": text, **more}

    return {"--from": bound("since_ms", "at this time or later"), "--to": bound("until_ms", "before this time")}


def _lake_jobs(text: str) -> tuple[str, ...]:  # in the order of LAKE_JOBS, each once
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := sorted(names.difference(LAKE_JOBS)):
        raise ArgumentTypeError(f"no such job: {', '.join(unknown)}; there are {', '.join(LAKE_JOBS)}")
    if not names:
        raise ArgumentTypeError(f"name at least one of {', '.join(LAKE_JOBS)}")
    return tuple(name for name in LAKE_JOBS if name in names)


_COMMON: Final[Options] = {
    "--config": {"type": Path, "metavar": "FILE",
                 "help": "TOML file with settings (default: $GATEWAY_CONFIG, then ./gateway.toml)"},
    "--master": _setting("stream.master", "local[2], spark://host:7077, …", metavar="URL"),
    "--checkpoint": _setting("stream.checkpoint", "how far the jobs have read", metavar="FOLDER"),
    "--lake": _setting("stream.lake.path", "the tables' folder", metavar="FOLDER"),
    "--conf": {"action": "append", "type": _property, "default": [], "metavar": "NAME=VALUE",
               "help": "a property of Spark itself, such as spark.driver.memory=3g; may be repeated"},
}  # fmt: skip
_OF_JOBS: Final[Options] = {
    "--topic": _setting("stream.topics", "a Kafka topic to read; may be repeated", metavar="NAME", action="append"),
    "--metrics-port": _setting("stream.metrics.port", "where Prometheus finds the job's metrics; 0 for any free port",
                               metavar="PORT", type=int),
    "--available-now": _setting("stream.available_now", "read what there is, then end", action="store_true",
                                default=None),
    "--report": {"type": _page, "metavar": "FILE",
                 "help": "write the HTML page of `gateway stream report` when the job has ended in order"},
    "--allow-data-loss":
        _flag("step over records that Kafka deleted before they were read (a warning names them) instead of ending"),
}  # fmt: skip
_DRY_RUN: Final = _flag("say what would be done, and end")
TOOLS: Final[Mapping[str, tuple[str, Options]]] = {
    "status": ("show how far each query is, and what the tables hold", {
        "--offline": _flag("do not ask Kafka how far its topics go"),
        "--json": _flag("print one JSON object instead of text"),
    }),
    "maintain": ("put small files together, delete what is past its retention", {
        "--dry-run": _DRY_RUN,
        "--table": {"action": "append", "metavar": "NAME", "help": "this table alone; may be repeated"},
    }),
    "forget": ("delete a device's rows from all tables", {
        "device": {"type": _name, "metavar": "DEVICE", "help": "the device's own name, as in the column device"},
        "--dry-run": _flag("say how many rows would go, and end"),
        "--now":
            _flag("remove the files as well, at once instead of after stream.lake.vacuum_after: stop all jobs first"),
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
        "--dry-run": _flag("say how many would be good now, and end"),
    }),
    "reset": ("begin a job anew: put its checkpoint aside", {
        "job_name": {"metavar": "JOB", "choices": LAKE_JOBS, "help": f"one of {', '.join(LAKE_JOBS)}"},
        "--yes": _flag("do it without asking"),
        "--dry-run": _DRY_RUN,
    }),
    "prepare": ("write Spark's class data, by which its later starts are quicker: once, into an image", {}),
    "report": ("write an HTML page with plots about devices, anomalies, late and lost data", {
        "--output": {"type": _page, "metavar": "FILE", "dest": "file", "default": "stream-report.html",
                     "help": "the HTML file to write (default: stream-report.html)"},
        **_stretch(),
        "--device": {"metavar": "NAME", "help": "only this device"},
    }),
}  # fmt: skip
"""Name -> what it does, for ``--help``, and its own options."""


def add_arguments(parser: ArgumentParser, name: str) -> None:
    """Adds what every job and tool takes, then what this one does. An option that stands for a setting overrides file
    and environment."""
    for option, told in {**_COMMON, **(TOOLS[name][1] if name in TOOLS else _OF_JOBS)}.items():
        parser.add_argument(option, **told)
    if name == "all":
        which = f"which, separated by commas (default: {','.join(LAKE_JOBS)})"
        parser.add_argument("--jobs", type=_lake_jobs, default=LAKE_JOBS, metavar="NAMES", help=which)
    elif name in LAKE_JOBS:
        parser.set_defaults(jobs=(name,))


def process_arguments(name: str, words: Sequence[str]) -> Namespace:
    """What the process of a job or a tool is told: its options, and the jars that ``gateway stream`` has found."""
    parser = ArgumentParser(prog=f"gateway stream {name}")
    add_arguments(parser, name)
    parser.add_argument(
        "--jars",
        type=lambda paths: [Path(path) for path in paths.split(os.pathsep) if path],
        default=[],
        metavar="PATHS",
        help=f"jars of Spark's Kafka source, separated by {os.pathsep!r}",
    )
    return parser.parse_args(words)


def overrides(arguments: Namespace) -> dict[str, Any]:
    """The settings that the command line has, by their dotted names."""
    return {name: it for name, it in vars(arguments).items() if name.startswith("stream.") and it is not None}


def load_settings(arguments: Namespace) -> Settings:
    """All settings, the command line's on top. Raises ConfigError."""
    from config.loading.load import load  # late: showing a command's help should not load all settings

    return load(arguments.config, overrides=overrides(arguments)).settings
