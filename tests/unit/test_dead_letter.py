"""Dead letters keep every byte, say why, take their message's place in the spans, and are never too large."""

import asyncio

import pytest

from bridge import wire
from bridge.errors import BridgeError, PoisonedError
from bridge.ports import StoredRecord
from bridge.produce.accumulator import Slot
from bridge.produce.dead_letter import HEADER_BYTES, KEY_BYTES, PART_BYTES, DeadLetterDraft
from bridge.produce.partitioner import partition_for
from bridge.wire import DeadLetterReason
from config.settings import RouteSettings
from tests.unit.data_path import DEAD_LETTERS, Path
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import in_manual_time

ERROR = BridgeError("The template found no value.")


def bury(path: Path, value: bytes | None, **options: object) -> Slot:
    arguments: dict[str, object] = {
        "route": path.route, "qos": 1, "first_seen_ms": 1_763_683_200_123, "key": b"k", "value": value, "headers": [],
        "reason": DeadLetterReason.MISSING_VALUE, "error": ERROR, **options,
    }  # fmt: skip
    slot = path.dead_letters.bury(DeadLetterDraft(**arguments))  # type: ignore[arg-type]
    path.took(b"%d" % path.ledger.received)
    return slot


def original_headers(records: list[StoredRecord]) -> list[tuple[str, bytes | None]]:
    """The headers of a message, put together from its parts."""
    ours = ("dlq.", "gateway.")
    return [pair for record in records for pair in record.headers if not pair[0].startswith(ours)]


async def test_a_message_that_never_became_a_record_is_buried_and_released() -> None:
    async with Path() as path:
        bury(path, b"payload", headers=[("mqtt.topic", b"x")], kafka_topic="t")
        assert path.balanced()
        await path.drained()
        assert path.owner.released == [b"0"]
        assert path.ledger.dead_lettered == 1
        assert path.dead == [DeadLetterReason.MISSING_VALUE]
    (record,) = path.letters.records()
    assert (record.key, record.value) == (b"k", b"payload")
    assert list(record.headers) == [
        ("mqtt.topic", b"x"), (wire.DLQ_REASON, b"missing_value"), (wire.DLQ_ERROR_CLASS, b"BridgeError"),
        (wire.DLQ_ERROR, b"The template found no value."), (wire.DLQ_ATTEMPTS, b"0"),
        (wire.DLQ_FIRST_SEEN_MS, b"1763683200123"), (wire.DLQ_ROUTE, b"route"), (wire.GATEWAY_ID, b"gw"),
        (wire.DLQ_KAFKA_TOPIC, b"t"),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 50])
async def test_many_in_one_read_are_all_released_with_the_healthy_around_them(count: int) -> None:
    async with Path(FakeKafka("t", batch_bytes=2000)) as path:
        for number in range(count):
            path.append(path.slot("t"), b"%d" % number)
            bury(path, b"bad %d" % number)
            assert path.balanced()
        await path.drained()
        assert len(path.owner.released) == 2 * count
    assert path.topic.values() == [b"%d" % n for n in range(count)]
    assert path.letters.values() == [b"bad %d" % n for n in range(count)]


async def test_one_buried_for_an_older_span_holds_that_span_and_goes_without_a_flush() -> None:
    """As messages parked for a topic that turns out not to exist."""
    async with Path() as path:
        span = path.accumulator.hold_span()
        path.took(b"parked")
        path.accumulator.parked_messages += 1
        path.flush()
        await asyncio.sleep(60)
        assert path.owner.released == []
        letter = DeadLetterDraft("route", 1, None, b"x", [], DeadLetterReason.INVALID_TOPIC, ERROR, 5, "nowhere")
        slot = path.dead_letters.bury(letter, span)
        span.pending -= 1
        path.accumulator.parked_messages -= 1
        assert path.balanced()
        path.accumulator.make_due(slot)
        path.sender.pump()
        await path.drained()
        assert path.owner.released == [b"parked"]
        assert path.spans == [span]


async def test_a_tombstone_stays_one() -> None:
    async with Path() as path:
        bury(path, None)
        bury(path, b"")
        await path.drained()
    assert path.letters.values() == [None, b""]


@pytest.mark.parametrize("size", [PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 1_000_000])
async def test_a_large_payload_comes_in_parts_that_put_together_are_the_payload(size: int) -> None:
    payload = bytes(n % 251 for n in range(size))
    async with Path(FakeKafka(DEAD_LETTERS, 3), max_record_bytes=1_000_000) as path:
        bury(path, b"before")
        bury(path, payload)
        bury(path, b"after")
        await path.drained()
        assert path.ledger.dead_lettered == 3
        assert path.owner.released == [b"0", b"1", b"2"]
    log = path.letters.partitions[partition_for(b"k", 3)].log
    parts = log[1:-1]
    assert len(parts) == -(-size // PART_BYTES)
    assert b"".join(record.value or b"" for record in parts) == payload
    assert {record.key for record in parts} == {b"k"}
    said = [dict(record.headers).get(wire.DLQ_PART) for record in log]
    numbers = [b"%d/%d" % (n, len(parts)) for n in range(1, len(parts) + 1)] if len(parts) > 1 else [None]
    assert said == [None, *numbers, None]


async def test_a_flood_of_properties_is_spread_over_parts_in_their_order() -> None:
    """A device may send a packet of nothing but user properties; as headers they are larger than any record may be."""
    kafka, topic = FakeKafka.with_topic(max_batch_bytes=1_000_000)
    dead = kafka.topic(DEAD_LETTERS, max_batch_bytes=1_000_000)
    headers = [(f"mqtt.user.{n}", b"v" * (n % 7)) for n in range(100_000)] + [("mqtt.user.big", b"." * 131_000)]
    async with Path(kafka, max_record_bytes=1_000_000) as path:
        path.send(b"payload", headers=headers)
        await path.drained()
        assert path.ledger.dead_lettered == 1
    assert topic.values() == []
    parts = dead.records()
    assert original_headers(parts) == [(wire.MQTT_QOS, b"1"), *headers]
    assert [record.value for record in parts] == [b"payload"] + [b""] * (len(parts) - 1)
    sizes = [sum(len(name) + len(value or b"") for name, value in record.headers) for record in parts]
    assert max(sizes[:-1]) < HEADER_BYTES + 2000


async def test_a_key_as_large_as_a_payload_is_left_out_and_the_partition_is_its_own_all_the_same() -> None:
    key = b"k" * (KEY_BYTES + 1)
    async with Path(FakeKafka(DEAD_LETTERS, 5)) as path:
        bury(path, b"x", key=key)
        await path.drained()
    (record,) = path.letters.partitions[partition_for(key, 5)].log
    assert record.key is None


async def test_the_sentence_of_an_error_is_cut_to_a_length_and_stays_text() -> None:
    async with Path() as path:
        bury(path, b"x", error=BridgeError("é" * 100_000))
        await path.drained()
    said = dict(path.letters.records()[0].headers)[wire.DLQ_ERROR]
    assert set(said.decode()) == {"é"}
    assert len(said) <= 4000


async def test_dead_letters_count_once_among_the_messages_received() -> None:
    """The metric adds up what slots have taken; a record that changes slots is no second message."""
    kafka = FakeKafka()
    refused = PoisonedError("no", DeadLetterReason.INVALID_RECORD)
    kafka.topic("t", reject=lambda records: refused if any(r.value == b"bad" for r in records) else None)
    async with Path(kafka, max_record_bytes=1_000_000) as path:
        for value in (b"1", b"bad", b"2"):
            path.append(path.slot("t"), value)
        bury(path, b"never a record")
        bury(path, b"." * 3 * PART_BYTES)
        path.flush()
        seen = []

        def drained() -> bool:
            seen.append(sum(slot.taken for slot in path.accumulator.slots))
            return path.held == 0

        await path.until(drained)
        assert set(seen) == {5}


async def test_before_the_topic_s_partitions_are_known_the_first_takes_them() -> None:
    async with Path(FakeKafka(DEAD_LETTERS, 3), topics=[]) as path:
        bury(path, b"x", key=b"any")
        await path.drained()
    assert [len(partition.log) for partition in path.letters.partitions] == [1, 0, 0]


def routes(*tables: dict[str, object]) -> list[RouteSettings]:
    return [RouteSettings.model_validate({"filters": ["x"], "topic": "t", **table}) for table in tables]


async def test_a_route_may_have_a_topic_of_its_own_for_its_dead_letters() -> None:
    kafka = FakeKafka()
    common, own = kafka.topic(DEAD_LETTERS), kafka.topic("own-dead", 3)
    kafka.topic("t", max_batch_bytes=100)
    async with Path(kafka, routes=routes({"name": "own", "dead_letter_topic": "own-dead"}, {"name": "other"})) as path:
        bury(path, b"1", route="own")
        bury(path, b"2", route="other")
        bury(path, b"3", route="")
        path.append(path.accumulator.slot("own", 1, "t", 0), b"." * 200)
        await path.drained()
        assert path.ledger.dead_lettered == 4
    assert own.partitions[partition_for(b"k", 3)].log == own.records()
    assert own.values() == [b"1", b"." * 200]
    assert common.values() == [b"2", b"3"]


@pytest.mark.parametrize(("route", "headers", "known", "doubt"), [
    ({"key": "${topic}"}, [], [(wire.MQTT_TOPIC, b"k"), (wire.MQTT_QOS, b"1")], False),
    ({"key": "${topic}"}, [(wire.MQTT_TOPIC, b"a")], [(wire.MQTT_QOS, b"1"), (wire.MQTT_TOPIC, b"a")], False),
    ({"key": "${topic[0]}"}, [("x", b"y")], [(wire.MQTT_QOS, b"1"), ("x", b"y")], False),
    ({"key": "${topic[0]}"}, [(wire.MQTT_QOS, b"1")], [(wire.MQTT_QOS, b"1")], False),
    ({"key": "${topic}", "interceptors": [{"use": "split", "key": "k"}]}, [], [(wire.MQTT_QOS, b"1")], False),
    ({"key": "${topic}"}, [], [(wire.MQTT_QOS, b"1")], True),  # the key may be of other settings
])  # fmt: skip
async def test_a_refused_record_says_of_its_message_what_can_be_known_for_sure(
    route: dict[str, object], headers: list[tuple[str, bytes]], known: list[tuple[str, bytes]], *, doubt: bool
) -> None:
    kafka, _ = FakeKafka.with_topic(max_batch_bytes=100)
    async with Path(kafka, routes=routes({"name": "route", **route})) as path:
        if doubt:
            path.dead_letters.doubt_keys()
        path.send(b"." * 200, headers=headers)
        await path.drained()
    assert original_headers(path.letters.records()) == known


async def test_parts_say_which_message_they_are_of() -> None:
    """Parts of two workers may lie between each other, with one key: nothing else tells them apart."""
    async with Path(max_record_bytes=1_000_000) as path:
        bury(path, b"." * 2 * PART_BYTES)
        bury(path, b"." * 2 * PART_BYTES)
        bury(path, b"small")
        await path.drained()
    ids = [dict(record.headers).get(wire.DLQ_PART_ID) for record in path.letters.records()]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert ids[4] is None


in_manual_time(globals())
