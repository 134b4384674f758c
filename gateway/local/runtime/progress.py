"""The progress of a download, for the demo's view or a plain line on stderr."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from gateway.local.runtime.cache import format_bytes


@dataclass(frozen=True, slots=True)
class Download:
    """One download at one moment. The first event has ``done_bytes`` 0: the size is said before anything moves.

    ``finished`` is true on the last event of a download that succeeded; one that failed just ends.
    """

    label: str
    files: int
    total_bytes: int
    done_bytes: int
    finished: bool = False


ProgressCallback = Callable[[Download], None]


def quiet(_event: Download) -> None:
    """Draw nothing."""


def print_progress(event: Download) -> None:
    """Draw on stderr: the size first; then, on a terminal, one line that is redrawn, elsewhere only the last."""
    size = format_bytes(event.total_bytes)
    terminal = sys.stderr.isatty()
    if event.finished:
        text = f"{event.label}: {size} fetched\n"
        if terminal:
            text = f"\r\x1b[K{text}"  # to the line's start, and clear it
    elif event.done_bytes == 0:
        files = f"{event.files} files, " if event.files > 1 else ""
        text = f"{event.label}: fetching {files}{size}, once\n"
    elif terminal:
        share = min(1.0, event.done_bytes / max(1, event.total_bytes))
        text = f"\r\x1b[K{event.label}: {'█' * round(share * 24):░<24} {share:4.0%} of {size}"
    else:
        return
    sys.stderr.write(text)
    sys.stderr.flush()
