"""The file of ``gateway spool export``: JSON lines with a checksum each, one for each batch.

The first line names the format. The last line has the numbers of batches and messages, so that a cut file is found.
docs/spool.md describes the format.
"""

import base64
import binascii
import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from bridge.spool.record import SpoolBatch
from config.error_words import words
from config.errors import GatewayError
from gateway.data_dir import durable

FORMAT: Final = 1
_KIND: Final = "mqtt-kafka-gateway spool"


class ExportFileError(GatewayError):
    """A file that is no complete export, or has a newer format."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch in the file; ``number`` counts from 1."""

    number: int
    batch: SpoolBatch


def write(path: Path, instance: str, batches: Iterable[SpoolBatch]) -> tuple[int, int]:
    """Write an export to a new file, durable on return. Returns the numbers of batches and messages."""
    written = messages = 0
    try:
        # As the spool's own files: payloads are not for every user of the machine.
        with durable.new_file(path, 0o640) as file:
            head = {
                "kind": _KIND,
                "format": FORMAT,
                "instance": instance,
                "export": str(uuid.uuid4()),
                "created_ms": time.time_ns() // 1_000_000,
            }
            file.write(_line(head))
            for batch in batches:
                file.write(_line(asdict(batch) | {"data": base64.b64encode(batch.data).decode()}))
                written += 1
                messages += batch.messages
            file.write(_line({"end": True, "batches": written, "messages": messages}))
    except FileExistsError:
        raise ExportFileError(f"{path} exists already; give another name, or remove it.") from None
    except OSError as error:
        raise ExportFileError(f"{path} cannot be written ({error.strerror}).") from error
    return written, messages


def _line(content: dict[str, Any]) -> str:
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return f'{text[:-1]},"crc32":{crc32(text.encode())}}}\n'


class ExportFile:
    """An export. The constructor checks the whole file, so that a damaged one is refused before an import."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instance = self.id = ""
        self.batches = self.messages = 0
        for _ in self.entries():  # reads and checks the whole file
            pass

    def entries(self) -> Iterator[Entry]:
        """The batches in order. Raises ExportFileError."""
        ended = False
        self.batches = self.messages = 0
        try:
            with self.path.open(encoding="utf-8") as file:
                self._read_head(file.readline())
                for number, text in enumerate(file, 2):
                    content = self._content(text, number)
                    if ended:
                        raise ExportFileError(f"{self.path} continues after its end, in line {number}.")
                    if content.get("end"):
                        ended = (content["batches"], content["messages"]) == (self.batches, self.messages)
                        continue
                    batch = self._batch(content, number)
                    self.batches += 1
                    self.messages += batch.messages
                    yield Entry(self.batches, batch)
        except OSError as error:
            raise ExportFileError(f"{self.path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise ExportFileError(f"{self.path} cannot be read ({words(error)}).") from error
        if not ended:
            raise ExportFileError(
                f"{self.path} is not complete: its end is missing. Export it again, or copy it again."
            )

    def _read_head(self, text: str) -> None:
        content = self._content(text, 1)
        if content.get("kind") != _KIND:
            raise ExportFileError(f"{self.path} is no export of a spool.")
        if content["format"] > FORMAT:
            raise ExportFileError(
                f"{self.path} has the export format {content['format']}; this gateway knows {FORMAT}. Use the gateway "
                "that wrote it, or a newer one."
            )
        self.instance, self.id = str(content["instance"]), str(content["export"])

    def _content(self, text: str, line_number: int) -> dict[str, Any]:
        """The object of a line, without its checksum. Raises ExportFileError where that is another."""
        plain, found, crc = text.rstrip("\n").rpartition(',"crc32":')
        if not found or crc != f"{crc32((plain + '}').encode())}}}":
            raise ExportFileError(f"Line {line_number} of {self.path} has changed, or is no line of an export.")
        content = json.loads(plain + "}")
        assert isinstance(content, dict)
        return content

    def _batch(self, content: dict[str, Any], line_number: int) -> SpoolBatch:
        try:
            data = base64.b64decode(content.pop("data"), validate=True)
            return SpoolBatch(**content | {"unfinished": tuple(content["unfinished"]), "data": data})
        except (KeyError, TypeError, binascii.Error) as error:
            raise ExportFileError(f"Line {line_number} of {self.path} is no batch ({words(error)}).") from error
