"""A topic's bytes lead to the right slot, key and headers; what cannot go there is parked, buried or left out."""

import asyncio
from typing import Any, Self

import pytest

from bridge import wire
from bridge.errors import BridgeError, RefusedError, UnreachableError
from bridge.intercept.loading import load_chains
from bridge.interceptors import Chains
from bridge.message import Properties
from bridge.ports import StoredRecord
from bridge.produce.dispatch import (
    NO_CHAINS,
    NO_ROUTE,
    REMEMBERED_BYTES,
    STATUS,
    THE_TOPIC,
    Dispatcher,
    DispatchHooks,
    DispatchLimits,
    TopicNameError,
)
from bridge.produce.parking import LOCATE_RETRY_S
from bridge.produce.partitioner import partition_for
from bridge.routing.router import Router
from bridge.wire import DeadLetterReason
from config.settings import RouteSettings, Settings
from tests.unit.data_path import DEAD_LETTERS, Path, TopicFinder
from tests.unit.fake_kafka import FakeKafka
from tests.unit.manual_time import in_manual_time

QOS0, QOS1, QOS2, RETAIN, DUP = 0, 2, 4, 1, 8
RECEIVED_MS = 1_763_683_200_123


def parse(raw: bytes) -> Properties:
    """Properties as tests write them: ``name=value`` pairs with a comma between."""
    pairs = [pair.split("=") for pair in raw.decode().split(",")]
    return Properties(user=tuple((name, value) for name, value in pairs))


class Rig(TopicFinder):
    """A dispatcher with routes on the data path; ``take`` does with a message what the hot path does."""

    def __init__(
        self, path: Path, *routes: Any, cache_entries: int = 1000, properties: int = 100, chains: Chains = NO_CHAINS
    ) -> None:
        super().__init__(path)
        self.filtered: list[tuple[str, str]] = []
        self.parsed: list[bytes] = []
        self.defects: list[BaseException] = []
        settings = [
            RouteSettings.model_validate({"name": "route", "filters": ["devices/#"], "topic": "t", **route})
            for route in routes or ({},)
        ]
        self.router = Router(settings, instance="gw", reserved_topics=[DEAD_LETTERS])
        self.matched: list[str] = []
        match = self.router.match
        self.router.match = lambda topic: self.matched.append(topic) or match(topic)  # type: ignore[func-returns-value]
        hooks = DispatchHooks(
            topics=self, parse_properties=self.parse, failed=self.defects.append,
            filtered=lambda route, reason: self.filtered.append((route, reason)),
        )  # fmt: skip
        limits = DispatchLimits(4096, cache_entries, properties)
        self.dispatcher = Dispatcher(self.router, path.accumulator, path.dead_letters, limits, hooks, chains=chains)
        self.dispatcher.received_ms = RECEIVED_MS
        self.dispatcher.delivery_prefix = b"gw-0-0:1:"

    def parse(self, raw: bytes) -> Properties:
        self.parsed.append(raw)
        return parse(raw)

    def take(self, topic: bytes, payload: bytes = b"x", flags: int = QOS1, properties: bytes = b"") -> None:
        dispatcher, path = self.dispatcher, self.path
        try:
            slot, key, headers, named, extras = dispatcher.caches[flags][topic]
        except KeyError:
            slot, key, headers, named, extras = dispatcher.entry(flags, topic)
        key = topic if key is THE_TOPIC else key
        if named:
            headers[0] = (wire.MQTT_TOPIC, topic)
        if extras is not None and properties:
            try:
                headers = headers + extras[properties]
            except KeyError:
                headers = headers + dispatcher.property_headers(extras, properties)
        path.accumulator.now_ns = path.clock_ns()
        if slot is None or len(payload) > 4096:
            dispatcher.slow(flags, topic, properties, payload)
        elif slot.append(slot.count, RECEIVED_MS, key, payload, headers) is None:
            slot.roll(RECEIVED_MS, key, payload, headers)
        else:
            slot.count += 1
        path.took(b"%d" % path.ledger.received)
        assert path.balanced(), path.ledger

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            await self.done()

    async def done(self) -> None:
        self.path.flush()
        await self.path.drained()
        await self.dispatcher.close()
        assert not self.defects


def headers_of(record: StoredRecord) -> dict[str, bytes | None]:
    return dict(record.headers)


# --- the fast way -----------------------------------------------------------------------------------------------------
async def test_a_message_gets_its_route_s_topic_key_partition_and_headers() -> None:
    kafka = FakeKafka()
    topic = kafka.topic("telemetry", 5)
    async with Path(kafka) as path:
        rig = Rig(path, {"topic": "telemetry", "key": "${topic[1]}", "headers": {"site": "${topic[2]}"}})
        for number in range(20):
            rig.take(b"devices/d%d/oslo" % number, b"%d" % number, QOS1 | RETAIN)
        await rig.done()
    for number in range(20):
        key = b"d%d" % number
        (record,) = (r for r in topic.partitions[partition_for(key, 5)].log if r.key == key)
        assert (record.value, record.timestamp_ms) == (b"%d" % number, RECEIVED_MS)
        named = {wire.MQTT_TOPIC: b"devices/d%d/oslo" % number, wire.MQTT_RETAIN: b"1", "site": b"oslo"}
        assert headers_of(record) == named


async def test_a_topic_is_settled_once_for_each_flag_nibble() -> None:
    async with Path() as path, Rig(path) as rig:
        for _ in range(10):
            for flags in (QOS0, QOS1, QOS1 | DUP, QOS2 | RETAIN):
                rig.take(b"devices/1", flags=flags)
        assert rig.matched == ["devices/1"] * 4
    assert len(path.kafka.topics["t"].records()) == 40


async def test_properties_are_parsed_once_for_each_content_and_route() -> None:
    async with Path() as path, Rig(path, properties=10) as rig:
        for number in range(40):
            rig.take(b"devices/1", b"%d" % number, properties=b"n=%d" % (number % 5))
        assert rig.parsed == [b"n=%d" % n for n in range(5)]
        for number in range(25):  # more than are remembered: memory stays bounded, and every one is right
            rig.take(b"devices/1", b"", properties=b"m=%d" % number)
        assert len(next(iter(rig.dispatcher._extras.values()))) <= 10
    seen = [headers_of(record) for record in path.topic.records()]
    assert [h.get("mqtt.user.n") for h in seen[:40]] == [b"%d" % (n % 5) for n in range(40)]
    assert [h.get("mqtt.user.m") for h in seen[40:]] == [b"%d" % n for n in range(25)]


async def test_no_more_topics_are_remembered_than_allowed_and_those_in_use_stay() -> None:
    kafka = FakeKafka("t", 3)
    async with Path(kafka) as path, Rig(path, cache_entries=100) as rig:
        for number in range(1000):
            rig.take(b"devices/%d" % number)
            for busy in range(10):
                rig.take(b"devices/busy/%d" % busy)
            held = sum(map(len, rig.dispatcher.caches)) + sum(map(len, rig.dispatcher._older))
            assert held <= 100
        assert len([topic for topic in rig.matched if "busy" in topic]) == 10
    assert len(kafka.topics["t"].records()) == 11_000


async def test_as_many_topics_as_there_are_entries_are_routed_once_also_after_others_came_and_went() -> None:
    kafka = FakeKafka("t", 3)
    async with Path(kafka) as path, Rig(path, cache_entries=100) as rig:

        def take_in_turn(name: bytes, topics: int, rounds: int) -> None:
            for number in range(topics * rounds):
                rig.take(b"devices/%b/%d" % (name, number % topics))
                held = sum(map(len, rig.dispatcher.caches)) + sum(map(len, rig.dispatcher._older))
                assert held <= 100

        take_in_turn(b"first", 100, 5)
        assert len(rig.matched) == 100
        take_in_turn(b"more", 1_000, 1)
        rig.matched.clear()
        take_in_turn(b"last", 100, 5)
        assert len(rig.matched) <= 200, "at most once more, until the others are dropped"
        rig.matched.clear()
        take_in_turn(b"last", 100, 5)
        assert not rig.matched


async def test_topics_share_their_entries_where_nothing_but_the_topic_differs() -> None:
    """An entry of its own took 190 bytes of each topic."""
    topics = [b"devices/%d/%b" % (number, site) for site in (b"oslo", b"rome") for number in range(3)]
    async with Path(FakeKafka("t", 1)) as path:
        plain, keyed, own = (
            Rig(path, route) for route in ({}, {"key": "${topic[1]}"}, {"headers": {"site": "${topic[2]}"}})
        )
        entries = []
        for rig in (plain, keyed, own):
            for topic in topics * 2:
                rig.take(topic, flags=QOS1 | RETAIN)
            entries.append([rig.dispatcher.entry(QOS1 | RETAIN, topic) for topic in topics])
        assert len(set(map(id, entries[0]))) == 1
        assert [len(set(map(id, column))) for column in list(zip(*entries[1], strict=True))[1:3]] == [3, 1]
        assert len(set(map(id, entries[2]))) == 1 + 3, "those of another site than the first one's"
        await own.done()
    records = path.topic.records()
    assert [dict(record.headers)[wire.MQTT_TOPIC] for record in records] == topics * 6
    numbers = [topic.split(b"/")[1] for topic in topics]
    assert [record.key for record in records] == [*topics * 2, *numbers * 2, *topics * 2]
    assert [dict(record.headers)["site"] for record in records[24:]] == [topic.split(b"/")[2] for topic in topics * 2]


async def test_long_topics_and_properties_are_not_remembered_but_delivered() -> None:
    """Any device may invent them, 64 KiB each: 50,000 of these would be 3 GB."""
    kafka = FakeKafka("t", 3, batch_bytes=1 << 20)
    long = b"devices/" + b"x" * REMEMBERED_BYTES
    async with Path(kafka) as path, Rig(path) as rig:
        for number in range(20):
            rig.take(long + b"%d" % number)
            rig.take(b"devices/short", properties=b"n=" + b"y" * REMEMBERED_BYTES + b"%d" % number)
        dispatcher = rig.dispatcher
        assert [topic for cache in dispatcher.caches for topic in cache] == [b"devices/short"]
        assert [len(extras) for extras in dispatcher._extras.values()] == [0]
    assert len(kafka.topics["t"].records()) == 40


async def test_records_without_a_key_share_batches_that_take_partitions_in_turn() -> None:
    async with Path(FakeKafka("t", 3)) as path, Rig(path, {"key": ""}) as rig:
        for number in range(9):
            rig.take(b"devices/%d" % number, b"%d" % number)
            await path.drained()
    assert [len(partition.log) for partition in path.topic.partitions] == [3, 3, 3]
    assert {record.key for record in path.topic.records()} == {None}


# --- the slow way -----------------------------------------------------------------------------------------------------
async def test_fast_and_slow_messages_of_a_partition_keep_their_order() -> None:
    """Two routes, one by topic alone and one by payload, write to one partition in the order of receipt of each."""
    routes = {"name": "slow", "filters": ["devices/+/slow"], "key": "${payload.id}"}, {"name": "fast"}
    async with Path(FakeKafka("t", batch_bytes=600)) as path, Rig(path, *routes) as rig:
        for number in range(50):
            rig.take(b"devices/1/slow", b'{"id": "a", "n": %d}' % number)
            rig.take(b"devices/1/fast", b"%d" % number)
            if number % 9 == 0:
                path.flush()
                await asyncio.sleep(0.001)
    slow = [record.value for record in path.topic.records() if record.key == b"a"]
    fast = [record.value for record in path.topic.records() if record.key != b"a"]
    assert slow == [b'{"id": "a", "n": %d}' % n for n in range(50)]
    assert fast == [b"%d" % n for n in range(50)]


async def test_delivery_ids_count_on_from_message_to_message() -> None:
    async with Path() as path, Rig(path, {"metadata_headers": ["message_id"]}) as rig:
        for _ in range(3):
            rig.take(b"devices/1")
    ids = [headers_of(record)[wire.GATEWAY_MESSAGE_ID] for record in path.topic.records()]
    assert ids == [b"gw-0-0:1:%d" % n for n in (1, 2, 3)]


# --- left out ---------------------------------------------------------------------------------------------------------
async def test_what_no_route_wants_is_counted_as_filtered_and_acknowledged() -> None:
    async with Path() as path, Rig(path) as rig:
        rig.take(b"elsewhere/1")
        rig.take(b"gateways/gw/status")
        rig.take(b"elsewhere/1")  # also once it is remembered
        path.flush()
        assert path.owner.released == [b"0", b"1", b"2"]
    assert rig.filtered == [("", NO_ROUTE), ("", STATUS), ("", NO_ROUTE)]
    assert path.ledger.filtered == 3


async def test_a_copy_of_a_message_that_is_held_is_counted_as_a_copy() -> None:
    async with Path() as path, Rig(path) as rig:
        rig.dispatcher.note_copy()
        path.took(b"copy")
        assert path.balanced()
    assert (path.ledger.copies, path.ledger.filtered) == (1, 0)


@pytest.mark.parametrize("topic", [b"", b"a/+", b"#", b"a\0b", b"\xff", b"\xed\xa0\x80"])
async def test_a_topic_name_that_mqtt_forbids_is_an_error_on_both_ways(topic: bytes) -> None:
    async with Path() as path:
        rig = Rig(path)
        with pytest.raises(TopicNameError, match="The broker sent a topic name"):
            rig.dispatcher.entry(QOS1, topic)
        with pytest.raises(TopicNameError):
            rig.dispatcher.slow(QOS1, topic, b"", b"x")
        assert path.held == 0


# --- buried -----------------------------------------------------------------------------------------------------------
async def test_a_message_with_nowhere_to_go_is_buried_with_all_that_is_known_of_it() -> None:
    async with Path() as path, Rig(path, {"topic": "t-${property.site}", "metadata_headers": []}) as rig:
        rig.take(b"devices/1", b"payload", QOS2 | RETAIN, b"other=1")
    assert path.dead == [DeadLetterReason.MISSING_VALUE]
    (record,) = path.letters.records()
    headers = headers_of(record)
    assert (record.key, record.value) == (b"devices/1", b"payload")
    names = [wire.MQTT_TOPIC, wire.MQTT_QOS, wire.MQTT_RETAIN, "mqtt.user.other", wire.DLQ_ROUTE, wire.DLQ_REASON]
    assert [headers[name] for name in names] == [b"devices/1", b"2", b"1", b"1", b"route", b"missing_value"]
    assert wire.GATEWAY_DEVICE not in headers


@pytest.mark.parametrize(
    ("template", "device"), [("${topic[1]}", b"1"), ("${property.id}", b"d7"), ("${content_type}", None)]
)
async def test_a_buried_message_says_which_device_it_is_from_where_its_route_can_tell(
    template: str, device: bytes | None
) -> None:
    async with Path() as path, Rig(path, {"topic": "t-${property.site}", "device": template}) as rig:
        rig.take(b"devices/1", b"payload", properties=b"id=d7")
    headers = headers_of(path.letters.records()[0])
    assert headers.get(wire.GATEWAY_DEVICE) == device
    assert wire.MQTT_RETAIN not in headers


@pytest.mark.parametrize("fast", [True, False])
async def test_a_payload_beyond_the_limit_is_buried_with_its_key_and_meant_topic(fast: bool) -> None:
    async with Path() as path:
        rig = Rig(path, {"key": "${topic[1]}", "metadata_headers": ["topic"] if fast else ["received"]})
        rig.take(b"devices/1", b"." * 4096)
        rig.take(b"devices/1", b"." * 4097)
        rig.take(b"devices/1", b"small")
        await rig.done()
        assert path.dead == [DeadLetterReason.TOO_LARGE]
    assert [len(value or b"") for value in path.topic.values()] == [4096, 5]
    assert b"".join(value or b"" for value in path.letters.values()) == b"." * 4097
    record = path.letters.records()[0]
    headers = headers_of(record)
    assert (record.key, headers[wire.DLQ_KAFKA_TOPIC]) == (b"1", b"t")
    for words in (b"4097 bytes", b"kafka.max_record_bytes allows 4096"):
        assert words in headers[wire.DLQ_ERROR]


# --- parked -----------------------------------------------------------------------------------------------------------
async def test_messages_for_a_topic_not_known_yet_wait_in_order_and_then_go_the_fast_way() -> None:
    kafka = FakeKafka(batch_bytes=500)
    topic = kafka.topic("t-oslo", 3)
    async with Path(kafka, topics=[DEAD_LETTERS]) as path, Rig(path, {"topic": "t-${topic[1]}"}) as rig:
        for number in range(30):
            rig.take(b"devices/oslo/%d" % (number % 4), b"%d" % number)
            path.flush()
        assert path.held == 30
        assert path.accumulator.buffered_bytes > 30 * 100
        assert path.owner.released == []
        await path.until(lambda: path.held == 0, "unparked and stored")  # without another flush
        assert rig.located == ["t-oslo"]
        assert path.owner.released == [b"%d" % n for n in range(30)]
        rig.take(b"devices/oslo/0", b"30")
        assert rig.dispatcher.caches[QOS1][b"devices/oslo/0"][0] is not None  # fast from now on
    for device in range(4):
        values = [r.value for r in topic.records() if r.key == b"devices/oslo/%d" % device]
        assert values == [b"%d" % n for n in (*range(device, 30, 4), *([30] if device == 0 else []))]


async def test_messages_that_come_while_others_wait_queue_behind_them() -> None:
    """The topic becomes known before the wait is over: what comes then may not overtake."""
    async with Path(topics=[DEAD_LETTERS, "t-new"]) as path, Rig(path, {"topic": "t-${topic[1]}"}) as rig:
        rig.answers.append(UnreachableError("not now"))
        rig.take(b"devices/new", b"0")
        topic = path.kafka.topic("t-new")
        await path.until(lambda: path.partition_count("t-new") == 1, "known")
        rig.take(b"devices/new", b"1")
        rig.take(b"devices/new", b"2")
    assert topic.values() == [b"0", b"1", b"2"]


async def test_a_parked_message_holds_back_the_spans_behind_its_own() -> None:
    kafka = FakeKafka("t-there")
    kafka.topic("t-new")
    async with Path(kafka, topics=[DEAD_LETTERS, "t-there"]) as path, Rig(path, {"topic": "t-${topic[1]}"}) as rig:
        rig.answers.extend([UnreachableError("not now")] * 5)
        rig.take(b"devices/new")
        path.flush()
        rig.take(b"devices/there")
        path.flush()
        await path.until(lambda: kafka.topics["t-there"].values() == [b"x"], "stored")
        await asyncio.sleep(LOCATE_RETRY_S)
        assert path.owner.released == []
    assert path.owner.released == [b"0", b"1"]


@pytest.mark.parametrize("error", [UnreachableError("away"), RefusedError("no right to see it")])
async def test_a_topic_that_cannot_be_asked_for_now_is_asked_for_again_and_nothing_is_buried(
    error: BridgeError,
) -> None:
    kafka = FakeKafka("t-new")
    async with Path(kafka, topics=[DEAD_LETTERS]) as path, Rig(path, {"topic": "t-${topic[1]}"}) as rig:
        rig.answers.extend([error] * 20)
        rig.take(b"devices/new")
        begun_s = asyncio.get_running_loop().time()
    waited_s = asyncio.get_running_loop().time() - begun_s
    assert 20 * LOCATE_RETRY_S <= waited_s <= 30 * LOCATE_RETRY_S
    assert path.dead == []
    assert kafka.topics["t-new"].values() == [b"x"]


async def test_messages_for_a_topic_that_does_not_exist_are_buried_as_they_were() -> None:
    async with Path(FakeKafka("t-there"), topics=[DEAD_LETTERS, "t-there"]) as path:
        rig = Rig(path, {"topic": "t-${topic[1]}", "empty_payload": "tombstone"})
        rig.take(b"devices/nowhere", b"1")
        rig.take(b"devices/there", b"2")
        rig.take(b"devices/nowhere", b"")
        path.flush()
        await path.until(lambda: path.held == 0, "buried")  # without another flush
        assert path.ledger.dead_lettered == 2
        assert path.owner.released == [b"0", b"1", b"2"]
        rig.take(b"devices/nowhere", b"3")  # asked for anew: somebody may have made it
        await rig.done()
        assert rig.located == ["t-nowhere"] * 2
    assert path.letters.values() == [b"1", None, b"3"]
    headers = headers_of(path.letters.records()[0])
    told = [headers[name] for name in (wire.DLQ_REASON, wire.DLQ_KAFKA_TOPIC, wire.MQTT_TOPIC)]
    assert told == [b"invalid_topic", b"t-nowhere", b"devices/nowhere"]


async def test_the_bytes_of_parked_messages_count_headers_and_all() -> None:
    kafka = FakeKafka("t-new")
    async with Path(kafka, topics=[DEAD_LETTERS]) as path, Rig(path, {"topic": "t-${topic[1]}"}) as rig:
        rig.take(b"devices/new", b"p" * 1000, properties=b"name=" + b"v" * 5000)
        assert path.accumulator.buffered_bytes >= 6000


async def test_a_defect_while_a_topic_is_located_is_told_not_silent() -> None:
    async with Path() as path:
        rig = Rig(path, {"topic": "t-${topic[1]}"})
        defect = RuntimeError("a defect")
        rig.answers.append(defect)
        rig.take(b"devices/new")
        path.flush()
        await asyncio.sleep(10)
        assert rig.defects == [defect]
        assert path.owner.released == []
        await rig.dispatcher.close()


async def test_a_close_gives_up_waiting_and_acknowledges_nothing_parked() -> None:
    async with Path() as path:
        rig = Rig(path, {"topic": "t-${topic[1]}"})
        rig.answers.extend([UnreachableError("away")] * 100)
        rig.take(b"devices/new")
        path.flush()
        await asyncio.sleep(0.5)
        await rig.dispatcher.close()
        await rig.dispatcher.close()
        assert path.owner.released == []
        assert path.held == 1
        assert not rig.defects


ALARMS = {"name": "alarms", "topic": "alarms", "group": "urgent"}


async def test_what_another_groups_sessions_fetch_too_is_taken_once() -> None:
    """Filters of two groups overlap: the message comes to a session of each; only its route's own group takes it."""
    kafka = FakeKafka("t")
    kafka.topic("alarms")
    async with Path(kafka) as path:
        rig = Rig(path, {"filters": ["devices/+/alarm"], **ALARMS}, {})
        rig.take(b"devices/1/alarm")
        rig.take(b"devices/1/alarm")
        rig.take(b"devices/1/telemetry")
        await path.drained()
        assert rig.filtered == [("alarms", "other_group")] * 2
        assert not kafka.topics["alarms"].records()
        assert len(kafka.topics["t"].records()) == 1
        assert (path.ledger.filtered, path.ledger.delivered) == (2, 1)
        for group, filter_ in (("urgent", "devices/+/alarm"), ("", "devices/#")):
            (subscription,) = rig.router.subscriptions("shared", 1, group=group)[0]
            assert subscription.filter == f"$share/gateway/{filter_}"


@pytest.mark.parametrize("interceptors", [[], [{"use": "headers", "add": {"site": "north"}}]])
async def test_a_copy_is_dropped_only_while_the_other_group_receives_the_message_for_certain(
    interceptors: list[dict[str, Any]],
) -> None:
    kafka = FakeKafka("t")
    kafka.topic("alarms")
    alarms = {"filters": ["devices/+/alarm"], "interceptors": interceptors, **ALARMS}
    chains = load_chains(Settings(routes=[alarms]))
    async with Path(kafka) as path:
        rig = Rig(path, alarms, {}, chains=chains)
        for numbers, dropped in (([1], 1), ([], 1), ([2], 2), ([1, 2], 4)):
            received = [("urgent", f"devices/{number}/alarm") for number in numbers]
            rig.dispatcher.receives = lambda group, topic, received=received: (group, topic) in received
            rig.take(b"devices/1/alarm")
            rig.take(b"devices/2/alarm")
            assert len(rig.filtered) == dropped
        await path.drained()
        assert len(kafka.topics["alarms"].records()) == 4


async def test_what_came_by_a_filter_of_earlier_settings_goes_where_its_route_says_now() -> None:
    """The route has moved to another group; a session that the broker kept still brings what it had queued, and nobody
    else does: filtered, it would be acknowledged and lost."""
    kafka = FakeKafka("t")
    kafka.topic("alarms")
    async with Path(kafka) as path:
        rig = Rig(path, {"filters": ["alarms/+"], **ALARMS}, {})
        rig.take(b"alarms/1")
        rig.take(b"alarms/1")
        await path.drained()
        assert not rig.filtered
        assert len(kafka.topics["alarms"].records()) == 2


in_manual_time(globals())
