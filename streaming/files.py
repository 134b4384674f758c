"""Folders of this machine, with the face that ``storage.Folder`` has for Spark's file systems: tools that only look
need no JVM then."""

from __future__ import annotations

__all__ = ["Files", "LocalFolder", "is_local"]

import os
import re
import shutil
from pathlib import Path
from typing import Protocol

_SCHEME = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]+):/")


class Files(Protocol):
    """What is asked of a folder, wherever it is. Names may have ``/`` in them; calls block."""

    url: str

    def exists(self, name: str = "") -> bool: ...

    def names(self, name: str = "") -> list[str]:
        """Names directly inside, of files and folders; empty if the folder is not there."""

    def read_text(self, name: str) -> str | None:
        """A small file's text; None if it is not there."""

    def read_bytes(self, name: str) -> bytes:
        """A file's bytes, all of them."""

    def modified_s(self, name: str) -> float:
        """When a file was last written, in Unix time."""

    def usage(self, name: str = "") -> tuple[int, int]:
        """Bytes and files below a folder, all of them; 0 and 0 if it is not there."""

    def rename(self, name: str, to: str) -> None:
        """Gives a file or folder inside another name. Raises OSError if that cannot be."""


def is_local(url: str) -> bool:
    """Whether a folder is a plain path of this machine."""
    match = _SCHEME.match(url)
    return match is None or match["scheme"].lower() == "file"


class LocalFolder:
    """A folder of this machine. Raises OSError where the system does."""

    def __init__(self, url: str) -> None:
        self.url = url
        path = url if _SCHEME.match(url) is None else url.partition(":")[2]
        self._root = Path(f"/{path.lstrip('/')}" if path.startswith("/") else path)

    def exists(self, name: str = "") -> bool:
        return (self._root / name).exists()

    def names(self, name: str = "") -> list[str]:
        folder = self._root / name
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def read_text(self, name: str) -> str | None:
        try:
            return (self._root / name).read_text()
        except FileNotFoundError:
            return None

    def read_bytes(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def modified_s(self, name: str) -> float:
        return (self._root / name).stat().st_mtime

    def usage(self, name: str = "") -> tuple[int, int]:
        size = count = 0
        for folder, _, files in os.walk(self._root / name):
            for file in files:
                try:
                    size += os.lstat(os.path.join(folder, file)).st_size  # noqa: PTH118 (a million of them may be there)
                    count += 1
                except FileNotFoundError:
                    continue  # a batch has just replaced it
        return size, count

    def rename(self, name: str, to: str) -> None:
        if (self._root / to).exists():
            raise FileExistsError(f"{self._root / to} is there already")
        shutil.move(self._root / name, self._root / to)
        if self._sum(name).exists():  # what Hadoop checks a file of this machine by; without it the next one is damaged
            shutil.move(self._sum(name), self._sum(to))

    def _sum(self, name: str) -> Path:
        file = self._root / name
        return file.with_name(f".{file.name}.crc")
