"""Folders on whatever file system Spark writes to: the local disk, HDFS, an object store, by Hadoop's client. Those of
this machine also without, with the same face: tools that only look need no JVM then."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.draft")
        with draft.open("w", encoding="utf-8") as written:
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
        # Hadoop's checksum of the old text: with it, it would take the new one for damaged.
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        draft.replace(file)

    def modified_s(self, name: str) -> float:
        return (self._root / name).stat().st_mtime

    def size(self, name: str) -> int:
        """Bytes of the files below a folder, but for Hadoop's checksums; 0 if it is not there."""
        sizes = []
        for folder, _, files in os.walk(self._root / name):
            for file in files:
                if not (file.startswith(".") and file.endswith(".crc")):
                    with suppress(FileNotFoundError):  # a batch has just replaced it
                        sizes.append(os.lstat(os.path.join(folder, file)).st_size)  # noqa: PTH118 (there may be millions)
        return sum(sizes)

    def rename(self, name: str, to: str) -> None:
        if (self._root / to).exists():
            raise FileExistsError(f"{self._root / to} is there already")
        shutil.move(self._root / name, self._root / to)  # a file or a folder


def location(path: Path) -> str:
    """How Spark is told of a folder: a URL as it was written (``Path`` makes ``s3a:/bucket`` of ``s3a://bucket``), a
    local path made absolute: executors have other working directories."""
    text = str(path)
    if match := _SCHEME.match(text):
        slashes = "///" if match["scheme"].lower() == "file" else "//"
        return f"{match['scheme']}:{slashes}{text[match.end() :]}"
    return str(path.absolute())


class Folder:
    """One folder. Calls block for the file system; errors of the JVM come through as py4j errors."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        self.url = url
        self._spark = spark
        self._root, self._files = jvm.file_system(spark, url)

    def _path(self, name: str) -> Any:
        return jvm.java_class(self._spark, "org.apache.hadoop.fs.Path")(self._root, name) if name else self._root

    def exists(self, name: str = "") -> bool:
        return bool(self._files.exists(self._path(name)))

    def names(self, name: str = "") -> list[str]:
        """Names directly inside; empty if the folder does not exist."""
        if not self.exists(name):
            return []
        return [str(status.getPath().getName()) for status in self._files.listStatus(self._path(name))]

    def versions(self) -> list[tuple[str, int, int]]:
        """URL, milliseconds of the last change and bytes of every file below, or of the file itself, in order."""
        found, files = [], self._files.listFiles(self._root, True)
        while files.hasNext():
            it = files.next()
            found.append((str(it.getPath()), int(it.getModificationTime()), int(it.getLen())))
        return sorted(found)

    def modified_s(self, name: str) -> float:
        return float(self._files.getFileStatus(self._path(name)).getModificationTime()) / 1000

    def size(self, name: str) -> int:
        """Bytes of the files below a folder; 0 if it is not there."""
        return int(self._files.getContentSummary(self._path(name)).getLength()) if self.exists(name) else 0

    def rename(self, name: str, to: str) -> None:
        """Gives a file or folder inside another name. Raises OSError if the file system refuses."""
        if self.exists(to) or not self._files.rename(self._path(name), self._path(to)):
            raise OSError(f"{self.url}/{name} could not be renamed to {to}: the file system refused, or it is there")

    def delete(self, name: str) -> None:
        """Removes a file or folder inside, with all in it; nothing happens if it is not there."""
        self._files.delete(self._path(name), True)

    def read_text(self, name: str) -> str | None:
        """A small file's text; None if it is not there."""
        if not self.exists(name):
            return None
        stream = self._files.open(self._path(name))
        try:
            return str(jvm.java_class(self._spark, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, name: str, text: str) -> None:
        """Writes a small file whole: a reader sees the old text or the new one, whenever it looks."""
        if is_local(self.url):  # where Hadoop deletes the old one first
            LocalFolder(self.url).write_text(name, text)
            return
        self._files.mkdirs(self._root)
        name_of_class = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager"
        manager = jvm.java_class(self._spark, name_of_class).create(self._root, self._files.getConf())
        stream = manager.createAtomic(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.cancel()
            raise
        stream.close()


Files = LocalFolder | Folder
"""A folder, wherever it is."""
