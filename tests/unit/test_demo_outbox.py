"""The device's outbox: at least once, in order, whatever the connection does."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.devices.outbox import DeviceLedger, Outbox


def filled(count: int) -> Outbox:
    outbox = Outbox(limit=1000)
    for number in range(count):
        outbox.take(b"%d" % number)
    return outbox


def send(outbox: Outbox, packet_id: int) -> int:
    message = outbox.head()
    outbox.sent(packet_id)
    return message.sequence


def test_after_a_lost_connection_the_unacknowledged_go_first_and_in_order() -> None:
    outbox = filled(5)
    for packet_id in (1, 2, 3):
        send(outbox, packet_id)
    outbox.settle(2, 0)
    outbox.connection_lost()
    assert outbox.in_flight == 0
    assert [send(outbox, packet_id) for packet_id in (1, 2, 3, 4)] == [0, 2, 3, 4]
    assert outbox.published == 5


def test_a_refused_message_is_sent_again_before_later_ones() -> None:
    outbox = filled(3)
    send(outbox, 1)
    send(outbox, 2)
    assert not outbox.settle(1, 0x97)  # quota exceeded
    assert outbox.refused == 1
    assert outbox.acknowledged == 0
    assert send(outbox, 3) == 0


def test_no_matching_subscribers_counts_as_acknowledged_and_as_unheard() -> None:
    outbox = filled(1)
    send(outbox, 1)
    assert outbox.settle(1, 0x10)
    assert outbox.acknowledged == 1
    assert outbox.unheard == 1


def test_a_full_outbox_says_so() -> None:
    outbox = Outbox(limit=2)
    outbox.take(b"")
    assert not outbox.full
    outbox.take(b"")
    assert outbox.full


@given(st.lists(st.sampled_from(["take", "send", "ack", "refuse", "lose"]), max_size=200), st.data())
def test_every_message_is_acknowledged_or_still_there(actions: list[str], data: st.DataObject) -> None:
    """Nothing is forgotten, first sendings are in order, and the ledger agrees with an independent one."""
    outbox, packet_ids = Outbox(limit=1000), itertools.count(1)
    in_flight: dict[int, int] = {}
    acknowledged: set[int] = set()
    first_sent: list[int] = []
    for action in actions:
        if action == "take":
            outbox.take(b"")
        elif action == "send" and outbox.head() is not None:
            packet_id = next(packet_ids)
            in_flight[packet_id] = send(outbox, packet_id)
            if in_flight[packet_id] not in first_sent:
                first_sent.append(in_flight[packet_id])
        elif action in ("ack", "refuse") and in_flight:
            packet_id = data.draw(st.sampled_from(sorted(in_flight)))
            number = in_flight.pop(packet_id)
            if outbox.settle(packet_id, 0 if action == "ack" else 0x80):
                acknowledged.add(number)
        elif action == "lose":
            outbox.connection_lost()
            in_flight.clear()
        assert (outbox.in_flight, outbox.acknowledged) == (len(in_flight), len(acknowledged))
    assert first_sent == list(range(outbox.published))
    assert outbox.ledger() == DeviceLedger(len(first_sent), frozenset(set(first_sent) - acknowledged))
    while outbox.head() is not None:
        packet_id = next(packet_ids)
        in_flight[packet_id] = send(outbox, packet_id)
    for packet_id in in_flight:
        outbox.settle(packet_id, 0)
    assert outbox.empty
    assert outbox.ledger().unacknowledged == frozenset()
    assert outbox.head() is None
