"""A jar as the lock file names it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of ``jars.lock``."""

    organisation: str
    name: str
    version: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"
