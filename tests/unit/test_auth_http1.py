"""Requests come out of bytes in any portions; what is ambiguous comes out as a refusal, and nothing after it."""

import asyncio
from collections.abc import Sequence
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.connection import Connection
from gateway.http.http1 import HEAD_MAX, Head, Refusal, Request, RequestParser
from tests.kinds import is_a
from tests.unit.manual_time import manual_time

HOST = b"host: a\r\n"


def post(body: bytes, *fields: bytes, target: bytes = b"/authn") -> bytes:
    lines = [b"POST %s HTTP/1.1" % target, b"Host: localhost", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def taken(*portions: bytes, body_max: int = 1000) -> list[Request | Refusal]:
    parser = RequestParser(lambda head: head.length <= body_max)
    found = []
    for portion in portions:
        parser.feed(portion)
        while (one := parser.take()) is not None:
            found.append(one)
    return found


def test_a_request_as_emqx_sends_it() -> None:
    data = post(
        b"{}", b"content-type: application/json", b"authorization:Bearer s", b"keep-alive: timeout=30, max=1000"
    )
    head = Head(b"POST", b"/authn", 2, True, b"application/json", b"Bearer s", {b"host": b"localhost"})
    assert taken(data) == [Request(head, b"{}")]


def test_http_1_0_and_connection_close_end_the_connection() -> None:
    def keeps(data: bytes) -> bool:
        (request,) = taken(data)
        return request.head.keep_alive

    assert not keeps(b"GET / HTTP/1.0\r\n\r\n")
    assert keeps(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
    assert not keeps(post(b"", b"connection: foo, Close"))
    assert keeps(post(b"", b"connection: keep-alive"))


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5), st.data())
def test_any_portions_give_the_same_requests(bodies: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(post(body, target=b"/%d" % number) for number, body in enumerate(bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    portions = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    found = taken(*portions, body_max=40)
    assert [one.head.target for one in found] == [b"/%d" % number for number in range(len(bodies))]
    assert [one.body for one in found] == [body if len(body) <= 40 else None for body in bodies]


def test_whether_a_request_has_begun_is_known() -> None:
    parser = RequestParser(lambda _head: True)
    assert not parser.inside
    data = post(b"12345")
    for end in range(len(data)):
        parser.feed(data[end : end + 1])
        found = parser.take()
        assert (found is None) is parser.inside, end
    assert found == Request(Head(b"POST", b"/authn", 5, True, b"", b"", {b"host": b"localhost"}), b"12345")


def test_a_body_that_is_not_wanted_is_not_kept() -> None:
    parser = RequestParser(lambda _head: False)
    parser.feed(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n")
    block = bytes(1_000_000)
    for _ in range(100):
        assert parser.take() is None
        parser.feed(block)
    assert is_a(Request, parser.take()).body is None
    assert not parser.inside


def test_a_client_that_waits_to_be_asked_for_its_body_is_asked_once() -> None:
    parser = RequestParser(lambda _head: True)
    parser.feed(post(b"12", b"expect: 100-continue")[:-2])
    assert parser.take() is None
    assert parser.continue_due()
    assert not parser.continue_due()
    parser.feed(b"12")
    assert is_a(Request, parser.take()).body == b"12"
    assert not parser.continue_due()


def test_empty_lines_in_front_of_a_request_are_ignored() -> None:
    (found,) = taken(b"\r\n\r\n", post(b"x"))
    assert isinstance(found, Request)


@pytest.mark.parametrize(("data", "status"), [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n", 400),
    (b"POST /authn HTTP/2.0\r\nhost: a\r\n\r\n", 400),
    (b"POST /au thn HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    (b"post /authn HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\n\r\n", 400),  # no host
    (b"POST /authn HTTP/1.1\r\n" + HOST + HOST + b"\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\ncontent-length: +1\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\ncontent-length: 1, 1\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\ncontent-length: " + b"9" * 400 + b"\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\ncontent-length : 1\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\n content-length: 1\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\nx: a\nb: c\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\nx: a\x00\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\nx\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\nhost: a\n\n\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\nauthorization: a\r\nauthorization: b\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\nauthorization:\r\nauthorization: b\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\nauthorization: a\r\nauthorization:\r\n\r\n", 400),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n", 411),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\ntransfer-encoding: x\r\ncontent-length: 3\r\n\r\nabc", 411),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\nexpect: tea\r\n\r\n", 417),
    (b"POST /" + b"x" * HEAD_MAX, 431),
    (b"POST /authn HTTP/1.1\r\nhost: a\r\nx: " + b"y" * HEAD_MAX + b"\r\n\r\n", 431),
])  # fmt: skip
def test_what_is_ambiguous_or_unknown_is_refused_and_ends_the_reading(data: bytes, status: int) -> None:
    (found,) = taken(data, post(b"x"))
    assert found.status == status


LIKE_REQUESTS = st.text(alphabet="POST /authn HTP1.\r\n:acdeghilnost0123456789-", max_size=200).map(str.encode)


@given(st.lists(st.binary(max_size=80), max_size=6) | st.tuples(LIKE_REQUESTS))
def test_any_bytes_are_requests_or_one_refusal_at_the_end(portions: Sequence[bytes]) -> None:
    found = taken(*portions, b"\r\n\r\n" + post(b"x"))
    assert all(isinstance(one, Request) for one in found[:-1])


def test_a_head_that_never_ends_is_refused_however_it_comes() -> None:
    """Also behind a request that was complete, and byte by byte; but many complete requests are no long head."""
    parser = RequestParser(lambda _head: True)
    parser.feed(post(b"1") * 100)
    assert sum(1 for _ in iter(parser.take, None)) == 100
    for fed in range(2 * HEAD_MAX):
        parser.feed(b"GET / HTTP/1.1\r\nhost: a\r\nx: "[fed : fed + 1] or b"y")
        if (found := parser.take()) is not None:
            assert found == Refusal(431, "the head is too long")
            assert HEAD_MAX <= fed <= HEAD_MAX + 1
            return
    pytest.fail("a head of twice the bound is still read")


@manual_time
async def test_a_peer_that_sends_nothing_more_has_limited_time_to_read_its_answers() -> None:
    site, transport = Mock(open_max=8, read_timeout_s=5.0), Mock()
    site.respond.return_value = b"an answer"
    transport.get_extra_info.return_value = None
    transport.is_closing.return_value = False
    connection = Connection(site, asyncio.get_running_loop())
    connection.connection_made(transport)
    connection.data_received(post(b"x"))
    assert not connection.eof_received()
    transport.close.assert_called_once_with()  # which waits until all is sent
    await asyncio.sleep(5.1)
    transport.abort.assert_called_once_with()
    site.timed_out.assert_called_once_with(writing=True)
