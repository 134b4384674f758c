"""Templates: what they need, what they make of a message, what counts as missing, and what a broken one says."""

import contextlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.message import MessageView, Properties
from bridge.routing.template import MissingValue, Template, TemplateError
from config.errors import ConfigError

patient = settings(deadline=None)  # a shared machine may pause in the middle of an example

PROPERTIES = Properties(
    user=(("device", "d1"), ("device", "d2"), ("empty", ""), ("a.b c", "x")),
    content_type="application/json",
    response_topic="replies/1",
    correlation_data=b"\x00\xff",
)
PAYLOAD = b"""{
    "id": "s-1", "seq": 17, "price": 0.1, "on": true, "off": false, "none": null, "void": "",
    "obj": {"deep": {"er": "x"}}, "list": [{"n": "first"}, 2], "\xc3\xbcbung": "gr\xc3\xb6\xc3\x9fe"
}"""
VIEW = MessageView("site/7//temp", 0b1011, PROPERTIES, PAYLOAD, 1000, b"delivery")


def render(text: str, view: MessageView = VIEW) -> bytes:
    device = Template.parse("${topic[1]}")
    return Template.parse(text).bind(instance="gw1", device=device).render(view)


@pytest.mark.parametrize(("text", "expected"), [
    ("", b""), ("plain/ü", "plain/ü".encode()), ("${topic}", b"site/7//temp"), ("${topic[0]}", b"site"),
    ("${topic[3]}", b"temp"), ("${topic[-1]}", b"temp"), ("${topic[-4]}", b"site"), ("${topic[-3]}", b"7"),
    ("<${topic[1]}-${topic[0]}>", b"<7-site>"),
    ("${property.device}", b"d1"),  # the first of several
    ("${property.a.b c}", b"x"), ("${content_type}", b"application/json"), ("${response_topic}", b"replies/1"),
    ("${correlation_data}", b"\x00\xff"),  # bytes stay bytes
    ("id=${correlation_data}!", b"id=\x00\xff!"), ("${payload.id}", b"s-1"), ("${payload.seq}", b"17"),
    ("${payload.price}", b"0.1"), ("${payload.on}${payload.off}", b"truefalse"), ("${payload.obj.deep.er}", b"x"),
    ("${payload.list.0.n}/${payload.list.1}", b"first/2"), ("${payload.übung}", "größe".encode()),
    ("${device}", b"7"), ("${instance}-${device}", b"gw1-7"), ("${qos}${retain}", b"11"), ("$$", b"$"),
    ("${$}", b"$"), ("$${topic}", b"${topic}"), ("$$$$${topic[1]}$$", b"$$7$"), ("}{", b"}{"),
])  # fmt: skip
def test_rendering(text: str, expected: bytes) -> None:
    assert render(text) == expected


@pytest.mark.parametrize(("payload", "expected"), [
    (b'{"n": 1.10}', b"1.10"),
    (b'{"n": 1E3}', b"1E3"),
    (b'{"n": -0}', b"-0"),
    (b'{"n": 123456789012345678901234567890}', b"123456789012345678901234567890"),
    (b'{"n": ' + b"9" * 10_000 + b"}", b"9" * 10_000),  # more digits than int() takes
    (b'{"n": "a", "n": "b"}', b"b"),
])  # fmt: skip
def test_a_number_of_the_payload_is_taken_as_it_is_written(payload: bytes, expected: bytes) -> None:
    assert render("${payload.n}", MessageView("t", payload=payload)) == expected


@pytest.mark.parametrize("text", [
    "${topic[2]}", "${topic[4]}", "${topic[-5]}", "${topic[99999]}", "${property.other}", "${property.empty}",
    "${payload.none}", "${payload.void}", "${payload.obj}", "${payload.list}", "${payload.list.2}",
    "${payload.list.x}", "${payload.list.-1}", "${payload.id.x}", "${payload.nope.x}", "x-${payload.nope}",
])  # fmt: skip
def test_absent_or_empty_is_missing_and_the_error_names_the_placeholder(text: str) -> None:
    with pytest.raises(MissingValue) as caught:
        render(text)
    assert caught.value.placeholder in text
    assert str(caught.value).startswith(caught.value.placeholder)


@pytest.mark.parametrize("text", ["${content_type}", "${response_topic}", "${correlation_data}", "${property.device}"])
def test_a_message_without_properties_has_none_of_their_values(text: str) -> None:
    with pytest.raises(MissingValue):
        render(text, MessageView("t"))


@pytest.mark.parametrize("payload", [
    b"", b"{", b"\xff\xfe{}", b"[" * 200_000, b'{"a":' * 200_000, b'{"id": NaN}', b'{"id": "\\ud800"}',
    b"\xef\xbb\xbf{}", b"null", b"7", b'"id"', b'["id"]',
])  # fmt: skip
def test_a_payload_that_is_no_json_object_is_missing_never_a_crash(payload: bytes) -> None:
    with pytest.raises(MissingValue) as caught:
        render("${payload.id}", MessageView("t", payload=payload))
    assert len(str(caught.value)) < 300


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab0"), inner),
)


@patient
@given(st.binary(max_size=60) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_payload_renders_or_is_missing(payload: bytes) -> None:
    view = MessageView("t", payload=payload)
    for text in ("${payload.a}", "${payload.0}", "${payload.0.b}"):
        with contextlib.suppress(MissingValue):
            assert render(text, view)


def test_the_payload_is_parsed_once_for_all_placeholders() -> None:
    view = MessageView("t", payload=b'{"a": 1, "b": {"c": 2}}')
    assert view.json() is view.json()
    assert render("${payload.a}${payload.b.c}", view) == b"12"


@pytest.mark.parametrize(("text", "needs"), [
    ("constant", set()), ("$$", set()), ("${topic}", {"topic"}), ("${topic[1]}-x", {"topic"}),
    ("${property.a}${content_type}${response_topic}${correlation_data}", {"properties"}),
    ("${payload.a}", {"payload"}), ("${qos}${retain}", {"flags"}), ("${topic}${payload.a}", {"topic", "payload"}),
    ("${instance}", {"instance"}), ("${device}", {"device"}),
])  # fmt: skip
def test_a_template_knows_what_it_needs(text: str, needs: set[str]) -> None:
    assert Template.parse(text).needs == needs


def test_binding_replaces_device_and_instance_by_what_they_need() -> None:
    device = Template.parse("${property.id}")
    assert Template.parse("${instance}/${device}").bind(instance="gw1", device=device).needs == {"properties"}
    assert Template.parse("${instance}-x").bind(instance="gw1", device=None).constant == b"gw1-x"
    assert Template.parse("${topic}").constant is None
    with pytest.raises(ConfigError, match=r"route x, key: .*no device setting"):
        Template.parse("${device}").bind(instance="gw1", device=None, where="route x, key")


def test_an_unbound_template_says_so_instead_of_making_something_up() -> None:
    for text in ("${device}", "${instance}"):
        with pytest.raises(ValueError, match="bind"):
            Template.parse(text).render(VIEW)
    with pytest.raises(ValueError, match="topic alone"):
        Template.parse("${topic}-${qos}").render_topic("t")


_TOPICS = st.lists(
    st.text(st.characters(exclude_characters="/+#\0", exclude_categories=["Cs"]), max_size=3), min_size=1, max_size=6
)


@patient
@given(
    _TOPICS, st.integers(-8, 8), st.text(st.characters(exclude_characters="$", exclude_categories=["Cs"]), max_size=4)
)
def test_a_level_is_the_one_a_full_split_gives(levels: list[str], index: int, around: str) -> None:
    topic = "/".join(levels)
    template = Template.parse(f"{around}${{topic[{index}]}}{around}")
    split = topic.split("/")
    expected = split[index] if -len(split) <= index < len(split) else ""
    for rendered in (lambda: template.render_topic(topic), lambda: template.render(MessageView(topic))):
        if expected:
            assert rendered() == f"{around}{expected}{around}".encode()
        else:
            with pytest.raises(MissingValue):
                rendered()


@patient
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_written_literally(text: str) -> None:
    assert Template.parse(text.replace("$", "$$")).constant == text.encode()


@patient
@given(st.text(st.sampled_from("${}topic[0].payldrqs-x")))
def test_any_text_is_a_template_or_an_error_with_its_place(text: str) -> None:
    try:
        assert Template.parse(text, where="routes.x.key").text == text
    except TemplateError as refused:
        error = refused
    else:
        return
    assert 0 <= error.position < len(text)
    assert text[error.position] == "$"
    assert str(error).startswith(f"routes.x.key: {text!r}, position {error.position}: ")


@pytest.mark.parametrize(("text", "position", "says"), [
    ("a${topc}", 1, "did you mean ${topic}?"),
    *((text, 0, "did you mean ${topic}?") for text in ("${Topic}", "${ topic }")),
    ("${topic[x]}", 0, "did you mean ${topic[0]}?"), ("${topic[1}", 0, "did you mean"),
    ("${topics[1]}", 0, "did you mean ${topic"), ("${properties.a}", 0, "did you mean ${property.NAME}?"),
    ("${contenttype}", 0, "did you mean ${content_type}?"), ("${payload_id}", 0, "did you mean ${payload.FIELD}?"),
    ("${xyzzy}", 0, "known are ${topic}"), *((text, 0, "unknown placeholder") for text in ("${}", "${level}")),
    *((text, 0, "must name one payload field") for text in ("${payload}", "${payload.}", "${payload.a..b}")),
    ("${property}", 0, "must name one property"), ("ab${topic", 2, "never closed"),
    *((text, at, "lone '$'") for text, at in (("ab$", 2), ("$topic", 0), ("${topic}$ {x}", 8))),
    *((text, 0, "MQTT does not tell a subscriber who published") for text in ("${client_id}", "${username}")),
    ("${clientid}", 0, "${property.NAME}"), ("a\ud800", 1, "not valid Unicode"),
])  # fmt: skip
def test_a_broken_template_is_refused_with_place_and_advice(text: str, position: int, says: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(says)) as caught:
        Template.parse(text, where="route 'a', key")
    assert caught.value.position == position
    assert caught.value.text == text
    assert str(caught.value).startswith("route 'a', key: ")


def test_a_view_shows_no_payload_in_a_log() -> None:
    view = MessageView("a/b", 0b1101, payload=b"secret")
    assert (view.qos, view.retain, view.dup) == (2, True, True)
    assert repr(view) == "MessageView('a/b', qos=2, 6 bytes)"
