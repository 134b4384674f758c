"""The site of one benchmark call: its Kafka, its directory, its scale."""

from __future__ import annotations

import itertools
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from tests.bench.processes import BenchError
from tests.bench.subject import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.bench.records import Account, Kafka


class Site:
    """Hands each run a fresh topic and directory, and takes them away afterwards; a context manager for what the whole
    call shares: the topic for dead letters, which has to stay empty, and the ledger's.
    """

    def __init__(
        self, kafka: Kafka | None, directory: Path, *, quick: bool, nab: Path | None = None,
        devices: int | None = None, readings: int = 10,
    ) -> None:  # fmt: skip
        self._kafka: Final = kafka
        self.quick: Final = quick
        self.nab: Final = nab
        self.devices: Final = devices
        self.readings: Final = readings
        self._directory = directory
        self._numbers = itertools.count()
        self._dead_letters = self._ledger = ""
        self.figures: Final[dict[str, float]] = {}  # what a row keeps for another one to be compared with

    @property
    def kafka(self) -> Kafka:
        """The call's Kafka; there is none when no row needs one."""
        assert self._kafka is not None, "the row says that it needs no Kafka"
        return self._kafka

    def __enter__(self) -> Self:
        if self._kafka is not None:
            self._dead_letters = self._kafka.create_topic()
            self._ledger = self._kafka.create_topic()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._kafka is not None:
            self._kafka.delete_topic(self._dead_letters)
            self._kafka.delete_topic(self._ledger)

    def scaled(self, count: int) -> int:
        """A count of messages, a fifth of it in a quick call."""
        return count // 5 if self.quick else count

    @contextmanager
    def room(self, partitions: int = 12) -> Iterator[tuple[str, Path]]:
        """A new topic and a new directory for one run."""
        topic = self.kafka.create_topic(partitions)
        try:
            with self.folder() as directory:
                yield topic, directory
        finally:
            self.kafka.delete_topic(topic)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new directory for one run."""
        directory = self._directory / f"run-{next(self._numbers)}"
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def shared(self, name: str, make: Callable[[Path], None]) -> Path:
        """A directory of that name for the whole call, which ``make`` fills the first time."""
        directory = self._directory / name
        if not directory.exists():
            unfinished = self._directory / f"{name}-unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(directory)
        return directory

    def place(self, mqtt_port: int, topic: str, directory: Path) -> Place:
        """Where a subject runs."""
        return Place(mqtt_port, self.kafka.bootstrap, topic, self._dead_letters, self._ledger, directory / "subject")

    def check_records(self, topic: str, distinct: int, cycles: int = 1, *, in_order: bool) -> Account:
        """Every message has its record, and ``in_order`` each partition's came in order unless some came twice; raises
        BenchError otherwise.
        """
        if dead := self.kafka.record_count(self._dead_letters):
            raise BenchError(f"{dead} messages were dead-lettered, though all can be delivered")
        account = self.kafka.account(topic, distinct, cycles)
        if account.missing:
            raise BenchError(
                f"{account.missing} of {distinct * cycles} messages have no record in Kafka, though acknowledged"
            )
        if in_order and account.unordered and not account.duplicates:
            raise BenchError(f"{account.unordered} partitions have records out of order")
        return account
