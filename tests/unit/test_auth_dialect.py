"""EMQX's bodies become questions, or a sentence that says why not. ``test_auth_answers_fuzz`` has hostile ones."""

import json
from urllib.parse import urlencode

import pytest

from auth.model import AccessRequest, LoginRequest, Subject
from gateway.auth_service.dialect import Dialect, UnreadableError, split_groups

JSON = b"application/json"
FORM = b"application/x-www-form-urlencoded"
LOGIN = {
    "username": "alice", "clientid": "pump-7", "password": "s3cret", "peerhost": "10.1.2.3",
    "cert_common_name": "pump-7.plant",
}  # fmt: skip
ACCESS = {
    "username": "alice", "clientid": "pump-7", "peerhost": "10.1.2.3", "cert_common_name": "undefined",
    "topic": "plant/7", "action": "publish", "qos": 1, "retain": False, "tenant": "acme", "groups": "operators,pumps",
}  # fmt: skip


def login(body: object, content_type: bytes = JSON) -> LoginRequest:
    return Dialect().login(content_type, body if isinstance(body, bytes) else json.dumps(body).encode())


def access(body: dict[str, object] | bytes, attributes: tuple[str, ...] = ()) -> AccessRequest:
    return Dialect(attributes).access(JSON, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_a_login_as_emqx_sends_it() -> None:
    assert login(LOGIN) == LoginRequest(**LOGIN)


def test_a_form_is_read_as_well() -> None:
    given = {**LOGIN, "password": "a b&c=d+é"}
    assert login(urlencode(given).encode(), FORM + b"; charset=utf-8") == LoginRequest(**given)


@pytest.mark.parametrize("content_type", [
    b"", b"application/json; charset=latin-1", b"application/json;charset=UTF-16", b"text/plain", b"\xff\xfe", b";;;",
])  # fmt: skip
def test_whatever_a_json_body_is_called_it_is_utf8(content_type: bytes) -> None:
    given = {**LOGIN, "username": "jürgen 泵"}
    body = json.dumps(given, ensure_ascii=False).encode()
    assert Dialect().login(content_type, body) == LoginRequest(**given)


@pytest.mark.parametrize("absent", ["", "undefined", None])
def test_absent_values_are_empty_text(absent: str | None) -> None:
    assert login(dict.fromkeys(LOGIN, absent)) == LoginRequest()
    assert login({}) == LoginRequest()


def test_an_access_as_emqx_sends_it() -> None:
    assert access(ACCESS) == AccessRequest(
        Subject("alice", "pump-7", "10.1.2.3", "", "acme", frozenset({"operators", "pumps"})), "publish", "plant/7",
        1, retain=False,
    )  # fmt: skip


@pytest.mark.parametrize(("given", "qos"), [(0, 0), ("2", 2), (1, 1), ("", 0), (None, 0), ("undefined", 0)])
def test_qos_comes_as_number_or_text(given: object, qos: int) -> None:
    assert access({**ACCESS, "qos": given}).qos == qos


@pytest.mark.parametrize(("given", "retain"), [
    (True, True), ("true", True), ("1", True), (1, True), (False, False), ("false", False), (0, False), ("", False),
])  # fmt: skip
def test_retain_comes_as_boolean_number_or_text(given: object, retain: bool) -> None:
    assert access({**ACCESS, "retain": given}).retain is retain


def test_attributes_are_those_of_the_settings_and_none_else() -> None:
    body = {**ACCESS, "attr_site": "berlin", "attr_role": "undefined", "attr_other": "x"}
    assert access(body, ("site", "role")).subject.attributes == {"site": "berlin"}
    assert access(body).subject.attributes == {}


def test_a_topic_may_be_called_undefined() -> None:
    assert access({**ACCESS, "topic": "undefined"}).topic == "undefined"


@pytest.mark.parametrize(("change", "why"), [
    ({"topic": ""}, "topic"), ({"topic": None}, "topic"), ({"topic": 7}, "topic"),
    ({"action": "undefined"}, "action"), ({"action": ["publish"]}, "action"), ({"action": "PUBLISH"}, "action"),
    ({"qos": 3}, "qos"), ({"qos": [1]}, "qos"), ({"qos": "1.0"}, "qos"), ({"retain": {}}, "retain"),
    ({"retain": 2}, "retain"), ({"username": 7}, "username"), ({"groups": ["a"]}, "groups"),
])  # fmt: skip
def test_an_access_with_a_value_that_cannot_be_is_no_question(change: dict[str, object], why: str) -> None:
    with pytest.raises(UnreadableError, match=why):
        access({**ACCESS, **change})


@pytest.mark.parametrize(("content_type", "body", "why"), [
    *((JSON, body, "no JSON object") for body in (b"null", b"[]", b'"text"')),
    *((JSON, body, "not JSON") for body in (b"", b'{"username": "a"', b'{"username": "a"} {}')),
    *((JSON, b'{"username": %b}' % value, "not JSON") for value in (b"NaN", b"-Infinity", b"9" * 100_000)),
    (JSON, b'{"username": "a\x00"}', "not JSON"),  # JSON wants control characters escaped
    *((JSON, body, "NUL") for body in (b'{"username": "a\\u0000"}', b'{"password": "a\\u0000b"}')),
    *((JSON, b'{"username": "%b"}' % value, "surrogate") for value in (b"\\ud800", b"\\udc00\\ud800")),
    (JSON, b'{"username": "\xed\xa0\x80"}', "UTF-8"),  # a surrogate written as three bytes
    (JSON, b'{"username": "\xff"}', "UTF-8"), (JSON, b"\xff\xfe{\x00}\x00", "UTF-8"),
    *((JSON, b'{"username": %b}' % value, "username") for value in (b"1e999", b"true", b'{"a": 1}')),
    (JSON, b"[" * 500_000, "nested"), (JSON, b'{"a":' * 200_000, "nested"),
    *((JSON, b'{"username": "%b"}' % value, "longer") for value in (b"x" * 65_536, "é".encode() * 32_768)),
    (JSON, b'{"username": "a", "username": "b"}', "twice"), (JSON, None, "larger"),
    (FORM, b"username=a&username=b", "twice"), (FORM, b"username=%00", "NUL"),
    *((FORM, body, "form") for body in (b"username", b"username=%ff", b"username=%ed%a0%80")),
    (FORM, b"&".join(b"a%d=1" % number for number in range(200)), "form"),
    (FORM, b"username=" + b"x" * 65_536, "longer"), (FORM, b"\xff=1", "UTF-8"),
])  # fmt: skip
def test_a_body_that_is_no_question_says_why(content_type: bytes, body: bytes | None, why: str) -> None:
    with pytest.raises(UnreadableError, match=why):
        Dialect().login(content_type, body)


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert login(b'{"username": "\\ud83d\\ude00"}').username == "\N{GRINNING FACE}"


def test_the_longest_texts_of_mqtt_pass() -> None:
    given = {**LOGIN, "username": "u" * 65_535, "password": "é" * 32_767, "clientid": "#/+/../${clientid}"}
    assert login(given) == LoginRequest(**given)


def test_groups_lose_what_is_empty() -> None:
    assert split_groups("a,,b,") == {"a", "b"}
    assert split_groups("") == frozenset()
