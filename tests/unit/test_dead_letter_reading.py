"""What the dead-letter topic holds is put together to what was written, whatever lies between its parts."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import wire
from bridge.dead_letters.reading import Assembler, LoggedRecord, Place
from bridge.errors import BridgeError
from bridge.message import Properties
from bridge.ports import StoredRecord
from bridge.produce.dead_letter import PART_BYTES, DeadLetterDraft, stored_letters
from bridge.routing.headers import property_headers
from bridge.wire import DeadLetterReason
from tests.unit.data_path import DEAD_LETTERS, Path
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import manual_time

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PROPERTIES = st.builds(
    Properties, user=st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple), content_type=st.none() | TEXT,
    response_topic=st.none() | TEXT, correlation_data=st.none() | st.binary(max_size=8),
    payload_format=st.integers(0, 1), message_expiry=st.none() | st.integers(0, 2**32 - 1),
)  # fmt: skip


def logged(records: list[StoredRecord], *, topic: str = "dead", partition: int = 0) -> list[LoggedRecord]:
    return [
        LoggedRecord(Place(topic, partition, offset), r.timestamp_ms, r.key, r.value, r.headers)
        for offset, r in enumerate(records)
    ]


def written(*messages: tuple[bytes | None, list[tuple[str, bytes]]]) -> list[StoredRecord]:
    """The records that dead letters of these payloads and headers become."""
    kafka = FakeKafka(batch_bytes=1 << 22)
    dead = kafka.topic(DEAD_LETTERS)

    @manual_time
    async def write() -> None:
        async with Path(kafka, max_record_bytes=1 << 20) as path:
            for payload, headers in messages:
                letter = DeadLetterDraft(
                    "route", 1, b"k", payload, headers, DeadLetterReason.MISSING_VALUE, BridgeError("No value."),
                    1_763_683_200_123, "telemetry",
                )  # fmt: skip
                path.dead_letters.bury(letter)
                path.took(b"1")
            await path.drained()

    write()
    return dead.records()


@given(PROPERTIES, st.none() | st.binary(max_size=50), st.sampled_from([0, 1, 2]), st.booleans())
def test_a_message_comes_back_with_all_it_had(
    properties: Properties, payload: bytes | None, qos: int, retain: bool
) -> None:
    headers = [(wire.MQTT_TOPIC, "devices/ü".encode()), (wire.MQTT_QOS, b"%d" % qos)]
    headers += [(wire.MQTT_RETAIN, b"1")] * retain + property_headers(properties)
    (record,) = written((payload, headers))
    letter = Assembler().take(logged([record])[0])
    assert letter.complete
    assert (letter.value, letter.properties(), letter.mqtt_topic) == (payload, properties, "devices/ü")
    assert letter.flags == qos << 1 | retain
    assert list(letter.headers) == headers
    assert (letter.reason, letter.error_class, letter.error) == ("missing_value", "BridgeError", "No value.")
    assert (letter.attempts, letter.first_seen_ms, letter.route) == (0, 1_763_683_200_123, "route")
    assert (letter.gateway, letter.kafka_topic, letter.device) == ("gw", "telemetry", None)
    assert "missing_value" in repr(letter)


@pytest.mark.parametrize("seed", range(10))
def test_parts_of_several_are_told_apart_however_they_lie_and_however_often(seed: int) -> None:
    rnd = random.Random(seed)
    sizes = 3 * PART_BYTES, 10, 2 * PART_BYTES + 1, 4 * PART_BYTES, 1
    payloads = [bytes([n]) * size for n, size in enumerate(sizes)]
    floods = [[(f"mqtt.user.{n}", b"." * 1000) for n in range(count)] for count in (0, 3, 200, 2, 80)]
    alone = [written(message) for message in zip(payloads, floods, strict=True)]
    waiting = [list(records) for records in alone]
    mixed: list[StoredRecord] = []
    while any(waiting):
        records = rnd.choice([records for records in waiting if records])
        mixed.append(records.pop(0))
        if rnd.random() < 0.3:  # a batch that was written twice
            mixed.append(mixed[-1])
    assembler = Assembler()
    found = [letter for record in logged(mixed) if (letter := assembler.take(record)) is not None]
    assert list(assembler.rest()) == [], "what was written twice is not taken for one that lacks parts"
    whole = {letter.value: letter for letter in found}
    for payload, flood in zip(payloads, floods, strict=True):
        assert list(whole[payload].headers) == flood
        assert whole[payload].size == len(payload)
        assert [place.offset for place in whole[payload].places] == sorted(p.offset for p in whole[payload].places)


def test_without_values_only_their_sizes_are_kept() -> None:
    records = logged(written((b"." * 3 * PART_BYTES, []), (b"small", [])))
    assembler = Assembler(keep_values=False)
    letters = [letter for record in records if (letter := assembler.take(record)) is not None]
    assert [(letter.value, letter.size, letter.parts) for letter in letters] == [
        (None, 3 * PART_BYTES, 3),
        (None, 5, 1),
    ]


def test_one_whose_first_parts_have_expired_is_said_to_be_incomplete() -> None:
    records = logged(written((b"." * 3 * PART_BYTES, [])))
    assembler = Assembler()
    assert [assembler.take(record) for record in records[1:]] == [None, None]
    (letter,) = assembler.rest()
    assert not letter.complete
    assert (len(letter.places), letter.parts, letter.place.offset) == (2, 3, 1)
    assert list(assembler.rest()) == []


@pytest.mark.parametrize("size", [1, 3 * PART_BYTES])
def test_a_message_s_own_headers_are_not_taken_for_its_dead_letter_s(size: int) -> None:
    """A command may be a copy of a dead letter, with its headers."""
    own = [("dlq.reason", b"odd"), ("dlq.part", b"1/2"), ("dlq.part_id", b"7"), ("dlq.kafka_topic", b"elsewhere")]
    records = written((b"." * size, own))
    assembler = Assembler()
    (letter,) = [letter for record in logged(records) if (letter := assembler.take(record)) is not None]
    assert (letter.reason, letter.kafka_topic, letter.size) == ("missing_value", "telemetry", size)
    assert list(stored_letters(records)) == [("route", "missing_value")]


def test_what_is_no_dead_letter_is_passed_over() -> None:
    assert Assembler().take(LoggedRecord(Place("dead", 0, 0), 1, None, b"x", [("dlq.part", b"1/2")])) is None


def test_numbers_that_are_none_do_no_harm() -> None:
    """The topic is Kafka's: others may write to it."""
    headers = [
        (wire.DLQ_REASON, b"odd"), (wire.DLQ_ATTEMPTS, b"many"), (wire.DLQ_FIRST_SEEN_MS, None), (wire.DLQ_PART, b"x"),
        (wire.MQTT_MESSAGE_EXPIRY, b"-1"),
    ]  # fmt: skip
    letter = Assembler().take(LoggedRecord(Place("dead", 0, 3), 42, None, None, headers))
    assert (letter.attempts, letter.first_seen_ms, letter.complete, letter.route) == (0, 42, True, "")
    assert letter.properties() == Properties()
    assert letter.flags == 0
    assert letter.mqtt_topic is None
