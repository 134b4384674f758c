"""The spool's appends against a bare loop of write and fsync with the same bytes, on the same disk, in turn."""

import asyncio
import os
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bridge.spool.record import SpoolBatch
from bridge.spool.spool import Spool
from tests.bench.measurement import Measurement
from tests.bench.site import Site

SPOOL_SIZES: Final = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
_BYTES: Final = 16 << 20  # per size and round
_ROUNDS: Final = 9  # raw, one, together, and again; the median share, since others use the disk as well
_TOGETHER: Final = 4  # partitions that append at the same time, as they do when Kafka is away


def spool_write(site: Site) -> Measurement:
    """What share of the raw rate ``Spool.append`` reaches when four partitions append at a time, as they do while Kafka
    is away: the worst of the batch sizes. Each size, and one append at a time, is in the details."""
    with site.room() as (_, directory):
        return _measured(site, directory / "spool-write")


def _measured(site: Site, folder: Path) -> Measurement:
    rates: dict[str, float] = {}
    for size in SPOOL_SIZES:
        count = max(_TOGETHER, site.scaled(_BYTES) // size)
        batches = [_batch(number, size) for number in range(_TOGETHER)]
        rounds = []
        for _ in range(_ROUNDS):
            folder.mkdir()
            try:
                rounds.append((_raw(folder / "raw", batches, count), *asyncio.run(_appends(folder, batches, count))))
            finally:
                shutil.rmtree(folder)
        name = f"{size >> 10}k"
        rates[f"raw_mib_per_s_{name}"] = count * size / statistics.median(raw for raw, _, _ in rounds) / (1 << 20)
        rates[f"share_{name}"] = statistics.median(raw / one for raw, one, _ in rounds)
        rates[f"share_{name}_together"] = statistics.median(raw / together for raw, _, together in rounds)
    return Measurement({"raw_share": min(rates[f"share_{size >> 10}k_together"] for size in SPOOL_SIZES)}, rates)


def _batch(number: int, size: int) -> SpoolBatch:
    data = random.Random(number).randbytes(size)
    return SpoolBatch("telemetry", number, "bench", 1, False, 1000, (), 1_700_000_000_000, data)


def _raw(path: Path, batches: Sequence[SpoolBatch], count: int) -> float:
    """Seconds for so many writes, each with its fsync."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        start = time.perf_counter()
        for number in range(count):
            os.write(fd, batches[number % len(batches)].data)
            os.fsync(fd)
        return time.perf_counter() - start
    finally:
        os.close(fd)


async def _appends(folder: Path, batches: Sequence[SpoolBatch], count: int) -> tuple[float, float]:
    """Seconds for as many appends, one after the other, then several at a time."""
    spool = Spool(folder / "spool", max_bytes=1 << 40, instance="bench")
    await spool.open()
    try:
        start = time.perf_counter()
        for number in range(count):
            await spool.append([batches[number % len(batches)]])
        alone = time.perf_counter() - start

        async def partition(batch: SpoolBatch) -> None:
            for _ in range(count // len(batches)):
                await spool.append([batch])

        start = time.perf_counter()
        await asyncio.gather(*map(partition, batches))
        together = time.perf_counter() - start
        assert spool.batches == count + count // len(batches) * len(batches), "not everything was stored"
    finally:
        await spool.close()
    return alone, together
