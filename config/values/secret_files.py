"""Secrets that live in files of their own, and may change there while the gateway runs."""

from __future__ import annotations

__all__ = ["FileSecret", "read_secret"]

from typing import TYPE_CHECKING

from pydantic import SecretStr

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST = 65536


class FileSecret(SecretStr):
    """A secret with the file that it stands in: what a ``…_file`` setting or the secrets directory gives.

    ``get_secret_value`` is the text that was read last; ``reread`` looks again, for whoever is about to show it anew.
    """

    def __init__(self, value: str, file: Path) -> None:
        super().__init__(value)
        self.file = file.absolute()  # the working directory of a worker need not be its supervisor's for ever

    def __eq__(self, other: object) -> bool:
        """As text: where a secret stands makes it no other."""
        return isinstance(other, SecretStr) and SecretStr(self._secret_value) == SecretStr(other.get_secret_value())

    __hash__ = SecretStr.__hash__

    def reread(self) -> bool:
        """Take over what the file says now; whether that is something else. Blocks for one small file.

        Raises ValueError with a sentence that holds neither secret nor path; the last text then stays."""
        value = read_secret(self.file)
        changed = value != self._secret_value
        self._secret_value = value
        return changed


def read_secret(file: Path) -> str:
    """The text of a secret's file without the line end that editors add. Raises ValueError with a sentence.

    The sentence does not name the file: in a ``…_file`` setting that somebody took for the password's own, its path is
    the secret.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(_LARGEST + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "no valid path"
        raise ValueError(f"the secret's file cannot be read: {reason}") from None
    if len(data) > _LARGEST:
        raise ValueError("the secret's file is larger than 64 KiB; it should hold the secret alone")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("the secret's file is not UTF-8 text") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError("the secret's file is empty")
    return text
