"""The sending side of the benchmark: no more in flight than the window, and no acknowledgement believed that must
not be.
"""

import pytest

from tests.bench import wire
from tests.bench.outflow import Outflow
from tests.bench.payloads import (
    PAYLOAD_BYTES,
    Stream,
    build_stream,
    device_topic,
    payload,
    sent_ns_of,
    seq_of,
    template,
)


@pytest.fixture(scope="module")
def stream() -> Stream:
    return build_stream(30, qos=1, period=10)


def puback(*packet_ids: int) -> bytes:
    return b"".join(b"\x40\x02" + packet_id.to_bytes(2, "big") for packet_id in packet_ids)


def send_all(flow: Outflow, step: int = 1 << 20) -> int:
    """Sends what the window allows, ``step`` bytes at a time; the number of messages that have left whole."""
    while chunk := flow.sendable()[:step]:
        flow.sent(len(chunk))
    return flow.sent_messages


def test_stream_packets_carry_their_number_topic_and_id(stream: Stream) -> None:
    packets = wire.PacketBuffer().feed(stream.data)
    assert [first for first, _body in packets] == [wire.PUBLISH | 2] * 30
    for seq, (_first, body) in enumerate(packets):
        topic = device_topic(seq)
        assert body[2 : 2 + len(topic)] == topic
        assert int.from_bytes(body[2 + len(topic) : 4 + len(topic)], "big") == seq % 10 + 1
        value = body[4 + len(topic) :]
        assert (len(value), seq_of(value)) == (PAYLOAD_BYTES, seq)


def test_stream_offsets_are_the_packets_boundaries(stream: Stream) -> None:
    assert stream.offsets[-1] == len(stream.data)
    assert wire.PacketBuffer().feed(stream.data[stream.offsets[7] : stream.offsets[8]])[0][0] == wire.PUBLISH | 2


def test_stream_whose_ids_do_not_fit_its_length_is_refused() -> None:
    with pytest.raises(ValueError, match="31 packets cannot go round 10 packet ids"):
        build_stream(31, qos=1, period=10)


def test_payload_keeps_the_moment_it_was_made() -> None:
    assert sent_ns_of(payload(3, template(3), sent_ns=123_456_789)) == 123_456_789


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_no_more_than_the_window_is_in_flight(stream: Stream, step: int) -> None:
    flow = Outflow(stream, 2, window=4)
    assert send_all(flow, step) == 4
    flow.received(puback(1, 2))
    assert send_all(flow, step) == 6


def test_window_never_exceeds_a_round_of_packet_ids(stream: Stream) -> None:
    assert send_all(Outflow(stream, 2, window=65_535)) == 10


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 64])
def test_the_same_bytes_arrive_whatever_the_pieces_acknowledgements_come_in(stream: Stream, piece: int) -> None:
    flow = Outflow(stream, 3, window=10)
    left = bytearray()
    acknowledgements = b""
    while not flow.done:
        while chunk := flow.sendable():
            left += chunk
            flow.sent(len(chunk))
        owed = flow.sent_messages - flow.acknowledged - (len(acknowledgements) + 3) // 4
        first = flow.acknowledged + (len(acknowledgements) + 3) // 4
        acknowledgements += puback(*((first + k) % 10 + 1 for k in range(owed)))
        flow.received(acknowledgements[:piece])
        acknowledgements = acknowledgements[piece:]
    assert bytes(left) == stream.data * 3
    assert (flow.acknowledged, flow.out_of_order) == (90, 0)


def test_other_packets_between_acknowledgements_come_back(stream: Stream) -> None:
    flow = Outflow(stream, 1, window=10)
    send_all(flow)
    assert flow.received(puback(1, 2) + wire.PINGREQ + puback(3)) == [(0xC0, b"")]
    assert flow.acknowledged == 3


@pytest.mark.parametrize(("ordered", "sent", "acknowledged", "error"), [
    (True, 10, [2], "packet id 2 while 1 was due"),
    (True, 10, [1, 1], "packet id 1, which is not in flight"),
    (False, 10, [1, 1], "packet id 1, which is not in flight"),
    (True, 1, [1, 2], "2 messages acknowledged, but only 1 sent"),
], ids=["out of order", "twice", "twice, without order", "not sent"])  # fmt: skip
def test_acknowledgement_that_cannot_be_is_an_error(
    stream: Stream, ordered: bool, sent: int, acknowledged: list[int], error: str
) -> None:
    flow = Outflow(stream, 1, window=10, ordered=ordered)
    flow.sent(stream.offsets[sent])
    *good, last = acknowledged
    flow.received(puback(*good))
    with pytest.raises(wire.WireError, match=error):
        flow.received(puback(last))


def test_acknowledgements_out_of_order_are_counted_otherwise(stream: Stream) -> None:
    flow = Outflow(stream, 1, window=10, ordered=False)
    send_all(flow)
    flow.received(puback(3, 2))
    assert flow.acknowledged == 0
    assert send_all(flow) == 10
    flow.received(puback(1))
    assert (flow.acknowledged, flow.out_of_order) == (3, 2)
    assert send_all(flow) == 13


def test_refusing_reason_code_is_an_error(stream: Stream) -> None:
    flow = Outflow(stream, 1, window=10)
    send_all(flow)
    flow.received(b"\x40\x03\x00\x01\x10")  # no matching subscribers: a success
    assert flow.acknowledged == 1
    with pytest.raises(wire.WireError, match="reason code 0x97"):
        flow.received(b"\x40\x04\x00\x02\x97\x00")


def test_rest_of_a_packet_ends_at_its_boundary(stream: Stream) -> None:
    flow = Outflow(stream, 2, window=10)
    assert len(flow.rest_of_packet()) == 0
    flow.sent(10)
    assert len(flow.rest_of_packet()) == stream.offsets[1] - 10
    flow.sent(stream.offsets[1] - 10)
    assert len(flow.rest_of_packet()) == 0
