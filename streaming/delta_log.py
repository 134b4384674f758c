"""What a Delta table's log says of the table, read without Spark: rows, files, bytes, the last commit.

``_delta_log/N.json`` has the actions of commit N, a line each; ``N.checkpoint.parquet`` the files that were there after
commit N, so that older commits need not be read.
"""

from __future__ import annotations

__all__ = ["TableFacts", "read_table"]

import io
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streaming.files import Files

_COMMIT = re.compile(r"(\d{20})\.json")
_SNAPSHOT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")


@dataclass(frozen=True, slots=True)
class TableFacts:
    """``rows`` is None where the log does not say (a Parquet folder has no log); ``version`` too. ``written_at_s`` is
    the last commit's time, in Unix time."""

    name: str
    kind: str
    rows: int | None
    files: int
    bytes: int
    version: int | None
    written_at_s: float | None


def read_table(folder: Files, name: str) -> TableFacts | None:
    """The table in ``folder/name``; None if none is there. Raises OSError and ValueError for a log that is damaged."""
    log = f"{name}/_delta_log"
    names = folder.names(log)
    commits = sorted(int(match[1]) for one in names if (match := _COMMIT.fullmatch(one)))
    snapshots = sorted({int(match[1]) for one in names if (match := _SNAPSHOT.fullmatch(one))})
    if not commits and not snapshots:
        size, files = folder.usage(name)
        return TableFacts(name, "parquet", None, files, size, None, None) if files else None
    live: dict[_Key, tuple[int, int | None]] = {}
    begun = snapshots[-1] if snapshots else -1
    if snapshots:
        parts = [one for one in names if (match := _SNAPSHOT.fullmatch(one)) and int(match[1]) == begun]
        for action in _snapshot_actions(folder, log, parts):
            _apply(live, action)
    written_ms = None
    for version in commits:
        if version > begun or version == commits[-1]:
            for line in (folder.read_text(f"{log}/{version:020}.json") or "").splitlines():
                action = json.loads(line)
                written_ms = action.get("commitInfo", {}).get("timestamp", written_ms)
                if version > begun:
                    _apply(live, action)
    counts = [rows for _, rows in live.values()]
    return TableFacts(
        name=name,
        kind="delta",
        rows=None if None in counts else sum(filter(None, counts)),
        files=len(live),
        bytes=sum(size for size, _ in live.values()),
        version=max([*commits, begun]),
        written_at_s=None if written_ms is None else written_ms / 1000,
    )


_Key = tuple[str, str | None, int | None]
"""A file and the deletion vector it has: with another vector it is another file, and both stand in one commit."""


def _apply(live: dict[_Key, tuple[int, int | None]], action: dict[str, Any]) -> None:
    if (added := action.get("add")) is not None:
        live[_key(added)] = (added["size"], _rows(added))
    elif (removed := action.get("remove")) is not None:
        live.pop(_key(removed), None)


def _key(file: dict[str, Any]) -> _Key:
    vector = file.get("deletionVector") or {}
    return file["path"], vector.get("pathOrInlineDv"), vector.get("offset")


def _rows(added: dict[str, Any]) -> int | None:
    """Rows of a file, without those that a deletion vector marks as deleted; None where nobody counted."""
    stats = json.loads(added["stats"]) if added.get("stats") else {}
    if (count := stats.get("numRecords")) is None:
        return None
    deleted = (added.get("deletionVector") or {}).get("cardinality", 0)
    return int(count) - int(deleted)


def _snapshot_actions(folder: Files, log: str, parts: list[str]) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet  # type: ignore[import-untyped]  # late: most tables are looked at without it

    for part in parts:
        file = parquet.ParquetFile(io.BytesIO(folder.read_bytes(f"{log}/{part}")))
        columns = [name for name in ("add",) if name in file.schema_arrow.names]
        for group in range(file.num_row_groups):
            for row in file.read_row_group(group, columns=columns).to_pylist():
                if row.get("add") is not None:
                    yield row
