"""Removes batches and segments: first from the index, then files. So a power cut cannot seem to lose batches."""

from bridge.spool.index import Row
from bridge.spool.state import State


def drop_lost(state: State, rows: list[Row]) -> None:
    """Delete unreadable batches from the index. Their segments are kept as files for analysis."""
    with state.index.transaction():
        for row in rows:
            state.index.delete(row.id, row.id)
            state.index.set_damaged(row.segment)
    state.damaged.update(row.segment for row in rows)


def drop_segments(state: State, numbers: list[int]) -> None:
    """Remove segments that no batch needs. Damaged ones are renamed."""
    if not numbers:
        return
    with state.index.transaction():
        for number in numbers:
            state.index.forget_segment(number)
    # Otherwise a power cut could restore index rows of removed files, and count these batches as lost.
    state.index.sync()
    for number in numbers:
        state.forget(number)
        name = state.log.path(number).name
        state.log.drop(number, keep_as=f"{name}.damaged" if number in state.damaged else "")
        state.damaged.discard(number)
