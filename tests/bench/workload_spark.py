"""Spark's jobs on one preloaded topic, on a steady stream, and from a cold process to the first batch."""

import statistics
import time
from pathlib import Path
from typing import Any, Final

from streaming.progress import BatchEvent
from tests.bench.measurement import Measurement
from tests.bench.processes import BenchError, Helper
from tests.bench.site import Site
from tests.bench.spark_job import SparkJob
from tests.bench.spark_load import Load, Paced, paced, preload

_RECORDS: Final = 2_000_000
_FEW: Final = 2_000
_OF_A_YEAR: Final = 50_000
_RATE: Final = 5_000
_WARM_UP_S: Final = 60.0
_STEADY_S: Final = 120.0
_LATEST_S: Final = 120.0


def spark_job(site: Site, name: str, load: Load = "now") -> Measurement:
    """What there is in the preloaded topic, twice 2 million records, read by a job that ends then: rows of the second
    half per CPU second of its process tree, from the end of the batch before to the end of its last process. The first
    half warms the JVM up; ``cold_rows_per_cpu_s`` is of both, from the start of the queries."""
    with site.folder() as directory:
        count = _OF_A_YEAR if load == "days" else site.scaled(_RECORDS)
        finished = _finished(site, name, _topic(site, load, 2 * count), directory, 2 * count)
    rows_per_cpu_s = finished["warm_rows"] / finished["warm_cpu_s"]
    site.figures[f"{name} {load}"] = rows_per_cpu_s
    finished["cold_rows_per_cpu_s"] = finished["rows"] / finished["cpu_s"]
    return Measurement({"rows_per_cpu_s": rows_per_cpu_s}, finished)


def spark_silver(site: Site, load: Load = "now") -> Measurement:
    """As ``spark_job``, and against ``bronze`` and ``plain``, a job that only decodes and appends, on the same topic in
    the same call, which are measured first if they were not yet."""
    for name in ("bronze", "plain"):
        if f"{name} {load}" not in site.figures:
            spark_job(site, name, load)
    measured = spark_job(site, "silver", load)
    rate = measured.figures["rows_per_cpu_s"]
    share, times = rate / site.figures[f"bronze {load}"], site.figures[f"plain {load}"] / rate
    return Measurement({**measured.figures, "share_of_bronze": share, "times_plain": times}, measured.details)


def spark_first_batch(site: Site, name: str) -> Measurement:
    """Seconds from the creation of a job's process to the first batch that is written and committed; all jars are
    there, the batch is small."""
    with site.room() as (topic, directory):
        preload(site.kafka.bootstrap, topic, _FEW)
        finished = _finished(site, name, topic, directory, _FEW)
    return Measurement({"seconds": finished["first_batch_s"]}, finished)


def _finished(site: Site, name: str, topic: str, directory: Path, rows: int) -> dict[str, float]:
    # Silver's own batches are smaller; the others, which would take all there is, get batches of half of it.
    most = {"max_offsets_per_trigger": max(1, rows // (4 if name in {"silver", "plain"} else 2))}
    with SparkJob(name, directory, _settings(site, topic, directory, available_now=True, **most)) as job:
        finished = job.finish(warm_after=rows // 2)
    if finished.rows != rows:
        raise BenchError(f"the job {name} counted {finished.rows} rows of {rows} records")
    return {
        "rows": float(finished.rows),
        "cpu_s": finished.cpu_s,
        "start_cpu_s": finished.start_cpu_s,
        "wall_s": finished.seconds,
        "first_batch_s": finished.first_batch_s,
        "warm_rows": float(finished.warm_rows),
        "warm_cpu_s": finished.warm_cpu_s,
        "memory_mib": finished.memory_mib,
    }


def _settings(site: Site, topic: str, directory: Path, **stream: Any) -> dict[str, object]:
    folders = {"checkpoint": str(directory / "checkpoint"), "lake": {"path": str(directory / "lake")}}
    return {"kafka": {"bootstrap_servers": [site.kafka.bootstrap]}, "stream": {"topics": [topic], **folders, **stream}}


def _topic(site: Site, load: Load, count: int) -> str:
    """The topic that all rows of a call read which measure with that load."""

    def fill(folder: Path) -> None:
        topic = site.kafka.create_topic()
        preload(site.kafka.bootstrap, topic, count, load)
        (folder / "topic").write_text(topic)

    return (site.shared(f"spark-preload-{load}", fill) / "topic").read_text()


def spark_steady(site: Site) -> Measurement:
    """5,000 records a second into Kafka while the job ``silver`` runs with its defaults: from publish to the report of
    the batch that committed the row. The first minute is the JVM's warming up and left out."""
    seconds = _WARM_UP_S + (_STEADY_S / 5 if site.quick else _STEADY_S)
    with (
        site.room() as (topic, directory),
        Helper(paced, site.kafka.bootstrap, topic, _RATE, seconds) as publisher,
        SparkJob("silver", directory, _settings(site, topic, directory)) as job,
    ):
        job.next_event()
        publisher.send("go")
        began_s = time.time()
        ends: list[tuple[float, dict[int, int]]] = []
        deadline_s = began_s + seconds + _LATEST_S
        published: Paced | None = None
        memory_mib = 0.0
        while published is None or sum(ends[-1][1].values()) < _RATE * seconds:
            event = job.next_event()
            if isinstance(event, BatchEvent) and topic in event.end_offsets:
                ends.append((time.time(), {int(at): end for at, end in event.end_offsets[topic].items()}))
                memory_mib = max(memory_mib, job.memory_mib())
            if published is None and publisher.ready():
                published = publisher.receive(Paced, _LATEST_S)
            if time.time() > deadline_s:
                raise BenchError(f"the job was not through with the records {_LATEST_S:g} s after the last was sent")
    found = sorted(delays(published, ends, began_s + _WARM_UP_S))
    figures = statistics.quantiles(found, n=100)
    return Measurement(
        {"p99_s": figures[98]},
        {"p50_s": figures[49], "max_s": found[-1], "rows": float(len(found)), "memory_mib": memory_mib},
    )


def delays(published: Paced, ends: list[tuple[float, dict[int, int]]], since_s: float) -> list[float]:
    """From publish to commit of each record published since then."""
    found = []
    for partition, moments in enumerate(published.sent_s):
        done = 0
        for at_s, reached in ends:
            end = min(reached.get(partition, 0), len(moments))
            found += [at_s - moment for moment in moments[done:end] if moment >= since_s]
            done = max(done, end)
    return found
