"""A device's unsent and unacknowledged messages, and its counts. Decides without I/O."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SUCCESS_BELOW = 0x80  # MQTT 5.0, 2.4: reason codes from 0x80 on are failures
_NO_MATCHING_SUBSCRIBERS = 0x10


@dataclass(frozen=True, slots=True)
class Message:
    """One message with the device's own sequence number, which begins at 0 and has no gaps."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """The counts of one device: it sent ``0 … published - 1``; all except ``unacknowledged`` were acknowledged."""

    published: int
    unacknowledged: frozenset[int] = frozenset()

    @property
    def acknowledged(self) -> int:
        return self.published - len(self.unacknowledged)

    def has_acknowledged(self, sequence: int) -> bool:
        return 0 <= sequence < self.published and sequence not in self.unacknowledged


def ledger_as_json(ledger: Mapping[str, DeviceLedger]) -> dict[str, Any]:
    """The ledgers of all devices in JSON's types, for another process."""
    return {device: [entry.published, sorted(entry.unacknowledged)] for device, entry in ledger.items()}


def ledger_from_json(devices: Mapping[str, Any]) -> dict[str, DeviceLedger]:
    return {device: DeviceLedger(published, frozenset(left_open)) for device, (published, left_open) in devices.items()}


class Outbox:
    """Messages in order, each kept until it is acknowledged: delivery is at least once.

    The owner sends :meth:`head`, calls :meth:`sent` with its packet id, and reports acknowledgements and a lost
    connection. After a loss all unacknowledged messages are sent again, in order, before new ones.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Message] = deque()  # to be sent, perhaps again
        self._in_flight: dict[int, Message] = {}  # by packet id
        self._taken = 0  # messages so far, so the next one's number
        self.published = 0
        """Messages with lower numbers were sent at least once."""
        self.acknowledged = 0
        self.unheard = 0
        """Acknowledged without a subscriber (reason 0x10): the broker dropped these."""
        self.refused = 0
        """Refusals (reason 0x80 and above); such messages are sent again."""

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def empty(self) -> bool:
        """Whether all taken messages are acknowledged."""
        return not self._waiting and not self._in_flight

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self._limit

    def take(self, payload: bytes) -> None:
        """Append a message of the device, to be sent."""
        self._waiting.append(Message(self._taken, payload))
        self._taken += 1

    def head(self) -> Message | None:
        """The message to send next, if any."""
        return self._waiting[0] if self._waiting else None

    def sent(self, packet_id: int) -> None:
        """Note that the head was written with this packet id."""
        message = self._waiting.popleft()
        self._in_flight[packet_id] = message
        self.published = max(self.published, message.sequence + 1)

    def settle(self, packet_id: int, reason: int) -> bool:
        """Note an acknowledgement. Returns False for a refusal: the message is then the head again."""
        message = self._in_flight.pop(packet_id)
        if reason >= _SUCCESS_BELOW:
            self.refused += 1
            self._put_back([message])
            return False
        self.acknowledged += 1
        self.unheard += reason == _NO_MATCHING_SUBSCRIBERS
        return True

    def connection_lost(self) -> None:
        """Note a lost connection: messages in flight return to the front. Their packet ids become invalid."""
        self._put_back(list(self._in_flight.values()))
        self._in_flight.clear()

    def ledger(self) -> DeviceLedger:
        """The counts so far, without messages that were never sent."""
        unsettled = (message.sequence for message in (*self._in_flight.values(), *self._waiting))
        return DeviceLedger(self.published, frozenset(number for number in unsettled if number < self.published))

    def _put_back(self, messages: list[Message]) -> None:
        self._waiting = deque(sorted((*messages, *self._waiting), key=lambda message: message.sequence))
