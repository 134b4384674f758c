"""The account of numbered messages agrees with a plain set of them."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.devices.account import Arrival, Seen, Tally


@given(st.lists(st.integers(0, 30)), st.integers(0, 40))
def test_seen_numbers_are_those_of_a_set(numbers: list[int], count: int) -> None:
    seen, plain = Seen(), set[int]()
    for number in numbers:
        arrival = seen.add(number)
        if number in plain:
            assert arrival is Arrival.COPY
        else:
            assert arrival is (Arrival.BEHIND if number < max(plain, default=-1) else Arrival.NEXT)
        plain.add(number)
    assert [number for number in range(count) if number in seen] == sorted(plain & set(range(count)))
    assert list(seen.absent(count)) == sorted(set(range(count)) - plain)
    assert seen.found(count) == len(plain & set(range(count)))


def test_a_tally_counts_every_record_once() -> None:
    tally: Tally[str] = Tally()
    for number in (0, 2, 1, 1, 10**15, -1):
        tally.add("pump", number)
    tally.add_unreadable()
    assert (tally.records, tally.unreadable, tally.distinct, tally.duplicates, tally.reordered) == (7, 2, 4, 1, 1)
    assert tally.missing("pump", 6, lambda number: number != 4) == [3, 5]
    assert tally.missing("valve", 2, lambda _number: True) == [0, 1]
