"""The ledger balances whatever happens to messages, and notices a single one that is lost or counted twice."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.ledger import Ledger


class Fate(Enum):
    DELIVERED = "delivered"
    FILTERED = "filtered"
    DEAD_LETTERED = "dead_lettered"
    COPY = "copies"
    RETURNED = "returned"
    LOST = "lost"


@dataclass
class Session:
    """A data path of counts only: messages wait in a window until a batch of them meets its fate."""

    window: deque[int] = field(default_factory=deque)
    spool: deque[int] = field(default_factory=deque)
    next_message: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(lambda: len(self.window) + len(self.spool))

    def receive(self, count: int) -> None:
        for _ in range(count):
            self.next_message += 1
            self.window.append(self.next_message)
        self.ledger.received += count

    def recover(self, count: int) -> None:
        self.spool.extend(range(count))
        self.ledger.recovered += count

    def settle(self, fate: Fate, count: int) -> int:
        """A batch of at most ``count`` messages leaves the window; returns how many did."""
        count = min(count, len(self.window))
        for _ in range(count):
            self.window.popleft()
        setattr(self.ledger, fate.value, getattr(self.ledger, fate.value) + count)
        return count

    def replay(self, count: int) -> None:
        count = min(count, len(self.spool))
        for _ in range(count):
            self.spool.popleft()
        self.ledger.delivered += count


operations = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.integers(1, 500)),
        st.tuples(st.just("recover"), st.integers(1, 50)),
        st.tuples(st.just("replay"), st.integers(1, 50)),
        st.tuples(st.sampled_from(list(Fate)), st.integers(1, 500)),
    ),
    max_size=60,
)


def run(session: Session, steps: list[tuple[object, int]]) -> None:
    for step, count in steps:
        match step:
            case "receive":
                session.receive(count)
            case "recover":
                session.recover(count)
            case "replay":
                session.replay(count)
            case Fate():
                session.settle(step, count)
        assert session.ledger.imbalance() == 0, f"after {step} {count}: {session.ledger.snapshot()}"


@given(operations)
def test_balances_after_every_step_of_any_history(steps: list[tuple[object, int]]) -> None:
    run(Session(), steps)


@given(operations, operations, st.sampled_from(list(Fate)))
def test_one_message_that_vanishes_shows_for_ever(
    before: list[tuple[object, int]], after: list[tuple[object, int]], fate: Fate
) -> None:
    session = Session()
    run(session, before)
    session.receive(3)
    session.window.pop()  # the mutation: it leaves the window, and nothing is counted for it
    assert session.ledger.imbalance() == 1
    for step, count in after:
        if isinstance(step, Fate):
            session.settle(step, count)
    session.settle(fate, len(session.window))
    assert session.ledger.imbalance() == 1


@given(operations, st.sampled_from(list(Fate)))
def test_one_message_counted_twice_shows(before: list[tuple[object, int]], fate: Fate) -> None:
    session = Session()
    run(session, before)
    session.receive(1)
    moved = session.settle(fate, 1)
    setattr(session.ledger, fate.value, getattr(session.ledger, fate.value) + moved)  # the mutation
    assert session.ledger.imbalance() == -1


@pytest.mark.parametrize(
    "term", ["received", "recovered", "delivered", "filtered", "dead_lettered", "copies", "returned", "lost"]
)
def test_each_term_moves_the_imbalance(term: str) -> None:
    ledger = Ledger(lambda: 0)
    setattr(ledger, term, 5)
    assert ledger.imbalance() == (5 if term in {"received", "recovered"} else -5)


def test_in_flight_is_asked_for_at_each_reading_not_kept() -> None:
    window: list[int] = []
    ledger = Ledger(lambda: len(window))
    ledger.received = 2
    assert ledger.imbalance() == 2
    window += [1, 2]
    assert ledger.imbalance() == 0
    assert ledger.in_flight() == 2


def test_a_snapshot_reads_as_an_account_and_serialises() -> None:
    ledger = Ledger(lambda: 3)
    ledger.received, ledger.delivered, ledger.returned = 10, 6, 1
    snapshot = ledger.snapshot()
    assert snapshot.as_dict() == {
        "received": 10,
        "recovered": 0,
        "delivered": 6,
        "filtered": 0,
        "dead_lettered": 0,
        "copies": 0,
        "in_flight": 3,
        "returned": 1,
        "lost": 0,
        "imbalance": 0,
    }
    assert str(snapshot) == (
        "received 10 + recovered 0 = delivered 6 + filtered 0 + dead-lettered 0"
        " + copies 0 + in flight 3 + returned 1 + lost 0 (imbalance 0)"
    )
