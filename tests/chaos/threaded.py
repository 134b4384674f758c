"""The scripted broker in a thread of its own, with devices that publish at a rate: EMQX at its defaults, and load."""

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, NamedTuple, Self, TypeVar

from tests.brokers.packets import Message, Subscribe
from tests.brokers.scripted import Link, ScriptedBroker
from tests.brokers.scripted_rules import Rules, Session
from tests.chaos.harness import payload

T = TypeVar("T")


class Absence(NamedTuple):
    """A session without a connection: for how long, and how many messages were published meanwhile, for any session."""

    seconds: float
    published: int


class ThreadedBroker:
    """A ``ScriptedBroker`` that runs while its ``with`` block does. All of it belongs to its thread: use ``call``."""

    def __init__(self, rules: Rules | None = None, *, tls: ssl.SSLContext | None = None, nodes: int = 1) -> None:
        self._rules, self._tls, self._nodes = rules, tls, nodes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="scripted broker")
        self.broker: ScriptedBroker
        self.port = 0
        self._load: Future[dict[str, int]] | None = None
        self._stop_load = threading.Event()
        self._burst = 0  # messages to publish at once; belongs to the loop

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    async def _start(self) -> None:
        self.broker = ScriptedBroker(self._rules, tls=self._tls, nodes=self._nodes)
        await self.broker.start()
        self.port = self.broker.port

    def __exit__(self, *_error: object) -> None:
        self._stop_load.set()
        if self._load is not None:
            self._load.exception(30)
        self.run(self.broker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the broker's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the broker's loop."""

        async def wrapped() -> T:
            return function()

        return self.run(wrapped())

    # --- load ---

    def start_load(
        self, rate: int, *, devices: int = 50, qos: int = 1, size: int = 60, waiting: int = 0,
        counts: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Devices publish ``rate`` messages a second in all, until ``stop_load``; each is acknowledged at once.
        What they would have sent while the machine stood still is no burst afterwards: they stood still with it.

        With ``waiting`` they publish more where fewer messages wait for room: the queue lasts, however fast it drains.
        ``counts`` are those of an earlier load, which this one goes on from.
        """
        self._stop_load.clear()
        began = dict(counts or {f"device-{number:04}": 0 for number in range(devices)})
        self._load = asyncio.run_coroutine_threadsafe(self._publish(rate, began, qos, size, waiting), self._loop)

    def burst(self, messages: int) -> None:
        """So many messages more, at once."""

        def add() -> None:
            self._burst += messages

        self.call(add)

    def stop_load(self) -> dict[str, int]:
        """End the load: how many each device published, numbered from 0."""
        assert self._load is not None
        self._stop_load.set()
        return self._load.result(30)

    async def _publish(self, rate: int, counts: dict[str, int], qos: int, size: int, waiting: int) -> dict[str, int]:
        names, devices = list(counts), len(counts)
        moment, sent, due = time.monotonic(), 0, 0.0
        while not self._stop_load.is_set():
            before, moment = moment, time.monotonic()
            due += min(moment - before, 0.1) * rate + self._burst + max(waiting - self._waiting(), 0)
            self._burst = 0
            for number in range(sent, int(due)):
                device = names[number % devices]
                value = payload(device, counts[device], size)
                self.broker.publish(Message(f"devices/{device}/telemetry", value, qos, publisher=device))
                counts[device] += 1
            sent = int(due)
            await asyncio.sleep(0.002)
        return counts

    # --- what the broker knows ---

    def watch_absences(self) -> dict[str, list[Absence]]:
        """From now on, each session's absences, by client id: from the loss of its connection to its next
        subscription. Grows as they come back."""
        absences: dict[str, list[Absence]] = {}
        left: dict[str, tuple[float, int]] = {}
        broker = self.broker
        lost, subscribe = broker.lost, broker.subscribe

        def on_lost(link: Link) -> None:
            if link.session is not None:
                left[link.session.client_id] = time.monotonic(), broker.published
            lost(link)

        def on_subscribe(link: Link, session: Session, request: Subscribe) -> None:
            subscribe(link, session, request)
            if session.client_id in left:
                since, published = left.pop(session.client_id)
                absence = Absence(time.monotonic() - since, broker.published - published)
                absences.setdefault(session.client_id, []).append(absence)

        def install() -> None:
            broker.lost = on_lost  # type: ignore[method-assign]
            broker.subscribe = on_subscribe  # type: ignore[method-assign]

        self.call(install)
        return absences

    def unacknowledged(self) -> int:
        """Messages sent to any session and not acknowledged."""
        return self.call(lambda: sum(len(session.flying) for session in self.broker.sessions.values()))

    def dropped(self) -> int:
        return self.call(lambda: len(self.broker.dropped))

    def unrouted(self) -> int:
        """Devices' messages that came while nobody was subscribed."""
        return self.call(lambda: sum(message.topic.startswith("devices/") for message in self.broker.unrouted))

    def waiting(self) -> int:
        """Messages that wait for room in a session's window."""
        return self.call(self._waiting)

    def _waiting(self) -> int:
        return sum(len(session.queue) for session in self.broker.sessions.values())

    def drained(self) -> bool:
        """Whether every message was acknowledged by the gateway."""
        return self.call(lambda: not any(s.flying or s.queue for s in self.broker.sessions.values()))
