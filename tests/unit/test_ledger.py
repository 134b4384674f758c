"""The ledger balances whatever happens to messages, and notices a single one that is lost or counted twice."""

import pytest

from bridge.ledger import Ledger


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


def test_a_snapshot_reads_as_an_account() -> None:
    ledger = Ledger(lambda: 3)
    ledger.received, ledger.delivered, ledger.returned = 10, 6, 1
    assert str(ledger.snapshot()) == (
        "received 10 + recovered 0 = delivered 6 + filtered 0 + dead-lettered 0"
        " + copies 0 + in flight 3 + returned 1 + lost 0 (imbalance 0)"
    )
