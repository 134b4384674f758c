"""The hot path: whatever a broker sends and however the bytes are cut, each message arrives once, whole, in order."""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt import _packet as paho_packet
from paho.mqtt.client import MQTTv5, MQTTv311

from bridge.wire import MQTT_DUP, MQTT_QOS, MQTT_RETAIN, MQTT_TOPIC, MQTT_USER_PREFIX
from gateway.mqtt.errors import MalformedPacketError
from tests.brokers import packets
from tests.brokers.data_path import MemoryPath, make_settings
from tests.brokers.packets import Type, ids
from tests.brokers.rig import make_rig

many = settings(deadline=None, max_examples=150)


class Sent(NamedTuple):
    """A message as the broker sends it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    user: tuple[tuple[str, str], ...]

    def encode(self, *, v5: bool) -> bytes:
        raw = b"".join(packets.user_property(*pair) for pair in self.user) if v5 else None
        data = packets.publish(
            self.topic, self.payload, qos=self.qos, packet_id=self.packet_id, retain=self.retain, dup=self.dup,
            properties=raw,
        )  # fmt: skip
        self._compare_with_paho(data, v5=v5)
        return data

    def _compare_with_paho(self, data: bytes, *, v5: bool) -> None:
        """The test's own encoder is not to be trusted either."""
        _, start = packets.read_varint(data, 1)
        read = paho_packet.decode_publish(data[0], data[start:], MQTTv5 if v5 else MQTTv311)
        assert (read.topic.decode(), read.payload, read.qos, read.retain, read.dup, read.mid) == self[:6]
        if v5:
            assert tuple(getattr(read.properties, "UserProperty", ())) == self.user

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """What the record's headers must be, with ``WITH_QOS``."""
        expected = [(MQTT_TOPIC, self.topic.encode())]
        if self.qos:
            expected.append((MQTT_QOS, b"%d" % self.qos))
        if self.retain:
            expected.append((MQTT_RETAIN, b"1"))
        if self.dup:
            expected.append((MQTT_DUP, b"1"))
        return expected + [(MQTT_USER_PREFIX + name, value.encode()) for name, value in self.user]


names = st.text("abcdefghijkl-é☃", min_size=1, max_size=6)
topics = st.one_of(
    st.sampled_from(["devices/1/up", "devices/2/up", "devices/3"]),
    st.builds("devices/{}/{}".format, names, names),
    st.integers(1, 40_000).map(lambda size: "devices/" + "x" * size),
)
payloads = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 70_000).map(lambda size: b"\x30" * size),  # a PUBLISH's first byte, over and over
)
user_properties = st.one_of(
    st.just(()), st.lists(st.tuples(names, names), max_size=3).map(tuple), st.just((("big", "v" * 200),))
)


@st.composite
def messages(draw: Callable, *, v5: bool) -> list[Sent]:
    """Messages of one connection: packet ids differ, as those in flight must."""
    count = draw(st.integers(1, 12))
    ids = draw(st.lists(st.integers(1, 65535), min_size=count, max_size=count, unique=True))
    sent = []
    for packet_id in ids:
        quality = draw(st.integers(0, 2))
        sent.append(
            Sent(
                draw(topics), draw(payloads), quality, draw(st.booleans()), bool(quality) and draw(st.booleans()),
                packet_id if quality else 0, draw(user_properties) if v5 else (),
            )
        )  # fmt: skip
    return sent


WITH_QOS = {
    "name": "telemetry", "filters": ["devices/#"], "topic": "telemetry",
    "metadata_headers": ["topic", "qos", "retain", "dup", "properties"],
}  # fmt: skip


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@many
@given(data=st.data(), v5=st.booleans(), places=st.lists(st.integers(0, 1 << 30), max_size=12))
async def test_every_message_arrives_once_whole_and_in_order_however_the_bytes_are_cut(
    data: st.DataObject, v5: bool, places: list[int]
) -> None:
    sent = data.draw(messages(v5=v5))
    other = data.draw(st.lists(st.sampled_from([packets.PINGRESP, packets.pubrel(9), b""]), min_size=len(sent)))
    stream = b"".join(m.encode(v5=v5) + between for m, between in zip(sent, other, strict=False))
    async with make_rig(mqtt={"protocol": "5" if v5 else "3.1.1"}, routes=[WITH_QOS]) as rig:
        await rig.deliver(*cut(stream, places))
        # Order is MQTT's: that of messages of one topic and one QoS [MQTT-4.6.0-5].
        by_key = defaultdict(list)
        for stored in rig.path.log:
            by_key[stored.record.key, dict(stored.record.headers).get(MQTT_QOS, b"0")].append(stored.record)
        expected = defaultdict(list)
        for message in sent:
            expected[message.topic.encode(), b"%d" % message.qos].append(message)
        assert by_key.keys() == expected.keys()
        for key, want in expected.items():
            assert [record.value for record in by_key[key]] == [message.payload for message in want]
            assert [record.headers for record in by_key[key]] == [message.headers for message in want]
        answers = rig.answers()
        # QoS 1 is acknowledged, and QoS 2 received, in the order of arrival [MQTT-4.6.0-2, MQTT-4.6.0-3].
        for qos, kind in ((1, Type.PUBACK), (2, Type.PUBREC)):
            assert ids(answers, kind) == [message.packet_id for message in sent if message.qos == qos]
        rig.path.check()
        assert rig.path.ledger.delivered == len(sent)
        assert rig.ingest.retained == sum(message.retain for message in sent)
        assert rig.ingest.redelivered == sum(message.dup for message in sent)


@many
@given(data=st.data(), v5=st.booleans(), junk=st.binary(max_size=60), at=st.integers(0, 1 << 30), tail=st.booleans())
async def test_bytes_that_are_no_mqtt_end_in_a_named_error_and_lose_no_message_from_the_account(
    data: st.DataObject, v5: bool, junk: bytes, at: int, tail: bool
) -> None:
    sent = data.draw(messages(v5=v5))
    whole = b"".join(message.encode(v5=v5) for message in sent)
    # Either junk behind good packets, or some bytes in the middle overwritten.
    at %= len(whole)
    stream = whole + junk if tail else whole[:at] + junk + whole[at + len(junk) :]
    async with make_rig(mqtt={"protocol": "5" if v5 else "3.1.1"}) as rig:
        rig.send(stream)  # raises nothing, whatever came
        await rig.settle()
        rig.connection.close()
        await rig.settle()
        rig.path.check()
        snapshot = rig.path.ledger.snapshot()
        assert snapshot.in_flight == 0
        assert min(snapshot.as_dict().values()) >= 0, f"no term can be negative: {snapshot}"
        assert len(rig.path.log) >= snapshot.delivered


@many
@given(junk=st.binary(max_size=300), v5=st.booleans())
async def test_junk_raises_nothing_but_the_error_of_a_broken_peer(junk: bytes, v5: bool) -> None:
    async with MemoryPath(make_settings(mqtt={"protocol": "5" if v5 else "3.1.1"})) as path:
        ingest = path.ingest()
        try:
            used, _ = ingest.feed(junk)
        except MalformedPacketError:
            return
        assert 0 <= used <= len(junk)
        assert (used == len(junk)) == (not ingest.missing)


def good_packets(*, v5: bool) -> dict[str, bytes]:
    """A PUBLISH of each kind the hot path tells apart, and what else it reads by itself."""
    properties = {
        "none": b"",
        "one": packets.user_property("unit", "°C"),
        "many": b"\x01\1\x02\0\0\0\x09\x03\0\1a\x08\0\1r\x09\0\2cd\x0b\x81\1" + packets.user_property("a", "b"),
        "a length of two bytes": packets.user_property("a", "b" * 130),
    }
    found = {
        f"QoS {qos}, DUP {dup}, properties: {name}": packets.publish(
            "devices/1", b"p" * size, qos=qos, packet_id=bool(qos) and 7, dup=dup, retain=dup,
            properties=raw if v5 else None,
        )
        for qos, dup in ((0, False), (1, False), (2, True))
        for (name, raw), size in zip(properties.items() if v5 else [("none", b"")], (0, 3, 3, 0), strict=False)
    }  # fmt: skip
    return found | {"PUBREL": packets.pubrel(7), "PINGRESP": packets.PINGRESP}


@pytest.mark.parametrize("v5", [False, True])
async def test_every_prefix_and_every_single_byte_changed_is_taken_awaited_or_malformed(v5: bool) -> None:
    """Those with one bit changed also as the first packet of several: then what is read beyond its end is the next
    one's bytes."""
    after = packets.publish("devices/2", b"after", qos=1, packet_id=8, properties=b"" if v5 else None)
    verdicts = defaultdict(int)
    async with MemoryPath(make_settings(mqtt={"protocol": "5" if v5 else "3.1.1"}, routes=[WITH_QOS])) as path:
        for case, good in good_packets(v5=v5).items():
            prefixes = [good[:size] for size in range(len(good))]
            changed = [
                good[:at] + bytes((byte,)) + good[at + 1 :] + behind
                for at in range(min(len(good), 60))
                for byte in range(256)
                for behind in ((b"", after) if (byte ^ good[at]).bit_count() < 2 else (b"",))
            ]
            for data in prefixes + changed:
                ingest = path.ingest()
                try:
                    used, _ = ingest.feed(data)
                except MalformedPacketError:
                    verdicts["malformed"] += 1
                except Exception as error:
                    raise AssertionError(f"{case}: {data!r}") from error
                else:
                    assert 0 <= used <= len(data), (case, data)
                    assert (used == len(data)) == (not ingest.missing), (case, data)
                    verdicts["awaited" if ingest.missing else "taken"] += 1
    assert min(verdicts[name] for name in ("malformed", "awaited", "taken")) > 100, verdicts


DEFECTS = {  # parts of ours that the hot path calls, and the settings with which it does
    "entry": ("bridge.produce.dispatch.Dispatcher.entry", {}),
    "property_headers": ("bridge.produce.dispatch.Dispatcher.property_headers", {"routes": [WITH_QOS]}),
    "slow": ("bridge.produce.dispatch.Dispatcher.slow", {"routes": [WITH_QOS | {"key": "${payload.id}"}]}),
    "a batch's append": ("tests.brokers.data_path.MemoryBatch._append", {}),
}


@pytest.mark.parametrize("protocol", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("place", DEFECTS)
async def test_a_defect_of_ours_is_never_called_malformed(
    monkeypatch: pytest.MonkeyPatch, place: str, qos: int, protocol: str
) -> None:
    """An IndexError too, which bytes that end early raise as well; and behind a packet of no payload."""
    target, tables = DEFECTS[place]
    if place == "property_headers" and protocol == "3.1.1":
        return  # has no properties

    def broken(*_: object) -> None:
        raise IndexError("a defect")

    async with make_rig(mqtt={"protocol": protocol}, **tables) as rig:
        monkeypatch.setattr(target, broken)
        options = {"properties": packets.user_property("a", "b")} if protocol == "5" else {}
        rig.send(packets.PINGRESP + rig.publish("devices/1", qos=qos, packet_id=bool(qos) and 1, **options))
        label, detail = rig.connection.ended.result()
        assert label == "other", detail
        assert (rig.path.ledger.received, rig.path.ledger.returned) == (0, 0)
        rig.path.check()


# --- what MQTT forbids, one by one ---
def v5(topic: str | bytes = "devices/1", payload: bytes = b"", **options: object) -> bytes:
    return packets.publish(topic, payload, **{"properties": b"", **options})  # type: ignore[arg-type]


def flagged(flags: int, body: bytes) -> bytes:
    return packets.packet(Type.PUBLISH, flags, body)


FORBIDDEN = {
    "QoS 3": (flagged(6, packets.text("devices/1") + b"\0\1\0"), "QoS 3", 0x81),
    "QoS 3 with DUP": (flagged(14, packets.text("devices/1") + b"\0\1\0"), "QoS 3", 0x81),
    "DUP with QoS 0": (v5(dup=True), "DUP with QoS 0", 0x81),
    "packet id 0": (v5(qos=1), "packet id 0", 0x81),
    "packet id 0, QoS 1 with DUP": (v5(qos=1, dup=True), "packet id 0", 0x81),
    "packet id 0, QoS 2": (v5(qos=2), "packet id 0", 0x81),
    "no body at all": (flagged(0, b""), "longer than its packet|without a topic|ends before", 0x81),
    "a topic that is longer than its packet": (flagged(0, b"\0\xff" + b"devices/1\0"), "longer than", 0x81),
    "no packet id where there must be one": (flagged(2, packets.text("devices/1")), "longer than", 0x81),
    "half a packet id": (flagged(2, packets.text("devices/1") + b"\0"), "longer than|propert", 0x81),
    "no property length": (flagged(0, packets.text("devices/1")), "longer than|propert", 0x81),
    "properties that are longer than their packet": (
        flagged(0, packets.text("devices/1") + b"\x20\x26"), "longer than|end in the middle", 0x81
    ),
    "a property length of five bytes": (
        flagged(0, packets.text("devices/1") + b"\x80\x80\x80\x80\x01"), "property length", 0x81
    ),
    "a remaining length of five bytes": (b"\x30\xff\xff\xff\xff\x01", "remaining length", 0x81),
    "a property that PUBLISH has not": (v5(properties=b"\x11\0\0\0\1"), "0x11", 0x81),
    "a property twice": (v5(properties=b"\x03\0\1a\x03\0\1b"), "twice", 0x82),
    "a topic alias": (v5(properties=b"\x23\0\1"), "topic alias", 0x94),
    "a topic alias in place of a topic": (v5("", properties=b"\x23\0\1"), "topic alias", 0x94),
    "no topic": (v5(""), "without a topic", 0x81),
    "a packet larger than we take": (v5(payload=bytes(3000)), "mqtt.max_packet_bytes", 0x95),
    "PUBREL with wrong flags": (packets.packet(Type.PUBREL, 0, b"\0\1"), "PUBREL", 0x81),
    "PUBREL without packet id": (packets.packet(Type.PUBREL, 2, b""), "PUBREL", 0x81),
    "PUBREL for packet id 0": (packets.packet(Type.PUBREL, 2, b"\0\0"), "packet id 0", 0x81),
    "a packet type that only clients send": (packets.packet(Type.SUBSCRIBE, 2, b"\0\1\0\0\1a\0"), "SUBSCRIBE", 0x81),
    "packet type 0": (b"\x00\x00", "type 0", 0x81),
}  # fmt: skip


@pytest.mark.parametrize("case", FORBIDDEN)
async def test_what_mqtt_forbids_ends_the_connection_with_a_reason(case: str) -> None:
    bad, words, code = FORBIDDEN[case]
    good = [v5(payload=b"%d" % number, qos=number % 3, packet_id=number) for number in range(1, 7)]
    async with make_rig(mqtt={"max_packet_bytes": 2048}) as rig:
        await rig.deliver(b"".join(good) + bad + v5(payload=b"after"))
        label, detail = rig.connection.ended.result()
        assert label == "protocol", detail
        assert re.search(words, detail), detail
        (goodbye,) = [answer for answer in rig.answers() if answer.type is Type.DISCONNECT]
        assert goodbye.body[0] == code, f"the broker is told {goodbye.body[0]:#x}"
        taken = [value for value in rig.path.values if value in {b"1", b"2", b"3", b"4", b"5", b"6"}]
        assert sorted(taken) == [b"1", b"2", b"3", b"4", b"5", b"6"], "what came before the bad packet is taken"
        if "packet id 0" not in case:  # that packet is well formed; it is noticed at the end of a read
            assert b"after" not in rig.path.values, "behind it nothing can be trusted"
        rig.path.check()


FOR_PAHO = {
    "a SUBACK that ends at once": (packets.packet(Type.SUBACK, 0, b""), "SUBACK"),
    "a SUBACK with a code that does not exist": (packets.suback(1, b"\x55", v5=True), "SUBACK"),
    "a DISCONNECT with a code that does not exist": (packets.disconnect(0x33), "DISCONNECT"),
    "a PUBACK of one byte": (packets.packet(Type.PUBACK, 0, b"\1"), "PUBACK"),
    "an UNSUBACK with properties that do not end": (packets.packet(Type.UNSUBACK, 0, b"\0\1\xff"), "UNSUBACK"),
    "enhanced authentication, which nobody asked for": (packets.packet(Type.AUTH, 0, b"\x18\0"), "AUTH"),
}


@pytest.mark.parametrize("case", FOR_PAHO)
async def test_packets_that_are_pahos_business_end_the_connection_likewise(case: str) -> None:
    bad, words = FOR_PAHO[case]
    async with make_rig() as rig:
        await rig.deliver(v5(payload=b"before", qos=1, packet_id=1) + bad + v5(payload=b"after", qos=1, packet_id=2))
        label, detail = rig.connection.ended.result()
        assert (label, words in detail) == ("protocol", True), detail
        rig.path.check()


@pytest.mark.parametrize("size", [1, 126, 127, 128, 129, 16382, 16383, 16384, 2_097_151])
@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_the_edges_of_the_remaining_length(size: int, pieces: int) -> None:
    head = len(packets.text("devices/1")) + 1
    if size < head:
        size = head
    data = v5(payload=b"p" * (size - head))
    limits = {"max_record_bytes": 4 << 20, "batch_bytes": 8 << 20}
    async with make_rig(mqtt={"max_packet_bytes": 4 << 20}, kafka=limits) as rig:
        await rig.deliver(*cut(data, [len(data) * n // pieces for n in range(pieces)]))
        assert rig.path.values == [b"p" * (size - head)]
        rig.path.check()


@pytest.mark.parametrize(
    ("size", "pieces", "taken"), [(2100, 1, False), (2100, 5, False), (2049, 1, False), (2048, 1, True)]
)
async def test_a_packet_beyond_the_largest_size_is_refused_however_cut(size: int, pieces: int, taken: bool) -> None:
    data = v5(payload=bytes(size - len(v5(payload=bytes(1000))) + 1000))
    assert len(data) == size
    async with make_rig(mqtt={"max_packet_bytes": 2048}) as rig:
        await rig.deliver(*cut(data, [len(data) * n // pieces for n in range(pieces)]))
        assert rig.connection.ended.done() is not taken
        assert len(rig.path.values) == taken


async def test_a_payload_beyond_what_a_record_may_have_becomes_a_dead_letter_and_is_acknowledged() -> None:
    async with make_rig(kafka={"max_record_bytes": 2000}, dead_letter={"topic": "dead"}) as rig:
        await rig.deliver(v5(payload=b"x" * 2500, qos=1, packet_id=5) + v5(payload=b"fits", qos=1, packet_id=6))
        assert [stored.topic for stored in rig.path.log] == ["dead", "dead", "telemetry"]
        assert b"".join(s.record.value for s in rig.path.log if s.topic == "dead" and s.record.value) == b"x" * 2500
        assert ids(rig.answers()) == [5, 6]
        rig.path.check()


@pytest.mark.parametrize("topic", [b"devices/\xff", b"devices/+/x", b"devices/#", b"devices/\0"])
@pytest.mark.parametrize("quality", [0, 1, 2])
async def test_a_forbidden_topic_name_is_a_dead_letter_and_holds_nothing_up(topic: bytes, quality: int) -> None:
    """EMQX passes on what a device made up: to disconnect would bring it back after every reconnect, first of all."""
    async with make_rig(dead_letter={"topic": "dead"}) as rig:
        await rig.deliver(v5(topic, b"odd", qos=quality, packet_id=1) + v5(payload=b"good", qos=1, packet_id=2))
        assert not rig.connection.ended.done()
        dead, good = sorted(rig.path.log)
        assert (good.topic, good.record.value) == ("telemetry", b"good")
        assert (dead.topic, dead.record.key, dead.record.value) == ("dead", topic, b"odd")
        headers = dict(dead.record.headers)
        assert headers["mqtt.topic"] == topic.decode(errors="backslashreplace").encode()
        assert headers["dlq.error_class"] == b"TopicNameError"
        assert rig.connection.unacked == 0
        rig.path.check()


async def test_messages_without_a_route_and_status_messages_are_filtered_and_acknowledged() -> None:
    async with make_rig() as rig:
        await rig.deliver(v5("elsewhere/1", qos=1, packet_id=1) + v5("gateways/a/status", qos=2, packet_id=2))
        assert rig.path.filtered == [("", "no_route"), ("", "status")]
        assert [answer.type for answer in rig.answers()] == [Type.PUBACK, Type.PUBREC]
        rig.path.check()


async def test_a_malformed_property_counts_against_the_broker_also_where_no_header_wants_it() -> None:
    """A topic whose route wants no properties: they are passed over, whatever they hold, and the payload is right."""
    route = {"name": "bare", "filters": ["devices/#"], "topic": "bare", "metadata_headers": []}
    async with make_rig(routes=[route]) as rig:
        await rig.deliver(v5(payload=b"body", properties=packets.user_property("a", "b" * 300)))
        assert rig.path.values == [b"body"]
        assert rig.path.log[0].record.headers == []


async def test_a_topic_keeps_its_partition_and_its_order_across_flushes_and_out_of_the_cache() -> None:
    async with make_rig(flow={"route_cache_entries": 2}) as rig:
        expected = defaultdict(list)
        for number in range(200):
            topic, payload = f"devices/{number % 7}", b"%d" % number
            expected[topic.encode()].append(payload)
            rig.send(v5(topic, payload, qos=1, packet_id=number + 1))
            if number % 11 == 0:
                await rig.settle()
        await rig.settle()
        found = defaultdict(list)
        partitions = defaultdict(set)
        for stored in rig.path.log:
            found[stored.record.key].append(stored.record.value)
            partitions[stored.record.key].add(stored.partition)
        assert found == expected
        assert all(len(numbers) == 1 for numbers in partitions.values())
