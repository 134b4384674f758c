"""Delta tables without Spark, by the package deltalake: what a table's log says of it, and its rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from config.error_words import words
from streaming.lake.storage import Files


@dataclass(frozen=True, slots=True)
class TableFacts:
    table: str
    rows: int | None  # None where the log does not say
    files: int
    bytes: int
    version: int | None
    written_at_s: float | None  # the last commit, in Unix time
    problem: str | None = None  # why nothing is known


def read_table(folder: Files, name: str) -> TableFacts | None:
    """The table in ``folder/name``, on this machine; None if none is there."""
    from deltalake import DeltaTable  # late: a gateway without tables needs neither this nor pyarrow
    from deltalake.exceptions import DeltaError

    where = f"{folder.url}/{name}"
    if not (folder.exists(f"{name}/_delta_log") and DeltaTable.is_deltatable(where)):
        return None
    try:
        return _facts(name, DeltaTable(where))
    except (DeltaError, OSError) as error:
        return TableFacts(name, None, 0, 0, None, None, f"the table cannot be read: {words(error)}")


def _facts(name: str, table: Any) -> TableFacts:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    files = pa.table(table.get_add_actions())
    counts = files["num_records"]
    rows = None if counts.null_count else pc.sum(counts, min_count=0).as_py()
    if rows is not None and "deletionVectors" in (table.protocol().reader_features or ()):
        for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):  # deleted rows, still in files
            kept = pc.list_flatten(batch["selection_vector"])
            rows -= len(kept) - kept.true_count
    last = next((commit.get("timestamp") for commit in table.history(1)), None)
    return TableFacts(
        table=name,
        rows=rows,
        files=files.num_rows,
        bytes=pc.sum(files["size_bytes"], min_count=0).as_py(),
        version=table.version(),
        written_at_s=None if last is None else last / 1000,
    )


def read_rows(table: str, columns: Sequence[str] | None = None, where: str | None = None) -> Any:
    """The rows of a table as an Arrow table, or those that SQL's ``where`` is true for; None if none is there."""
    import pyarrow as pa
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(table):
        return None
    return pa.table(DeltaTable(table).scan(list(columns) if columns else None, where))
