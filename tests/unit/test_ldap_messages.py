"""LDAP messages, filters and names, against an independent implementation and against nonsense."""

import contextlib
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.backends.ldap_filter import FilterTemplate, escape_name, first_name_part
from auth.backends.ldap_messages import (
    MESSAGE_MAX,
    Entry,
    MalformedError,
    Message,
    Operation,
    Result,
    bind_request,
    decode_message,
    element,
    message_size,
    search_request,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it uses names that pyasn1 has given up
    from ldap3.operation.bind import bind_operation
    from ldap3.operation.search import compile_filter, parse_filter, search_operation
    from ldap3.protocol.rfc4511 import LDAPMessage, MessageID, ProtocolOp
    from ldap3.utils.asn1 import encode
    from ldap3.utils.conv import escape_bytes
    from ldap3.utils.dn import parse_dn


def their_filter(text: str) -> bytes:
    parsed = parse_filter(text, None, auto_escape=False, auto_encode=False, validator=None, check_names=False)
    return encode(compile_filter(parsed.elements[0]))


def their_message(number: int, kind: str, operation: object) -> bytes:
    message = LDAPMessage()
    message["messageID"] = MessageID(number)
    message["protocolOp"] = ProtocolOp().setComponentByName(kind, operation)
    return encode(message)


FILTERS = [
    "(uid=lamp)", "(&(objectClass=*)(uid=lamp))", "(|(uid=lamp)(!(mail=lamp@example.org))(cn>=a)(cn<=z)(cn~=lump))",
    "(cn=a*)", "(cn=*z)", "(cn=a*b*c*z)", "(cn=*m*)", "(cn=star \\2a \\28round\\29 \\5c)",
    "(memberOf:1.2.840.113556.1.4.1941:=cn=admins,dc=example,dc=org)", "(cn:dn:2.4.6.8.10:=x)",
    "(&(a=1)(|(b=2)(&(c=3)(d=4)))(!(e=5)))",
]  # fmt: skip


@pytest.mark.parametrize("text", FILTERS)
def test_filters_are_encoded_as_others_encode_them(text: str) -> None:
    assert FilterTemplate(text).encoded({}) == their_filter(text)


@given(st.binary(max_size=300))
def test_any_value_in_a_filter_is_one_value(value: bytes) -> None:
    """The value as it is, where others need it escaped."""
    ours = FilterTemplate("(&(objectClass=*)(uid=${username})(cn=*${username}*))").encoded({"username": value})
    escaped = escape_bytes(value)
    expected = "(&(objectClass=*)(uid=X)(cn=*Y*))"
    text = expected.replace("X", escaped).replace("Y", escaped)
    if value:  # an empty part between stars is another filter
        assert ours == their_filter(text)


@pytest.mark.parametrize(("text", "sentence"), [
    ("", "lacks"), ("uid=lamp", "lacks"), ("(uid=lamp", "lacks"),
    ("(uid=lamp))", "behind the filter's last parenthesis"), ("()", "no comparison"), ("(&)", "lacks"),
    ("(uid)", "no comparison"), ("(=x)", "no attribute's name"), ("(u id=x)", "no attribute's name"),
    ("(uid=a(b)", "no comparison"), ("(uid=\\zz)", "two hexadecimal digits"),
    ("(cn=***)", "nothing between its stars"), ("(uid=${nobody})", "unknown here"),
    ("(uid=${username)", "brace is missing"), ("(" * 60 + "uid=x" + ")" * 60, "no comparison"),
    ("(!" * 60 + "(uid=x)" + ")" * 60, "nested more than"), ("(:=x)", "no matching rule"),
])  # fmt: skip
def test_a_text_that_is_no_filter_is_told_so(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        FilterTemplate(text)


@given(st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable() or "\0" in text))
def test_a_value_in_a_name_is_one_value(value: str) -> None:
    with contextlib.suppress(UnicodeEncodeError):
        name = f"uid={escape_name(value)},ou=people,dc=example"
        assert [(part[0], part[2]) for part in parse_dn(name)] == [("uid", ","), ("ou", ","), ("dc", "")]
        assert first_name_part(name) == value.strip()


@pytest.mark.parametrize(("name", "part"), [
    ("cn=admins,ou=groups", "admins"), ("CN=a\\,b,ou=groups", "a,b"), ("cn=a\\2cb\\c3\\a4,ou=x", "a,bä"),
    ("cn=a+ou=b,dc=x", "a"), ("admins", "admins"), ("cn=", ""), ("", ""),
])  # fmt: skip
def test_the_first_part_of_a_name(name: str, part: str) -> None:
    assert first_name_part(name) == part


def test_requests_are_encoded_as_others_encode_them() -> None:
    for number in (1, 127, 128, 70_000, 0x7FFFFFFF):
        ours = bind_request(number, b"uid=lamp,dc=x", b"secret")
        assert ours == their_message(
            number, "bindRequest", bind_operation(3, "SIMPLE", "uid=lamp,dc=x", "secret", auto_encode=True)
        )
        ours = search_request(
            number, b"dc=x", their_filter("(uid=l)"), whole_tree=True, attributes=["memberOf"], limit=2, seconds=300
        )
        theirs = search_operation("dc=x", "(uid=l)", 2, 0, ["memberOf"], 2, 300, False, False, False)
        assert ours == their_message(number, "searchRequest", theirs)


def test_a_name_without_a_password_cannot_be_asked_about() -> None:
    with pytest.raises(ValueError, match="proves nothing"):
        bind_request(1, b"uid=lamp", b"")
    assert bind_request(1, b"", b"")  # anonymous, and saying so


@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 256, 65_535, 65_536, 900_000])
def test_lengths_of_every_form(size: int) -> None:
    whole = element(0x30, b"x" * size)
    assert message_size(whole) == len(whole)
    assert message_size(whole[:1]) is None
    head = 2 if size < 128 else 2 + (whole[1] & 0x7F)
    assert message_size(whole[:head]) == len(whole)
    assert head == 2 or message_size(whole[: head - 1]) is None


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1", b"\x30\x80", b"\x30\x85\1\1\1\1\1", b"\x30\x84\x7f\xff\xff\xff", b"\x16\x03"]
)
def test_what_is_no_message_is_told_at_its_first_bytes(head: bytes) -> None:
    with pytest.raises(MalformedError):
        message_size(head)
    assert MESSAGE_MAX < 0x7FFFFFFF


RESULT = element(0x0A, b"\x31") + element(4, b"") + element(4, b"no \xff")


def message(tag: int, content: bytes, number: int = 7) -> bytes:
    return element(0x30, element(2, bytes((number,))), element(tag, content))


def test_answers_are_understood() -> None:
    assert decode_message(message(0x61, RESULT)) == Message(7, Operation.BIND_RESPONSE, Result(49, "no \ufffd"))
    entry = element(4, b"uid=l") + element(
        0x30, element(0x30, element(4, b"memberOf"), element(0x31, element(4, b"a"), element(4, b"b")))
    )
    assert decode_message(message(0x64, entry)).what == Entry(b"uid=l", (b"a", b"b"))
    assert decode_message(message(0x64, element(4, b"uid=l") + element(0x30))).what == Entry(b"uid=l", ())
    assert decode_message(message(0x73, element(4, b"ldap://x"))).what is None
    for no_code in (element(0x0A), element(4, b"\0")):
        with pytest.raises(MalformedError, match="no code"):
            decode_message(message(0x61, no_code + element(4) + element(4)))


@given(st.binary(max_size=200))
def test_nonsense_is_malformed_and_nothing_worse(data: bytes) -> None:
    for whole in (data, message(0x64, data), message(0x61, data)):
        with contextlib.suppress(MalformedError):
            decode_message(whole)
    with contextlib.suppress(MalformedError):
        message_size(data)
