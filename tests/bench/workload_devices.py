"""Jobs that read silver with many devices: what a reading costs, and what a batch reads, holds and shuffles."""

import json
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench.measurement import Measurement
from tests.bench.processes import BenchError
from tests.bench.site import Site
from tests.bench.spark_events import EVENT_LOG, BatchReads, batches
from tests.bench.spark_job import Finished, SparkJob

FLEET: Final = "spark.gateway.bench.fleet"
GATEWAYS: Final = 10
_FEW: Final = 1_000


class Readings(NamedTuple):
    """What a start of the job finds new: a reading a minute of the devices from ``begin`` to ``end``, each ``every``
    th, for ``minutes``. ``first``: their first sequence number. ``minute``: the first of their times. ``is_sorted``:
    ``maintain`` has sorted the tables before."""

    begin: int
    end: int
    every: int
    minutes: int
    first: int
    minute: int
    is_sorted: bool = False


def spark_fleet(site: Site, job: str) -> Measurement:
    """Half of a device's readings (ten) make it known, then the job is started again and takes the other half, for
    which it loads each device from its state and merges it into its table. A third start takes as many readings of each
    of 1,000 devices, spread over all. The figure is of the second start, from the start of the query to the end of its
    last process; the JVM is cold."""
    devices, minutes = site.devices or site.scaled(100_000), site.readings // 2
    with site.folder() as directory:
        new, _ = _run(site, directory, job, Readings(0, devices, 1, minutes, 0, 0))
        known, reads = _run(site, directory, job, Readings(0, devices, 1, minutes, minutes, minutes))
        spread = Readings(0, devices, -(-devices // _FEW), minutes, 2 * minutes, 2 * minutes)
        few, few_reads = _run(site, directory, job, spread)
        half = devices // 2
        near = Readings(half, half + min(_FEW, half), 1, minutes, 3 * minutes, minutes, is_sorted=True)
        late, late_reads = _run(site, directory, job, near)
    state = reads[-1]
    details = {
        "devices": float(devices),
        "new_rows_per_cpu_s": new.rows / new.cpu_s,
        "memory_mib": max(new.memory_mib, known.memory_mib),
        "wall_s": known.seconds,
        "batches": float(len(reads)),
        "rows_of_batch": float(max(it.rows("silver") for it in reads)),
        "shuffled_bytes_per_row": sum(it.shuffled_bytes for it in reads) / known.rows,
        "state_rows": float(state.state_rows),
        "state_bytes_per_device": state.state_bytes / devices,
        "few_rows": float(few.rows),
        "few_cpu_s": few.cpu_s,
        "few_shuffled_bytes": float(sum(it.shuffled_bytes for it in few_reads)),
        "late_rows": float(late.rows),
        "late_cpu_s": late.cpu_s,
        "late_shuffled_bytes": float(sum(it.shuffled_bytes for it in late_reads)),
    }
    for name, found in (("", reads), ("few_", few_reads), ("late_", late_reads)):
        for table, what in ((job, ""), ("silver", "silver_")):
            details[f"{name}{what}opened"] = float(max(it.opened(table) for it in found))
            details[f"{name}{what}rows_read"] = float(max(it.rows(table) for it in found))
    return Measurement({"rows_per_cpu_s": known.rows / known.cpu_s}, details)


def _run(site: Site, directory: Path, name: str, readings: Readings) -> tuple[Finished, list[BatchReads]]:
    stream = {
        "lake": {"path": str(directory / "lake")},
        "checkpoint": str(directory / "checkpoint"),
        "available_now": True,
        "devices": {"heartbeats": False},
    }
    settings = {"kafka": {"bootstrap_servers": [site.kafka.bootstrap]}, "stream": stream}
    folder = directory / f"from-{readings.first}"
    conf = {**EVENT_LOG, "spark.eventLog.dir": folder.as_uri(), FLEET: json.dumps(readings), f"{FLEET}.job": name}
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    with SparkJob("fleet", folder, settings, *words) as job:
        finished = job.finish()
    if finished.rows != (rows := len(range(*readings[:3])) * readings.minutes):
        raise BenchError(f"the job {name} counted {finished.rows} rows of {rows} readings")
    return finished, batches(folder)
