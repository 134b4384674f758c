"""A disk that is really full: nothing half stored, nothing lost, and it goes on when there is space again."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.errors import SpoolWriteError
from bridge.spool.record import SpoolBatch
from bridge.spool.spool import Spool

DISK_BYTES = 24 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount the small file system that this fills")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def batch(number: int) -> SpoolBatch:
    return SpoolBatch("t", number % 2, "r", 1, False, 3, (), 1, number.to_bytes(4, "big") * 40_000)


def fill_up(path: Path) -> None:
    """Take every byte that is left, which the spool would have liked to keep for its index."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


async def fill(spool: Spool, number: int, kept: list[int]) -> int:
    """Append until the disk is full; notes in ``kept`` what was stored."""
    while True:
        try:
            await spool.append([batch(number), batch(number + 1)])
        except SpoolWriteError as error:
            assert "no space left" in str(error) or "disk is full" in str(error)  # noqa: PT017 - the end of the loop
            return number
        kept += [number, number + 1]
        number += 2
        assert number < 10_000


async def stored(spool: Spool) -> dict[int, list[int]]:
    """The numbers that are stored, and their ids, by partition."""
    found: dict[int, list[int]] = {}
    for partition in (0, 1):
        after, found[partition] = 0, []
        while batches := (await spool.read("t", partition, after, 1 << 20)).batches:
            after = batches[-1].id
            found[partition] += [int.from_bytes(one.batch.data[:4], "big") for one in batches]
    return found


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped and started while full"])
async def test_a_full_disk(disk: Path, stopped: bool) -> None:
    spool = Spool(disk / "spool", max_bytes=1 << 30, instance="gw")
    await spool.open()
    kept: list[int] = []
    number = await fill(spool, 0, kept)
    assert spool.batches == len(kept) > 50
    number = await fill(spool, number, kept)  # again: as it was, or the rest of the space
    fill_up(disk / "log of somebody else")
    if stopped:
        await spool.close()
        spool = Spool(disk / "spool", max_bytes=1 << 30, instance="gw")
        report = await spool.open()
        assert (spool.batches, report.sentence) == (len(kept), "")
    assert await stored(spool) == {p: [n for n in kept if n % 2 == p] for p in (0, 1)}

    # Deliver half; the space comes back file by file, and more is taken.
    for partition in (0, 1):
        result = await spool.read("t", partition, 0, 1 << 30)
        spool.remove("t", partition, [one.id for one in result.batches])
        delivered = {int.from_bytes(one.batch.data[:4], "big") for one in result.batches}
        kept = [n for n in kept if n % 2 != partition or n not in delivered]
    assert spool.batches == 0 == len(kept)
    assert (await stored(spool)) == {0: [], 1: []}
    number = await fill(spool, number, kept)
    assert len(kept) > 50
    assert await stored(spool) == {p: [n for n in kept if n % 2 == p] for p in (0, 1)}
    await spool.close()
    again = Spool(disk / "spool", max_bytes=1 << 30, instance="gw")
    report = await again.open()
    assert (again.batches, again.messages, report.sentence) == (len(kept), 3 * len(kept), "")
    await again.close()
