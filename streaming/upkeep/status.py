"""How far each query is and what the tables hold, from the files alone. A tool; it needs Spark only where the folders
are on a file system that Spark knows and this machine does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from config.error_words import words
from config.errors import ExitStatus
from streaming.lake.delta_files import TableFacts, read_table
from streaming.lake.storage import Files, Folder, LocalFolder, is_local, location
from streaming.runtime.checkpoint_log import Progress, read_note, read_progress
from streaming.runtime.job_lock import holder

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

    from config.settings import Settings, StreamSettings


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query. ``running``: who runs it now (host and process), None if nobody does or nobody can tell.
    ``problem``: why the rest is not known."""

    query: str
    running: str | None
    progress: Progress
    topics: list[str]
    """Kafka's topics that it reads; none where that was never noted."""
    state_bytes: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LakeStatus:
    checkpoint: str
    lake: str
    queries: list[QueryStatus]
    tables: list[TableFacts]


def needs_spark(stream: StreamSettings) -> bool:
    """Whether a folder is somewhere that only Spark's file systems reach."""
    return not (is_local(location(stream.checkpoint)) and is_local(location(stream.lake.path)))


def collect(
    stream: StreamSettings,
    open_folder: Callable[[str], Files] = LocalFolder,
    read: Callable[[Files, str], TableFacts | None] = read_table,
) -> LakeStatus:
    """Reads the checkpoints, and the tables by ``read``. Blocks for the files; says what cannot be read."""
    checkpoint, lake = open_folder(location(stream.checkpoint)), open_folder(location(stream.lake.path))
    queries = []
    for name in checkpoint.names():
        if not checkpoint.exists(f"{name}/metadata") or ".reset-" in name:
            continue
        process = holder(checkpoint.url, name)
        try:
            progress, note, problem = read_progress(checkpoint, name), read_note(checkpoint, name), None
        except (OSError, ValueError, KeyError) as error:
            progress, note = Progress(None, None, None, None, {}, {}), {}
            problem = f"the checkpoint cannot be read: {words(error)}"
        topics = list(note.get("topics") or progress.offsets)
        queries.append(QueryStatus(name, process, progress, topics, checkpoint.size(f"{name}/state"), problem))
    names = [name for name in lake.names() if not name.startswith((".", "_")) and ".reset-" not in name]
    tables = [facts for name in names if (facts := read(lake, name)) is not None]
    return LakeStatus(checkpoint.url, lake.url, queries, tables)


def from_json(line: str) -> LakeStatus:
    return TypeAdapter(LakeStatus).validate_json(line)


def run(spark: SparkSession, settings: Settings, _arguments: argparse.Namespace) -> int:
    """The tool's half inside Spark: the status as JSON, for ``gateway stream status`` to show."""
    from streaming.lake.lake import DeltaTable

    def read(_folder: Files, name: str) -> TableFacts | None:
        table = DeltaTable(spark, settings.stream, name)
        if not table.exists():
            return None
        (detail,) = spark.sql(f"DESCRIBE DETAIL {table.sql_name}").collect()
        (last,) = spark.sql(f"DESCRIBE HISTORY {table.sql_name} LIMIT 1").collect()
        rows = table.read().count()  # from the log, where that counts
        written_s = last["timestamp"].timestamp()
        return TableFacts(name, rows, detail["numFiles"], detail["sizeInBytes"], last["version"], written_s)

    print(json.dumps(asdict(collect(settings.stream, partial(Folder, spark), read))))
    return ExitStatus.OK
