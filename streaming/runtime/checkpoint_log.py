"""What a checkpoint's files say, read without Spark: which batches are planned, which are finished, and how far.

``offsets/N`` is written before batch N is read, ``commits/N`` when it is finished; both are text: ``v1``, then a line
of JSON. ``offsets/N`` has a line for each source behind that, its place at the batch's end, ``-`` where it had nothing.
"""

import json
from dataclasses import dataclass
from typing import Any

from streaming.lake.storage import Files
from streaming.metrics import kafka_offsets
from streaming.progress import Offsets


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a query is. ``batch`` is the last finished one, None before the first; ``unfinished_batch`` one that was
    begun, if there is one; ``tables_read`` the version that each table it reads has been read up to, by its id: none
    before it has all that the table had when it began."""

    batch: int | None
    unfinished_batch: int | None
    finished_at_s: float | None
    watermark_ms: int | None
    offsets: Offsets
    tables_read: dict[str, int]


def read_progress(checkpoint: Files, query: str) -> Progress:
    """How far the query's checkpoint is. Raises OSError, and ValueError for a file that is none of Spark's."""
    finished, begun = _newest(checkpoint, f"{query}/commits"), _newest(checkpoint, f"{query}/offsets")
    if finished is None:
        return Progress(None, begun, None, None, {}, {})
    # Spark keeps the last hundred files, and this is one of them but for a checkpoint that was cut by hand.
    _version, *lines = (checkpoint.read_text(f"{query}/offsets/{finished}") or "v1\n{}").splitlines()
    head, *places = [None if line == "-" else json.loads(line) for line in lines if line]
    tables: dict[str, int] = {}
    for place in places:
        # It is before a file of its version, so the version before is read. While ``isStartingVersion`` what the table
        # had at the beginning is still being read: no version is complete.
        if isinstance(place, dict) and "reservoirVersion" in place and not place.get("isStartingVersion"):
            tables[str(place["reservoirId"])] = int(place["reservoirVersion"]) - 1
    return Progress(
        batch=finished,
        unfinished_batch=begun if begun is not None and begun > finished else None,
        finished_at_s=checkpoint.modified_s(f"{query}/commits/{finished}"),
        watermark_ms=(head or {}).get("batchWatermarkMs") or None,  # 0 is Spark's for none
        offsets=kafka_offsets(*places),
        tables_read=tables,
    )


def read_note(beside: Files, query: str) -> dict[str, Any]:
    """What was noted beside the checkpoint when it was begun; nothing if it was not. Raises ValueError for a file that
    is no such note."""
    text = beside.read_text(f"{query}.json")
    if text is None:
        return {}
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{beside.url}/{query}.json is damaged") from error


def _newest(checkpoint: Files, name: str) -> int | None:
    return max((int(name) for name in checkpoint.names(name) if name.isdecimal()), default=None)
