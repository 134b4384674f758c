"""What a foreign table says of a user is checked; texts of settings with placeholders are read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.backends.record import Record, RecordError, read_record
from auth.backends.templates import LoginTemplate
from auth.model import LoginRequest
from config.values.auth_placeholders import quoted_placeholder, split_placeholders


def test_a_row_with_nothing_in_it() -> None:
    assert read_record({}) == Record()
    assert read_record(dict.fromkeys(("password_hash", "salt", "is_superuser", "tenant", "groups"))) == Record()
    assert read_record({"other": object()}) == Record(), "other columns are not looked at"


VALUES: list[tuple[str, object, list[object]]] = [
    ("is_superuser", True, [True, 1, "1", "true", "T", "yes", "on", b"1", b"\x01", " TRUE "]),
    ("is_superuser", False, [None, False, 0, "0", "false", "F", "no", "off", "", b"0", b"\x00", b""]),
    ("groups", {"a"}, ["a"]), ("groups", set(), ["", " , ", [], "[]"]),
    ("groups", {"a", "b"}, ["a,b", " a , b ,, a", b"a,b", ["a", "b"], '["a", "b"]']),
    ("attributes", {}, [None, "", " ", "{}", b"{}", {}]),
    ("attributes", {"a": "b"}, ['{"a": "b"}', b'{"a": "b"}', {"a": "b"}, bytearray(b'{"a":"b"}')]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "meaning", "value"), [(row[0], row[1], one) for row in VALUES for one in row[2]])
def test_what_a_value_means(name: str, meaning: object, value: object) -> None:
    assert getattr(read_record({name: value}), name) == meaning


BAD: dict[str, list[object]] = {
    "is_superuser": ["maybe", 2, -1, 1.0, [], {}, "truetrue", b"\x02", b"\xff", object(), "x" * 100],
    "groups": [1, {"a": 1}, ["a,b"], [1], [["a"]], "[1]", "[", '["a"', '["\\ud800"]', b"\xff", "a\0b", "g" * 257],
    "attributes": [
        1, [], "[]", "x", '"x"', "1", "{", '{"a": 1}', '{"a": null}', '{"a": {"b": "c"}}', '{"": "b"}', '{"a b": "c"}',
        '{"\u00e4": "c"}', '{"groups": "admins"}', '{"tenant": "other"}', {1: "a"}, {"a": "b\0"}, {"a": "b" * 4097},
        '{"a": "\\ud800"}', {f"a{number}": "b" for number in range(101)}, "[" * 100_000, '{"a":' * 50_000,
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column in BAD for value in BAD[column]], ids=lambda one: str(one)[:20]
)
def test_what_cannot_be_is_refused(column: str, value: object) -> None:
    with pytest.raises(RecordError, match=column.removesuffix("s")):
        read_record({column: value})


@given(
    st.dictionaries(
        st.sampled_from(["password_hash", "salt", "is_superuser", "tenant", "groups", "attributes"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        ),
    )
)
def test_any_row_is_read_or_refused_and_nothing_worse(row: dict[str, Any]) -> None:
    told = ""
    try:
        record = read_record(row)
    except RecordError as error:
        told, record = str(error), Record()
    hashed = row.get("password_hash")
    assert not (isinstance(hashed, str) and len(hashed) > 8 and hashed in told), "the hash is told"
    assert isinstance(record.is_superuser, bool)
    assert all(isinstance(one, str) for one in (record.password_hash, record.salt, record.tenant, *record.groups))
    assert not set(record.tenant) & set("+#/,\0")


def test_no_hash_is_in_the_repr() -> None:
    assert "secret" not in repr(Record(password_hash="secret", salt="secret"))


# Templates.


def test_a_template_is_literals_and_names() -> None:
    assert split_placeholders("a${username}b${clientid}") == (("a", "b", ""), ("username", "clientid"))
    assert split_placeholders("nothing $username {clientid} $$") == (("nothing $username {clientid} $$",), ())


@pytest.mark.parametrize("text", ["${}", "${user}", "${username", "${${username}}", "${password}", "${ username}"])
def test_a_placeholder_that_there_is_none_of(text: str) -> None:
    with pytest.raises(ValueError, match=r"\$\{"):
        split_placeholders(text)


@pytest.mark.parametrize(("text", "name"), [
    ("a = ${username}", None), ("a = '${username}'", "username"), ('a = "${clientid}"', "clientid"),
    ("`x${username}`", "username"), ("a = 'it''s' AND b = ${username}", None),
    ("a = 'it''s ${username}'", "username"), ("a = '\"' AND b = ${username}", None),
    ("a = ${username} AND b = 'x'", None), ("a = ${username} AND b LIKE '%${clientid}%'", "clientid"),
])  # fmt: skip
def test_a_placeholder_within_quotes_is_found(text: str, name: str | None) -> None:
    assert quoted_placeholder(text) == name


@pytest.mark.parametrize(("key", "username", "clientid", "concerns"), [
    ("${username}:${clientid}", "a", "b:c", True), ("${username}:${clientid}", "a:b", "c", False),
    ("${clientid}:${username}", "a:b", "c", True), ("${username}:${clientid}", "a", "", False),
    ("${username}::${clientid}", "a", ":b", True), ("${username}::${clientid}", "a:", "b", False),
    ("u:${username}", "a:b", "", True), ("(|(uid=${username})(mail=${username}))", "a(b", "", True),
])  # fmt: skip
def test_names_whose_key_may_be_anothers_are_nobody(key: str, username: str, clientid: str, *, concerns: bool) -> None:
    request = LoginRequest(username=username, clientid=clientid)
    assert LoginTemplate(key).concerns(request) is concerns


def test_what_a_login_puts_into_a_template() -> None:
    request = LoginRequest(username="u", clientid="${username}", cert_common_name="cn", peerhost="10.0.0.1")
    template = LoginTemplate("${clientid}:${username}:${clientid}:${peerhost}:${cert_common_name}")
    values = template.values(request)
    assert values == ("${username}", "u", "${username}", "10.0.0.1", "cn")
    assert template.filled(values) == "${username}:u:${username}:10.0.0.1:cn", "a value is not a template"
    assert template.user(request) == "u", "the user name goes before others"
    assert LoginTemplate("${peerhost}${clientid}").user(request) == "${username}"
    assert LoginTemplate("${username}${clientid}").user(LoginRequest(clientid="c")) == "c"
