"""A job's command line, the same for ``gateway stream NAME`` and ``python -m streaming.run NAME``. No pyspark."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from config.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

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


def flag(text: str, **more: Any) -> Mapping[str, Any]:
    return {"action": "store_true", "help": text, **more}


def page(text: str) -> Path:
    """Where a page is to be written; refused now where that cannot be, for it is written when all else is done."""
    path = Path(text).absolute()
    folder = next((one for one in path.parents if one.exists()), path)
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise ArgumentTypeError(f"{text!r} cannot be written: name a file in a folder that you may write to")
    return path


_COMMON: Final[Options] = {
    "--config": {"type": Path, "metavar": "FILE",
                 "help": "TOML file with settings (default: $GATEWAY_CONFIG, then ./gateway.toml)"},
    "--master": {"metavar": "URL", "help": "stream.master: local[2], spark://host:7077, …"},
    "--checkpoint": {"metavar": "FOLDER", "help": "stream.checkpoint: how far the jobs have read"},
    "--lake": {"metavar": "FOLDER", "dest": "lake__path", "help": "stream.lake.path: the tables' folder"},
    "--conf": {"action": "append", "default": [], "metavar": "NAME=VALUE",
               "help": "a property of Spark itself, such as spark.driver.memory=3g; may be repeated"},
}  # fmt: skip
_OF_JOBS: Final[Options] = {
    "--topic": {"action": "append", "metavar": "NAME", "dest": "topics",
                "help": "stream.topics: a Kafka topic to read; may be repeated"},
    "--metrics-port": {"type": int, "metavar": "PORT", "dest": "metrics__port",
                       "help": "stream.metrics.port: where Prometheus finds the job's metrics; 0 for any free port"},
    "--available-now": flag("stream.available_now: read what there is, then end", default=None),
    "--report": {"type": page, "metavar": "FILE",
                 "help": "write the HTML page of `gateway stream report` when the job has ended in order"},
    "--allow-data-loss": flag(
        "step over records that Kafka deleted before they were read (a warning names them) instead of ending"
    ),
}  # fmt: skip


def add_common_arguments(parser: ArgumentParser, own: Options) -> None:
    """Adds what every job and tool takes, then what this one does. An option that stands for a setting overrides file
    and environment."""
    for name, option in {**_COMMON, **own}.items():
        parser.add_argument(name, **option)


def add_arguments(parser: ArgumentParser, job: str) -> None:
    jobs = {
        "type": _lake_jobs,
        "default": LAKE_JOBS,
        "metavar": "NAMES",
        "help": f"which, separated by commas (default: {','.join(LAKE_JOBS)})",
    }
    add_common_arguments(parser, {"--jobs": jobs, **_OF_JOBS} if job == "all" else _OF_JOBS)
    if job != "all":
        parser.set_defaults(jobs=(job,))


def add_jars(parser: ArgumentParser) -> None:
    """Adds what ``gateway stream`` tells the process that it becomes."""
    parser.add_argument(
        "--jars",
        type=lambda paths: [Path(path) for path in paths.split(os.pathsep) if path],
        default=[],
        metavar="PATHS",
        help=f"jars of Spark's Kafka source, separated by {os.pathsep!r}",
    )


def _lake_jobs(text: str) -> tuple[str, ...]:
    names = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := sorted(names.difference(LAKE_JOBS)):
        raise ArgumentTypeError(f"no such job: {', '.join(unknown)}; there are {', '.join(LAKE_JOBS)}")
    if not names:
        raise ArgumentTypeError(f"name at least one of {', '.join(LAKE_JOBS)}")
    return tuple(name for name in LAKE_JOBS if name in names)


_SETTINGS = ("master", "lake__path", "checkpoint", "topics", "metrics__port", "available_now")
"""The options that stand for settings of ``[stream]``; ``__`` is a dot."""


def overrides(arguments: Namespace) -> dict[str, Any]:
    """The settings that the command line has, by their dotted names."""
    return {
        f"stream.{name.replace('__', '.')}": value
        for name in _SETTINGS
        if (value := getattr(arguments, name, None)) is not None
    }


def load_settings(arguments: Namespace) -> Settings:
    """All settings, the command line's on top. Raises ConfigError."""
    from config.loading.load import load  # late: showing a command's help should not load all settings

    return load(arguments.config, overrides=overrides(arguments)).settings


def parse_spark_conf(pairs: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` pairs as a mapping. Raises ConfigError for what is none."""
    conf = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise ConfigError(f"--conf {pair!r} is no property of Spark: write spark.NAME=VALUE.")
        conf[name] = value
    return conf
