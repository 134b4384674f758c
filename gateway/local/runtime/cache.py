"""Where downloaded files live between runs, and the lock that lets several processes fill that place at once."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.local.runtime.errors import EmbeddedError


def cache_directory() -> Path:
    """The cache's absolute path, created.

    ``$GATEWAY_CACHE``, else ``mqtt-kafka-gateway`` under ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if own := os.environ.get("GATEWAY_CACHE"):
        path = Path(own).expanduser()
    else:
        xdg = os.environ.get("XDG_CACHE_HOME")
        path = (Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache") / "mqtt-kafka-gateway"
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmbeddedError(
            f"The cache directory {path} cannot be created ({error.strerror}). "
            "Set GATEWAY_CACHE to a directory you may write."
        ) from error
    return path


@contextmanager
def locked(path: Path, mode: int = 0o777) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (created, as is its folder, with that mode); blocks while another process or
    thread has it.

    The kernel frees the lock when its holder dies, so a crash leaves
    nothing to clean up. The file itself stays: removing it would let two processes lock two different files of one
    name. Raises EmbeddedError when it cannot be opened.
    """
    try:
        path.parent.mkdir(mode, exist_ok=True)
        file = path.open("ab")
    except OSError as error:  # another user's, as after one run with sudo
        raise EmbeddedError(
            f"{path} cannot be written ({error.strerror}). Make the folder yours, or set GATEWAY_CACHE to another one."
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_space(directory: Path, needed_bytes: int, what: str) -> None:
    """Raise EmbeddedError when ``directory``'s file system has less than ``needed_bytes`` free."""
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise EmbeddedError(
            f"{what} needs {format_bytes(needed_bytes)} in {directory}, but only {format_bytes(free)} are free there. "
            "Free some space, or set GATEWAY_CACHE to a directory on another disk."
        )


def format_bytes(count: int) -> str:
    """``count`` bytes for people: ``44 MB`` (decimal, as download pages say it)."""
    if count < 1_000_000:
        return f"{max(1, round(count / 1000))} kB"
    return f"{count / 1_000_000:.0f} MB"
