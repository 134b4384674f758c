"""``gateway stream status`` and ``gateway stream reset``: done with the files themselves, in this process, wherever the
folders are this machine's; else inside Spark, which knows other file systems."""

from __future__ import annotations

__all__ = ["reset", "status"]

import subprocess
import time
from typing import TYPE_CHECKING, Any, Final

from config.errors import ConfigError, ExitStatus
from config.values.grammar import format_bytes
from gateway.cli.admin_common import answered_yes
from gateway.cli.arguments import load_noted
from gateway.cli.table import mention, print_json, say, table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from config.settings import Settings
    from streaming.progress import Offsets
    from streaming.status import LakeStatus, QueryStatus

_KAFKA_TIMEOUT_S: Final = 5.0
Command = tuple[list[str], dict[str, str]]


def status(arguments: argparse.Namespace, spark_command: Callable[[], Command]) -> int:
    """Show how far each query is. 0, 4 if nothing was ever begun here."""
    from streaming.options import overrides
    from streaming.status import collect, needs_spark

    settings = load_noted(arguments.config, overrides=overrides(arguments)).settings
    found = _by_spark(spark_command()) if needs_spark(settings.stream) else collect(settings.stream)
    topics = sorted({topic for one in found.queries for topic in one.progress.offsets})
    ends = {} if arguments.offline or not topics else _ends(settings, topics)
    if arguments.json:
        print_json(_document(found, ends))
    else:
        _show(found, ends)
    return ExitStatus.OK if found.queries or found.tables else ExitStatus.NOT_FOUND


def _by_spark(command: Command) -> LakeStatus:
    from streaming.status import from_json

    words, environment = command
    ran = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        raise ConfigError("The folders could not be read by Spark; what it said is above.")
    return from_json(ran.stdout.splitlines()[-1])


def _ends(settings: Settings, topics: list[str]) -> Offsets:
    """Where Kafka's partitions end now; those that could not be asked are left out, and it is said."""
    from config.errors import GatewayError
    from gateway.admin.kafka import KafkaAdmin
    from gateway.admin.model import TopicPartition
    from gateway.base import logs

    undo = logs.configure(settings.log.model_copy(update={"level": "error"}))
    ends: dict[str, dict[str, int]] = {}
    try:
        with KafkaAdmin(settings, timeout_s=_KAFKA_TIMEOUT_S) as admin:
            places = [
                TopicPartition(topic.name, partition.number)
                for topic in admin.topics(topics)
                for partition in topic.partitions
            ]
            told = admin.log_ends(places)
    except GatewayError as error:
        mention(f"Kafka was not asked how far its topics go: {error} --offline does not ask.")
        return {}
    finally:
        undo()
    for place, end in told.values.items():
        ends.setdefault(place.topic, {})[str(place.partition)] = end
    for problem in told.problems.values():
        mention(problem)
    return ends


def _behind(one: QueryStatus, ends: Offsets) -> int | None:
    """Records that Kafka has and the query has not; None where Kafka did not tell."""
    offsets = one.progress.offsets
    if not offsets or any(topic not in ends for topic in offsets):
        return None
    return sum(
        max(0, end - offsets[topic].get(partition, 0)) for topic in offsets for partition, end in ends[topic].items()
    )


def _document(found: LakeStatus, ends: Offsets) -> dict[str, Any]:
    return {
        "checkpoint": found.checkpoint,
        "lake": found.lake,
        "queries": [
            {
                "query": one.query,
                "running": one.process,
                "batch": one.progress.batch,
                "unfinished_batch": one.progress.planned,
                "finished_at_s": one.progress.finished_at_s,
                "watermark_ms": one.progress.watermark_ms,
                "offsets": one.progress.offsets,
                "ends": {topic: ends[topic] for topic in one.progress.offsets if topic in ends},
                "behind": _behind(one, ends),
                "tables_read": one.progress.tables,
                "state_bytes": one.state_bytes,
                "problem": one.problem,
            }
            for one in found.queries
        ],
        "tables": [
            {
                "table": one.name, "kind": one.kind, "rows": one.rows, "files": one.files, "bytes": one.bytes,
                "version": one.version, "written_at_s": one.written_at_s,
            }
            for one in found.tables
        ],
    }  # fmt: skip


def _show(found: LakeStatus, ends: Offsets) -> None:
    say(f"checkpoints in {found.checkpoint}")
    heads = ("query", "running", "batch", "finished", "read to", "behind", "state")
    rows = [
        (
            one.query,
            one.process or "no",
            one.progress.batch,
            _ago(one.progress.finished_at_s),
            _read_to(one),
            _behind(one, ends),
            format_bytes(one.state_bytes) if one.state_bytes else None,
        )
        for one in found.queries
    ]
    say(table(heads, rows, indent="  ").rstrip("\n") or "  none yet")
    for line in _partitions(found.queries, ends):
        say(line)
    for one in found.queries:
        if one.problem:
            mention(f"{one.query}: {one.problem}")
        elif one.progress.planned is not None and one.process is None:
            mention(
                f"{one.query} was ended inside batch {one.progress.planned}; it is repeated at the next start, and"
                " nothing is doubled by that."
            )
    say(f"\ntables in {found.lake}")
    tables = [
        (one.name, one.kind, one.rows, one.files, format_bytes(one.bytes), one.version, _ago(one.written_at_s))
        for one in found.tables
    ]
    heads = ("table", "kind", "rows", "files", "size", "version", "written")
    say(table(heads, tables, indent="  ").rstrip("\n") or "  none yet")


def _partitions(queries: Iterable[QueryStatus], ends: Offsets) -> Iterable[str]:
    rows = [
        (one.query, topic, int(partition), offset, end, None if end is None else max(0, end - offset))
        for one in queries
        for topic, partitions in one.progress.offsets.items()
        for partition, offset in sorted(partitions.items(), key=lambda item: int(item[0]))
        for end in [ends.get(topic, {}).get(partition)]
    ]
    if rows:
        heads = ("query", "topic", "partition", "next offset", "end", "behind")
        yield "\n" + table(heads, rows, indent="  ").rstrip("\n")


def _read_to(one: QueryStatus) -> str | None:
    if one.progress.offsets:
        return ", ".join(one.progress.offsets)
    if one.progress.tables:
        return f"version {max(one.progress.tables.values())} of its table"
    return None


def _ago(moment_s: float | None) -> str | None:
    if moment_s is None:
        return None
    seconds = max(0, round(time.time() - moment_s))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def reset(arguments: argparse.Namespace, spark_command: Callable[[], Command]) -> int:
    """Put a job's checkpoint aside, and its tables as far as they have to go with it. 0, 4 if there is none."""
    from streaming.options import overrides
    from streaming.reset import apply, plan
    from streaming.status import needs_spark

    settings = load_noted(arguments.config, overrides=overrides(arguments)).settings
    if needs_spark(settings.stream):
        if not answered_yes(arguments, f"Put the checkpoint and tables of {arguments.job_name} aside?"):
            return ExitStatus.FAILED
        words, environment = spark_command()
        return subprocess.run(words, env=environment, check=False).returncode
    todo = plan(settings.stream, arguments.job_name, time.time())
    if not todo.moves:
        mention(f"{arguments.job_name} has no checkpoint in {settings.stream.checkpoint}: it begins anew as it is.")
        return ExitStatus.NOT_FOUND
    say("what is put aside, under a new name in the same folder:")
    for move in todo.moves:
        say(f"  {move.folder.rstrip('/')}/{move.name} → {move.to}")
    for sentence in todo.says:
        say(f"{sentence}.")
    say(f"the next start of {arguments.job_name} reads all that its source still has.")
    if arguments.dry_run:
        return ExitStatus.OK
    if not answered_yes(arguments, "Do it?"):
        mention("nothing was changed")
        return ExitStatus.FAILED
    apply(todo)
    say("done; delete what was put aside when the new tables are right.")
    return ExitStatus.OK
