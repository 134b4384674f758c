"""The account of commands: what became of those that were taken, and how many are in each state."""

from collections import Counter
from dataclasses import dataclass, field

from bridge.commands.command import IN_QUEUE, State
from bridge.commands.model import Status


@dataclass(slots=True)
class Account:
    """consumed = finished + waiting + under way + given up, in commands of this life.

    ``given_up`` are those of partitions that became another member's before they were finished.
    """

    consumed: int = 0
    given_up: int = 0
    finished: Counter[Status] = field(default_factory=Counter)
    unmatched: Counter[str] = field(default_factory=Counter)
    states: Counter[State] = field(default_factory=Counter)
    sent_again: int = 0
    deleted_unread: int = 0

    @property
    def waiting(self) -> int:
        return sum(self.states[state] for state in IN_QUEUE)

    @property
    def under_way(self) -> int:
        return sum(self.states.values()) - self.waiting

    @property
    def imbalance(self) -> int:
        """0, or the account is wrong."""
        return self.consumed - sum(self.finished.values()) - self.given_up - self.waiting - self.under_way
