"""The properties of a PUBLISH against paho's reading of them, and what the specification forbids there."""

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paho.mqtt import MQTTException
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from bridge.message import Properties
from gateway.mqtt.errors import MalformedPacketError
from gateway.mqtt.properties import parse_properties, without_expiry
from tests.brokers.packets import read_varint, text, varint

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)


@st.composite
def pahos(draw: st.DrawFn) -> PahoProperties:
    """Any properties a PUBLISH may have, packed by paho, but for the topic alias, which has a test of its own."""
    properties = PahoProperties(PacketTypes.PUBLISH)
    values = {
        "PayloadFormatIndicator": st.integers(0, 1), "MessageExpiryInterval": st.integers(0, 2**32 - 1),
        "ContentType": texts, "ResponseTopic": texts, "CorrelationData": st.binary(max_size=40),
        "SubscriptionIdentifier": st.integers(1, 268_435_455),
        "UserProperty": st.lists(st.tuples(texts, texts), min_size=1, max_size=5),
    }  # fmt: skip
    for name in draw(st.sets(st.sampled_from(sorted(values)))):
        setattr(properties, name, draw(values[name]))
    return properties


@given(pahos())
def test_reads_what_paho_packed(packed: PahoProperties) -> None:
    whole = bytes(packed.pack())
    _, start = read_varint(whole, 0)
    raw = whole[start:]
    assert parse_properties(raw) == Properties(
        tuple(getattr(packed, "UserProperty", ())),
        getattr(packed, "ContentType", None),
        getattr(packed, "ResponseTopic", None),
        getattr(packed, "CorrelationData", None),
        getattr(packed, "PayloadFormatIndicator", 0),
        getattr(packed, "MessageExpiryInterval", None),
    )


@given(pahos(), st.integers(0, 2**32 - 1), st.binary(max_size=10))
def test_without_expiry_two_sendings_differ_in_nothing(packed: PahoProperties, left_s: int, payload: bytes) -> None:
    first = bytes(packed.pack()) + payload
    if not hasattr(packed, "MessageExpiryInterval"):
        assert without_expiry(first) == first
    else:
        packed.MessageExpiryInterval = left_s
        assert without_expiry(bytes(packed.pack()) + payload) == without_expiry(first)


def test_a_length_of_properties_that_never_ends_is_read_no_further_than_a_length_may_go() -> None:
    looks: list[object] = []

    class Watched(bytes):
        def __getitem__(self, at: Any) -> Any:
            looks.append(at)
            return super().__getitem__(at)

    junk = Watched(b"\xff" * 1000)
    assert without_expiry(junk) is junk
    assert len(looks) < 10


@given(st.binary(max_size=60))
@example(b"\x01\x02")
def test_junk_is_read_or_refused_and_read_only_where_paho_can(raw: bytes) -> None:
    """Or where paho refuses what EMQX passes on from a device."""
    try:
        ours = parse_properties(raw)
    except MalformedPacketError as error:
        assert error.reason_code in {0x81, 0x82, 0x94}  # noqa: PT017 - the other outcome is as good
        return
    properties = PahoProperties(PacketTypes.PUBLISH)
    try:
        properties.unpack(varint(len(raw)) + raw)
    except (MQTTException, UnicodeDecodeError) as error:
        assert re.search("PayloadFormatIndicator|SubscriptionIdentifier|(?i:utf-8)", str(error))  # noqa: PT017
        return
    assert tuple(getattr(properties, "UserProperty", ())) == ours.user


def test_several_subscription_identifiers_are_one_message_matched_by_several_filters() -> None:
    assert parse_properties(b"\x0b\x01\x0b\xff\x7f") == Properties()


def test_a_payload_format_that_does_not_exist_says_nothing_of_the_payload() -> None:
    assert [parse_properties(bytes([1, one])).payload_format for one in range(4)] == [0, 1, 0, 0]


FORBIDDEN = {
    "an unknown property": (b"\x7f\0", 0x81, "0x7f"),
    "identifier 0": (b"\x00", 0x81, "0x00"),
    "payload format twice": (b"\x01\x00\x01\x00", 0x82, "twice"),
    "expiry twice": (b"\x02\0\0\0\1\x02\0\0\0\1", 0x82, "twice"),
    "response topic twice": (b"\x08\0\1a\x08\0\1a", 0x82, "twice"),
    "correlation data twice": (b"\x09\0\1a\x09\0\1a", 0x82, "twice"),
    "half a number": (b"\x02\0\0", 0x81, "middle"),
    "half a length": (b"\x03\0", 0x81, "middle"),
    "half a text": (b"\x03\0\5abc", 0x81, "middle"),
    "half a user property": (b"\x26" + text("name"), 0x81, "middle"),
    "no value at all": (b"\x01", 0x81, "middle"),
    "a subscription identifier of five bytes": (b"\x0b\x80\x80\x80\x80\x01", 0x81, "longer than four bytes"),
    "an unfinished subscription identifier": (b"\x0b\x80", 0x81, "middle"),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_what_is_forbidden_is_refused_with_its_reason(case: str) -> None:
    raw, code, words = FORBIDDEN[case]
    with pytest.raises(MalformedPacketError, match=words) as caught:
        parse_properties(raw)
    assert caught.value.reason_code == code


def test_text_that_is_no_utf_8_is_kept_visibly() -> None:
    """A device's doing, which EMQX passes on: refusing it would stop the session at this message for good."""
    raw = b"\x26\0\2a\xff\0\2\xfeb" + b"\x03\0\1\x80"
    assert parse_properties(raw) == Properties(((r"a\xff", r"\xfeb"),), content_type=r"\x80")
