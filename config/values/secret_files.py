"""Secrets in files, which may change while the gateway runs."""

import re
from pathlib import Path
from typing import Final

from pydantic import SecretStr

_LARGEST = 65536
SHORTEST: Final = 16  # of letters and digits at random: 80 bits and more
VISIBLE: Final = re.compile(r"[!-~]+")
"""A secret that a header can carry."""
UNGUESSABLE: Final = re.compile(rf"[!-~]{{{SHORTEST},}}")
"""One that opens a port to other machines."""


class FileSecret(SecretStr):
    """A secret from a file: of a ``…_file`` setting or the secrets directory.

    ``get_secret_value`` returns the text that was read last. Call ``reread`` before the secret is used again.
    """

    def __init__(self, value: str, file: Path) -> None:
        super().__init__(value)
        self.file = file.absolute()  # a worker may have another working directory than its supervisor

    def __eq__(self, other: object) -> bool:
        """Compares the text only; the file does not matter."""
        return isinstance(other, SecretStr) and SecretStr(self._secret_value) == SecretStr(other.get_secret_value())

    __hash__ = SecretStr.__hash__

    def reread(self, form: re.Pattern[str] | None = None) -> bool:
        """Read the file again. Returns whether the secret has changed. Blocks for one small file.

        Raises ValueError with a sentence without secret and path, also for a secret of another ``form``; then the last
        text stays."""
        value = read_secret(self.file)
        if form is not None and form.fullmatch(value) is None:
            least = f" has fewer than {SHORTEST} characters, or" if form is UNGUESSABLE else ""
            raise ValueError(f"the secret in the file{least} has others than visible ASCII: a start would refuse it")
        changed = value != self._secret_value
        self._secret_value = value
        return changed


def read_secret(file: Path) -> str:
    """The text of a secret's file without the line end that editors add. Raises ValueError with a sentence.

    The sentence does not name the file, because a user may have written the secret itself into a ``…_file`` setting.
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
