"""Each built-in interceptor: what it lets through, changes and refuses."""

import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import wire
from bridge.intercept.age_out import NoTimestampError
from bridge.intercept.expression import Expression, ExpressionError, MissingFieldError
from bridge.intercept.json_schema import InvalidDocumentError
from bridge.intercept.loading import load_chains
from bridge.intercept.paths import MISSING, parse_path
from bridge.intercept.split import NotSplitError
from bridge.interceptors import Drop
from bridge.message import MessageView, Properties
from bridge.record import NotJsonError, Record
from config.errors import ConfigError
from config.settings import Settings
from tests.kinds import is_a

SECRET = "a secret of 24 characters"


def send(value: Any, /, *, message: MessageView | None = None, headers: Any = (), **options: Any) -> Any:
    """What the interceptor that ``options`` describe makes of one record."""
    return interceptor(**options)(record(value, message=message, headers=headers))


def interceptor(**options: Any) -> Any:
    route = {"name": "r", "filters": ["d/#"], "topic": "t", "device": "${topic[1]}", "interceptors": [options]}
    (chain,) = load_chains(Settings.model_validate({"instance": "gw", "routes": [route]}))
    return chain.stages[0].on_send


def record(value: Any, *, message: MessageView | None = None, headers: Any = ()) -> Record:
    payload = value if isinstance(value, bytes) else json.dumps(value).encode()
    view = MessageView("d/1/state", 2, payload=payload, received_ms=1_000_000) if message is None else message
    return Record(view, "t", b"k", payload, list(headers), 7)


# --- expressions and the filter ---------------------------------------------------------------------------------------
MESSAGE = MessageView(
    "plant/a/temp",
    0b0011,
    Properties(user=(("site", "x"), ("site", "y"), ("line", "7")), content_type="application/json"),
    received_ms=5,
)
VALUE = {"a": {"b": [1, 2, {"c": "Hi"}]}, "t": 21.5, "n": None, "_id": 3, "unit price": 2, "big": 1 << 80}


@pytest.mark.parametrize("text", [
    "json.t > 20",
    "20 < json.t < 22",
    "json.a.b[2].c.lower() == 'hi'",
    "json['unit price'] == 2 and json['_id'] == 3",
    "has(json, 'a.b.2.c') and has(json, 'n') and not has(json, 'q')",
    "get(json, 'a.q', 7) == 7 and get(json, 'a.q') is None and get(json, 't') == 21.5",
    "topic == 'plant/a/temp' and topic.split('/')[1] == 'a'",
    "topic_matches(topic, 'plant/+/temp') and not topic_matches(topic, 'plant/b/#')",
    "matches(topic, '^plant/.*temp$') and not matches(topic, 'b')",
    "properties.site == 'x' and properties['line'] == '7' and 'none' not in properties",
    "content_type == 'application/json' and response_topic == ''",
    "qos == 1 and retain and received_ms == 5",
    "headers.h == 'v' and key == 'k' and kafka_topic == 't' and size > 10",
    "json.t * 2 == 43 and json.t % 2 == 1.5 and -json.t < 0 and json.t / 2 > 10 and json.t // 2 == 10",
    "any(x > 1 for x in json.a.b[:2]) and all(x for x in json.a.b)",
    "sum([x for x in json.a.b if x in [1, 2]]) == 3 and len(json.a.b) == 3 and max(1, 2) == 2",
    "json.n is None and (json.t if json.n is None else 0) == 21.5",
    "json.big > 8",
    "f'{topic}!' == 'plant/a/temp!'",
    "(\n  json.t > 20\n  and json.t < 30\n)",
])  # fmt: skip
def test_an_expression_sees_topic_properties_and_fields(text: str) -> None:
    made = record(VALUE, message=MESSAGE, headers=[("h", b"v")])
    assert Expression(text).evaluate(made) is True


@pytest.mark.parametrize(
    "text", ["json.q > 1", "json.a.q", "json['q']", "json.a.b[9]", "properties.none", "topic.format(1)"]
)
def test_a_missing_field_is_told_apart(text: str) -> None:
    with pytest.raises(MissingFieldError):
        Expression(text).evaluate(record(VALUE, message=MESSAGE))


@pytest.mark.parametrize(("text", "error"), [
    ("json.t > 'a'", TypeError), ("json.n > 1", TypeError), ("'x' * 10", TypeError), ("'%9d' % 1", TypeError),
    ("1 / 0", ZeroDivisionError), ("has(topic)", TypeError),
])  # fmt: skip
def test_what_makes_no_sense_is_an_error_and_no_answer(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Expression(text).evaluate(record(VALUE, message=MESSAGE))


@pytest.mark.parametrize("text", [
    "", "1 +", "json.t = 1", "x := 1", "import os", "__import__('os')", "json.__class__", "().__class__.__bases__",
    "json._private", "open('/etc/passwd')", "eval('1')", "print(1)", "exec('1')", "json.t ** 9", "1 << 9",
    "f'{json.t:>9}'", "(yield)", "await json", "1) + (2", "json.t; 1", "temperature > 3", "globals()",
    "matches(topic, '(')", "topic_matches(topic, 'a/#/b')", "has(json, 'a..b')", "getattr(json, 't')",
])  # fmt: skip
def test_an_expression_that_cannot_be_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression(text)


def test_no_number_of_digits_makes_a_message_take_long() -> None:
    """Python makes ten to the power of it: 6 s for ten million, and nothing else is served meanwhile."""
    assert Expression("round(json.t, json.digits) == 0").evaluate(record({"t": 7, "digits": -(10**12)}))
    assert Expression("round(json.x, 1) == 7.1 and round(json.x) == 7").evaluate(record({"x": 7.14}))


def test_no_pattern_makes_a_message_take_long() -> None:
    """``(a+)+$`` took 4 s of CPU for one message of 30 characters."""
    hostile = record(json.dumps({"t": "a" * 5_000 + "!"}).encode(), message=MESSAGE)
    began = time.process_time()
    assert not Expression("matches(json.t, '^(a+)+$')").evaluate(hostile)
    schema = {"properties": {"t": {"pattern": "^(a+)+$"}}}
    with pytest.raises(InvalidDocumentError):
        send({"t": "a" * 5_000 + "!"}, use="json_schema", definition=schema)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(("value", "expression", "options", "kind"), [
    ({"t": 21}, "json.t > 20", {}, Record),
    ({"t": 20}, "json.t > 20", {}, Drop),
    ({"t": -5.5}, "json.t > 20", {}, Drop),
    ({}, "json.t > 20", {"missing": "keep"}, Record),
    ({}, "json.t > 20", {"missing": "drop"}, Drop),
    (b"\xff", "topic.startswith('d/')", {}, Record),  # needs no JSON
])  # fmt: skip
def test_the_filter_keeps_what_is_true_and_a_missing_field_if_it_is_told_so(
    value: Any, expression: str, options: dict[str, Any], kind: type
) -> None:
    assert isinstance(send(value, use="filter", expression=expression, **options), kind)


def test_a_missing_field_is_an_error_unless_told_otherwise() -> None:
    with pytest.raises(MissingFieldError, match="'t'"):
        send({}, use="filter", expression="json.t > 20")
    with pytest.raises(NotJsonError):
        send(b"no json", use="filter", expression="json.t > 20", missing="drop")


def test_the_filters_reason_can_be_chosen() -> None:
    assert is_a(Drop, send({}, use="filter", expression="False", reason="too_cold")).reason == "too_cold"


# --- paths ------------------------------------------------------------------------------------------------------------
_NAMES = st.text(alphabet="abc1", min_size=1, max_size=3)
_DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(_NAMES, inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=10,
)


@given(_DOCUMENTS, st.lists(_NAMES, min_size=1, max_size=3), st.integers())
def test_a_path_changes_its_place_and_nothing_else(document: Any, steps: list[str], value: int) -> None:
    before = json.dumps(document)
    path = parse_path(".".join(steps))
    there = path.get(document)
    try:
        changed = path.put(document, value)
    except ValueError:
        assert there is MISSING
    else:
        assert path.get(changed) == value
        if there is not MISSING:
            assert path.put(changed, there) == document
    assert (path.change(document, lambda _: MISSING) is document) == (there is MISSING)
    assert path.change(document, lambda one: one) is document
    assert json.dumps(document) == before


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b"])
def test_a_path_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        parse_path(text)


# --- headers and fields -----------------------------------------------------------------------------------------------
HEADERS = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("mqtt.topic", b"d/1/state"), ("mqtt.user.x", b"y")]


def test_headers_are_renamed_then_removed_then_added() -> None:
    answer = send(
        b"", headers=HEADERS, use="headers", rename={"a": "c"}, remove=["b", "mqtt.user.*"],
        add={"device": "${device}", "c": "new", "none": "${property.none}"},
    )  # fmt: skip
    assert answer.headers == [("mqtt.topic", b"d/1/state"), ("device", b"1"), ("c", b"new")]


def test_a_header_whose_template_has_no_value_leaves_the_one_there() -> None:
    answer = send(b"", headers=[("site", b"old")], use="headers", add={"site": "${property.site}"})
    assert answer.headers == [("site", b"old")]


def test_fields_are_renamed_then_removed_then_added() -> None:
    answer = send(
        {"a": 1, "b": {"x": 1, "y": 2}, "list": [{"p": 1, "q": 2}, {"p": 3}], "gone": None},
        use="fields", rename={"a": "deep.er", "none": "nothing", "gone": "came"}, remove=["b.x", "list.*.p", "absent"],
        add={"device": "${device}", "site.name": "plant-${topic[1]}", "version": 2, "none": "${property.none}"},
    )  # fmt: skip
    assert answer.json() == {
        "b": {"y": 2}, "list": [{"q": 2}, {}], "deep": {"er": 1}, "came": None,
        "device": "1", "site": {"name": "plant-1"}, "version": 2,
    }  # fmt: skip
    assert json.loads(answer.value) == answer.json()


def test_a_value_with_nothing_to_change_keeps_its_bytes() -> None:
    assert send(b'{ "a": 1.10 }', use="fields", remove=["b"], rename={"c": "d"}).value == b'{ "a": 1.10 }'


# --- mask -------------------------------------------------------------------------------------------------------------
def digest(text: bytes, length: int = 32) -> str:
    return hmac.new(SECRET.encode(), text, hashlib.sha256).hexdigest()[:length]


def test_hmac_keeps_equal_values_equal_and_unread() -> None:
    mask = interceptor(
        use="mask", method="hmac", secret=SECRET, fields=["user.name", "user.n", "all.*.id", "none"],
        headers=["who", "nil"], key=True,
    )  # fmt: skip
    value = {"user": {"name": "Ann", "n": None}, "all": [{"id": 1}, {"id": "1"}, {"id": {"a": 1}}], "other": "Ann"}
    answer = mask(record(value, headers=[("who", b"Ann"), ("x", b"1"), ("nil", None)]))
    ids = [digest(b"1"), digest(b"1"), digest(b'{"a":1}')]
    assert answer.json() == {
        "user": {"name": digest(b"Ann"), "n": None}, "all": [{"id": one} for one in ids], "other": "Ann",
    }  # fmt: skip
    assert answer.headers == [("who", digest(b"Ann").encode()), ("x", b"1"), ("nil", None)]
    assert answer.key == digest(b"k").encode()
    assert SECRET not in repr(answer)


def test_redact_makes_all_alike() -> None:
    masked = interceptor(use="mask", method="redact", fields=["a"], replacement="gone")
    assert masked(record({"a": 1})).json() == masked(record({"a": "x"})).json() == {"a": "gone"}
    assert masked(record({"b": 1})).value == b'{"b": 1}'


def test_the_key_alone_needs_no_json() -> None:
    answer = send(b"\xff", use="mask", method="hmac", secret=SECRET, key=True, length=64)
    assert answer.key == digest(b"k", 64).encode()


# --- split ------------------------------------------------------------------------------------------------------------
def test_an_array_becomes_a_record_for_each_element() -> None:
    headers = [(wire.GATEWAY_MESSAGE_ID, b"id-7"), (wire.GATEWAY_MESSAGE_ID_KIND, b"device"), ("none", None)]
    split = interceptor(
        use="split", path="readings", copy_fields={"device": "device", "meta.fw": "firmware", "none": "none"}, key="id"
    )
    answer = split(
        record(
            {"device": "d", "meta": {"fw": 2}, "readings": [{"id": "a", "v": 1}, {"id": 7, "v": 2}]}, headers=headers
        )
    )
    assert [json.loads(one.value) for one in answer] == [
        {"id": "a", "v": 1, "device": "d", "firmware": 2},
        {"id": 7, "v": 2, "device": "d", "firmware": 2},
    ]
    assert [one.key for one in answer] == [b"a", b"7"]
    assert [list(one.headers) for one in answer] == [
        [(wire.GATEWAY_MESSAGE_ID, own_id), *headers[1:]] for own_id in (b"id-7/0", b"id-7/1")
    ]


def test_a_value_that_is_an_array_is_split_by_itself() -> None:
    assert [one.value for one in send([1, "a", None, [2]], use="split")] == [b"1", b'"a"', b"null", b"[2]"]


def test_an_empty_array_is_dropped() -> None:
    assert is_a(Drop, send([], use="split")).reason == "empty_array"


@pytest.mark.parametrize(("value", "options", "error", "says"), [
    ({"a": 1}, {"use": "fields", "add": {"a.b": 1}}, ValueError,
        r"'a.b' cannot be set: there is no field 'b' in a number"),
    ({}, {"use": "split"}, NotSplitError, "the value is no array"),
    ({"a": 1}, {"use": "split", "path": "a"}, NotSplitError, "what is at 'a' is no array"),
    ([1, 2, 3], {"use": "split", "max_records": 2}, NotSplitError, "3 elements; max_records allows 2"),
    ([{"id": 1}, {}], {"use": "split", "key": "id"}, NotSplitError, "Element 1 has no value at 'id'"),
    *(
        (value, {"use": "age_out", "timestamp": "ts", "max_age": "1s"}, NoTimestampError, "'ts'")
        for value in ({}, {"ts": "1"}, {"ts": True}, {"ts": None})
    ),
])  # fmt: skip
def test_what_cannot_be_done_with_a_value_is_an_error(
    value: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        send(value, **options)


def test_other_values_pass_if_told_so() -> None:
    assert send({"a": 1}, use="split", path="b", otherwise="pass").value == b'{"a": 1}'


# --- age out, sample, schema ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("value", "options", "passes"), [
    ({"ts": 999_000}, {"timestamp": "ts", "max_age": "1s"}, True),
    ({"ts": 998_999}, {"timestamp": "ts", "max_age": "1s"}, False),
    ({"ts": 998.5}, {"timestamp": "ts", "unit": "s", "max_age": "1s"}, False),
    ({"ts": 999_000_000_000}, {"timestamp": "ts", "unit": "ns", "max_age": "1s"}, True),
    ({"ts": 99_000_000}, {"timestamp": "ts", "max_age": "1s"}, True),  # ahead of us
])  # fmt: skip
def test_what_is_too_old_is_dropped(value: Any, options: dict[str, Any], passes: bool) -> None:
    assert isinstance(send(value, use="age_out", **options), Record) is passes


@pytest.mark.parametrize(("expiry", "passes"), [(None, True), (1, True), (0, False)])
def test_what_expired_on_its_way_is_dropped(expiry: int | None, passes: bool) -> None:
    message = MessageView("d/1", 2, Properties(message_expiry=expiry))
    assert isinstance(send(b"", message=message, use="age_out"), Record) is passes


@given(st.floats(min_value=0.01, max_value=1))
def test_a_sample_is_spread_evenly(share: float) -> None:
    sample = interceptor(use="sample", share=share)
    kept = sum(isinstance(sample(record(b"")), Record) for _ in range(1000))
    assert abs(kept - 1000 * share) <= 1


def test_a_sample_by_device_takes_all_of_a_device_or_nothing() -> None:
    sample = interceptor(use="sample", share=0.3, by="${device}")
    messages = [MessageView(f"d/{number % 500}/state", 2) for number in range(1500)]
    kept = {one.topic: isinstance(sample(record(b"", message=one)), Record) for one in messages}
    again = interceptor(use="sample", share=0.3, by="${device}")
    assert all(isinstance(again(record(b"", message=one)), Record) is kept[one.topic] for one in messages)
    assert 100 < sum(kept.values()) < 200


SCHEMA = {"type": "object", "required": ["t"], "properties": {"t": {"type": "number", "maximum": 100}}}


def test_a_schema_lets_through_what_it_describes(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    for options in ({"definition": SCHEMA}, {"schema_file": str(file)}):
        assert send({"t": 1}, use="json_schema", **options).json() == {"t": 1}
        with pytest.raises(InvalidDocumentError, match="does not describe t") as caught:
            send({"t": "hunter2"}, use="json_schema", **options)
        assert "hunter2" not in str(caught.value)
        with pytest.raises(InvalidDocumentError):
            send({}, use="json_schema", **options)
        with pytest.raises(NotJsonError):
            send(b"{", use="json_schema", **options)


# --- options that cannot be -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("options", "says"), [
    ({"use": "filter"}, "expression: is required"),
    ({"use": "filter", "expression": "json."}, "expression: 'json.' is no expression"),
    ({"use": "filter", "expression": "True", "missing": "pass"}, "missing: Input should be"),
    ({"use": "filter", "expression": "True", "reason": "No!"}, "reason: "),
    ({"use": "headers"}, "nothing to do"),
    ({"use": "headers", "add": {"mqtt.topic": "x"}}, "add: the name 'mqtt.topic' is the gateway's own"),
    ({"use": "headers", "rename": {"a": "gateway.id"}}, "rename: the name 'gateway.id'"),
    ({"use": "headers", "add": {"a": "${"}}, "position 0"),
    ({"use": "fields"}, "nothing to do"),
    ({"use": "fields", "rename": {"a.*": "b"}}, "rename: 'a.*' names several places"),
    ({"use": "fields", "add": {"a": "${nope}"}}, "unknown placeholder"),
    ({"use": "mask", "method": "hmac", "fields": ["a"]}, 'secret: method = "hmac" needs one'),
    ({"use": "mask", "method": "hmac", "fields": ["a"], "secret": "hunter2"}, "fewer than 16 bytes"),
    ({"use": "mask", "method": "redact"}, "nothing to do"),
    ({"use": "mask", "method": "redact", "fields": ["a..b"]}, "fields: 'a..b' is no path"),
    ({"use": "split", "path": "a.*"}, "path: 'a.*' names several"),
    ({"use": "split", "max_records": 0}, "max_records: "),
    ({"use": "sample", "share": 0}, "share: "),
    ({"use": "sample", "share": True}, "share: "),
    ({"use": "sample", "share": 0.5, "by": "${topic[1}"}, "unknown placeholder"),
    ({"use": "age_out", "max_age": "1s"}, "max_age: the age needs"),
    ({"use": "age_out", "timestamp": "ts"}, "timestamp: it has no effect without max_age"),
    ({"use": "age_out", "timestamp": "ts", "max_age": "1 week"}, "max_age: a duration"),
    ({"use": "json_schema"}, "give one of schema_file and definition"),
    ({"use": "json_schema", "definition": {"type": "objekt"}}, "definition: it is no JSON Schema"),
    (
        {
            "use": "json_schema",
            "definition": {"properties": {"t": {"pattern": "^(?=a)"}}, "patternProperties": {"(b)\\1": {}}},
        },
        "backreferences): '(b)\\\\1', '^(?=a)'",
    ),
    (
        {
            "use": "filter",
            "expression": r"matches(topic, '(?=a)') and matches(topic, '^ok$') and matches(topic, r'(b)\1')",
        },
        "'(b)\\\\1' has the backreference",
    ),
    ({"use": "json_schema", "schema_file": "/none/such"}, "schema_file: /none/such cannot be read"),
    ({"use": "json_schema", "definition": {"$ref": "http://127.0.0.1:1/x"}}, "which is not fetched"),
])  # fmt: skip
def test_wrong_options_are_told_with_their_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        interceptor(**options)
    text = str(caught.value)
    assert says in text
    assert f"route 'r', routes[0].interceptors[0] ({options['use']})" in text
    assert "hunter2" not in text
