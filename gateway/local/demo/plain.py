"""Keeps the plain bridge's process running, as a process manager would, and kills it when told to."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.errors import GatewayError
from gateway.base.process.child import Child, ChildError
from gateway.local.demo.background import Background
from gateway.local.demo.chaos import PlainCounts
from gateway.local.demo.options import PARTITIONS
from gateway.local.demo.records import make_topics

PLAIN_TOPIC = "telemetry-plain"
_CLIENT_ID = "plain-bridge"
_FILTER = "devices/+/telemetry"
_START_S = 30.0
_RESTART_S = 0.5  # what the gateway's supervisor waits as well
_QUIET_S = 2.0  # the broker has nothing more for it when nothing came for so long
_CATCH_UP_S = 60.0
_STOP_S = 30.0
_LOOK_S = 0.1


class PlainBridge(Background):
    """All lives of the process. ``on_change`` gets the counts over all of them, on our loop."""

    def __init__(self, bootstrap: str, mqtt_port: int, log: Path, on_change: Callable[[PlainCounts], None]) -> None:
        self._bootstrap = bootstrap
        self._arguments = {
            "bootstrap": bootstrap,
            "topic": PLAIN_TOPIC,
            "port": mqtt_port,
            "client_id": _CLIENT_ID,
            "filter": _FILTER,
        }
        self._log = log
        self._on_change = on_change
        self._child: Child | None = None
        self._subscribed = asyncio.Event()
        self._before = PlainCounts()  # of the processes that have ended
        self._now = PlainCounts()

    @property
    def counts(self) -> PlainCounts:
        """The plain bridge's counts so far, over all its processes."""
        before, now = self._before, self._now
        return PlainCounts(
            running=self._subscribed.is_set(),
            received=before.received + now.received,
            delivered=before.delivered + now.delivered,
            failed=before.failed + now.failed,
            in_memory=now.received - now.delivered - now.failed,
        )

    async def start(self) -> None:
        """Makes its topic, starts it, returns when it is subscribed. Raises GatewayError if it does not get there."""
        await make_topics(self._bootstrap, {PLAIN_TOPIC: PARTITIONS})
        self.begin()
        try:
            async with asyncio.timeout(_START_S):
                await self._subscribed.wait()
        except TimeoutError:
            tail = self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""
            raise GatewayError(f"The plain bridge has not subscribed within {_START_S:g} s.\n{tail}") from None

    async def kill(self) -> None:
        """SIGKILL; the next process is started as soon as the gateway's supervisor would."""
        if self._child is not None:
            await self._child.kill()

    async def finish(self) -> str | None:
        """Lets it take in and deliver all that is left for it, and ends it. Returns why not all was, or None."""
        problem = None
        if not await self._caught_up():
            counts = self.counts
            problem = (
                f"The plain bridge was not done after {_CATCH_UP_S:g} s: it holds {counts.in_memory:,} messages"
                " that Kafka does not have."
            )
        await self.end()
        if self._child is not None:
            await self._child.tell("stop")
            try:
                await self._child.finished(_STOP_S)
            except ChildError as error:
                problem = str(error)
        await self.abandon()
        return problem

    async def abandon(self) -> None:
        """Ends it at once. Safe to call at any time, and twice."""
        await self.end()
        if self._child is not None:
            await self._child.kill()

    async def _caught_up(self) -> bool:
        """Waits until nothing came for ``_QUIET_S`` and all is delivered; False if that is not so in time."""
        deadline_s = time.monotonic() + _CATCH_UP_S
        quiet_since_s, received = time.monotonic(), -1
        while (now_s := time.monotonic()) < deadline_s:
            counts = self.counts
            if not counts.running or counts.in_memory or counts.received != received:
                quiet_since_s, received = now_s, counts.received
            elif now_s - quiet_since_s >= _QUIET_S:
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def _run(self) -> None:
        """Starts the bridge's process, and another whenever it has ended."""
        while True:
            self._child = Child("gateway.local.demo.plain_bridge", "The plain bridge", self._log)
            await self._child.start(self._arguments, self._on_line)
            await self._child.ended()
            self._before, self._now = self.counts, PlainCounts()
            self._subscribed.clear()
            self._on_change(self.counts)
            await asyncio.sleep(_RESTART_S)

    def _on_line(self, line: dict[str, Any]) -> None:
        """Takes a line of the process's output."""
        match line.pop("event"):
            case "subscribed":
                self._subscribed.set()
            case "progress":
                self._now = PlainCounts(**line)
        self._on_change(self.counts)
