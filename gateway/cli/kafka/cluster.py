"""``gateway cluster``: Kafka's brokers, its controller, and running reassignments."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from config.errors import ExitStatus
from config.numbers import bytes_text, many
from gateway.admin import progress
from gateway.admin.errors import AdminError
from gateway.admin.kafka import KafkaAdmin
from gateway.admin.model import (
    Answers,
    BrokerVersion,
    Cluster,
    LogDir,
    Partition,
    Quorum,
    Topic,
    TopicPartition,
    Unanswered,
)
from gateway.admin.progress import Moving
from gateway.cli.kafka.common import CONFIG, connected, mention_unanswered
from gateway.cli.parser import Commands
from gateway.cli.table import mention, print_json, say, severity, table

T = TypeVar("T")
_SHOWN: Final = 10
_LAGGING_RECORDS: Final = 1000  # a voter further behind must read before it can lead
_LAGGING_S: Final = 10.0
_DISK_WARN: Final = 0.15  # of a file system left


def add_parser(commands: Commands) -> None:
    parsers = commands.group(
        "cluster",
        "Kafka's brokers and their state. Changes nothing.",
        "example:\n  gateway cluster describe",
        config=CONFIG,
    )
    parsers.verb(
        "describe",
        _describe,
        "everything about the cluster on one page",
        "Reassign partitions with kafka-reassign-partitions.sh (part of Kafka) or Cruise Control. Right: Describe on "
        "the cluster.",
    )


@dataclass
class _View:
    """The facts of the cluster. ``problems``: sentences for the unknown ones, of which ``topics`` and ``moving`` are
    None."""

    cluster: Cluster
    versions: Answers[BrokerVersion]
    dirs: Answers[tuple[LogDir, ...]]
    topics: tuple[Topic, ...] | None
    moving: tuple[Moving, ...] | None
    problems: list[str]

    @property
    def unanswered(self) -> list[Unanswered]:
        found = {one.id: one for one in (*self.dirs.unanswered, *self.versions.unanswered)}
        return [found[number] for number in sorted(found, key=lambda number: number or 0)]


def _describe(arguments: argparse.Namespace) -> int:
    """Brokers with rack, address and version, the controller and the metadata quorum, partitions without a leader or
    without all replicas, folders and their sizes, running reassignments and their progress. Changes nothing. Brokers
    that do not answer are named and left out. Ends with status 5 when one did not answer."""
    with connected(arguments) as (_, admin):
        view = _ask_all(admin)
    if arguments.json:
        print_json(_data(view))
    else:
        say(_text(view))
    for problem in view.problems:
        mention(problem)
    mention_unanswered(view.unanswered)
    return ExitStatus.INCOMPLETE if view.problems or view.unanswered else ExitStatus.OK


def _ask_all(admin: KafkaAdmin) -> _View:
    """Everything about the cluster; what cannot be had becomes a problem. Raises AdminError without the cluster."""
    problems: list[str] = []

    def or_none(ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except AdminError as error:
            problems.append(str(error))
            return None

    cluster = admin.cluster()
    versions = admin.versions()
    dirs = admin.log_dirs()
    topics = or_none(admin.topics)
    running = or_none(admin.reassignments) if cluster.quorum_problem == "" else None
    if cluster.quorum_problem:
        problems.append(cluster.quorum_problem)
    moving = None if running is None else progress.moving(running, topics or (), dirs.by_broker)
    return _View(cluster, versions, dirs, topics, moving, problems)


# --- text ---


def _text(view: _View) -> str:
    cluster = view.cluster
    silent = {one.id: one for one in view.unanswered if one.silent}
    unreached = {one.id for one in view.unanswered}
    rows = []
    for broker in cluster.brokers:
        version = view.versions.by_broker.get(broker.id)
        if broker.id in silent:
            state = f"{severity('FAIL')}: does not answer"
        elif broker.id in unreached and broker.id not in view.versions.by_broker:
            state = f"{severity('FAIL')}: cannot be reached"
        elif broker.fenced:
            state = f"{severity('FAIL')}: fenced (no heartbeat)"
        else:
            state = severity("ok")
        leads = (
            None
            if view.topics is None
            else sum(one.leader == broker.id for topic in view.topics for one in topic.partitions)
        )
        rows.append((broker.id, broker.address, broker.rack, version.speaks if version else None, leads,
                     "controller" if broker.id == cluster.controller else "", state))  # fmt: skip
    level = "" if cluster.metadata_version is None else f", metadata.version {cluster.metadata_version}"
    parts = [f"cluster {cluster.id}{level}\n\n",
             table(("BROKER", "ADDRESS", "RACK", "SPEAKS", "LEADS", "", "STATE"), rows)]  # fmt: skip
    if cluster.quorum is not None:
        parts.append(_quorum(cluster, cluster.quorum))
    elif cluster.quorum_problem:
        parts.append(f"\nmetadata quorum: {severity('FAIL')}: unknown\n")
    parts += [_partitions(view), _dirs(view.dirs), _moving(view.moving)]
    return "".join(parts)


def _quorum(cluster: Cluster, quorum: Quorum) -> str:
    rows = []
    for role, replicas in (("voter", quorum.voters), ("observer", quorum.observers)):
        for one in replicas:
            leader = one.id == quorum.leader
            age = None if leader else one.last_caught_up_age_seconds
            late = one.lag > _LAGGING_RECORDS or (age is not None and age > _LAGGING_S)
            rows.append((one.id, "leader" if leader else role, one.lag,
                         None if age is None else f"{age:.1f} s", severity("warn" if late else "ok")))  # fmt: skip
    outside = "" if cluster.broker(quorum.leader) is not None else " (no broker)"
    head = f"\nmetadata quorum: controller {quorum.leader}{outside}, epoch {quorum.epoch}, "
    head += f"log end {quorum.high_watermark}\n"
    return head + table(("NODE", "ROLE", "LAG", "CAUGHT UP", "STATE"), rows, indent="  ")


def _lacks(view: _View) -> dict[Partition, list[int]]:
    """The missing replicas of each partition. One that a reassignment adds does not count, as in Kafka."""
    adding = {one.place: set(one.adding) for one in view.moving or ()}
    return {
        one: sorted(set(one.replicas) - set(one.isr) - adding.get(TopicPartition(one.topic, one.number), set()))
        for topic in view.topics or ()
        for one in topic.partitions
    }


def _partitions(view: _View) -> str:
    """The partitions without a leader or a replica."""
    if view.topics is None:
        return f"\npartitions: {severity('FAIL')}: unknown\n"
    lacks = _lacks(view)
    partitions = list(lacks)
    leaderless = [one for one in partitions if one.leader is None]
    under = [one for one in partitions if one.leader is not None and lacks[one]]
    text = f"\n{many(len(view.topics), 'topic')}, {many(len(partitions), 'partition')}: "
    if not leaderless and not under:
        return text + f"{severity('ok')}, each has a leader and all its replicas\n"
    text += f"{len(leaderless)} without a leader, {len(under)} under-replicated\n"
    for broker in sorted({number for one in under for number in lacks[one]}):
        count = sum(broker in lacks[one] for one in under)
        text += f"  broker {broker} is out of sync in {many(count, 'partition')}\n"
    rows = [
        (f"{one.topic}/{one.number}", one.leader, ",".join(map(str, one.replicas)), ",".join(map(str, one.isr)),
         f"{severity('FAIL')}: no leader" if one.leader is None
         else f"{severity('warn')}: lacks {','.join(map(str, lacks[one]))}")
        for one in [*leaderless, *under][:_SHOWN]
    ]  # fmt: skip
    text += table(("PARTITION", "LEADER", "REPLICAS", "IN SYNC", "STATE"), rows, indent="  ")
    more = len(leaderless) + len(under) - _SHOWN
    return text + (f"  … and {more} more\n" if more > 0 else "")


def _dirs(dirs: Answers[tuple[LogDir, ...]]) -> str:
    rows = []
    for number, folders in dirs.by_broker.items():
        for folder in folders:
            left = None
            if folder.total_bytes and folder.usable_bytes is not None:
                left = folder.usable_bytes / folder.total_bytes
            if folder.error is not None:
                state = f"{severity('FAIL')}: {folder.error}"
            else:
                state = severity("warn" if left is not None and left < _DISK_WARN else "ok")
            rows.append((number, folder.path, len(folder.replicas), bytes_text(folder.bytes),
                         None if folder.usable_bytes is None else bytes_text(folder.usable_bytes),
                         None if left is None else f"{left:.0%}", state))  # fmt: skip
    text = table(("BROKER", "FOLDER", "REPLICAS", "KAFKA'S", "DISK FREE", "FREE", "STATE"), rows, indent="  ")
    return f"\nfolders\n{text}" if text else ""


def _moving(moving: tuple[Moving, ...] | None) -> str:
    if moving is None:
        return f"\nreassignments: {severity('FAIL')}: unknown\n"
    if not moving:
        return "\nno reassignment is running\n"
    rows = []
    for one in moving[:_SHOWN]:
        copied = ", ".join(f"{broker}: {'?' if got is None else bytes_text(got)}" for broker, got in one.copied.items())
        rows.append((one.place, ",".join(map(str, one.replicas)), ",".join(map(str, one.adding)) or None,
                     ",".join(map(str, one.removing)) or None, copied or None,
                     None if one.bytes is None else bytes_text(one.bytes),
                     None if one.share is None else f"{one.share:.0%}"))  # fmt: skip
    text = f"\n{many(len(moving), 'reassignment')} running (started by kafka-reassign-partitions.sh or Cruise Control, "
    text += "which also end them)\n"
    text += table(("PARTITION", "REPLICAS", "ADDING", "REMOVING", "COPIED", "OF", "DONE"), rows, indent="  ")
    return text + (f"  … and {len(moving) - _SHOWN} more\n" if len(moving) > _SHOWN else "")


# --- JSON ---


def _data(view: _View) -> dict[str, Any]:
    lacks = _lacks(view)
    leaderless = [f"{one.topic}/{one.number}" for one in lacks if one.leader is None]
    under = [f"{one.topic}/{one.number}" for one, lacking in lacks.items() if one.leader is not None and lacking]
    return {
        "cluster": view.cluster,
        "versions": view.versions.by_broker,
        "leaderless": None if view.topics is None else leaderless,
        "under_replicated": None if view.topics is None else under,
        "folders": {
            number: [
                {"path": folder.path, "error": folder.error, "replicas": len(folder.replicas), "bytes": folder.bytes,
                 "total_bytes": folder.total_bytes, "usable_bytes": folder.usable_bytes}
                for folder in folders
            ]
            for number, folders in view.dirs.by_broker.items()
        },
        "reassignments": None if view.moving is None else [
            {"topic": one.place.topic, "partition": one.place.partition, "replicas": one.replicas,
             "adding": one.adding, "removing": one.removing, "bytes": one.bytes, "copied": one.copied,
             "share": one.share}
            for one in view.moving
        ],
        "unanswered": view.unanswered,
        "problems": view.problems,
    }  # fmt: skip
