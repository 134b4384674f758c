"""A process killed in the middle of appends leaves what it was told is stored; a disk that refuses leaves nothing."""

import asyncio
import contextlib
import dataclasses
import errno
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from bridge.errors import SpoolWriteError
from bridge.spool.index import DamagedError, Index
from bridge.spool.record import SpoolBatch
from bridge.spool.recovery import SpoolReport
from bridge.spool.segments import Segments
from bridge.spool.spool import Spool
from bridge.spool.tally import Tally
from tests.unit.spool_path import opened_spool, read_batches, reopened

ROOT = Path(__file__).parents[2]
KILLS = 8

CHILD = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from bridge.spool.spool import Spool
    from bridge.spool.record import SpoolBatch

    def batch(partition, number):
        data = number.to_bytes(8, "big") * (1 + number % 700)
        return SpoolBatch("telemetry", partition, "r", 1, False, 2, (), 1_700_000_000_000, data)

    async def fill(spool, partition, number):
        while True:
            some = [batch(partition, number + step) for step in range(number % 3 + 1)]
            await spool.append(some)
            number += len(some)
            print(partition, number, flush=True)  # stored up to, not including

    async def main():
        spool = Spool(Path(sys.argv[1]), max_bytes=1 << 30, instance="gw")
        await spool.open()
        print("open", flush=True)
        await asyncio.gather(*(fill(spool, partition, int(start)) for partition, start in enumerate(sys.argv[2:])))

    asyncio.run(main())
""")


def batch(number: int, size: int = 1000) -> SpoolBatch:
    return SpoolBatch("telemetry", 0, "r", 1, False, 2, (), 1_700_000_000_000, bytes([number]) * size)


def killed_after(folder: Path, starts: list[int], lines: int) -> list[int]:
    """Start a process that appends, kill it after so many answers; returns what each partition was told."""
    told = list(starts)
    arguments = [sys.executable, "-c", CHILD, str(folder), *map(str, starts)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout.readline() == "open\n"
        answers = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        answers += child.stdout.readlines()  # those that were on their way: whoever printed them had been told
    assert child.returncode == -signal.SIGKILL
    for answer in answers:
        if answer.endswith("\n"):
            partition, number = map(int, answer.split())
            told[partition] = number
    return told


async def test_a_killed_process_leaves_what_it_was_told_and_whole_appends_only(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    lengths = random.Random(7)
    starts = [0, 0, 0]
    for _ in range(KILLS):
        told = killed_after(folder, starts, lengths.randrange(60))
        spool = Spool(folder, max_bytes=1 << 30, instance="gw")
        report = await spool.open()
        assert report.sentence == ""
        assert report.lost_batches == 0
        for partition in range(3):
            numbers: list[int] = []
            after = 0
            while batches := (await spool.read("telemetry", partition, after, 1 << 20)).batches:
                after = batches[-1].id
                numbers += [int.from_bytes(stored.batch.data[:8], "big") for stored in batches]
            assert numbers == list(range(len(numbers))), "missing, repeated or out of order"
            assert len(numbers) >= told[partition], "stored, but not there after the kill"
            # What was written when the kill came is there as a whole call or not at all.
            at = starts[partition]
            while at < len(numbers):
                at += at % 3 + 1
            assert at == len(numbers), "half an append"
            starts[partition] = at
        await spool.close()
    assert sum(starts) > 100


class Disk:
    """Stands in for the operating system's calls: fails the next ones as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail: str = ""
        self.code = errno.ENOSPC
        self.partial = False
        for name in ("pwritev", "fdatasync", "pwrite"):
            monkeypatch.setattr(f"bridge.spool.segments.os.{name}", self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.fail == name or (self.fail == "pwritev" and name == "pwrite" and self.partial):
                if self.partial and name == "pwritev":
                    fd, pieces, offset = arguments
                    return real(fd, [b"".join(pieces)[:700]], offset)
                raise OSError(self.code, os.strerror(self.code))
            return real(*arguments)

        return call


@pytest.mark.parametrize(("fail", "code", "partial"), [
    ("pwritev", errno.ENOSPC, False), ("pwritev", errno.ENOSPC, True), ("fdatasync", errno.EIO, False),
], ids=["full", "full in the middle of a batch", "fsync fails"])  # fmt: skip
async def test_what_the_disk_refused_is_not_stored_and_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: str, code: int, partial: bool
) -> None:
    disk = Disk(monkeypatch)
    disk.code, disk.partial = code, partial
    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    await spool.append([batch(1)])
    disk.fail = fail
    for _ in range(3):
        results = await asyncio.gather(
            spool.append([batch(2), batch(3)]), spool.append([batch(4)]), return_exceptions=True
        )
        for result in results:
            assert isinstance(result, SpoolWriteError)
            assert os.strerror(code).lower() in str(result)
        assert (spool.batches, spool.messages) == (1, 2)
        assert spool.has_room((1 << 20) - spool.bytes)  # nothing stays reserved
    assert await read_batches(spool) == [batch(1)]
    disk.fail = ""
    await spool.append([batch(5)])
    assert await read_batches(spool) == [batch(1), batch(5)]
    await spool.close()
    assert await reopened(tmp_path / "s") == (2, SpoolReport())


UNCUT = ("fdatasync", "ftruncate", "truncate")


def refusals(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The calls of ``UNCUT`` that the disk refuses from now on: none at first."""
    failing: set[str] = set()
    for name in UNCUT:
        real = getattr(os, name)

        def call(*arguments: Any, name: str = name, real: Callable[..., Any] = real) -> Any:
            if name in failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments)

        monkeypatch.setattr(f"bridge.spool.segments.os.{name}", call)
    return failing


@pytest.mark.parametrize("heals", [True, False], ids=["the cut is made up for", "never cut"])
async def test_what_a_disk_neither_syncs_nor_cuts_takes_no_place_of_what_it_acknowledges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, heals: bool
) -> None:
    """An fsync fails, and so does the cut behind it: the segment ends with batches that nobody was told of. Then the
    disk takes others, and the process is killed before the index has them: the log alone says what there is."""
    failing = refusals(monkeypatch)
    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    await spool.append([batch(1)])
    assert await read_batches(spool) == [batch(1)]
    failing.update(UNCUT)
    for _ in range(2):
        with pytest.raises(SpoolWriteError):
            await spool.append([batch(2), batch(3)])
    failing.clear()
    if not heals:
        failing.add("truncate")
    monkeypatch.setattr("bridge.spool.store.Store.index_appended", lambda _self: None)
    await spool.append([batch(4)])
    await spool.append([batch(5), batch(6)])
    shutil.copytree(tmp_path / "s", tmp_path / "killed")
    monkeypatch.undo()
    again = Spool(tmp_path / "killed", max_bytes=1 << 20, instance="gw")
    report = await again.open()
    assert report.sentence == ""
    found = await read_batches(again)
    told = [batch(1), batch(4), batch(5), batch(6)]
    if heals:
        assert found == told
    assert [one for one in found if one in told] == told, "what was acknowledged is there, in order"
    await again.close()
    await spool.close()


@pytest.mark.parametrize("end", ["a stop", "a kill in a removal", "a new index"])
async def test_refused_batches_that_were_not_cut_are_never_reported_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    folder, failing, told = tmp_path / "s", refusals(monkeypatch), list[SpoolReport]()
    spool = await opened_spool(folder, max_bytes=1 << 20, salvaged=told.append)
    ids = await spool.append([batch(1), batch(2)])
    assert await read_batches(spool) == [batch(1), batch(2)]  # the index has them
    failing.update(UNCUT)
    with pytest.raises(SpoolWriteError):
        await spool.append([batch(3)])
    if end == "a stop":
        await spool.close()
    failing.clear()
    if end == "a new index":
        database = sqlite3.connect(folder / "index.db")
        database.execute("DROP TABLE batches")
        database.commit()
        database.close()
        await spool.read("telemetry", 0, 0, 1)
        assert told.pop().lost_batches == 0
        await spool.append([batch(4)])
        assert (await spool.read("telemetry", 0, 0, 1 << 20)).lost_batches == 0
    if end == "a kill in a removal":
        spool.remove("telemetry", 0, ids[:1])
        await spool.append([dataclasses.replace(batch(4), topic="other")])  # the refused batch is cut now
        assert await read_batches(spool) == [batch(2)]
        monkeypatch.setattr(Tally, "write", Mock(side_effect=OSError(errno.EIO, "as if killed before")))
        spool.remove("telemetry", 0, ids[1:])
        assert await read_batches(spool) == []
        shutil.copytree(folder, tmp_path / "killed")
        monkeypatch.undo()
        folder = tmp_path / "killed"
    await spool.close()
    _, report = await reopened(folder)
    assert (report, told) == (SpoolReport(), [])


async def test_a_start_that_is_killed_at_any_write_of_its_counts_loses_nothing(tmp_path: Path) -> None:
    spool = await opened_spool(tmp_path / "0")
    await spool.append([batch(1), dataclasses.replace(batch(2), topic="other")])
    await spool.close()
    for writes in range(2):
        shutil.copytree(tmp_path / str(writes), tmp_path / str(writes + 1))
        left = [None] * writes
        with pytest.MonkeyPatch.context() as patch:
            real = Tally.write
            patch.setattr(Tally, "write", lambda *of, left=left, real=real: left.pop() or real(*of))
            with contextlib.suppress(IndexError):  # the kill
                await opened_spool(tmp_path / str(writes + 1))
        again = await opened_spool(tmp_path / str(writes + 1))
        assert (await read_batches(again), again.batches) == ([batch(1)], 2)
        await again.close()


@pytest.mark.parametrize("killed", [False, True])
async def test_an_index_that_a_refusing_disk_made_in_part_is_made_anew(tmp_path: Path, *, killed: bool) -> None:
    folder, told = tmp_path / "s", list[SpoolReport]()
    spool = await opened_spool(folder, salvaged=told.append)
    await spool.append([batch(1), batch(2)])
    assert len(await read_batches(spool)) == 2
    database = sqlite3.connect(folder / "index.db")
    database.execute("DROP TABLE batches")
    database.commit()
    database.close()
    with pytest.MonkeyPatch.context() as refusing:
        refusing.setattr(Index, "add", Mock(side_effect=full()))
        if killed:
            refusing.setattr("bridge.spool.files.Files.remove_index", Mock())
        for _ in range(2):
            with pytest.raises(SpoolWriteError):
                await spool.read("telemetry", 0, 0, 1)
            with pytest.raises(SpoolWriteError):
                await spool.append([batch(3)])
    if killed:
        shutil.copytree(folder, tmp_path / "killed")
        again = await opened_spool(tmp_path / "killed")
        assert await read_batches(again) == [batch(1), batch(2)]
        await again.close()
    await spool.append([batch(4)])
    assert await read_batches(spool) == [batch(1), batch(2), batch(4)]
    assert [report.lost_batches for report in told] == [0]
    await spool.close()
    assert await reopened(folder) == (3, SpoolReport())


async def test_a_new_segment_that_the_disk_neither_syncs_nor_removes_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a disk does that the kernel mounts read-only at its first error, until an operator mounts it again."""

    def refuse(*_arguments: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    with monkeypatch.context() as failing:
        failing.setattr("bridge.spool.segments.os.fsync", refuse)
        failing.setattr(Path, "unlink", refuse)
        with pytest.raises(SpoolWriteError, match="read-only"):
            await spool.append([batch(1)])
    await spool.append([batch(2)])
    await spool.close()
    again = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    assert await read_batches(again) == [batch(2)]
    assert len([*(tmp_path / "s").glob("*.log")]) == 1
    await again.close()


def full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


async def test_an_index_that_cannot_be_written_holds_up_appends_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full between the log and the index: what the log has counts, and the next append tries again."""
    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    real = Index.add
    failing = True

    def add(self: Index, *arguments: Any) -> None:
        if failing:
            raise full()
        real(self, *arguments)

    monkeypatch.setattr(Index, "add", add)
    await spool.append([batch(1)])  # durable in the log
    await spool.remember_topic("telemetry", 1)  # the index is tried before this
    with pytest.raises(SpoolWriteError, match="disk is full"):
        await spool.append([batch(2)])
    with pytest.raises(SpoolWriteError, match="disk is full"):
        await spool.read("telemetry", 0, 0, 1000)
    assert spool.batches == 1
    failing = False
    await spool.append([batch(3)])
    assert await read_batches(spool) == [batch(1), batch(3)]
    await spool.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, 117, errno.EBADMSG])  # 117: EUCLEAN
async def test_only_what_the_disk_fails_to_read_for_a_minute_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A volume that came back after seconds had its acknowledged messages removed; so had a full table of files."""
    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    await spool.append([batch(1), batch(2)])
    with monkeypatch.context() as failing:
        failing.setattr(Segments, "read", Mock(side_effect=OSError(code, os.strerror(code))))
        with pytest.raises(SpoolWriteError, match=f"cannot be read .{os.strerror(code).lower()}"):
            await spool.read("telemetry", 0, 0, 1)
        failing.setattr(spool._store, "give_up_ns", 0)
        if code != errno.EMFILE:
            assert (await spool.read("telemetry", 0, 0, 1)).lost_batches == 2
    assert await read_batches(spool) == ([batch(1), batch(2)] if code == errno.EMFILE else [])
    await spool.close()


async def test_a_removal_that_finds_a_damaged_index_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    monkeypatch.setattr("bridge.spool.files.Files.free_reserve", lambda _self: False)
    real, errors = Index.add, [full(), DamagedError("changed")]
    monkeypatch.setattr(Index, "add", lambda *of: (_ for _ in ()).throw(errors.pop(0)) if errors else real(*of))
    ids = await spool.append([batch(1), batch(2)])
    spool.remove("telemetry", 0, ids[:1])
    assert await read_batches(spool) == [batch(2)]
    assert (errors, spool.batches, spool.messages) == ([], 1, 2)
    await spool.close()


async def test_a_removal_that_the_disk_refuses_is_done_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.spool.spool.RETRY_S", 0.01)
    monkeypatch.setattr("bridge.spool.spool.REMOVE_EVERY_S", 0.01)
    real, tried = Index.delete, threading.Event()
    failing = True

    def delete(self: Index, first: int, last: int) -> list[tuple[int, int, int, int]]:
        if failing:
            tried.set()
            raise full()
        return real(self, first, last)

    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    ids = await spool.append([batch(n) for n in range(4)])
    monkeypatch.setattr(Index, "delete", delete)
    spool.remove("telemetry", 0, ids[:3])
    assert spool.batches == 1
    await asyncio.to_thread(tried.wait, 10)
    failing = False
    await spool.close()
    assert (await reopened(tmp_path / "s"))[0] == 1


async def test_rows_whose_removal_the_disk_refuses_do_not_hide_those_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that found only removed rows would look like one of a damaged disk: the rest would count as lost."""

    def delete(*_: object) -> None:
        raise full()

    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    ids = await spool.append([batch(n) for n in range(4)])
    monkeypatch.setattr(Index, "delete", delete)
    spool.remove("telemetry", 0, ids[:3])
    found = await spool.read("telemetry", 0, 0, 1500)
    assert [(stored.id, stored.batch) for stored in found.batches] == [(ids[3], batch(3))]
    monkeypatch.undo()
    await spool.close()


async def test_counts_that_the_disk_refused_are_no_damage_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    await spool.append([batch(1)])
    assert await read_batches(spool) == [batch(1)]
    monkeypatch.setattr(Tally, "write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    await spool.append([batch(2)])
    assert await read_batches(spool) == [batch(1), batch(2)]
    monkeypatch.undo()
    await spool.close()
    assert await reopened(tmp_path / "s") == (2, SpoolReport())


async def test_a_cancelled_append_is_stored_and_counted(tmp_path: Path) -> None:
    """The write cannot be taken back: it is there, and delivered, perhaps for the second time."""
    spool = await opened_spool(tmp_path / "s", max_bytes=1 << 20)
    task = asyncio.ensure_future(spool.append([batch(1)]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await spool.remember_topic("telemetry", 1)  # comes after it
    assert (spool.batches, spool.messages) == (1, 2)
    await spool.close()


async def test_little_remains_on_the_disk_of_a_spool_that_has_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.spool.segments.SEGMENT_BYTES", 1 << 20)
    spool = await opened_spool(tmp_path / "s")
    for _ in range(8):
        await spool.append([batch(n % 256, 200) for n in range(4000)])
    assert sum(path.stat().st_size for path in (tmp_path / "s").iterdir()) > 8 << 20
    after = 0
    while batches := (await spool.read("telemetry", 0, after, 1 << 20)).batches:
        after = batches[-1].id
        spool.remove("telemetry", 0, [stored.id for stored in batches])
    await spool.read("telemetry", 0, 0, 1)
    assert list((tmp_path / "s").glob("*.log")) == []
    await spool.close()
    (tmp_path / "s" / "reserve").unlink()
    assert sum(path.stat().st_size for path in (tmp_path / "s").iterdir()) < 100_000


async def test_a_partition_that_stays_away_does_not_keep_the_others_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A little of every segment is needed: what is left moves together, and the disk holds at most twice of it."""
    monkeypatch.setattr("bridge.spool.segments.SEGMENT_BYTES", 20_000)
    monkeypatch.setattr("bridge.spool.store._SLACK_BYTES", 80_000)
    told: list[SpoolReport] = []
    spool = await opened_spool(tmp_path / "s", salvaged=told.append)
    stuck: list[SpoolBatch] = []
    for number in range(200):
        one = SpoolBatch("stuck", 0, "r", 1, False, 1, (), 0, bytes([number]) * 300)
        stuck.append(one)
        await spool.append([one, *(batch(number, 2000) for _ in range(5))])
        flowing: Sequence[Any] = (await spool.read("telemetry", 0, 0, 1 << 20)).batches
        spool.remove("telemetry", 0, [stored.id for stored in flowing])
    await spool.read("telemetry", 0, 0, 1)
    await spool.read("telemetry", 0, 0, 1)
    size = sum(path.stat().st_size for path in (tmp_path / "s").glob("*.log"))
    assert size < 2 * spool.bytes + 80_000 + 30_000  # the last being the segment that is written
    assert await read_batches(spool, "stuck") == stuck
    await spool.close()
    assert await reopened(tmp_path / "s") == (200, SpoolReport())
    again = await opened_spool(tmp_path / "s")
    assert await read_batches(again, "stuck") == stuck
    await again.close()
    assert told == []
