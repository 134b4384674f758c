"""The JVM's class-data archive: what one run had loaded, parsed and verified, for later starts to map.

Spark loads some 20,000 classes before its first batch is written, Kafka's broker 7,000 before it is up. A JVM that is
told to writes the archive at its orderly end; one that cannot use the archive there is starts as if there was none.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from config import process_lock

# On standard output the JVM tells of every class it cannot archive; its errors stay.
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")


class ClassData:
    """The archive for one Java and one class path, in ``folder``; it may not exist yet."""

    def __init__(self, folder: Path, java_home: Path, class_path: Sequence[Path]) -> None:
        """``class_path``: jars, or folders of jars. A changed one has another archive; the JVM checks its classes."""
        facts = [java_home / "lib" / "modules", *class_path]  # the first is replaced when Java is updated
        self._folder = folder
        self._family = f"classes-{_digest(map(str, (java_home, *facts)))}"
        self._draft = folder / f"{self._family}.draft"
        self._name = f"{self._family}-{_digest(map(_stamp, facts))}"
        self._lock: int | None = None  # a descriptor, from flags() to end()

    @property
    def recording(self) -> bool:
        """Whether a JVM was told to write the archive, and :meth:`end` was not called yet."""
        return self._lock is not None

    @property
    def archive(self) -> Path | None:
        """The archive; None when there is no whole one: a JVM that maps one that was cut short crashes."""
        found = self._folder.glob(f"{self._name}-*.jsa")
        return next((it for it in found if it.stem == f"{self._name}-{it.stat().st_size}"), None)

    def use_flags(self) -> list[str]:
        """JVM flags that map the archive; none when there is no whole one."""
        return [f"-XX:SharedArchiveFile={archive}"] if (archive := self.archive) else []

    def flags(self) -> list[str]:
        """As :meth:`use_flags`. Where there is none: those that write it at the JVM's orderly end, which takes some
        seconds longer then. One JVM is told so at a time, of all processes."""
        if not (self.archive or self.recording):
            with contextlib.suppress(process_lock.HeldError, OSError):  # another has it, or nothing can be written here
                self._folder.mkdir(exist_ok=True)
                self._lock = process_lock.take(self._folder / f"{self._family}.lock")
                return self.use_flags() or [*_QUIET, f"-XX:ArchiveClassesAtExit={self._draft}"]
        return self.use_flags()

    def end(self) -> None:
        """Once that JVM is gone: puts what it wrote in its place, and removes older archives of this class path."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):  # none was written, or the disk is full: it costs the speed-up, no more
            with self._draft.open("rb") as file:
                os.fsync(file.fileno())
                is_whole = any(file.read(4))  # the JVM writes the beginning last
            if is_whole:
                for old in self._folder.glob(f"{self._family}-*.jsa"):
                    old.unlink()  # a JVM that maps it keeps it
                self._draft.replace(self._folder / f"{self._name}-{self._draft.stat().st_size}.jsa")
            self._draft.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None


def _digest(facts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


def _stamp(path: Path) -> str:  # differs when the file does
    try:
        status = path.stat()
    except OSError:
        return "absent"
    return f"{status.st_size} {int(status.st_mtime)}"  # an image's layers have whole seconds
