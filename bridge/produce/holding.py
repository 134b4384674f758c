"""Holds messages of stopped routes in the order received. Each keeps its span pending, so none is acknowledged.

Held messages count as parked in the accumulator and as in flight in the ledger. Their bytes count against
``flow.memory_bytes``. A released message is routed in its own span, so acknowledgements keep MQTT's order
[MQTT-4.6.0-2]."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bridge.produce.accumulator import Accumulator
    from bridge.produce.batch import Span

CHUNK = 500  # messages released in one turn of the event loop: about 10 ms


class HeldMessage(NamedTuple):
    """A message as it was received, with its span."""

    flags: int
    topic: bytes
    properties: bytes
    payload: bytes
    received_ms: int
    delivery_prefix: bytes
    span: Span

    @property
    def size(self) -> int:
        """Approximate bytes in memory."""
        return len(self.topic) + len(self.properties) + len(self.payload) + 300


class _Hold:
    """One stopped route. ``allowance`` messages may pass; if ``released``, all pass in order."""

    __slots__ = ("allowance", "messages", "released", "scheduled")

    def __init__(self) -> None:
        self.messages: deque[HeldMessage] = deque()
        self.allowance = 0
        self.released = False
        self.scheduled = False


class Holding:
    """The stopped routes of one dispatcher. Belongs to the event loop's thread.

    ``again`` routes a held message. ``gone`` is called when the last message of a released route has passed. ``failed``
    receives defects.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        *,
        again: Callable[[HeldMessage], None],  # routes a held message
        gone: Callable[[], None],  # the last message of a released route has passed
        failed: Callable[[BaseException], None],  # receives defects
    ) -> None:
        self._accumulator = accumulator
        self._again = again
        self._gone = gone
        self._failed = failed
        self._holds: dict[str, _Hold] = {}  # by route
        self._is_releasing = False  # messages pass: they are the released ones

    def __contains__(self, route: str) -> bool:
        return route in self._holds

    def __bool__(self) -> bool:
        return bool(self._holds)

    def __iter__(self) -> Iterator[str]:
        """Routes with held messages, released ones included."""
        return iter(tuple(self._holds))

    def messages(self, route: str) -> int:
        hold = self._holds.get(route)
        return len(hold.messages) if hold is not None else 0

    def kept(self) -> Counter[Span]:
        """Held messages of each span, without those of released routes."""
        return Counter(message.span for hold in self._holds.values() if not hold.released for message in hold.messages)

    def sort_anew(self, route_of: Callable[[HeldMessage], str | None]) -> None:
        """Move each message to the hold of its topic's new route, so that it stays before later messages of the topic.

        A message whose new route is not held stays where it is."""
        moving: list[tuple[_Hold, HeldMessage]] = []
        for hold in self._holds.values():
            stays: deque[HeldMessage] = deque()
            for message in hold.messages:
                other = self._holds.get(route_of(message) or "")  # no route takes it: None
                if other is None or other is hold:
                    stays.append(message)
                else:
                    moving.append((other, message))
            hold.messages = stays
        for hold, message in moving:
            hold.messages.append(message)

    def stop(self, route: str) -> None:
        """Hold a route's messages from now on, also those that were being released."""
        hold = self._holds.setdefault(route, _Hold())
        hold.allowance = 0
        hold.released = False

    def admit(self, route: str, count: int) -> None:
        """Release ``count`` messages of a stopped route: the oldest held ones, then new ones."""
        hold = self._holds[route]
        hold.allowance = count
        self._schedule(route, hold)

    def release(self, route: str) -> None:
        """Release a stopped route's messages in order. After the last one the route is not held."""
        hold = self._holds[route]
        hold.released = True
        self._schedule(route, hold)

    def keeps(self, route: str, message: Callable[[Span], HeldMessage]) -> bool:
        """Hold a message of a stopped route, made with its span. False when the message may pass."""
        hold = self._holds.get(route)
        if hold is None or self._is_releasing:
            return False
        if hold.allowance and not hold.messages:
            hold.allowance -= 1
            return False
        accumulator = self._accumulator
        held = message(accumulator.hold_span())
        hold.messages.append(held)
        accumulator.parked_messages += 1
        accumulator.buffered_bytes += held.size
        return True

    def give_back(self, delivery_prefix: bytes) -> None:
        """Drop held QoS 1 messages of a connection that has ended: the broker delivers them again.

        Kept here, they would be in Kafka twice, and each reconnection would take more memory. Call this after
        ``Accumulator.returned`` has counted them. QoS 2 messages stay, because their second delivery is dropped. QoS 0
        messages stay, because the broker does not deliver them again."""
        accumulator = self._accumulator
        for hold in self._holds.values():
            kept: deque[HeldMessage] = deque()
            for message in hold.messages:
                if message.delivery_prefix != delivery_prefix or message.flags & 6 != 2:
                    kept.append(message)
                    continue
                accumulator.parked_messages -= 1
                accumulator.buffered_bytes -= message.size
                message.span.returned -= 1  # it is in no span now, so it may not be counted in one
                accumulator.release_span(message.span)
            hold.messages = kept

    def tried(self, route: str) -> bool:
        """Whether all admitted messages have passed and no record of the route is on its way to Kafka."""
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
            asyncio.get_running_loop().call_soon(self._release_some, route, hold)

    def _release_some(self, route: str, hold: _Hold) -> None:
        """Release at most CHUNK messages, and the others in later turns of the event loop."""
        hold.scheduled = False
        try:
            left = CHUNK
            while left and hold.messages and (hold.released or hold.allowance):
                left = self._release_span(hold, left)
            for slot in list(self._accumulator.touched):
                self._accumulator.make_due(slot)  # these messages do not come from a read, so no flush follows
            self._accumulator.partitions.pump()
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and the route would stop
            self._failed(error)
            return
        if hold.released and not hold.messages:
            del self._holds[route]
            self._gone()
        elif hold.messages and (hold.released or hold.allowance):
            self._schedule(route, hold)

    def _release_span(self, hold: _Hold, most: int) -> int:
        """Release up to ``most`` messages of the oldest span. Returns how many more this turn may release."""
        accumulator, messages = self._accumulator, hold.messages
        span = messages[0].span
        self._is_releasing = True
        try:
            with accumulator.within(span):
                while most and messages and messages[0].span is span and (hold.released or hold.allowance):
                    message = messages.popleft()
                    most -= 1
                    hold.allowance = max(0, hold.allowance - 1)
                    self._again(message)
                    accumulator.parked_messages -= 1
                    accumulator.buffered_bytes -= message.size
                    accumulator.release_span(span)
        finally:
            self._is_releasing = False
        return most
