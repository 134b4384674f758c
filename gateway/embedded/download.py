"""Running a download tool as a child, drawing its progress from the bytes that land on disk."""

from __future__ import annotations

__all__ = ["run_download"]

from typing import TYPE_CHECKING

from gateway.embedded.process import GuardedProcess
from gateway.embedded.progress import Download

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gateway.embedded.progress import ProgressCallback

_POLL_SECONDS = 0.1


def run_download(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    log: Path,
    landing: Path,
    announce: Download,
    progress: ProgressCallback,
    give_up: Callable[[bytes], bool] = lambda _text: False,
) -> tuple[int, bytes]:
    """Run a download tool to its end; returns its exit status and what it printed.

    ``progress`` gets ``announce``, then an event whenever the files under ``landing`` have grown. ``give_up`` sees the
    output so far and ends the tool early when the rest cannot succeed either. Ends the tool when interrupted.
    """
    log.unlink(missing_ok=True)
    progress(announce)
    process = GuardedProcess(argv, log=log, env=env)
    seen = 0
    try:
        while process.returncode is None:
            try:
                process.wait(_POLL_SECONDS)
            except TimeoutError:
                done = min(_size(landing), announce.total_bytes)
                if done > seen:
                    seen = done
                    progress(Download(announce.label, announce.files, announce.total_bytes, done))
                if give_up(log.read_bytes()):
                    process.kill()
        return process.wait(0), log.read_bytes()
    finally:
        process.kill()


def _size(directory: Path) -> int:
    total = 0
    pending = [directory]
    while pending:
        try:
            entries = list(pending.pop().iterdir())
        except OSError:  # moved away while we looked
            continue
        for entry in entries:
            try:
                if entry.is_dir() and not entry.is_symlink():
                    pending.append(entry)
                else:
                    total += entry.stat().st_size
            except OSError:
                continue
    return total
