"""Running a download tool as a child, drawing its progress from the bytes that land on disk."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gateway.local.runtime.process import GuardedProcess
from gateway.local.runtime.progress import Download, ProgressCallback

_POLL_SECONDS = 0.1
STALLED = b"\n(ended: nothing arrived any more)\n"


def run_download(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    log: Path,
    landing: Path,
    announce: Download,
    progress: ProgressCallback,
    give_up: Callable[[bytes], bool] = lambda _text: False,
    patience_s: float | None = None,
) -> tuple[int, bytes]:
    """Run a download tool to its end; returns its exit status and what it printed.

    ``progress`` gets ``announce``, then an event whenever the files under ``landing`` have grown. ``give_up`` sees the
    output so far and ends the tool early when the rest cannot succeed either. ``patience_s`` ends it when neither a
    file nor its output has grown for so long; :data:`STALLED` then ends the output. Ends the tool when interrupted.
    """
    log.unlink(missing_ok=True)
    progress(announce)
    process = GuardedProcess(argv, log=log, env=env)
    drawn, before, moved_at = 0, (0, 0), time.monotonic()
    try:
        while process.returncode is None:
            with contextlib.suppress(TimeoutError):
                process.wait(_POLL_SECONDS)
                break
            landed, said = _size(landing), log.read_bytes()
            if (landed, len(said)) != before:
                before, moved_at = (landed, len(said)), time.monotonic()
            elif patience_s is not None and time.monotonic() - moved_at > patience_s:
                process.kill()
                return process.wait(0), said + STALLED
            done = min(landed, announce.total_bytes)
            if done > drawn:
                drawn = done
                progress(Download(announce.label, announce.files, announce.total_bytes, done))
            if give_up(said):
                process.kill()
        return process.wait(0), log.read_bytes()
    finally:
        process.kill()


def _size(directory: Path) -> int:
    """The bytes of all files below a folder."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # moved away while we looked
                total += (Path(folder) / name).lstat().st_size
    return total
