"""``gateway stream status`` and ``gateway stream reset``: done with the files themselves, in this process, wherever the
folders are this machine's; else inside Spark, which knows other file systems."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from config.errors import ConfigError, ExitStatus, GatewayError
from config.extras import require
from config.numbers import bytes_text, length_text
from gateway.cli.arguments import load_noted, quiet
from gateway.cli.kafka.common import answered_yes
from gateway.cli.table import mention, print_json, say, table

if TYPE_CHECKING:
    import argparse

    from config.settings import Settings
    from streaming.upkeep.status import LakeStatus, QueryStatus

_KAFKA_TIMEOUT_S: Final = 5.0
Command = tuple[list[str], dict[str, str]]


def status(arguments: argparse.Namespace, spark_command: Callable[[], Command]) -> int:
    """Show how far each query is. Returns exit status 0, or 4 if nothing was ever begun here."""
    from streaming.options import overrides
    from streaming.upkeep.status import collect, needs_spark

    settings = load_noted(arguments.config, overrides=overrides(arguments)).settings
    if needs_spark(settings.stream):
        found = _by_spark(spark_command())
    else:
        require("gateway stream status", {"deltalake": "deltalake", "pyarrow": "pyarrow"}, "streaming")
        found = collect(settings.stream)
    topics = sorted({topic for one in found.queries for topic in one.topics})
    extents = {} if arguments.offline or not topics else _extents(settings, topics)
    if arguments.json:
        print_json(_document(found, extents))
    else:
        _show(found, extents)
    return ExitStatus.OK if found.queries or found.tables else ExitStatus.NOT_FOUND


def _by_spark(command: Command) -> LakeStatus:
    """The status that the command's process prints as its last line."""
    from streaming.upkeep.status import from_json

    words, environment = command
    ran = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode != 0:
        raise ConfigError("The folders could not be read by Spark; what it said is above.")
    return from_json(ran.stdout.splitlines()[-1])


Extents = Mapping[str, Mapping[str, tuple[int, int]]]
"""Where each partition of Kafka's topics begins and ends now, by topic and partition."""


def _extents(settings: Settings, topics: list[str]) -> Extents:
    """The first and last offset of each partition, from Kafka. Prints which partitions could not be asked."""
    from gateway.admin.kafka import KafkaAdmin
    from gateway.admin.model import TopicPartition

    try:
        with quiet(settings.log), KafkaAdmin(settings, timeout_s=_KAFKA_TIMEOUT_S) as admin:
            places = [
                TopicPartition(topic.name, partition.number)
                for topic in admin.topics(topics)
                for partition in topic.partitions
            ]
            starts, ends = admin.log_starts(places), admin.log_ends(places)
    except GatewayError as error:
        mention(f"Kafka was not asked how far its topics go: {error} --offline does not ask.")
        return {}
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for place in starts.values.keys() & ends.values.keys():
        found.setdefault(place.topic, {})[str(place.partition)] = starts.values[place], ends.values[place]
    for problem in dict.fromkeys([*starts.problems.values(), *ends.problems.values()]):
        mention(problem)
    return found


class _Place(NamedTuple):
    """One partition that a query reads."""

    topic: str
    partition: int
    next: int | None
    """The next offset to read; None if neither the checkpoint nor Kafka says it."""
    end: int | None

    @property
    def behind(self) -> int | None:
        """Records that Kafka has and the query has not; None where Kafka did not tell, or ends before what was read:
        then the topic is another one of that name."""
        return None if self.end is None or self.next is None or self.end < self.next else self.end - self.next


def _places(one: QueryStatus, extents: Extents) -> Iterator[_Place]:
    """The partitions of a query's topics. What it has not begun with is read from its beginning."""
    for topic in one.topics:
        offsets, there = one.progress.offsets.get(topic, {}), extents.get(topic, {})
        for partition in sorted({*offsets, *there}, key=int):
            start, end = there.get(partition, (None, None))
            yield _Place(topic, int(partition), offsets.get(partition, start), end)


def _behind(one: QueryStatus, extents: Extents) -> int | None:
    """Records that Kafka has and the query has not; None where that is not known of a partition."""
    if not one.topics or any(topic not in extents for topic in one.topics):
        return None
    counts = [place.behind for place in _places(one, extents)]
    return None if None in counts else sum(filter(None, counts))


def _log_ends(one: QueryStatus, extents: Extents) -> dict[str, dict[str, int]]:
    """Where the partitions of a query's topics end, by topic and partition, as far as known."""
    return {
        topic: {partition: end for partition, (_, end) in extents[topic].items()}
        for topic in one.topics
        if topic in extents
    }


def _document(found: LakeStatus, extents: Extents) -> dict[str, Any]:
    document = asdict(found)
    for told, one in zip(document["queries"], found.queries, strict=True):
        told.update(told.pop("progress"), ends=_log_ends(one, extents), behind=_behind(one, extents))
    return document


def _show(found: LakeStatus, extents: Extents) -> None:
    from streaming.lake.storage import is_local

    nobody = "no" if is_local(found.checkpoint) else None  # elsewhere there is no lock, and it is not known
    say(f"checkpoints in {found.checkpoint}")
    heads = ("query", "running", "batch", "finished", "read to", "behind", "state")
    rows = [
        (
            one.query,
            one.running or nobody,
            one.progress.batch,
            _ago(one.progress.finished_at_s),
            _read_to(one),
            _behind(one, extents),
            bytes_text(one.state_bytes) if one.state_bytes else None,
        )
        for one in found.queries
    ]
    say(table(heads, rows, indent="  ").rstrip("\n") or "  none yet")
    for line in _partitions(found.queries, extents):
        say(line)
    for one in found.queries:
        if one.problem:
            mention(f"{one.query}: {one.problem}")
        elif one.progress.unfinished_batch is not None and one.running is None and nobody:
            inside = f"{one.query} was ended inside batch {one.progress.unfinished_batch}"
            mention(f"{inside}; it is repeated at the next start, and nothing is doubled by that.")
    say(f"\ntables in {found.lake}")
    tables = [
        (one.table, one.rows, one.files, bytes_text(one.bytes), one.version, _ago(one.written_at_s))
        for one in found.tables
    ]
    columns = ("table", "rows", "files", "size", "version", "written")
    say(table(columns, tables, indent="  ").rstrip("\n") or "  none yet")
    for facts in found.tables:
        if facts.problem:
            mention(f"{facts.table}: {facts.problem}")


def _partitions(queries: Iterable[QueryStatus], extents: Extents) -> Iterable[str]:
    rows = [(one.query, *place, place.behind) for one in queries for place in _places(one, extents)]
    if rows:
        heads = ("query", "topic", "partition", "next offset", "end", "behind")
        yield "\n" + table(heads, rows, indent="  ").rstrip("\n")


def _read_to(one: QueryStatus) -> str | None:
    """What a query reads: topics, or a version of a table; None before its first batch."""
    if one.progress.offsets:
        return ", ".join(one.progress.offsets)
    if one.progress.tables_read:
        return f"version {max(one.progress.tables_read.values())} of its table"
    return None


def _ago(moment_s: float | None) -> str | None:
    return None if moment_s is None else f"{length_text(max(0, time.time() - moment_s))} ago"


def reset(arguments: argparse.Namespace, spark_command: Callable[[], Command]) -> int:
    """Put a job's checkpoint aside, and its tables that have to go with it. Returns exit status 0, or 4 without one."""
    from streaming.lake.storage import LocalFolder
    from streaming.options import overrides
    from streaming.upkeep.reset import carry_out
    from streaming.upkeep.status import needs_spark

    stream = load_noted(arguments.config, overrides=overrides(arguments)).settings.stream
    job, dry_run = arguments.job_name, arguments.dry_run
    if not needs_spark(stream):
        return carry_out(stream, job, LocalFolder, dry_run=dry_run, agreed=lambda: answered_yes(arguments, "Do it?"))
    if not dry_run and not answered_yes(arguments, f"Put the checkpoint and tables of {job} aside?"):
        return ExitStatus.FAILED
    words, environment = spark_command()
    return subprocess.run(words, env=environment, check=False).returncode
