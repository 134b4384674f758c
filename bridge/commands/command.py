"""One command, its states, and the queue of its device.

QUEUED ──▶ SENDING ──▶ SENT ──▶ DELIVERED ──▶ IN_PROGRESS ──▶ FINISHING
  ▲           │ │        └─────────────┴──────────────────────────▲
  ├───────────┘ └──▶ WAITING (for a subscriber) ──▶ SENDING       │
  └── the connection ended before an answer                       │
every state may go to FINISHING: its terminal status is on its way to Kafka
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from bridge.dead_letters.reading import Place

if TYPE_CHECKING:
    from bridge.commands.model import Status
    from bridge.commands.ports import Partition
    from bridge.commands.reading import Request


class State(StrEnum):
    """Where a command is. ``TRANSITIONS`` has what may follow."""

    QUEUED = "queued"  # in its device's queue
    WAITING = "waiting"  # first of its device's queue: nobody subscribes, or it may be too large; tried again later
    SENDING = "sending"  # the broker has not answered its PUBLISH
    SENT = "sent"  # the broker has it, and more is awaited
    DELIVERED = "delivered"  # the device has it, and an answer is awaited
    IN_PROGRESS = "in_progress"  # the device has answered 1xx
    FINISHING = "finishing"  # its terminal status is not in Kafka yet


IN_QUEUE: Final = frozenset({State.QUEUED, State.WAITING})
"""States of commands that are in the queue of their device."""

AWAITING: Final = frozenset({State.SENT, State.DELIVERED, State.IN_PROGRESS})
"""States that are timed, not sent again, after a restart."""

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.QUEUED: frozenset({State.SENDING, State.FINISHING}),
    State.WAITING: frozenset({State.QUEUED, State.FINISHING}),
    State.SENDING: frozenset({State.QUEUED, State.WAITING, State.SENT, State.IN_PROGRESS, State.FINISHING}),
    State.SENT: frozenset({State.DELIVERED, State.IN_PROGRESS, State.FINISHING}),
    State.DELIVERED: frozenset({State.IN_PROGRESS, State.FINISHING}),
    State.IN_PROGRESS: frozenset({State.FINISHING}),
    State.FINISHING: frozenset(),
}


@dataclass(slots=True, eq=False)
class Command:
    """A command that is not finished. The dispatcher alone changes it.

    Monotonic times: ``taken_ns`` is when it was read, ``due_ns`` when its next timer fires, ``deadline_ns`` when it is
    not sent any more. ``partition`` is shared by all commands of a partition: 100,000 may wait.
    """

    partition: Partition
    offset: int
    device: Device
    request: Request
    payload: bytes
    taken_ns: int
    deadline_ns: int
    state: State = State.QUEUED
    attempt: int = 0
    code: int | None = None  # the last reason code of the broker, or CUT
    pauses: int = 0  # how often it has waited since the device was last heard of
    due_ns: int = 0
    has_slot: bool = False  # it counts in ``device.under_way``
    shown: Status | None = None  # the last status that was written of it

    @property
    def place(self) -> Place:
        return Place(*self.partition, self.offset)

    @property
    def id(self) -> str:
        """The id that its record has, or its record's place."""
        return self.request.own_id or str(self.place)

    @property
    def bytes(self) -> int:
        """Bytes of payload and headers."""
        user = self.request.user
        return len(self.payload) + (sum(len(name) + len(value) for name, value in user) if user else 0)


@dataclass(slots=True, eq=False)
class Device:
    """The commands of a device that are not sent yet, in the order of their offsets, and the number under way."""

    name: str
    queue: list[Command] = field(default_factory=list)
    under_way: int = 0
    is_ready: bool = False  # it is in the line of devices that may send
    next_ns: int = 0  # when its rate allows the next command
