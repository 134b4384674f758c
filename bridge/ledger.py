"""The ledger: at any moment every received MQTT message is in exactly one of its terms.

    received + recovered = delivered + filtered + dead_lettered + copies + in_flight + returned + lost

All terms count MQTT messages, not Kafka records: one message may become several records, and is delivered when the
last of them is durable. ``in_flight`` is counted where the messages wait, never computed as the rest: a remainder
would hide a lost message.

The sum holds between two steps of the event loop. The data path moves a message and its count in one step, without an
``await`` in between. Readers of the ledger run in the same loop.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """The terms at one moment, in messages. See :class:`Ledger` for what each of them means."""

    received: int
    recovered: int
    delivered: int
    filtered: int
    dead_lettered: int
    copies: int
    in_flight: int
    returned: int
    lost: int

    @property
    def imbalance(self) -> int:
        """Messages unaccounted for: above 0 some vanished, below 0 some counted twice; 0 is the only good answer."""
        taken = self.received + self.recovered
        placed = self.delivered + self.filtered + self.dead_lettered + self.copies
        return taken - placed - self.in_flight - self.returned - self.lost

    def as_dict(self) -> dict[str, int]:
        """The terms and the imbalance by name, ready for JSON."""
        return {**asdict(self), "imbalance": self.imbalance}

    def __str__(self) -> str:
        return (
            f"received {self.received} + recovered {self.recovered} = delivered {self.delivered}"
            f" + filtered {self.filtered} + dead-lettered {self.dead_lettered}"
            f" + copies {self.copies} + in flight {self.in_flight} + returned {self.returned} + lost {self.lost}"
            f" (imbalance {self.imbalance})"
        )


class Ledger:
    """Counts of one worker's messages; the data path adds to the attributes, once per batch.

    Written by the worker's event loop alone, read by the same loop. Each attribute only ever grows:

    - ``received``: messages taken from MQTT, redelivered ones again (each arrival is a message of its own here)
    - ``recovered``: messages the worker found in its spool and had not received in this life, and messages that it had
      counted as ``returned`` although the spool has them
    - ``delivered``: messages whose last record Kafka acknowledged with acks=all
    - ``filtered``: messages dropped on purpose (an interceptor, an expired message, no route)
    - ``dead_lettered``: messages whose dead letter Kafka acknowledged
    - ``copies``: repeated deliveries of QoS 2 messages that were received before: these are dropped
    - ``returned``: messages still unacknowledged when their connection ended: the broker has them and sends them
      again. A record of such a message that Kafka acknowledges later is not counted as delivered: its message has left
      the windows already.
    - ``lost``: messages that were acknowledged to MQTT and that a damaged spool disk destroyed, as the spool reported

    A message leaves the windows exactly when one of the last six is counted for it, in the same step.

    Args:
        in_flight: counts, at each call, the messages that wait in the windows (QoS 0 ones included) and in the spool.
            It must count them, not derive them from this ledger.
    """

    __slots__ = (
        "_in_flight", "copies", "dead_lettered", "delivered", "filtered", "lost", "received", "recovered", "returned",
    )  # fmt: skip

    def __init__(self, in_flight: Callable[[], int]) -> None:
        self._in_flight = in_flight
        self.received = 0
        self.recovered = 0
        self.delivered = 0
        self.filtered = 0
        self.dead_lettered = 0
        self.copies = 0
        self.returned = 0
        self.lost = 0

    def in_flight(self) -> int:
        """Messages waiting right now, as counted by the windows and the spool."""
        return self._in_flight()

    def snapshot(self) -> LedgerSnapshot:
        """All terms at this moment. Call it from the worker's loop: elsewhere the terms may be a step apart."""
        return LedgerSnapshot(
            received=self.received,
            recovered=self.recovered,
            delivered=self.delivered,
            filtered=self.filtered,
            dead_lettered=self.dead_lettered,
            copies=self.copies,
            in_flight=self._in_flight(),
            returned=self.returned,
            lost=self.lost,
        )

    def imbalance(self) -> int:
        """Messages unaccounted for at this moment; see :attr:`LedgerSnapshot.imbalance`."""
        return self.snapshot().imbalance

    def __repr__(self) -> str:
        return f"<Ledger {self.snapshot()}>"
