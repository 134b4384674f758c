"""The small parts of commands: the offset map, tokens, records read, topics made, timers, and packets written."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge import wire
from bridge.commands.command import Command, Device
from bridge.commands.offset_map import Mark, OffsetMap
from bridge.commands.plan import CommandPlan
from bridge.commands.ports import Outgoing
from bridge.commands.reading import BadCommandError, Request, read_answer, read_delivery, read_presence, read_request
from bridge.commands.timers import Timers
from bridge.commands.tokens import Signer
from bridge.dead_letters.reading import LoggedRecord, Place
from bridge.wire import DeadLetterReason
from config.tables.commands import CommandSettings
from gateway.mqtt.publish_link import encode_publish
from tests.brokers import packets

PLACE = Place("commands", 3, 4711)
NOW_MS = 1_700_000_000_000


def plan(**options: Any) -> CommandPlan:
    options = {"secret": "s" * 32, "answers": "answers", "status_topic": "status", "topics": ("commands",), **options}
    return CommandPlan.from_settings(CommandSettings(name="c", **options))


# --- the offset map ---
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 3)),
        st.tuples(st.just("await"), st.integers(0, 30)),
        st.tuples(st.just("finish"), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(st.integers(0, 10**12), st.integers(0, 10**12), STEPS)
@settings(max_examples=300, deadline=None)
def test_a_map_is_what_its_text_says_and_no_unfinished_offset_is_below_its_mark(
    low: int, status_offset: int, steps: list[tuple[str, int]]
) -> None:
    map_ = OffsetMap(low, status_offset)
    known: dict[int, Mark] = {}
    for what, number in steps:
        if what == "take":
            at = map_.end + number
            known.update(dict.fromkeys(range(map_.end, at), Mark.FINISHED))
            known[at] = Mark.TAKEN
            map_.take(at)
        elif known.get(low + number) not in {None, Mark.FINISHED}:
            at = low + number
            known[at] = Mark.AWAITING if what == "await" else Mark.FINISHED
            (map_.await_ if what == "await" else map_.finish)(at)
        unfinished = [at for at, mark in known.items() if mark is not Mark.FINISHED]
        assert map_.low <= min(unfinished, default=map_.end)
        again = OffsetMap.parse(map_.low, map_.text())
        end = map_.end if unfinished else map_.low
        assert (again.low, again.end, again.status_offset) == (map_.low, end, status_offset)
        for at, mark in known.items():
            assert map_.mark(at) is mark
            assert again.mark(at) is (mark if at < end else None)
        assert again.text() == map_.text()
    map_.take(map_.end)
    map_.finish(map_.end - 1)
    unfinished = [at for at, mark in known.items() if mark is not Mark.FINISHED]
    assert map_.low == min(unfinished, default=map_.end)


@pytest.mark.parametrize("text", ["", "2|1|F1", "1|x|F1", "1|1|F0", "1|1|Z3", "1|1|F1 ", "lead epoch 7", "1|1|F1A"])
def test_a_commit_of_other_software_gives_an_empty_map(text: str) -> None:
    assert OffsetMap.parse(7, text) == OffsetMap(7)


def test_deleted_records_are_passed_over_but_for_what_is_held() -> None:
    map_ = OffsetMap(0)
    for at in range(10):
        map_.take(at)
    assert map_.pass_over(20, [3, 4]) == 8 + 10
    assert (map_.low, map_.end) == (3, 20)
    map_.finish(3)
    map_.finish(4)
    assert map_.low == 20


# --- tokens ---
@given(
    st.builds(Place, st.from_regex(r"[A-Za-z0-9._-]{1,60}", fullmatch=True), st.integers(0, 9999),
              st.integers(0, 2**63)),
    st.text(max_size=100).filter(lambda text: "\0" not in text and text.isprintable()),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_a_token_carries_place_and_id_and_may_stand_in_a_topic(place: Place, command_id: str) -> None:
    signer = Signer("s" * 32, "c")
    token = signer.sign(place, command_id)
    assert signer.read(token) == (place, command_id)
    assert set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


def test_the_id_that_is_a_place_makes_a_token_too() -> None:
    signer = Signer("s" * 32, "c")
    assert signer.read(signer.sign(PLACE, str(PLACE))) == (PLACE, str(PLACE))


def test_a_token_of_another_name_or_secret_is_not_read() -> None:
    token = Signer("s" * 32, "c").sign(PLACE, "id")
    assert Signer("s" * 32, "d").read(token) is None
    assert Signer("t" * 32, "c").read(token) is None


def test_what_is_signed_cannot_be_taken_for_another_command() -> None:
    """The id cannot reach into the place."""
    signer = Signer("s" * 32, "c")
    content = base64.urlsafe_b64encode(b"commands/3:1\0other").rstrip(b"=").decode()
    assert signer.read(f"{content}.{signer.sign(PLACE, 'id').partition('.')[2]}") is None


def test_each_change_of_a_token_is_seen_and_it_has_one_spelling() -> None:
    signer = Signer("s" * 32, "c")
    token = signer.sign(PLACE, "an id")
    for at in range(len(token)):
        for other in "A_.=é\0":
            changed = token[:at] + other + token[at + 1 :]
            assert changed == token or signer.read(changed) is None
            assert signer.read(token[:at] + other + token[at:]) is None
    for spelling in (f"{token}=", f"{token}.", f" {token}", f"{token}\n", token.swapcase(), "", ".", "x" * 5000):
        assert signer.read(spelling) is None
    first, _, second = token.partition(".")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    readable = [one for one in last if signer.read(f"{first}.{second[:-1]}{one}") is not None]
    assert readable == [second[-1]], "the last character has bits to spare"


# --- records ---
def record(
    headers: dict[str, bytes | None] | None = None, *, key: bytes | None = b"lamp", value: bytes | None = b"on",
    at_ms: int = NOW_MS,
) -> LoggedRecord:  # fmt: skip
    return LoggedRecord(PLACE, at_ms, key, value, list((headers or {}).items()))


def request(found: LoggedRecord, **options: Any) -> Request:
    return read_request(found, plan(**options), NOW_MS)


def test_a_record_without_headers_commands_its_key() -> None:
    found = request(record())
    assert (found.device, found.own_id, found.subject, found.is_answer_asked) == ("lamp", None, "", False)
    assert found.is_ordered
    assert found.deadline_ms == NOW_MS + 60_000


def test_headers_say_what_is_asked_and_others_are_passed_on() -> None:
    found = request(record({
        "device_id": b"lamp", "subject": b"switch", "correlation-id": b"id-1", "response-required": b" True ",
        "content-type": b"text/plain", "expires-at": b"1700000005000", "tenant": "ü".encode(), "empty": None,
    }, key=b"\xff"))  # fmt: skip
    assert found == Request("lamp", "id-1", "switch", NOW_MS + 5000, True, False, "text/plain",
                            (("tenant", "ü"), ("empty", "")))  # fmt: skip


def test_the_names_of_headers_are_settings() -> None:
    found = request(record({"to": b"lamp", "device_id": b"x"}, key=None), device_header="to")
    assert found.device == "lamp"
    assert found.user == (("device_id", "x"),)
    assert not found.is_ordered


@pytest.mark.parametrize(("at_ms", "deadline_ms"), [
    (NOW_MS - 10_000, NOW_MS + 50_000), (NOW_MS + 10**9, NOW_MS + 60_000), (-1, 59_999),
])  # fmt: skip
def test_a_records_time_is_never_later_than_now(at_ms: int, deadline_ms: int) -> None:
    assert request(record(at_ms=at_ms)).deadline_ms == deadline_ms


@pytest.mark.parametrize(("headers", "key", "reason"), [
    *(({}, key, DeadLetterReason.MISSING_VALUE) for key in (None, b"")),
    ({"device_id": b""}, b"lamp", DeadLetterReason.MISSING_VALUE),
    *(({}, key, DeadLetterReason.INVALID_TOPIC) for key in (b"a/b", b"+", b"a#", b"$SYS", b"a\0", b"x" * 1025, b"a\n")),
    *(({"subject": text}, b"lamp", DeadLetterReason.INVALID_TOPIC) for text in (b"a/../b", "\ufdd0".encode())),
    ({}, b"\xff", DeadLetterReason.INVALID_RECORD),
    *(({"tenant": text}, b"lamp", DeadLetterReason.INVALID_RECORD) for text in (b"\xff", b"\0", "\U0001ffff".encode())),
    *(({"correlation-id": text}, b"lamp", DeadLetterReason.INVALID_RECORD) for text in (b"x" * 513, b"a\0b")),
    ({"ten\tant": b"a"}, b"lamp", DeadLetterReason.INVALID_RECORD),
    ({"ten\ufffdant": b"a"}, b"lamp", DeadLetterReason.INVALID_RECORD),  # a name that was no UTF-8
    ({"content-type": b"text\n"}, b"lamp", DeadLetterReason.INVALID_RECORD),
    *(({"expires-at": text}, b"lamp", DeadLetterReason.INVALID_RECORD) for text in (b"soon", b"-1", "²".encode())),
    ({"expires-at": b"9" * 16}, b"lamp", DeadLetterReason.INVALID_RECORD),
    ({"response-required": b"maybe"}, b"lamp", DeadLetterReason.INVALID_RECORD),
])  # fmt: skip
def test_what_can_never_be_a_command_is_refused_with_a_sentence(
    headers: dict[str, bytes | None], key: bytes | None, reason: DeadLetterReason
) -> None:
    with pytest.raises(BadCommandError) as caught:
        request(record(headers, key=key))
    assert caught.value.reason is reason
    assert str(caught.value).endswith(".")


def test_a_payload_beyond_the_limit_is_refused() -> None:
    with pytest.raises(BadCommandError) as caught:
        request(record(value=b"12345"), max_payload_bytes=4)
    assert caught.value.reason is DeadLetterReason.TOO_LARGE
    assert request(record(value=None), max_payload_bytes=4).device == "lamp"


def test_an_answer_that_no_route_brings_cannot_be_asked_for() -> None:
    with pytest.raises(BadCommandError, match="no setting answers"):
        request(record({"response-required": b"true"}), answers=None, secret=None)


def test_of_qos_0_no_answer_is_awaited() -> None:
    assert not request(record({"response-required": b"true"}), qos=0).is_answer_asked


def from_device(topic: str, device: str) -> list[tuple[str, bytes | None]]:
    return [(wire.MQTT_TOPIC, topic.encode()), (wire.GATEWAY_DEVICE, device.encode())]


def answer_record(topic: str, *, device: str = "lamp", **properties: bytes) -> LoggedRecord:
    headers = from_device(topic, device)
    names = {
        "token": wire.MQTT_CORRELATION_DATA, "status": f"{wire.MQTT_USER_PREFIX}status",
        "content_type": wire.MQTT_CONTENT_TYPE,
    }  # fmt: skip
    headers += [(names[name], value) for name, value in properties.items()]
    return LoggedRecord(Place("answers", 0, 1), NOW_MS, b"k", b"done", headers)


def test_an_answer_is_read_from_properties_or_from_its_topic() -> None:
    found = read_answer(answer_record("devices/lamp/res", token=b"t.k", status=b"404", content_type=b"text/plain"))
    assert (found.token, found.code, found.device, found.content_type) == ("t.k", 404, "lamp", "text/plain")
    found = read_answer(answer_record("devices/lamp/res", token=b"t.k"))
    assert found.code == 200
    found = read_answer(answer_record("devices/lamp/res/t.k/503"))
    assert (found.token, found.code) == ("t.k", 503)


@pytest.mark.parametrize("found", [
    answer_record("devices/lamp/res/t/99"), answer_record("devices/lamp/res/t/2000"),
    answer_record("devices/lamp/res/t/300"), answer_record("devices/lamp/res/t/x00"),
    answer_record("r", token=b"t", status=b"ok"), answer_record("r", token=b"t", status="²00".encode()),
])  # fmt: skip
def test_a_status_that_is_none_of_ours_is_0(found: LoggedRecord) -> None:
    assert (answer := read_answer(found)) is not None
    assert (answer.token, answer.code) == ("t", 0)


@pytest.mark.parametrize("found", [
    answer_record("res"), answer_record("devices/lamp/res//200"),
    answer_record("devices/lamp/res/t/200", device=""), LoggedRecord(PLACE, 0, None, None, []),
])  # fmt: skip
def test_what_is_no_answer_is_not_read(found: LoggedRecord) -> None:
    assert read_answer(found) is None


def event(value: object, topic: str = "acked/lamp", device: str = "lamp") -> LoggedRecord:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return LoggedRecord(PLACE, 0, None, data, from_device(topic, device))


def test_a_delivery_is_a_token_and_the_topics_device() -> None:
    found = read_delivery(event({"token": "t", "device": "somebody else"}))
    assert (found.token, found.device) == ("t", "lamp")
    for other in (event({}), event({"token": 7}), event({"token": ""}), event(b"["), event([]), event(b"\xff"),
                  event(b"[" * 100_000), event({"token": "t"}, device="")):  # fmt: skip
        assert read_delivery(other) is None


@pytest.mark.parametrize(("value", "topic", "is_online"), [
    ({"event": "client.connected"}, "presence/lamp", True),
    ({"event": "client.disconnected"}, "presence/lamp", False),
    ({"event": "session.subscribed"}, "presence/lamp", None),
    ({}, "presence/lamp/connected", True),
    (b"online", "devices/lamp/state", True),
    (b" OFFLINE\n", "devices/lamp/state", False),
    ({"online": False}, "devices/lamp/state", False),
    ({"status": "up"}, "devices/lamp/state", True),
    (b"", "devices/lamp/state", None),
    (b"\xff\xfe", "devices/lamp/state", None),
    (b"[" * 100_000, "devices/lamp/state", None),
])  # fmt: skip
def test_presence_is_read_from_events_births_and_words(value: object, topic: str, is_online: bool | None) -> None:
    found = read_presence(event(value, topic))
    assert (found.device, found.is_online) == ("lamp", is_online)
    assert read_presence(event(value, topic, device="")) is None


# --- topics ---
@pytest.mark.parametrize(("template", "subject", "made"), [
    ("devices/${device}/req/${subject}", "switch", "devices/lamp/req/switch"),
    ("devices/${device}/req/${subject}", "", "devices/lamp/req"),
    ("devices/${device}/req/${subject}/${id}", "", "devices/lamp/req/tok"),
    ("c/${device}-${subject}/${id}", "a", "c/lamp-a/tok"),
])  # fmt: skip
def test_a_topic_is_made_of_its_template(template: str, subject: str, made: str) -> None:
    assert plan(mqtt_topic=template).topic("lamp", subject, "tok") == made


def test_a_name_cannot_bring_in_another_placeholder() -> None:
    """The values are put in once: what looks like a placeholder in one of them stays text."""
    assert plan(mqtt_topic="devices/${device}/${subject}").topic("{id}", "id", "tok") == "devices/{id}/id"


@given(st.text(min_size=1, max_size=20), st.text(max_size=20))
@settings(max_examples=300, deadline=None)
def test_no_name_leaves_the_fixed_prefix(device: str, subject: str) -> None:
    made = plan(mqtt_topic="devices/${device}/req/${subject}")
    found = record({"device_id": device.encode("utf-8", "replace"), "subject": subject.encode("utf-8", "replace")})
    try:
        asked = read_request(found, made, NOW_MS)
    except BadCommandError:
        return
    topic = made.topic(asked.device, asked.subject, "tok")
    assert topic.split("/")[:3] == ["devices", asked.device, "req"]
    assert not set(topic) & set("+#\0$")
    assert topic.count("/") == (3 if asked.subject else 2)


# --- timers ---
def waiting(name: str) -> Command:
    asked = Request(name, name, "", 0, False, True, None, ())
    return Command(PLACE[:2], PLACE.offset, Device(name), asked, b"", 0, 0)


def test_a_command_has_one_time_and_the_last_one_counts() -> None:
    timers, one, other = Timers(), waiting("one"), waiting("other")
    timers.set(one, 10)
    timers.set(other, 20)
    timers.set(one, 30)
    assert timers.due(9) == []
    assert timers.due(20) == [other]
    timers.set(one, 0)
    assert timers.due(100) == []
    assert timers.next_ns() is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), max_size=300))
@settings(max_examples=100, deadline=None)
def test_timers_never_forget_and_do_not_grow(steps: list[tuple[int, int]]) -> None:
    timers, commands, now_ns = Timers(), [waiting(str(number)) for number in range(6)], 0
    times: dict[Command, int] = {}
    for number, after_ns in steps:
        command = commands[number]
        due_ns = now_ns + after_ns if after_ns % 7 else 0
        timers.set(command, due_ns)
        times[command] = due_ns
        now_ns += after_ns // 50
        expected = {one for one, due in times.items() if due and due <= now_ns}
        assert set(timers.due(now_ns)) == expected
        times.update(dict.fromkeys(expected, 0))
        left = [due for due in times.values() if due]
        first_ns = timers.next_ns()
        assert not left or (first_ns is not None and first_ns <= min(left))
        assert len(timers._heap) <= 2 * 6 + 3 * 64


# --- packets ---
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)


@given(
    topic=TEXT.filter(bool), payload=st.binary(max_size=300), qos=st.sampled_from([0, 1, 2]),
    packet_id=st.integers(1, 65535), v5=st.booleans(), expiry_s=st.none() | st.integers(0, 2**33),
    content_type=st.none() | TEXT, response_topic=st.none() | TEXT, data=st.none() | st.binary(max_size=200),
    user=st.lists(st.tuples(TEXT, TEXT), max_size=5),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_a_publish_is_read_by_another_decoder_as_it_was_meant(
    topic: str, payload: bytes, qos: int, packet_id: int, v5: bool, expiry_s: int | None, content_type: str | None,
    response_topic: str | None, data: bytes | None, user: list[tuple[str, str]],
) -> None:  # fmt: skip
    message = Outgoing(topic, payload, qos, expiry_s, content_type, response_topic, data, user)
    buffer = bytearray(encode_publish(message, packet_id, v5=v5))
    (packet,) = packets.split(buffer)
    assert not buffer
    assert packet.type is packets.Type.PUBLISH
    found, found_id = packets.parse_publish(packet.flags, packet.body, v5=v5)
    assert (found.topic, found.payload, found.qos, found.retain) == (topic, payload, qos, False)
    assert found_id == (packet_id if qos else 0)
    expected = b""
    if v5:
        if expiry_s is not None:
            expected += b"\x02" + min(expiry_s, 2**32 - 1).to_bytes(4)
        for identifier, value in ((0x03, content_type), (0x08, response_topic), (0x09, data)):
            if value is not None:
                expected += bytes([identifier]) + packets.text(value)
        expected += b"".join(packets.user_property(*pair) for pair in user)
    assert found.properties == expected


@pytest.mark.parametrize("size", [0, 100, 127 - 4, 128 - 4, 16_383, 16_384, 2_097_151, 2_097_152])
def test_a_packet_of_each_length_is_whole(size: int) -> None:
    buffer = bytearray(encode_publish(Outgoing("t", bytes(size), 1), 1, v5=True))
    (packet,) = packets.split(buffer)
    assert len(packet.body) == 3 + 2 + 1 + size
