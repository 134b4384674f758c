"""The spool keeps what it was given, in order, over restarts, and counts exactly."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from bridge.errors import SpoolError
from bridge.spool.adoption import adopt_spool
from bridge.spool.record import SpoolBatch
from bridge.spool.spool import Spool
from tests.unit.spool_path import open_files
from tests.waiting import until

MIB = 1 << 20


def batch(
    number: int, *, topic: str = "telemetry", partition: int = 0, size: int = 100, messages: int = 3
) -> SpoolBatch:
    data = number.to_bytes(8, "big") * (size // 8)
    return SpoolBatch(topic, partition, "route", 1, False, messages, (1, 4), 1_700_000_000_000 + number, data)


def spool_at(path: Path, **changes: object) -> Spool:
    return Spool(path, **({"max_bytes": 64 * MIB, "instance": "gw"} | changes))  # type: ignore[arg-type]


@asynccontextmanager
async def opened(path: Path, **changes: object) -> AsyncIterator[Spool]:
    spool = spool_at(path, **changes)
    await spool.open()
    yield spool
    await spool.close()


def segment_sizes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob("*.log")}


async def test_an_opening_that_is_cancelled_holds_nothing_up_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool, may_go, opened_it = spool_at(tmp_path / "spool"), threading.Event(), threading.Event()
    open_store = spool._store.open

    def slowly() -> object:
        may_go.wait(2)
        report = open_store()
        opened_it.set()
        return report

    monkeypatch.setattr(spool._store, "open", slowly)
    opening = asyncio.create_task(spool.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not opened_it.is_set(), "the event loop waited for it"
    may_go.set()
    await until(opened_it.is_set, "it is opened")
    await until(lambda: not open_files(tmp_path), "it is closed")


async def test_what_is_removed_leaves_the_disk_and_memory(tmp_path: Path) -> None:
    """Of this life and, as a range, of the one before: nothing has read those batches."""
    spool = spool_at(tmp_path / "spool")
    await spool.open()
    ids = await spool.append([batch(n) for n in range(5)])
    for removed, left in ((ids[4:], 4), (range(ids[0], ids[2] + 1), 1)):
        spool.remove("telemetry", 0, removed)
        await spool.close()
        assert not any(one.removing for one in spool._partitions.values())
        spool = spool_at(tmp_path / "spool")
        await spool.open()
        assert spool.batches == left
    await spool.close()


async def test_a_closed_spool_holds_no_file(tmp_path: Path) -> None:
    async with opened(tmp_path / "spool") as spool:
        await spool.append([batch(0)])
        assert open_files(tmp_path)
    assert not open_files(tmp_path)


async def test_whoever_watches_is_told_what_the_disk_took_for_each_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: list[int] = []
    spool = spool_at(tmp_path / "spool")
    spool.watch_writes(took.append)
    await spool.open()
    sync = os.fdatasync

    def slow(fd: int) -> None:
        time.sleep(0.05)
        sync(fd)

    monkeypatch.setattr("bridge.spool.segments.os.fdatasync", slow)
    began_ns = time.monotonic_ns()
    for number in range(2):
        await spool.append([batch(number)])
    assert len(took) == 2
    assert min(took) > 50_000_000
    assert sum(took) < time.monotonic_ns() - began_ns
    await spool.close()


async def test_what_is_stored_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When ``append`` returns, the bytes of the log and the names of its files were synced."""
    synced_bytes: dict[Path, int] = {}
    synced_names: dict[Path, list[str]] = {}

    def noted(sync: Callable[[int], None], fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_dir():
            synced_names[path] = [one.name for one in path.iterdir()]
        else:
            synced_bytes[path] = path.stat().st_size
        sync(fd)

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, partial(noted, getattr(os, name)))
    monkeypatch.setattr("bridge.spool.segments.SEGMENT_BYTES", 4096)
    async with opened(tmp_path / "spool") as spool:
        for number in range(6):
            await spool.append([batch(number, size=2000)])
            segments = segment_sizes(tmp_path)
            assert {path: synced_bytes.get(path) for path in segments} == segments
            assert all(path.name in synced_names.get(path.parent, ()) for path in segments)
        assert len(segments) > 1


async def test_a_topic_s_partitions_are_remembered_over_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "spool") as spool:
        await spool.remember_topic("telemetry", 12)
    async with opened(tmp_path / "spool") as again:
        assert again.topics() == {"telemetry": 12}


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "spool"):
        with pytest.raises(SpoolError, match="in use by process"):
            await spool_at(tmp_path / "spool").open()


async def test_another_instance_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "spool") as spool:
        await spool.append([batch(1)])
    with pytest.raises(SpoolError, match="belongs to instance 'gw', not 'other'"):
        await spool_at(tmp_path / "spool", instance="other").open()


async def test_a_spool_is_given_to_another_instance_with_all_that_waits_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    async with opened(folder) as spool:
        await spool.append([batch(1), batch(2)])
        with pytest.raises(SpoolError, match="in use"):
            adopt_spool(folder, "other")
    assert adopt_spool(folder, "other")
    assert not adopt_spool(folder, "other"), "done once"
    with pytest.raises(SpoolError, match="belongs to instance 'other'"):
        await spool_at(folder).open()
    async with opened(folder, instance="other") as theirs:
        assert [stored.batch for stored in (await theirs.read("telemetry", 0, 0, MIB)).batches] == [batch(1), batch(2)]
