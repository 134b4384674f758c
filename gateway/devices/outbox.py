"""What a device has still to send or to see acknowledged, and its own account of it. Decides without I/O."""

from __future__ import annotations

__all__ = ["DeviceLedger", "Message", "Outbox", "ledger_as_json", "ledger_from_json"]

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_SUCCESS_BELOW = 0x80  # MQTT 5.0, 2.4: reason codes from 0x80 on are failures
_NO_MATCHING_SUBSCRIBERS = 0x10


@dataclass(frozen=True, slots=True)
class Message:
    """One message under the device's own sequence number, which begins at 0 and has no gaps."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class DeviceLedger:
    """What one device did: it sent ``0 … published - 1``, and all but ``unacknowledged`` were acknowledged to it."""

    published: int
    unacknowledged: frozenset[int] = frozenset()

    @property
    def acknowledged(self) -> int:
        return self.published - len(self.unacknowledged)

    def has_acknowledged(self, sequence: int) -> bool:
        return 0 <= sequence < self.published and sequence not in self.unacknowledged


def ledger_as_json(ledger: Mapping[str, DeviceLedger]) -> dict[str, Any]:
    """The ledgers of all devices in JSON's types, for the way to another process."""
    return {device: [entry.published, sorted(entry.unacknowledged)] for device, entry in ledger.items()}


def ledger_from_json(devices: Mapping[str, Any]) -> dict[str, DeviceLedger]:
    """What :func:`ledger_as_json` gave."""
    return {device: DeviceLedger(published, frozenset(left_open)) for device, (published, left_open) in devices.items()}


class Outbox:
    """Messages in the order they were taken, until each is acknowledged; at least once, whatever the connection does.

    The owner asks :meth:`head` what to send, says :meth:`sent` under which packet id, and passes on acknowledgements
    and the loss of the connection. After a loss everything unacknowledged is sent again, in order, before anything new.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Message] = deque()
        self._in_flight: dict[int, Message] = {}
        self._taken = 0
        self.published = 0
        """Distinct messages sent at least once: those numbered below this."""
        self.acknowledged = 0
        self.unheard = 0
        """Acknowledged although nobody was subscribed (reason 0x10): the broker threw these away."""
        self.refused = 0
        """Acknowledgements that said no (reason 0x80 and above); such messages are sent again."""

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def empty(self) -> bool:
        """True when everything taken has been acknowledged."""
        return not self._waiting and not self._in_flight

    @property
    def full(self) -> bool:
        """True when no further message should be taken: the device's memory is used up."""
        return len(self._waiting) >= self._limit

    def next_sequence(self) -> int:
        """The number the next :meth:`take` must carry."""
        return self._taken

    def take(self, payload: bytes) -> None:
        """Appends a message under :meth:`next_sequence`."""
        self._waiting.append(Message(self._taken, payload))
        self._taken += 1

    def head(self) -> Message | None:
        """The message to send next, if any."""
        return self._waiting[0] if self._waiting else None

    def sent(self, packet_id: int) -> None:
        """The head was written to the connection under this packet id."""
        message = self._waiting.popleft()
        self._in_flight[packet_id] = message
        self.published = max(self.published, message.sequence + 1)

    def settle(self, packet_id: int, reason: int) -> bool:
        """An acknowledgement came. Returns False if it refused the message, which is then the head again."""
        message = self._in_flight.pop(packet_id)
        if reason >= _SUCCESS_BELOW:
            self.refused += 1
            self._put_back([message])
            return False
        self.acknowledged += 1
        self.unheard += reason == _NO_MATCHING_SUBSCRIBERS
        return True

    def connection_lost(self) -> None:
        """Packet ids mean nothing any more: everything in flight goes back before what waits."""
        self._put_back(list(self._in_flight.values()))
        self._in_flight.clear()

    def ledger(self) -> DeviceLedger:
        """The account so far. Messages taken and never sent are in none of its numbers."""
        unsettled = (message.sequence for message in (*self._in_flight.values(), *self._waiting))
        return DeviceLedger(self.published, frozenset(number for number in unsettled if number < self.published))

    def _put_back(self, messages: list[Message]) -> None:
        self._waiting = deque(sorted((*messages, *self._waiting), key=lambda message: message.sequence))
