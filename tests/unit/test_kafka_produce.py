"""Requests with batches are written, and their answers read, as aiokafka does it."""

import pytest
from aiokafka.protocol.produce import ProduceRequest_v8, ProduceResponse_v8
from hypothesis import given
from hypothesis import strategies as st

from bridge.kafka.produce import Produce, named_records

STORED: tuple[object, ...] = (3, 0, 17, -1, 5, [], None)
FAULTS: dict[str, tuple[object, ...]] = {
    "records named": (0, 87, -1, -1, -1, [(2, "no key"), (4, None)], "of a wrong form"),
    "a message alone": (1, 2, -1, -1, -1, [], "corrupt"),
    "an empty message": (1, 2, -1, -1, -1, [], ""),
    "an error without a word": (1, 6, -1, -1, -1, [], None),
}


def _answer() -> type[ProduceResponse_v8]:
    """The kind of answer to a request to a broker that has version 8."""
    return Produce(None, -1, 5_000, []).prepare({0: (0, 13)}).RESPONSE_TYPE  # type: ignore[no-any-return]


BATCHES = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.binary(max_size=200).map(bytearray)), max_size=5)


@given(
    topics=st.lists(st.tuples(st.text(max_size=249), BATCHES), max_size=4),
    timeout_ms=st.integers(0, 2**31 - 1),
    number=st.integers(0, 2**31 - 1),
    client_id=st.text(max_size=40),
)
def test_a_request_is_written_as_aiokafka_writes_it(
    topics: list[tuple[str, list[tuple[int, bytearray]]]], timeout_ms: int, number: int, client_id: str
) -> None:
    theirs = ProduceRequest_v8(None, -1, timeout_ms, topics)
    ours = Produce(None, -1, timeout_ms, topics).prepare({0: (0, 13)})
    assert ours.encode() == theirs.encode()
    header = theirs.build_request_header(number, client_id)
    assert ours.build_request_header(number, client_id).encode() == header.encode()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_answer_is_read_whole_between_answers_of_another_length(fault: tuple[object, ...]) -> None:
    topics = [("orders", [STORED, fault, (4, *STORED[1:])]), ("bills", [fault]), ("none", [])]
    raw = ProduceResponse_v8(topics, 250).encode()

    read = _answer().decode(raw)

    assert (read.topics, read.throttle_time_ms) == (topics, 250)


def test_an_answer_that_ends_early_is_refused() -> None:
    raw = ProduceResponse_v8([("orders", [STORED])], 0).encode()
    for length in range(len(raw)):
        with pytest.raises(ValueError):  # noqa: PT011 - aiokafka's own, in words that are not ours
            _answer().decode(raw[:length])


def test_a_record_that_the_batch_does_not_have_is_not_at_fault() -> None:
    errors = [(4, None), (2, "no key"), (2, "twice"), (-1, None), (5, "beyond")]
    assert named_records((-1, 5, errors, None), 5) == (2, 4)
    assert named_records((-1, 5, [(7, "beyond")], None), 5) == ()
    assert named_records((-1,), 5) == (), "before version 8"
