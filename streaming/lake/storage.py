"""Folders on whatever file system Spark writes to: the local disk, HDFS, an object store. Uses Hadoop's client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming import jvm
from streaming.lake.files import LocalFolder, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
_COLLAPSED_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/(?!/)(?P<rest>.*)", re.IGNORECASE)


def location(path: Path) -> str:
    """How Spark is told of a folder: a URL as it was written, a local path made absolute (executors have other working
    directories). ``Path`` turns ``s3a://bucket/x`` into ``s3a:/bucket/x``; that is undone here."""
    text = str(path)
    if match := _COLLAPSED_URL.fullmatch(text):
        slashes = "///" if match["scheme"].lower() == "file" else "//"
        return f"{match['scheme']}:{slashes}{match['rest']}"
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

    def make(self) -> None:
        self._files.mkdirs(self._root)

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
        """When a file was last written, in Unix time."""
        return float(self._files.getFileStatus(self._path(name)).getModificationTime()) / 1000

    def usage(self, name: str = "") -> tuple[int, int]:
        """Bytes and files below a folder; 0 and 0 if it is not there."""
        if not self.exists(name):
            return 0, 0
        summary = self._files.getContentSummary(self._path(name))
        return int(summary.getLength()), int(summary.getFileCount())

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
        managers = jvm.java_class(self._spark, f"{_CHECKPOINTING}.CheckpointFileManager")
        files = managers.create(self._root, self._files.getConf())
        stream = files.createAtomic(self._path(name), True)
        try:
            stream.write(bytearray(text.encode()))
        except BaseException:
            stream.cancel()
            raise
        stream.close()


Files = LocalFolder | Folder
"""A folder, wherever it is."""
