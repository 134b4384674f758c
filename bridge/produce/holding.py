"""The messages of stopped routes: held in the order they came, each holding up its span, so none is acknowledged.

What is held counts as parked in the accumulator: the ledger sees it in flight, and its bytes count against the memory
at which reading pauses. A held message is kept as it was received and is routed when it is let go, in the span it
came in, so that acknowledgements keep MQTT's order [MQTT-4.6.0-2]."""

from __future__ import annotations

__all__ = ["HeldMessage", "Holding"]

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bridge.produce.accumulator import Accumulator
    from bridge.produce.batch import Span

CHUNK = 500  # messages let go in one turn of the event loop: about 10 ms


class HeldMessage(NamedTuple):
    """A message as it was received, and where it waits."""

    flags: int
    topic: bytes
    properties: bytes
    payload: bytes
    received_ms: int
    delivery_prefix: bytes
    span: Span

    @property
    def size(self) -> int:
        """Bytes it takes in memory, about."""
        return len(self.topic) + len(self.properties) + len(self.payload) + 300


class _Hold:
    """One stopped route. ``allowance``: messages that may still pass; ``released``: all may, in their turn."""

    __slots__ = ("allowance", "messages", "released", "scheduled")

    def __init__(self) -> None:
        self.messages: deque[HeldMessage] = deque()
        self.allowance = 0
        self.released = False
        self.scheduled = False


class Holding:
    """The stopped routes of one dispatcher. Belongs to the event loop's thread.

    ``again`` routes a message that was held; ``pump`` sends what that made due; ``gone`` is called when a route's last
    held message has been let go for good; ``failed`` is told of a defect.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        *,
        again: Callable[[HeldMessage], None],
        pump: Callable[[], None],
        gone: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._accumulator = accumulator
        self._again = again
        self._pump = pump
        self._gone = gone
        self._failed = failed
        self._holds: dict[str, _Hold] = {}
        self._letting_go = False

    def __contains__(self, route: str) -> bool:
        return route in self._holds

    def __bool__(self) -> bool:
        return bool(self._holds)

    def __iter__(self) -> Iterator[str]:
        """The routes that are held, those on their way out included."""
        return iter(tuple(self._holds))

    def messages(self, route: str) -> int:
        """How many messages of a route are held."""
        hold = self._holds.get(route)
        return len(hold.messages) if hold is not None else 0

    def kept(self) -> Counter[Span]:
        """How many messages each span waits for that are held until further notice: not those on their way out."""
        return Counter(message.span for hold in self._holds.values() if not hold.released for message in hold.messages)

    def sort_anew(self, route_of: Callable[[HeldMessage], str | None]) -> None:
        """Routes have changed: put each message where the next one of its topic would be held, which must not pass it.
        One whose route is not held stays where it is."""
        moving: list[tuple[_Hold, HeldMessage]] = []
        for hold in self._holds.values():
            stays: deque[HeldMessage] = deque()
            for message in hold.messages:
                other = self._holds.get(route_of(message) or "")
                if other is None or other is hold:
                    stays.append(message)
                else:
                    moving.append((other, message))
            hold.messages = stays
        for hold, message in moving:
            hold.messages.append(message)

    def stop(self, route: str) -> None:
        """Hold a route's messages from now on, those on their way out of the hold included."""
        hold = self._holds.setdefault(route, _Hold())
        hold.allowance = 0
        hold.released = False

    def admit(self, route: str, count: int) -> None:
        """Let ``count`` messages of a stopped route pass: the oldest that are held, then what arrives."""
        hold = self._holds[route]
        hold.allowance = count
        self._schedule(route, hold)

    def release(self, route: str) -> None:
        """Let a stopped route's messages go, in their order, and hold none any more once the last has gone."""
        hold = self._holds[route]
        hold.released = True
        self._schedule(route, hold)

    def keeps(self, route: str, message: Callable[[Span], HeldMessage]) -> bool:
        """Take over a message of a stopped route, made with the span it waits in; False when it may pass."""
        hold = self._holds.get(route)
        if hold is None or self._letting_go:
            return False
        if hold.allowance and not hold.messages:
            hold.allowance -= 1
            return False
        accumulator = self._accumulator
        held = message(accumulator.occupy())
        hold.messages.append(held)
        accumulator.parked_messages += 1
        accumulator.buffered_bytes += held.size
        return True

    def give_back(self, delivery_prefix: bytes) -> None:
        """Let go of what a connection that has ended leaves unacknowledged at QoS 1: the broker sends it again, so a
        copy kept here would be a copy in Kafka, and at each reconnection one more would take memory.

        To be called when ``Accumulator.returned`` has counted them. QoS 2 stays, for its second coming is left out;
        QoS 0 stays, for it has none."""
        accumulator = self._accumulator
        for hold in self._holds.values():
            kept: deque[HeldMessage] = deque()
            for message in hold.messages:
                if message.delivery_prefix != delivery_prefix or message.flags & 6 != 2:
                    kept.append(message)
                    continue
                accumulator.parked_messages -= 1
                accumulator.buffered_bytes -= message.size
                message.span.returned -= 1  # counted as returned, and in the window no more: no count is left of it
                accumulator.vacate(message.span)
            hold.messages = kept

    def tried(self, route: str) -> bool:
        """Whether every message that was admitted has passed and none of the route is on its way to Kafka."""
        hold = self._holds.get(route)
        if hold is not None and hold.allowance:
            return False
        accumulator = self._accumulator
        for queue in accumulator.partitions.queues.values():
            slots = [batch.slot for batch in (queue.in_flight, *queue.sealed) if batch is not None]
            if any(slot.route == route and slot.accumulator is accumulator for slot in (*slots, *queue.open)):
                return False
        return True

    def _schedule(self, route: str, hold: _Hold) -> None:
        if not hold.scheduled:
            hold.scheduled = True
            asyncio.get_running_loop().call_soon(self._let_go, route, hold)

    def _let_go(self, route: str, hold: _Hold) -> None:
        """Let a bounded number go; the others in a later turn, for the event loop has connections to keep alive."""
        hold.scheduled = False
        try:
            left = CHUNK
            while left and hold.messages and (hold.released or hold.allowance):
                left = self._let_go_span(hold, left)
            for slot in list(self._accumulator.touched):
                self._accumulator.hurry(slot)  # nothing was read, so no flush may follow
            self._pump()
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and the route stand still
            self._failed(error)
            return
        if hold.released and not hold.messages:
            del self._holds[route]
            self._gone()
        elif hold.messages and (hold.released or hold.allowance):
            self._schedule(route, hold)

    def _let_go_span(self, hold: _Hold, most: int) -> int:
        """Let messages of the oldest span go; returns how many of ``most`` are left."""
        accumulator, messages = self._accumulator, hold.messages
        span = messages[0].span
        self._letting_go = True
        try:
            with accumulator.within(span):
                while most and messages and messages[0].span is span and (hold.released or hold.allowance):
                    message = messages.popleft()
                    most -= 1
                    hold.allowance = max(0, hold.allowance - 1)
                    self._again(message)
                    accumulator.parked_messages -= 1
                    accumulator.buffered_bytes -= message.size
                    accumulator.vacate(span)
        finally:
            self._letting_go = False
        return most
