"""Messages of routes with interceptors: where their records go, and that each message is counted exactly once."""

import asyncio
import gc
import json
import random
import tracemalloc
from typing import Any

import pytest

from bridge import wire
from bridge.errors import PoisonedError
from bridge.intercept.loading import load_chains
from bridge.interceptors import INTERCEPTOR_ERROR, Drop, Interceptor
from bridge.ports import StoredRecord
from bridge.produce.dispatch import REMEMBERED_BYTES
from bridge.produce.partitioner import partition_for
from bridge.record import Record
from bridge.wire import DeadLetterReason
from config.settings import Settings
from tests.unit import test_dispatch
from tests.unit.data_path import DEAD_LETTERS, Path
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import in_manual_time

QOS0, QOS1, QOS2, RETAIN = 0, 2, 4, 1
RECEIVED_MS = 1_763_683_200_123
HERE = __name__
SPLIT = {"use": "split", "key": "k"}


class Fan(Interceptor):
    """A record for each topic the value names."""

    def on_send(self, record: Record) -> list[Record]:
        return [record.replace(topic=topic, value=b"%d" % n) for n, topic in enumerate(record.json()["to"])]


class Spoiler(Interceptor):
    """Changes in place what it must not, which is its own record's trouble alone."""

    def on_send(self, record: Record) -> Record:
        record.headers.append(("spoilt", b"1"))  # type: ignore[attr-defined]
        return record


WRONG: dict[str, dict[str, Any]] = {
    "value-str": {"value": "text"}, "value-int": {"value": 7}, "key-str": {"key": "k"},
    "topic-bytes": {"topic": b"t"}, "topic-surrogate": {"topic": "t\ud800"}, "time-str": {"timestamp_ms": "1"},
    "time-none": {"timestamp_ms": None}, "time-nan": {"timestamp_ms": float("nan")},
    "time-large": {"timestamp_ms": 1 << 63}, "headers-none": {"headers": None},
    "headers-dict": {"headers": {"a": b"b"}}, "headers-pair": {"headers": [("a", b"b"), ["c", b"d"]]},
    "headers-triple": {"headers": [("a", b"b", 1)]}, "headers-name": {"headers": [(b"a", b"b")]},
    "headers-surrogate": {"headers": [("\ud800", b"b")]}, "headers-str": {"headers": [("a", "b")]},
}  # fmt: skip


class WrongType(Interceptor):
    """Answers a value that names one of ``WRONG`` with such a record; ``many`` with a good one before it."""

    def on_send(self, record: Record) -> Any:
        kind, _, how = (record.value or b"").decode().partition(" ")
        if kind not in WRONG:
            return record
        match how:
            case "many":
                return [record.replace(value=b"first"), record.replace(**WRONG[kind])]
            case "in place":
                for name, part in WRONG[kind].items():
                    setattr(record, name, part)
                return record
        return record.replace(**WRONG[kind])


class Loose(Interceptor):
    """Other types than the port's that say the same."""

    def on_send(self, record: Record) -> Any:
        return record.replace(
            value=bytearray(record.value or b""), key=memoryview(b"k"), timestamp_ms=1.7e12, headers=(("a", b"b"),)
        )  # type: ignore[arg-type]


class LooseValue(Interceptor):
    """Such types in place, with the key that the topic gives."""

    def on_send(self, record: Record) -> Any:
        record.value = bytearray(record.value or b"")
        record.timestamp_ms = 1.7e12  # type: ignore[assignment]
        return record


class OwnRecord(Record):
    """A record with something of a plug-in's own."""


class Owner(Interceptor):
    """Answers with records of its own kind."""

    def on_send(self, record: Record) -> Record:
        return OwnRecord(record.message, "t", b"k", record.value, (), record.timestamp_ms)


class UntoldError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


class Panic(BaseException):
    """As extensions in Rust raise it."""


class Hostile(Interceptor):
    """Does what the value says: an exception without words, a Drop with no word for a reason, and others."""

    def on_send(self, record: Record) -> Any:
        match record.value:
            case b"raise":
                raise ValueError("told to")
            case b"none":
                return None
            case b"untold":
                raise UntoldError
            case b"panic":
                raise Panic
            case b"half":
                raise ValueError("no such device: \ud800")
            case b"reason":
                return Drop(["a", "list"])  # type: ignore[arg-type]
        return record


class Timed(Interceptor):
    """Sets the timestamps that the value names, as if devices had."""

    def on_send(self, record: Record) -> list[Record]:
        return [record.replace(timestamp_ms=moment) for moment in record.json()]


class Rig(test_dispatch.Rig):
    """One with one route and its chain."""

    def __init__(self, path: Path, *interceptors: dict[str, Any], cache_entries: int = 1000, **route: Any) -> None:
        one = {"name": "route", "filters": ["d/#"], "topic": "t", "metadata_headers": ["topic", "properties"], **route}
        one["interceptors"] = interceptors
        self.chains = load_chains(Settings.model_validate({"instance": "gw", "routes": [one]}))
        super().__init__(path, one, cache_entries=cache_entries, properties=3, chains=self.chains)

    def take(self, value: Any, topic: bytes = b"d/1", flags: int = QOS1, properties: bytes = b"") -> bytes:
        payload = value if isinstance(value, bytes) else json.dumps(value).encode()
        dispatcher, path = self.dispatcher, self.path
        if topic not in dispatcher.caches[flags]:
            assert dispatcher.entry(flags, topic)[0] is None, "a route with interceptors has no fast lane"
        path.accumulator.now_ns = path.clock_ns()
        dispatcher.slow(flags, topic, properties, payload)
        packet_id = b"%d" % path.ledger.received
        path.took(packet_id)
        assert path.balanced(), path.ledger
        return packet_id

    async def done(self, *account: int) -> None:
        await super().done()
        assert len(self.path.owner.released) == self.path.ledger.received
        assert account in {(), self.account()}

    def account(self) -> tuple[int, int, int]:
        ledger = self.path.ledger
        return ledger.delivered, ledger.filtered, ledger.dead_lettered


def keys_apart(partitions: int) -> list[dict[str, str]]:
    """Elements whose keys lie in different partitions, one in each."""
    found = {partition_for(b"%d" % number, partitions): str(number) for number in range(100)}
    assert len(found) == partitions
    return [{"k": key} for key in found.values()]


# --- one to one -------------------------------------------------------------------------------------------------------
async def test_a_record_that_passes_is_what_it_would_have_been_without() -> None:
    kafka = FakeKafka()
    plain, passed = kafka.topic("p", 3), kafka.topic("t", 3)
    everything = [(b"d/1", QOS1, b"a=1"), (b"d/2", QOS2 | RETAIN, b""), (b"d/1", QOS0, b"b=2"), (b"d/1", QOS1, b"a=1")]
    for route, interceptors in (("p", ()), ("t", ({"use": "filter", "expression": "True"},))):
        async with Path(kafka) as path, Rig(path, *interceptors, topic=route, key="${topic}") as rig:
            for number, (topic, flags, properties) in enumerate(everything):
                if interceptors:
                    rig.take({"n": number}, topic, flags, properties)
                else:
                    rig.dispatcher.slow(flags, topic, properties, b'{"n": %d}' % number)
                    path.took(b"%d" % number)
            await rig.done(4, 0, 0)
    assert [partition.log for partition in passed.partitions] == [partition.log for partition in plain.partitions]
    assert len(plain.records()) == 4


async def test_a_changed_record_goes_where_its_new_key_belongs() -> None:
    async with Path(FakeKafka("t", 4)) as path:
        rig = Rig(path, {"use": "mask", "method": "redact", "key": True, "fields": ["a"]})
        for number in range(8):
            rig.take({"a": number}, b"d/%d" % number)
        await rig.done(8, 0, 0)
    assert sorted(len(partition.log) for partition in path.topic.partitions) == [0, 0, 0, 8]
    assert {(record.key, record.value) for record in path.topic.records()} == {(b"***", b'{"a":"***"}')}


async def test_a_dropped_message_is_filtered_with_its_reason_and_acknowledged() -> None:
    async with Path() as path, Rig(path, {"use": "filter", "expression": "json.n % 2 == 0", "reason": "odd"}) as rig:
        for number in range(10):
            rig.take({"n": number}, flags=QOS1 if number < 5 else QOS2)
        await rig.done(5, 5, 0)
        assert rig.filtered == [("route", "odd")] * 5
        (chain,) = rig.chains
        assert chain.filtered == [0, 2, 3]
    assert path.topic.values() == [b'{"n": %d}' % number for number in range(0, 10, 2)]


@pytest.mark.parametrize("key", ["${payload.id}", ""])
async def test_routes_whose_templates_need_the_message_are_intercepted_too(key: str) -> None:
    async with Path(FakeKafka("t", 2)) as path:
        rig = Rig(path, {"use": "fields", "remove": ["id"]}, key=key, metadata_headers=["message_id", "received"])
        rig.take({"id": "x", "v": 1})
        rig.take({"id": "y", "v": 2})
        await rig.done()
    assert sorted(value or b"" for value in path.topic.values()) == [b'{"v":1}', b'{"v":2}']
    assert {record.key for record in path.topic.records()} == ({b"x", b"y"} if key else {None})
    ids = sorted(dict(record.headers)[wire.GATEWAY_MESSAGE_ID] or b"" for record in path.topic.records())
    assert len(set(ids)) == 2
    assert all(one.startswith(b"gw-0-0:1:") for one in ids)


async def test_only_an_empty_payload_is_a_tombstone_and_only_where_asked() -> None:
    for route, empty in (({"empty_payload": "tombstone"}, None), ({}, b"")):
        kafka, topic = FakeKafka.with_topic()
        async with Path(kafka) as path, Rig(path, {"use": "headers", "add": {"a": "b"}}, **route) as rig:
            rig.take(b"")
            rig.take(b"7")
        assert topic.values() == [empty, b"7"]


async def test_what_an_interceptor_spoils_is_its_own_record() -> None:
    async with Path() as path, Rig(path, {"use": f"{HERE}:Spoiler"}) as rig:
        for properties in (b"", b"a=1", b"", b"a=1"):
            rig.take({}, properties=properties)
    assert [len(record.headers) for record in path.topic.records()] == [2, 3, 2, 3]


async def test_topics_and_properties_beyond_the_caches_are_settled_again() -> None:
    async with Path(FakeKafka("t", 3)) as path:
        rig = Rig(path, {"use": "filter", "expression": "properties.p == topic"}, cache_entries=4)
        for number in range(60):
            name = f"d/{number % 7}"
            rig.take({"n": number}, name.encode(), properties=f"p={name}".encode())
        await rig.done(60, 0, 0)
    assert len(path.topic.records()) == 60


async def test_a_timestamp_that_kafka_would_refuse_becomes_the_receive_time_and_is_counted() -> None:
    """Devices whose clocks are wrong: an hour ahead is what Kafka takes, and a past of any age."""
    hour, year_2100 = RECEIVED_MS + 3_600_000, 4_102_444_800_000
    async with Path() as path, Rig(path, {"use": f"{HERE}:Timed"}) as rig:
        rig.take([year_2100])
        rig.take([7, hour, hour + 1])
        await rig.done(2, 0, 0)
        assert rig.dispatcher.clamped == 2
    records = path.topic.records()
    assert [record.timestamp_ms for record in records] == [RECEIVED_MS, 7, hour, RECEIVED_MS]
    said = [dict(record.headers).get(wire.GATEWAY_TIMESTAMP_MS) for record in records]
    assert said == [b"%d" % year_2100, None, None, b"%d" % (hour + 1)]


# --- failures ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("policy", "account", "values"), [
    ("pass", (4, 0, 0), [b"a", b"raise", b"none", b"b"]),
    ("drop", (2, 2, 0), [b"a", b"b"]),
    ("dead_letter", (2, 0, 2), [b"a", b"b"]),
])  # fmt: skip
async def test_a_failed_record_goes_where_its_policy_says(
    policy: str, account: tuple[int, int, int], values: list[bytes]
) -> None:
    async with Path() as path, Rig(path, {"use": f"{HERE}:Hostile", "on_error": policy}) as rig:
        for value in (b"a", b"raise", b"none", b"b"):
            rig.take(value, properties=b"p=1")
        await rig.done(*account)
        assert rig.filtered == ([("route", INTERCEPTOR_ERROR)] * 2 if policy == "drop" else [])
        assert path.dead == ([DeadLetterReason.INTERCEPTOR_ERROR] * 2 if policy == "dead_letter" else [])
    assert path.topic.values() == values
    if policy == "dead_letter":
        letter = path.letters.records()[0]
        headers = dict(letter.headers)
        assert (letter.key, letter.value) == (b"d/1", b"raise")
        names = [wire.MQTT_TOPIC, "mqtt.user.p", wire.DLQ_REASON, wire.DLQ_KAFKA_TOPIC]
        assert [headers[name] for name in names] == [b"d/1", b"1", b"interceptor_error", b"t"]
        for words in (b"ValueError: told to", b"Hostile"):
            assert words in headers[wire.DLQ_ERROR]


@pytest.mark.parametrize("how", ["", " many", " in place"])
@pytest.mark.parametrize("route", [{}, {"metadata_headers": ["received"]}], ids=["fast", "slow"])
@pytest.mark.parametrize("kind", WRONG)
async def test_a_part_of_a_wrong_type_goes_where_the_policy_says_and_nothing_of_its_message_to_kafka(
    kind: str, route: dict[str, Any], how: str
) -> None:
    """Raised by the batch it would end the connection, and the broker would send it again for ever."""
    value = f"{kind}{how}".encode()

    for policy in ("dead_letter", "drop", "pass"):
        async with Path() as path, Rig(path, {"use": f"{HERE}:WrongType", "on_error": policy}, **route) as rig:
            for one in (b"a", value, b"b", value):
                rig.take(one, properties=b"k=1")
        where = "dead_letter" if how == " in place" else policy
        assert rig.account() == {"dead_letter": (2, 0, 2), "drop": (2, 2, 0), "pass": (4, 0, 0)}[where]
        assert path.topic.values() == ([b"a", value, b"b", value] if where == "pass" else [b"a", b"b"])
        assert path.letters.values() == ([value] * 2 if where == "dead_letter" else [])


@pytest.mark.parametrize(("interceptor", "timestamp_ms", "key", "headers"), [
    ("Loose", 1_700_000_000_000, b"k", [("a", b"b")]),
    ("LooseValue", 1_700_000_000_000, b"d/1", [("mqtt.topic", b"d/1")]),
    ("Owner", RECEIVED_MS, b"k", []),
])  # fmt: skip
async def test_what_has_an_obvious_meaning_is_taken_as_that_with_every_message_of_a_topic(
    interceptor: str, timestamp_ms: int, key: bytes, headers: list[tuple[str, bytes]]
) -> None:
    async with Path() as path, Rig(path, {"use": f"{HERE}:{interceptor}"}) as rig:
        for _ in range(3):
            rig.take(b"x")
        await rig.done(3, 0, 0)
    for record in path.topic.records():
        assert record == StoredRecord(timestamp_ms, key, b"x", headers)
        assert (type(record.value), type(record.timestamp_ms)) == (bytes, int)


async def test_an_exception_without_words_and_a_reason_that_is_no_word_are_failures_like_others() -> None:
    async with Path() as path, Rig(path, {"use": f"{HERE}:Hostile"}) as rig:
        for value in (b"a", b"untold", b"half", b"reason", b"panic", b"b"):
            rig.take(value)
        await rig.done(2, 0, 4)
    assert path.topic.values() == [b"a", b"b"]
    assert path.letters.values() == [b"untold", b"half", b"reason", b"panic"]
    untold, half, _, _ = (dict(record.headers)[wire.DLQ_ERROR] or b"" for record in path.letters.records())
    assert b"failed with UntoldError" in untold
    assert half.endswith(rb"ValueError: no such device: \ud800")


async def test_stop_ends_the_worker_and_acknowledges_nothing_behind() -> None:
    async with Path() as path:
        rig = Rig(path, {"use": f"{HERE}:Hostile", "on_error": "stop"})
        rig.take(b"before")
        path.flush()
        rig.take(b"raise")
        rig.take(b"beside")
        path.flush()
        rig.take(b"behind")
        path.flush()
        await path.until(lambda: len(path.topic.records()) == 3, "stored")
        await path.until(lambda: path.owner.released == [b"0"], "released")
        assert path.held == 3
        (error,) = rig.defects
        assert "told to" in str(error)
        assert "routes[0].interceptors[0]" in str(error)
        # The connection ends: what is owed for goes back to the broker, and the account still balances.
        path.ledger.returned += path.accumulator.returned(path.owner)
        assert path.balanced()
        assert path.held == 0
    assert path.topic.values() == [b"before", b"beside", b"behind"]


# --- one to several ---------------------------------------------------------------------------------------------------
async def test_it_is_acknowledged_when_the_last_of_its_records_is_durable() -> None:
    async with Path(FakeKafka("t", 3)) as path, Rig(path, SPLIT) as rig:
        elements = keys_apart(3)
        for stuck in range(3):
            before = len(path.topic.records())
            path.topic.partitions[stuck].has_leader = False
            rig.take(elements)
            path.flush()
            await path.until(lambda before=before: len(path.topic.records()) == before + 2, "two of three")
            await asyncio.sleep(1)
            assert len(path.owner.released) == stuck
            assert path.held == 1
            path.topic.partitions[stuck].has_leader = True
            await path.until(lambda stuck=stuck: len(path.owner.released) == stuck + 1, "all three")
        await rig.done(3, 0, 0)


async def test_some_dropped_of_several_leave_a_delivered_message_and_all_dropped_a_filtered_one() -> None:
    async with Path(FakeKafka("t", 3)) as path:
        rig = Rig(path, {"use": "split"}, {"use": "filter", "expression": "json > 1"})
        rig.take([1, 2, 3])
        rig.take([0, 1])
        rig.take([])
        await rig.done(1, 2, 0)
        assert rig.filtered == [("route", "filter"), ("route", "empty_array")]
    assert path.topic.values() == [b"2", b"3"]


async def test_a_large_array_of_small_elements_is_not_too_large_but_a_large_element_is() -> None:
    async with Path(FakeKafka("t", 3)) as path, Rig(path, {"use": "split"}) as rig:
        rig.take(["x" * 2000] * 4)
        rig.take(["small", "x" * 5000])
        await rig.done(1, 0, 1)
        assert path.dead == [DeadLetterReason.TOO_LARGE]
    assert [len(value or b"") for value in path.topic.values()] == [2002] * 4
    assert len(b"".join(value or b"" for value in path.letters.values())) == len(json.dumps(["small", "x" * 5000]))


# --- other topics -----------------------------------------------------------------------------------------------------
async def test_a_topic_an_interceptor_chose_is_checked_and_found() -> None:
    kafka = FakeKafka()
    topic, other = kafka.topic("t"), kafka.topic("other", 2)
    async with Path(kafka, topics=["t", DEAD_LETTERS]) as path:
        rig = Rig(path, {"use": f"{HERE}:Fan"}, max_topics=2)
        for to in ("t", "other", "other", "__consumer_offsets", DEAD_LETTERS, "bad/name", "missing", "one_more"):
            rig.take({"to": [to]})
        await rig.done(3, 0, 5)
        assert sorted(reason.value for reason in path.dead) == ["invalid_topic"] * 4 + ["topic_limit"]
    assert len(topic.records()) == 1
    assert len(other.records()) == 2


@pytest.mark.parametrize(("to", "account", "counts"), [
    (["t", "new"], (1, 0, 0), (1, 1, 0)),
    (["new", "t"], (1, 0, 0), (1, 1, 0)),
    (["new", "new", "t", "new"], (1, 0, 0), (1, 3, 0)),
    (["gone", "t"], (1, 0, 0), (1, 0, 1)),  # counted with its last record, which is delivered
    (["t", "gone"], (0, 0, 1), (1, 0, 1)),
    (["gone", "new", "gone"], (0, 0, 1), (0, 1, 2)),
])  # fmt: skip
async def test_several_records_that_wait_for_their_topics_are_one_message(
    to: list[str], account: tuple[int, int, int], counts: tuple[int, int, int]
) -> None:
    kafka = FakeKafka()
    topic, new, dead = kafka.topic("t"), kafka.topic("new", 3), kafka.topic(DEAD_LETTERS)
    async with Path(kafka, topics=["t", DEAD_LETTERS]) as path, Rig(path, {"use": f"{HERE}:Fan"}) as rig:
        for _ in range(3):
            rig.take({"to": to})
            path.flush()
        assert path.held == 3
        await asyncio.sleep(0.05)
        assert path.owner.released == []
    assert rig.account() == tuple(3 * one for one in account)
    assert tuple(len(one.records()) for one in (topic, new, dead)) == tuple(3 * one for one in counts)


# --- Kafka refuses some of it -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_kafka_refuses_nothing_is_acknowledged_early_or_counted_twice(seed: int) -> None:
    """Messages of one to five records over partitions; some records poisoned, partitions that go and come."""

    rnd = random.Random(seed)
    kafka = FakeKafka(batch_bytes=700)
    kafka.latency_s = lambda: rnd.choice((0.001, 0.01, 0.2))

    def reject(records: list[Any]) -> PoisonedError | None:
        if any(b"poison" in (record.value or b"") for record in records):
            return PoisonedError("Kafka will not take it.")
        return None

    topic, dead = kafka.topic("t", 4, reject=reject), kafka.topic(DEAD_LETTERS, 2)
    async with Path(kafka) as path:
        rig = Rig(path, SPLIT, {"use": "filter", "expression": "json.get != 'drop'", "missing": "keep"})
        expected: dict[bytes, list[bytes]] = {}
        for number in range(150):
            elements = [
                {"k": str(rnd.randrange(30)), "id": f"{number}.{part}", "x": rnd.choice(("", "", "", "poison"))}
                for part in range(rnd.choice((1, 1, 2, 5)))
            ]
            packet_id = rig.take(elements, flags=rnd.choice((QOS1, QOS2)))
            expected[packet_id] = [f'"{element["id"]}"'.encode() for element in elements]
            if rnd.random() < 0.3:
                path.flush()
            if rnd.random() < 0.2:
                await asyncio.sleep(rnd.choice((0.0, 0.02, 0.5)))
            if rnd.random() < 0.1:
                partition = rnd.choice(topic.partitions)
                partition.has_leader = not partition.has_leader
            durable = b"".join(one or b"" for one in (*topic.values(), *dead.values()))
            for released in path.owner.released:
                assert all(one in durable for one in expected[released]), f"{released!r} was acknowledged early"
            assert path.balanced(), path.ledger
        for partition in topic.partitions:
            partition.has_leader = True
        await rig.done()
        delivered, filtered, dead_lettered = rig.account()
        assert (delivered + dead_lettered, filtered) == (150, 0)
        assert sum(slot.taken for slot in path.accumulator.slots) == 150
    for ids in expected.values():
        for one in ids:
            found = sum(one in (value or b"") for value in (*topic.values(), *dead.values()))
            assert found == 1, f"{one!r} is there {found} times"


# --- memory -----------------------------------------------------------------------------------------------------------
async def test_a_remembered_topic_takes_a_kilobyte_or_so_however_many_there_are() -> None:
    """With its headers made for all 16 flag nibbles it took twice as much, 48 MiB for 25,000 of them."""
    kafka = FakeKafka("t", 3, batch_bytes=1 << 20)
    async with Path(kafka) as path:
        rig = Rig(path, {"use": "filter", "expression": "False"}, cache_entries=10_000)
        for number in range(100):
            rig.take({"n": 1}, b"d/first/%d" % number)
        await rig.done()
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1000):
            rig.take({"n": 1}, b"d/%d" % number)
        await rig.done()
        path.owner.released.clear()
        path.spans.clear()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(rig.dispatcher._known) == 1100
        assert (after - before) / 1000 < 1536


async def test_long_topics_and_properties_are_not_remembered() -> None:
    kafka = FakeKafka("t", 3, batch_bytes=1 << 20)
    async with Path(kafka) as path, Rig(path, {"use": "filter", "expression": "True"}) as rig:
        for number in range(20):
            rig.take({"n": 1}, b"d/" + b"x" * REMEMBERED_BYTES + b"%d" % number)
            rig.take({"n": 1}, b"d/short", properties=b"n=" + b"y" * REMEMBERED_BYTES + b"%d" % number)
        assert list(rig.dispatcher._known) == [b"d/short"]
        assert not rig.dispatcher._properties
    assert len(kafka.topics["t"].records()) == 40


in_manual_time(globals())
