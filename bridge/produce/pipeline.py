"""Builds the data path: one sender; an accumulator, dead letters and a dispatcher for each session group; the spool.

    dispatcher ──▶ accumulator ──▶ partitions ──▶ sender ──▶ Kafka
         └──▶ dead letters ──┘         └─▶ spooler ─┘

The gateway, the replay of dead letters, ``gateway explain`` and the tests build it here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.produce.accumulator import Accumulator
from bridge.produce.dead_letter import DeadLetterPlan, DeadLetters
from bridge.produce.dispatch import NO_CHAINS, Dispatcher, DispatchHooks, DispatchLimits
from bridge.produce.sender import Sender, SenderObserver, SenderPolicy
from bridge.produce.spool_replay import SpoolLinks
from bridge.produce.spooler import Spooler, SpoolPolicy

if TYPE_CHECKING:
    from bridge.interceptors import Chains
    from bridge.ledger import Ledger
    from bridge.ports import ProducerFactory, SpoolStore
    from bridge.produce.batch import Span
    from bridge.produce.partitions import Partitions
    from bridge.routing.router import Router
    from bridge.wire import DeadLetterReason
    from config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineHooks(DispatchHooks):
    """Callbacks and clocks of a pipeline.

    ``clock_ns`` is monotonic, ``wall_ms`` milliseconds since 1970. ``dead_letters`` makes the dead letters of each
    accumulator; ``dead_letter_made`` is called as ``DeadLetters`` says."""

    observer: SenderObserver
    dead_letter_made: Callable[[str, DeadLetterReason, BaseException, str | None], None] = lambda *_: None
    dead_letters: type[DeadLetters] | Callable[..., DeadLetters] = DeadLetters
    clock_ns: Callable[[], int] = time.monotonic_ns
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class GroupPipeline:
    """The part of a pipeline that belongs to one session group."""

    accumulator: Accumulator
    dead_letters: DeadLetters
    dispatcher: Dispatcher


class Pipeline:
    """The data path of one worker. ``partitions`` and ``sender`` serve all its session groups."""

    def __init__(
        self, partitions: Partitions, producers: ProducerFactory, policy: SenderPolicy, hooks: PipelineHooks
    ) -> None:
        self.partitions = partitions
        self.sender = Sender(partitions, producers, policy, hooks.observer, hooks.clock_ns, hooks.failed, hooks.wall_ms)
        self._hooks = hooks

    def accumulator(self, completed: Callable[[Span], None]) -> Accumulator:
        """An accumulator whose batches the sender takes."""
        return Accumulator(self.sender.create_batch, completed, self.partitions)

    def dead_letters(
        self,
        accumulator: Accumulator,
        plan: DeadLetterPlan,
        withholds: Callable[[str], bool] = lambda _route: False,  # whether refused records of a route wait
    ) -> DeadLetters:
        """The dead letters of an accumulator's records."""
        hooks = self._hooks
        return hooks.dead_letters(
            accumulator,
            plan,
            hooks.topics.partition_count,
            made=hooks.dead_letter_made,
            withholds=withholds,
            now_ms=hooks.wall_ms,
        )

    def group(
        self,
        settings: Settings,
        router: Router,
        completed: Callable[[Span], None],
        *,
        group: str | None = "",
        chains: Chains = NO_CHAINS,
    ) -> GroupPipeline:
        """The part of one session group. ``group`` and ``chains`` are those of ``Dispatcher``."""
        accumulator = self.accumulator(completed)
        dead_letters = self.dead_letters(accumulator, DeadLetterPlan.from_settings(settings))
        limits = DispatchLimits.from_settings(settings)
        dispatcher = Dispatcher(router, accumulator, dead_letters, limits, self._hooks, group=group, chains=chains)
        return GroupPipeline(accumulator, dead_letters, dispatcher)

    def spool(self, store: SpoolStore, policy: SpoolPolicy, ledger: Ledger) -> Spooler:
        """Put a spool between partitions and sender. The caller makes the dead letters of ``replay.accumulator``."""
        hooks, sender = self._hooks, self.sender
        links = SpoolLinks(
            store, self.partitions, lambda: sender.producer, ledger, sender.resume, hooks.clock_ns, hooks.failed
        )
        spooler = sender.spooler = Spooler(links, policy)
        return spooler
