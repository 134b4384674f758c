"""Spark's report of a batch, as the listener of a job gets it."""

import json
from types import SimpleNamespace
from typing import Any


def batch_source(end: Any, latest: Any = None) -> SimpleNamespace:
    return SimpleNamespace(endOffset=json.dumps(end), latestOffset=None if latest is None else json.dumps(latest))


def batch_operator(**changes: Any) -> SimpleNamespace:
    told = {
        "numRowsTotal": 40, "memoryUsedBytes": 5000, "numRowsDroppedByWatermark": 2,
        "customMetrics": {"rocksdbSstFileSize": 300, "rocksdbGetCount": 9},
    }  # fmt: skip
    return SimpleNamespace(**{**told, **changes})


def batch_report(**changes: Any) -> Any:
    told = {
        "id": "1-2", "name": "silver", "batchId": 6, "numInputRows": 100, "timestamp": "2026-11-21T08:15:30.123Z",
        "durationMs": {"triggerExecution": 2000, "addBatch": 1500}, "stateOperators": [], "eventTime": {},
        "sources": [batch_source({"t": {"0": 10, "1": 20}}, {"t": {"0": 14, "1": 20}})],
    }  # fmt: skip
    return SimpleNamespace(**{**told, **changes})
