"""Turns the Spark job's progress lines into the numbers the demo shows and waits for."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gateway.local.demo.show.state import SparkCounts
from streaming.progress import BatchEvent, FailedEvent, StartedEvent, parse


class LineTail:
    """The complete lines appended to a file since the last look. The file may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[str]:
        """The new lines, without their ends."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            chunk = file.read()
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


class SparkEvents:
    """What the jobs have said so far. ``topic`` is what silver reads."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.counts = SparkCounts()
        self.startup_s: float | None = None
        self.failure: str | None = None
        """The job's own sentence, when it could not go on."""

    def feed(self, lines: Iterable[str]) -> None:
        """Reads progress lines, and skips other lines."""
        for line in lines:
            match parse(line):
                case StartedEvent() as event:
                    self.startup_s = event.startup_s
                    self._set(started=True)
                case BatchEvent(query="silver") as event:
                    self._add_batch(event)
                case BatchEvent(query="gold"):
                    self._set(gold_batches=self.counts.gold_batches + 1)
                case FailedEvent() as event:
                    self.failure = event.error
                case _:
                    pass

    def _add_batch(self, event: BatchEvent) -> None:
        counts = self.counts
        ends = event.end_offsets.get(self._topic, {})
        self._set(
            batches=counts.batches + 1,
            rows=counts.rows + event.rows,
            quarantined=counts.quarantined + event.quarantined,
            batch_ms=event.duration_ms,
            offsets={**counts.offsets, **{int(partition): offset for partition, offset in ends.items()}},
        )

    def _set(self, **changes: object) -> None:
        self.counts = replace(self.counts, **changes)  # type: ignore[arg-type]  # names and types are those above
