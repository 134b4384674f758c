"""The account of the canary's messages. Pure: events and times go in.

A message is sent, then received in time or lost. A lost message that arrives is late; a second arrival is a duplicate.
So sent = received + lost + waiting, always.
"""

from collections import OrderedDict
from dataclasses import dataclass

from gateway.base.lookout_metrics import LEGS, Leg
from gateway.devices.account import Arrival, Seen


@dataclass(frozen=True, slots=True)
class Lost:
    """A message that was not read back in time: its last leg, and the known reason."""

    number: int
    leg: Leg
    why: str


@dataclass(slots=True)
class _Message:
    sent_ns: int
    leg: Leg = "publish"
    why: str = ""
    passed_over: bool = False  # sent before reading began, so perhaps never read


class CanaryAccount:
    """The account of one life. ``timeout_ns`` is how long a message may take."""

    def __init__(self, timeout_ns: int) -> None:
        self.sent = self.received = self.late = self.duplicates = 0
        self.lost: dict[Leg, int] = dict.fromkeys(LEGS, 0)
        self.success: bool | None = None  # whether the last judged message arrived in time
        self.failures = 0  # in a row
        self.last_lost: Lost | None = None
        self.last_ns: int | None = None  # how long the last received message took
        self._timeout_ns = timeout_ns
        self._waiting: OrderedDict[int, _Message] = OrderedDict()  # by number, oldest first
        self._seen = Seen()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def send(self, now_ns: int) -> int:
        """The number of the next message, which is about to be published."""
        number = self.sent
        self.sent += 1
        self._waiting[number] = _Message(now_ns)
        return number

    def advance(self, number: int, leg: Leg) -> None:
        if (message := self._waiting.get(number)) is not None:
            message.leg = leg

    def failed(self, number: int, why: str) -> Lost | None:
        """Call the message lost on its present leg; None if it was judged before."""
        if (message := self._waiting.pop(number, None)) is None:
            return None
        message.why = why
        return self._lose(number, message)

    def arrived(self, number: int, now_ns: int) -> int | None:
        """The message was read back. Returns how long it took, or None when it is late or a duplicate."""
        is_copy = self._seen.add(number) is Arrival.COPY
        message = self._waiting.pop(number, None)
        if message is None:
            self.duplicates += is_copy
            self.late += not is_copy
            return None
        self.received += 1
        self.success = True
        self.failures = 0
        self.last_ns = now_ns - message.sent_ns
        return self.last_ns

    def passed_over(self) -> None:
        """The waiting messages may be at offsets that are never read."""
        for message in self._waiting.values():
            message.passed_over = True

    def expire(self, now_ns: int, *, unreadable: str | None = None, unconnected: str = "") -> list[Lost]:
        """The messages that took too long.

        ``unconnected`` says why there is no MQTT connection now, if so, ``unreadable`` why Kafka cannot be read. An
        acknowledged message may then be in Kafka nevertheless.
        """
        found = []
        while self._waiting:
            number, message = next(iter(self._waiting.items()))
            if now_ns - message.sent_ns < self._timeout_ns:
                break
            del self._waiting[number]
            unseen = "it was sent before Kafka could be read" if message.passed_over else unreadable
            if unseen is not None and message.leg == "kafka":
                message.leg, message.why = "read", unseen
            elif message.leg == "publish":
                message.why = unconnected
            found.append(self._lose(number, message))
        return found

    def _lose(self, number: int, message: _Message) -> Lost:
        """Count it as lost on its present leg."""
        self.lost[message.leg] += 1
        self.success = False
        self.failures += 1
        self.last_lost = Lost(number, message.leg, message.why)
        return self.last_lost
