"""Where values came from, and what is wrong with them: the two things a person needs to correct a setting."""

from dataclasses import dataclass
from typing import Literal

from config.schema import Path, dotted

Source = Literal["default", "file", "secrets directory", "environment", "override"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written. ``place`` is for people: ``gateway.toml:12``, ``GATEWAY_MQTT__SESSIONS``, a file's
    path.

    ``secret_file`` is the file that a ``…_file`` setting at ``place`` named, and that held the value.
    """

    source: Source
    place: str
    secret_file: str | None = None

    def __str__(self) -> str:
        if self.secret_file is not None:
            return f"secret file {self.secret_file}, named by {self.place}"
        return self.place


DEFAULT = Origin("default", "default")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to correct. ``sentence`` never holds the value of a secret; ``value`` is set only where it may be
    shown."""

    path: Path
    origin: Origin | None
    sentence: str
    value: str | None = None

    def __str__(self) -> str:
        subject = dotted(self.path)
        if self.value is not None:
            subject += f" = {self.value}"
        if self.origin is not None:
            subject += f" ({self.origin})" if subject else str(self.origin)
        return f"{subject}: {self.sentence}" if subject else self.sentence


@dataclass(frozen=True, slots=True)
class SecretFile:
    """A placeholder for a secret. The file is read only if no stronger source gives the secret."""

    file: str
