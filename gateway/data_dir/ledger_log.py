"""The component that writes a worker's ledger topic, from Kafka's start to the end of the drain.

A *life* is one run of one worker process. The data directory has the last life and whether it wrote its last record, so
that the next one can report it on the topic. Acknowledgements of a crashed life after its last record are unaccounted
for, not lost.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from bridge.errors import RefusedError, TopicMissingError
from bridge.ledger_topic.intervals import LedgerIntervals
from bridge.ledger_topic.records import Author
from bridge.ledger_topic.writer import LedgerPlan, LedgerWriter
from gateway.data_dir import durable
from gateway.data_dir.directory import explained

if TYPE_CHECKING:
    from bridge.kafka.producer import KafkaProducer
    from bridge.kafka.topics import Topics
    from bridge.ledger import Ledger
    from bridge.ports import Producer
    from config.settings import Settings

log = structlog.get_logger("ledger")

_STOP_MIN_NS: Final = 500_000_000  # time for the last record, also after the deadline


def begin_life(directory: Path, gateway: str, worker: int, now_ms: int) -> Author:
    """Start a life: record it in the data directory, and read the one before. Blocks for two fsyncs.

    Raises OSError. The caller holds the slot of the worker."""
    previous = _read(_life_path(directory, worker))
    clean = None if previous is None else _read(_ended_path(directory, worker)) == previous
    life = secrets.token_hex(8)
    durable.write(_life_path(directory, worker), f"{life}\n")
    return Author(gateway, worker, life, now_ms, previous, clean)


def end_life(directory: Path, author: Author) -> None:
    """Note that the life has written its last record. Blocks for two fsyncs; raises nothing.

    In a file of its own, because during a replacement the slot and the other file may be the next life's."""
    durable.note_end(_ended_path(directory, author.worker), f"{author.life}\n")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip() or None
    except FileNotFoundError:
        return None


def _note_untagged(directory: Path, worker: int, routes: set[str], *, spooled: bool) -> None:
    """Record the routes without the header ``gateway.id``. Adds those of earlier lives to ``routes`` if the spool has
    records of them. Blocks for two fsyncs after a change."""
    path = directory / f"worker-{worker}.untagged"
    before = (_read(path) or "").split()
    if spooled:
        routes.update(before)
    if sorted(routes) != before:
        durable.write(path, "".join(f"{route}\n" for route in sorted(routes)))


def _life_path(directory: Path, worker: int) -> Path:
    return directory / f"worker-{worker}.life"


def _ended_path(directory: Path, worker: int) -> Path:
    return directory / f"worker-{worker}.life-ended"


class LedgerLog:
    """Counts from the beginning, and writes between ``start`` and ``stop`` if settings name a topic.

    ``start`` needs the data directory and a started producer; ``stop`` comes after the last answer and before the
    producer's end. ``producer`` gives the producer that writes, None before the first has started; ``renew`` replaces
    it.
    """

    def __init__(
        self,
        settings: Settings,
        ledger: Ledger,
        producer: Callable[[], Producer | None],  # the present one
        renew: Callable[[str], None],  # asks for another producer, with the reason
    ) -> None:
        self.topic = settings.ledger.topic
        self.intervals = LedgerIntervals(located=bool(self.topic))
        self._settings = settings
        self._ledger, self._producer, self._renew = ledger, producer, renew
        self._author: Author | None = None
        self._writer: LedgerWriter | None = None
        self._tagged: set[str] = set()
        self._untagged: set[str] = set()
        self._note(settings)

    def adopt(self, settings: Settings) -> None:
        """Use the routes of other settings from now on. Their other settings of the ledger must be equal."""
        self._note(settings)
        if self._writer is not None:
            self._writer.adopt(self.tagged)

    @property
    def tagged(self) -> frozenset[str]:
        """Routes whose records all have the header ``gateway.id`` in this life.

        Without routes that began or stopped to write it: `gateway verify` would expect it in the other records."""
        return frozenset(self._tagged - self._untagged)

    def _note(self, settings: Settings) -> None:
        for route in settings.routes:
            (self._tagged if "gateway" in route.metadata_headers else self._untagged).add(route.name)

    @property
    def follows_a_crash(self) -> bool:
        """Whether the previous life ended without its last record."""
        return self._author is not None and self._author.previous_clean is False

    @property
    def waiting(self) -> int:
        """Intervals that are not written yet."""
        return self._writer.waiting if self._writer is not None else 0

    async def ensure(self, topics: Topics, producer: KafkaProducer) -> None:
        """Ensure that the topic exists. Raises TopicMissingError, RefusedError, RetriableError."""
        if not self.topic:
            return
        try:
            await topics.ensure(producer, [self.topic])
        except (TopicMissingError, RefusedError) as error:
            raise type(error)(
                f'{error} It is for the ledger, which `gateway verify` reads (ledger.topic = "{self.topic}"); '
                'ledger.topic = "" runs without one.'
            ) from error

    async def start(self, *, spooled: bool = False) -> None:
        """Start a life and its ledger. ``spooled``: the spool has records of earlier lives. Raises IdentityError."""
        if not self.topic:
            return
        settings = self._settings
        now_ms = time.time_ns() // 1_000_000
        with explained(settings.data_dir):
            _note_untagged(settings.data_dir, settings.worker, self._untagged, spooled=spooled)
            author = self._author = begin_life(settings.data_dir, settings.instance, settings.worker, now_ms)
        plan = LedgerPlan(
            self.topic,
            round(settings.ledger.interval.total_seconds() * 1000),
            self.tagged,
        )
        self._writer = LedgerWriter(
            plan, author, self.intervals, self._ledger, producer=self._producer, renew=self._renew
        )
        self._writer.start()
        log.info("ledger_begun", topic=self.topic, life=author.life, previous_clean=author.previous_clean)

    async def stop(self, deadline_ns: int) -> None:
        """Write open intervals and the last record, until ``deadline_ns`` but for at least half a second."""
        writer, self._writer = self._writer, None
        if writer is None or self._author is None:
            return
        if await writer.stop(max(deadline_ns, time.monotonic_ns() + _STOP_MIN_NS)):
            end_life(self._settings.data_dir, self._author)
