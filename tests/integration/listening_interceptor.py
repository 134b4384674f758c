"""A plug-in as somebody else would write it: it writes down what it is told, and fails on request."""

import json
from pathlib import Path
from typing import Any

from bridge.errors import BridgeError
from bridge.interceptors import Context, Interceptor, RecordMetadata, Table
from bridge.record import Record


class ListeningOptions(Table):
    file: str
    fail_on: str = "never"


class Listening(Interceptor):
    """Passes every record on but those that hold ``fail_on``; each acknowledgement is a line in ``file``."""

    Options = ListeningOptions

    def configure(self, options: ListeningOptions, context: Context) -> None:
        del context
        self._fail_on = options.fail_on.encode()
        self._file = Path(options.file).open("a", buffering=1)  # noqa: SIM115 - closed in close

    def on_send(self, record: Record) -> Record:
        if self._fail_on in (record.value or b""):
            raise ValueError("told to fail")
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: BridgeError | None) -> None:
        line: dict[str, Any] = {**metadata._asdict(), "error": None if error is None else str(error)}
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.write('"closed"\n')
        self._file.close()
