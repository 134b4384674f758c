"""Folders of this machine, with the face that ``storage.Folder`` has for Spark's file systems: tools that only look
need no JVM then."""

import os
import re
import shutil
from pathlib import Path

_SCHEME = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]+):/")


def is_local(url: str) -> bool:
    """Whether a folder is a plain path of this machine."""
    match = _SCHEME.match(url)
    return match is None or match["scheme"].lower() == "file"


class LocalFolder:
    """A folder of this machine. Names may have ``/`` in them. Raises OSError where the system does."""

    def __init__(self, url: str) -> None:
        self.url = url
        path = url if _SCHEME.match(url) is None else url.partition(":")[2]
        self._root = Path(f"/{path.lstrip('/')}" if path.startswith("/") else path)

    def path(self, name: str) -> Path:
        return self._root / name

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

    def write_text(self, name: str, text: str) -> None:
        """Writes a small file whole and durably: whoever looks sees the old text or the new one."""
        file = self._root / name
        draft = file.with_name(f".{file.name}.draft")
        with draft.open("w", encoding="utf-8") as written:
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
        self._sum(name).unlink(missing_ok=True)  # of the old text: with it Hadoop would take the new one for damaged
        draft.replace(file)

    def modified_s(self, name: str) -> float:
        return (self._root / name).stat().st_mtime

    def usage(self, name: str = "") -> tuple[int, int]:
        """Bytes and files below a folder, but for Hadoop's checksums; 0 and 0 if it is not there."""
        size = count = 0
        for folder, _, files in os.walk(self._root / name):
            for file in files:
                if file.startswith(".") and file.endswith(".crc"):
                    continue  # what Hadoop checks a file by, and does not count either
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
