"""What Spark's event log counts of a query's batches: files, bytes and rows read by table, shuffled bytes, state."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

EVENT_LOG: Final = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}
"""Settings of a job that writes one; ``spark.eventLog.dir`` is its folder."""

_BATCH: Final = re.compile(r"\bbatch = (\d+)")
_TABLE: Final = re.compile(r"/([a-z_]+)]$")
_SHUFFLED: Final = "internal.metrics.shuffle.write.bytesWritten"
_FILES: Final = "number of files read"
_METRICS: Final = (_FILES, "size of files read", "number of output rows")


@dataclass(slots=True)
class BatchReads:
    """One batch. ``scans``: of each table, every scan's files, bytes of these files and rows."""

    shuffled_bytes: int = 0
    state_rows: int = 0
    state_bytes: int = 0
    scans: dict[str, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))

    def opened(self, table: str) -> int:
        """Files of a table that one scan opened at most."""
        return max((files for files, _, _ in self.scans.get(table, ())), default=0)

    def rows(self, table: str) -> int:
        """Rows that all scans of a table read."""
        return sum(rows for _, _, rows in self.scans.get(table, ()))


def batches(folder: Path) -> list[BatchReads]:
    """The batches of the one log in ``folder``, in order."""
    (log,) = folder.glob("local-*")
    found: dict[int, BatchReads] = defaultdict(BatchReads)
    of_stage: dict[int, int] = {}
    scans: dict[int, tuple[int, str, dict[str, int]]] = {}  # by a counter of each: plans of kept rows come repeatedly
    values: dict[int, int] = {}
    with log.open() as lines:
        for line in lines:
            event = json.loads(line)
            match event["Event"].rsplit(".", 1)[-1]:
                case "SparkListenerJobStart":
                    batch = event["Properties"].get("streaming.sql.batchId")
                    of_stage.update(dict.fromkeys(event["Stage IDs"], int(batch)) if batch else {})
                case "SparkListenerSQLExecutionStart":
                    if batch := _BATCH.search(event["description"]):
                        for table, ids in _scans(event["sparkPlanInfo"]):
                            scans.setdefault(ids[_FILES], (int(batch[1]), table, ids))
                case "SparkListenerDriverAccumUpdates":
                    values.update(event["accumUpdates"])
                case "SparkListenerStageCompleted":
                    stage = event["Stage Info"]
                    totals = [it for it in stage["Accumulables"] if "Value" in it]
                    values.update((it["ID"], int(it["Value"])) for it in totals if it["Name"] in _METRICS)
                    if (number := of_stage.get(stage["Stage ID"])) is not None:
                        found[number].shuffled_bytes += sum(it["Value"] for it in totals if it["Name"] == _SHUFFLED)
                case "StreamingQueryListener$QueryProgressEvent":
                    progress = event["progress"]
                    for state in progress["stateOperators"]:
                        found[progress["batchId"]].state_rows += state["numRowsTotal"]
                        found[progress["batchId"]].state_bytes += state["customMetrics"].get("rocksdbSstFileSize", 0)
                case _:
                    pass
    for number, table, ids in scans.values():
        files, size, rows = (values.get(ids.get(name, -1), 0) for name in _METRICS)
        found[number].scans[table].append((files, size, rows))
    return [found[number] for number in sorted(found)]


def _scans(plan: dict[str, Any]) -> Iterator[tuple[str, dict[str, int]]]:
    """The scans of tables in a plan: which table, and the numbers of its counters."""
    metrics = {it["name"]: it["accumulatorId"] for it in plan["metrics"]}
    if _FILES in metrics and (table := _TABLE.search(plan["metadata"].get("Location", ""))):
        yield table[1], metrics
    for child in plan["children"]:
        yield from _scans(child)
