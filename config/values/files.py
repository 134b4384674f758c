"""Reading a user's file, which may be the wrong one."""

from pathlib import Path
from typing import BinaryIO


def read_at_most(file: Path, most_bytes: int) -> bytes:
    """The bytes of the file. Raises OSError, and ValueError with a sentence for more than ``most_bytes``: the wrong
    file, such as ``/dev/zero``, would fill the memory."""
    with file.open("rb") as opened:
        return read_stream_at_most(opened, most_bytes)


def read_stream_at_most(stream: BinaryIO, most_bytes: int) -> bytes:
    """As ``read_at_most``, from an open stream."""
    data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it has more than {most_bytes >> 20} MiB; is it the right file?")
    return data
