"""What became of each of the canary's messages. Pure: events and times go in.

A message is sent, then received in time or lost; what arrives after it was called lost is late, what arrives again is a
duplicate. So sent = received + lost + on the way, always.
"""

from __future__ import annotations

__all__ = ["LEGS", "CanaryAccount", "Leg", "Lost"]

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Literal

Leg = Literal["publish", "acknowledge", "kafka", "read"]
LEGS: Final[tuple[Leg, ...]] = ("publish", "acknowledge", "kafka", "read")

_REMEMBERED: Final = 10_000  # lost messages that may still come, late


@dataclass(frozen=True, slots=True)
class Lost:
    """A message that did not come back in time: the leg it stayed on, and what is known of the reason."""

    number: int
    leg: Leg
    why: str


@dataclass(slots=True)
class _Message:
    sent_ns: int
    leg: Leg = "publish"
    why: str = ""
    passed_over: bool = False  # sent before there was a place to read from


class CanaryAccount:
    """Of one life. ``timeout_ns`` is how long a message may take."""

    def __init__(self, timeout_ns: int) -> None:
        self.sent = self.received = self.late = self.duplicates = 0
        self.lost: dict[Leg, int] = dict.fromkeys(LEGS, 0)
        self.success: bool | None = None  # of the last message that was judged
        self.failures = 0  # in a row
        self.last_lost: Lost | None = None
        self.last_ns: int | None = None  # how long the last one that came took
        self._timeout_ns = timeout_ns
        self._waiting: OrderedDict[int, _Message] = OrderedDict()
        self._given_up: OrderedDict[int, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Messages on the way."""
        return len(self._waiting)

    def send(self, now_ns: int) -> int:
        """The number of the next message, which is about to be published."""
        number = self.sent
        self.sent += 1
        self._waiting[number] = _Message(now_ns)
        return number

    def advance(self, number: int, leg: Leg) -> None:
        """The message has come as far as this leg."""
        if (message := self._waiting.get(number)) is not None:
            message.leg = leg

    def failed(self, number: int, why: str) -> Lost | None:
        """The message goes no further than the leg that it is on: it is lost now; None if it was judged before."""
        if (message := self._waiting.pop(number, None)) is None:
            return None
        message.why = why
        return self._lose(number, message)

    def arrived(self, number: int, now_ns: int) -> int | None:
        """The message was read back; how long it took, or None when it is late or a duplicate."""
        message = self._waiting.pop(number, None)
        if message is None:
            if number in self._given_up:
                del self._given_up[number]
                self.late += 1
            else:
                self.duplicates += 1
            return None
        self.received += 1
        self.success = True
        self.failures = 0
        self.last_ns = now_ns - message.sent_ns
        return self.last_ns

    def passed_over(self) -> None:
        """What is on the way now may have been written where nobody reads."""
        for message in self._waiting.values():
            message.passed_over = True

    def expire(self, now_ns: int, *, unreadable: str | None = None) -> list[Lost]:
        """What has taken too long. ``unreadable`` says why Kafka cannot be read now, if it cannot: a message that MQTT
        has acknowledged may then be there all the same."""
        found = []
        while self._waiting:
            number, message = next(iter(self._waiting.items()))
            if now_ns - message.sent_ns < self._timeout_ns:
                break
            del self._waiting[number]
            unseen = "it was sent before Kafka could be read" if message.passed_over else unreadable
            if unseen is not None and message.leg == "kafka":
                message.leg, message.why = "read", unseen
            found.append(self._lose(number, message))
        return found

    def _lose(self, number: int, message: _Message) -> Lost:
        self.lost[message.leg] += 1
        self.success = False
        self.failures += 1
        self.last_lost = Lost(number, message.leg, message.why)
        self._given_up[number] = None
        if len(self._given_up) > _REMEMBERED:
            self._given_up.popitem(last=False)
        return self.last_lost
