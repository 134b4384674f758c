"""Protocols of commands: the group's listener, the MQTT side, dead letters. Implementations match by shape.

All belong to the event loop's thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from bridge.commands.model import StatusRecord
    from bridge.commands.reading import BadCommandError
    from bridge.dead_letters.reading import LoggedRecord

Partition = tuple[str, int]
"""A Kafka topic and a partition's number."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset of a partition, and the text that was committed with it."""

    offset: int
    metadata: str


class PartitionListener(Protocol):
    """Told about the partitions of this member."""

    def assigned(self, partitions: Mapping[Partition, Committed | None]) -> None:
        """These partitions are this member's, with what was committed of each (None: nothing). Records come from the
        committed offset on; without one from the first record that Kafka has. Does not block."""

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """These partitions are about to be another member's: finish, and commit. The group waits for
        the return; take at most 5 s. Other partitions go on meanwhile. ``lost`` may come before the return."""

    def lost(self, partitions: Collection[Partition]) -> None:
        """These partitions may already be another member's: nothing can be committed. Does not block."""

    def missed(self, partition: Partition, first: int, end: int) -> None:
        """Kafka deleted the records from ``first`` to before ``end`` unread; reading goes on at ``end``. Does not
        block."""


class Clock(Protocol):
    """Two views of now."""

    def now_ns(self) -> int:
        """Monotonic."""

    def now_ms(self) -> int:
        """Since 1970."""


class Graveyard(Protocol):
    """Takes records that can never be commands."""

    def bury(self, record: LoggedRecord, error: BadCommandError, stored: Callable[[], None]) -> None:
        """Write a dead letter; ``stored`` is called once Kafka has it. Does not block."""


class Outgoing(NamedTuple):
    """A PUBLISH. ``expiry_s`` and what follows it are properties of MQTT 5, left out for MQTT 3.1.1."""

    topic: str
    payload: bytes
    qos: int
    expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user: Sequence[tuple[str, str]] = ()


Published = Callable[[int | None], None]
"""Called once for each PUBLISH: with the reason code of PUBACK, or of PUBREC once PUBCOMP came (0 for QoS 0 when it was
written to the socket, and for brokers of MQTT 3.1.1); with None when the connection ended before, and nobody knows
whether the broker has it; or with DENIED or CUT."""

DENIED: Final = -1
"""For the first unanswered PUBLISH at a DISCONNECT 0x87: EMQX refuses it (``deny_action = disconnect``), or the login
has expired."""

CUT: Final = -2
"""For the first unanswered PUBLISH at any other end of the connection, of which it may be the reason: brokers answer in
order, and one of MQTT 3.1.1 tells nobody its largest packet."""


class CommandLink(Protocol):
    """The MQTT connection that commands leave by. It reconnects by itself."""

    @property
    def room(self) -> int:
        """How many PUBLISH packets may be given to it now; 0 while not connected. The broker's receive maximum bounds
        it [MQTT-4.9.0-1]."""

    def publish(self, message: Outgoing, published: Published) -> None:
        """Send. Only while ``room`` is above 0. Does not block. ``published`` is never called from within.

        Raises ValueError, with a sentence, for a message the broker would end the connection for (above its maximum
        packet size or maximum QoS), which is not sent."""

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever ``room`` has risen."""


class StatusSink(Protocol):
    """Writes the status topic."""

    def write(self, partition: int, record: StatusRecord, stored: Callable[[int], None]) -> None:
        """Queue a record for a partition, behind those before it; ``stored`` is called, in order, once Kafka has it
        (acks=all), with its offset, or -1 when Kafka does not say it. Does not block. What Kafka does not take is tried
        until it does; a record that it will never take is counted, logged, and passes for stored."""

    def drop(self, partition: Partition) -> None:
        """Forget what is queued for the commands of a topic's partition: another member owns it. What is under way may
        still be stored and called, and is not tried again; nothing of the rest is called any more."""

    @property
    def waiting(self) -> int:
        """Records that Kafka has not acknowledged yet."""
