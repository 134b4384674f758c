"""How far each query is and what the tables hold, from the files alone. A tool; it needs Spark only where the folders
are on a file system that Spark knows and this machine does not."""

from __future__ import annotations

__all__ = ["LakeStatus", "QueryStatus", "collect", "from_json", "needs_spark", "run", "to_json"]

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from config.error_words import words
from streaming.checkpoint_log import Progress, read_progress
from streaming.delta_log import TableFacts, read_table
from streaming.files import LocalFolder, is_local
from streaming.job_lock import holder
from streaming.storage import location

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from config.settings import Settings, StreamSettings
    from streaming.files import Files


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query. ``process``: who runs it now (host and process), None if nobody does or nobody can tell.
    ``problem``: why the rest is not known."""

    query: str
    process: str | None
    progress: Progress
    state_bytes: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LakeStatus:
    checkpoint: str
    lake: str
    queries: tuple[QueryStatus, ...]
    tables: tuple[TableFacts, ...]


def needs_spark(stream: StreamSettings) -> bool:
    """Whether a folder is somewhere that only Spark's file systems reach."""
    return not (is_local(location(stream.checkpoint)) and is_local(location(stream.lake.path)))


def collect(stream: StreamSettings, open_folder: Callable[[str], Files] = LocalFolder) -> LakeStatus:
    """Reads the checkpoints and the tables' logs. Blocks for the files; what cannot be read is told in its place."""
    checkpoint, lake = open_folder(location(stream.checkpoint)), open_folder(location(stream.lake.path))
    queries = []
    for name in checkpoint.names():
        if not checkpoint.exists(f"{name}/metadata") or ".reset-" in name:
            continue
        process = holder(checkpoint.url, name)
        try:
            progress, problem = read_progress(checkpoint, name), None
        except (OSError, ValueError, KeyError) as error:
            progress = Progress(None, None, None, None, {}, {})
            problem = f"the checkpoint cannot be read: {words(error)}"
        queries.append(QueryStatus(name, process, progress, checkpoint.usage(f"{name}/state")[0], problem))
    names = [name for name in lake.names() if not name.startswith((".", "_")) and ".reset-" not in name]
    tables = tuple(facts for name in names if (facts := read_table(lake, name)) is not None)
    return LakeStatus(checkpoint.url, lake.url, tuple(queries), tables)


def to_json(status: LakeStatus) -> str:
    """The status as one line of JSON."""
    return json.dumps(asdict(status))


def from_json(line: str) -> LakeStatus:
    """What :func:`to_json` wrote."""
    told: dict[str, Any] = json.loads(line)
    queries = tuple(QueryStatus(**{**one, "progress": Progress(**one["progress"])}) for one in told.pop("queries"))
    tables = tuple(TableFacts(**one) for one in told.pop("tables"))
    return LakeStatus(**told, queries=queries, tables=tables)


def run(spark: SparkSession, settings: Settings, _arguments: argparse.Namespace) -> int:
    """The tool's half inside Spark: the status as JSON, for ``gateway stream status`` to show."""
    from streaming.storage import Folder

    print(to_json(collect(settings.stream, lambda url: Folder(spark, url))))  # noqa: T201 (the tool's product)
    return 0
