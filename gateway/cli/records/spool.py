"""``gateway spool``: the batches that wait on disk for Kafka, and their export and import."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bridge.spool.inspect import SpoolStatus, imported, inspect, unreadable
from bridge.spool.record import SpoolBatch
from bridge.spool.recovery import SpoolReport
from bridge.spool.spool import spool_path
from bridge.spool.store import ReadResult, Removal, Store
from config.errors import ExitStatus, GatewayError
from config.numbers import bytes_text, some
from config.settings import Settings
from gateway.base.moments import moment
from gateway.cli.arguments import between, load_noted, quiet
from gateway.cli.parser import Commands, flag
from gateway.cli.records import spool_file
from gateway.cli.records.spool_file import ExportFile
from gateway.cli.table import answer, mention, print_json, table, tell
from gateway.data_dir.directory import slots
from gateway.supervisor.cpu import worker_count

_CHUNK_BYTES: Final = 4 << 20  # read, or stored, at a time


class SpoolCommandError(GatewayError):
    """A command that the spool's state does not allow."""


def add_parser(commands: Commands) -> None:
    parsers = commands.group("spool", "Batches that a worker keeps on disk until Kafka takes them.")
    status = parsers.verb("status", _status, "the stored batches by partition")
    text = "read every batch and check it; the gateway must be stopped. Ends with status 3 when one cannot be read"
    flag(status, "--verify", text)

    export = parsers.verb("export", _export, "copy everything into a file")
    export.add_argument("file", type=Path, metavar="FILE", help="a new file")
    flag(export, "--remove", "empty the spool once the file is durable; else both may deliver")

    import_ = parsers.verb("import", _import, "store the batches of an export")
    import_.add_argument("file", type=Path, metavar="FILE", help="an export")
    import_.add_argument("--from-instance", metavar="NAME", help="the other instance of the export, to confirm it")

    for command in (status, export, import_):
        text = "the worker whose spool it is (default: worker)"
        command.add_argument("--worker", type=between(0, 1023), metavar="N", help=text)


def _load(arguments: argparse.Namespace) -> tuple[Settings, Path]:
    settings = load_noted(arguments.config).settings
    worker = settings.worker if arguments.worker is None else arguments.worker
    return settings, spool_path(settings.data_dir, worker)


def _mention_others(arguments: argparse.Namespace, settings: Settings) -> None:
    """Name the workers whose spools nobody asked for."""
    names = (path.parent.name.removeprefix("worker-") for path in settings.data_dir.glob("worker-*/spool"))
    others = sorted({int(name) for name in names if name.isdigit()} - {settings.worker})
    if arguments.worker is None and others:
        mention(f"This is worker {settings.worker} alone. Others have spools, too ({some(others)}): --worker N.")


def _status(arguments: argparse.Namespace) -> int:
    """Show the stored batches by partition, also while the gateway runs."""
    settings, folder = _load(arguments)
    _mention_others(arguments, settings)
    status = inspect(folder)
    if arguments.verify and status is not None and status.holder:
        raise SpoolCommandError(
            f"The spool in {folder.absolute()} is in use by process {status.holder}: stop the gateway before --verify. "
            "The gateway itself checks every batch that it reads."
        )
    bad = unreadable(folder) if arguments.verify and status is not None else []
    if arguments.json:
        print_json(_as_data(folder, status, settings) | {"unreadable": bad})
    else:
        print(_as_text(folder, status, settings), end="")
        for one in bad:
            tell(f"UNREADABLE: {one.batches} batches with {one.messages} messages of {one.topic}/{one.partition}")
        if arguments.verify and not bad:
            complete = status is None or status.clean
            print(f"All batches {'' if complete else 'of the index '}can be read.")
    return ExitStatus.MISSING_MESSAGES if bad else ExitStatus.OK


def _as_data(folder: Path, status: SpoolStatus | None, settings: Settings) -> dict[str, Any]:
    return {
        "folder": str(folder.absolute()),
        "exists": status is not None,
        "instance": status.instance if status is not None else settings.instance,
        "process": status.holder if status is not None else "",
        "closed_properly": status.clean if status is not None else True,
        "batches": status.batches if status is not None else 0,
        "messages": status.messages if status is not None else 0,
        "bytes": status.bytes if status is not None else 0,
        "disk_bytes": status.disk_bytes if status is not None else 0,
        "max_bytes": settings.spool.max_bytes,
        "partitions": status.partitions if status is not None else [],
    }


def _as_text(folder: Path, status: SpoolStatus | None, settings: Settings) -> str:
    if status is None:
        return f"{folder.absolute()}: nothing was ever spooled here.\n"
    used = "in use by process " + status.holder if status.holder else "not in use"
    limit = bytes_text(settings.spool.max_bytes)
    stored = f"{bytes_text(status.bytes)} of {limit}; {bytes_text(status.disk_bytes)} on disk"
    lines = [
        f"{folder.absolute()}, instance {status.instance}, {used}",
        f"{status.batches} batches with {status.messages} messages, {stored}",
    ]
    if not status.holder and not status.clean:
        lines.append("Its last process did not close it: the next start completes the index.")
    if status.partitions:
        rows = (
            (
                f"{one.topic}/{one.partition}",
                one.batches,
                one.messages,
                bytes_text(one.bytes),
                moment(one.oldest_ms / 1000),
            )
            for one in status.partitions
        )
        lines.append(table(("partition", "batches", "messages", "size", "oldest"), rows).rstrip())
    return "\n".join([*lines, ""])


@contextmanager
def _opened(settings: Settings, folder: Path) -> Iterator[tuple[Store, SpoolReport]]:
    """The spool, with its lock. Damage is reported on stderr."""
    with quiet(settings.log):
        store = Store(folder, settings.instance, lambda _report: None)
        report = store.open()
        if report.sentence:
            tell(report.sentence, to=sys.stderr)
        try:
            yield store, report
        finally:
            store.close()


def _export(arguments: argparse.Namespace) -> int:
    """Copy all stored batches into a file that another gateway can import. The gateway must be stopped. Ends with
    status 3 when some cannot be read: they are lost."""
    settings, folder = _load(arguments)
    _mention_others(arguments, settings)
    if not folder.exists():
        raise SpoolCommandError(f"{folder.absolute()}: nothing was ever spooled here. Check --config and --worker.")
    with _opened(settings, folder) as (store, report):
        bad: list[ReadResult] = []
        store.give_up_ns = 0  # a failing disk: what can be read is saved
        batches, messages = spool_file.write(arguments.file, settings.instance, _stored(store, bad))
        if arguments.remove:
            _empty(store)
    lost_batches = report.lost_batches + sum(one.lost_batches for one in bad)
    lost_messages = report.lost_messages + sum(one.lost_messages for one in bad)
    outcome = {"batches": batches, "messages": messages, "file": str(arguments.file), "removed": arguments.remove,
               "lost_batches": lost_batches, "lost_messages": lost_messages}  # fmt: skip
    left = "the spool is empty now" if arguments.remove else "the spool still holds them, and will deliver them"
    if lost_batches:
        left += f". LOST: {lost_batches} batches with {lost_messages} messages, which cannot be read"
    answer(arguments, outcome, f"{batches} batches with {messages} messages are in {arguments.file}; {left}.")
    return ExitStatus.MISSING_MESSAGES if lost_batches else ExitStatus.OK


def _stored(store: Store, bad: list[ReadResult]) -> Iterator[SpoolBatch]:
    """All batches. ``bad`` receives the answers that lack some."""
    for one in store.totals():
        after = 0
        while True:
            result = store.read(one.topic, one.partition, after, _CHUNK_BYTES)
            if result.lost_batches:
                bad.append(result)
            if not result.batches:
                break
            after = result.batches[-1].id
            yield from (stored.batch for stored in result.batches)


def _empty(store: Store) -> None:
    everything = [(0, (1 << 63) - 1)]
    store.remove([Removal(one.topic, one.partition, [], everything) for one in store.totals()])


def _import(arguments: argparse.Namespace) -> int:
    """Store the batches of an export behind the present ones. The gateway must be stopped. A file is imported once; a
    second import continues an interrupted one."""
    settings, folder = _load(arguments)
    number = settings.worker if arguments.worker is None else arguments.worker
    runs = number == settings.worker or 0 <= number < worker_count(settings)
    if not runs and number not in slots(settings.data_dir):
        raise SpoolCommandError(
            f"No worker {number} runs with these settings, nor did one in data_dir: nobody would deliver its spool."
        )
    export = ExportFile(arguments.file)
    if export.instance not in {settings.instance, arguments.from_instance}:
        raise SpoolCommandError(
            f"{arguments.file} is from instance {export.instance!r}, this is {settings.instance!r}. To deliver "
            f"its messages by this one, give --from-instance {export.instance}."
        )
    for other in sorted(settings.data_dir.glob("worker-*/spool")):
        if other != folder and (count := imported(other, export.id)):
            raise SpoolCommandError(
                f"{count} of the {export.batches} batches of {arguments.file} are in the spool {other.absolute()} "
                "already, or were: a second import would deliver them twice. Continue with that worker (--worker)."
            )
    with _opened(settings, folder) as (store, _):
        before = store.imported(export.id)
        size = sum(entry.batch.stored_bytes for entry in export.entries() if entry.number > before)
        stored = sum(one.bytes for one in store.totals())
        if stored + size > settings.spool.max_bytes:
            raise SpoolCommandError(
                f"{arguments.file} needs {size} bytes and {stored} are stored: together more than spool.max_bytes = "
                f"{settings.spool.max_bytes}. Raise it, or let the gateway deliver the stored ones first."
            )
        batches, messages = _store_entries(store, export, before)
    outcome = {"batches": batches, "messages": messages, "file": str(arguments.file), "imported_before": before}
    again = f"; {before} batches were imported before" if before else ""
    return answer(arguments, outcome, f"{batches} batches with {messages} messages are stored{again}.")


def _store_entries(store: Store, export: Any, before: int) -> tuple[int, int]:
    """Store the entries after the first ``before``, a chunk at a time. Returns the numbers of batches and messages."""
    chunk: list[SpoolBatch] = []
    size = batches = messages = 0

    def store_chunk() -> None:
        """Store what was collected, with the number of the export's batches that are stored then."""
        nonlocal size
        if chunk:
            store.append([chunk])
            store.index_appended(imported=(export.id, before + batches))
            chunk.clear()
            size = 0

    for entry in export.entries():
        if entry.number <= before:
            continue
        chunk.append(entry.batch)
        size += len(entry.batch.data)
        batches += 1
        messages += entry.batch.messages
        if size >= _CHUNK_BYTES:
            store_chunk()
    store_chunk()
    return batches, messages
