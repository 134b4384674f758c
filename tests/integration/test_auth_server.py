"""The server that EMQX asks, over real sockets: always an answer that EMQX understands, in order and in time."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import structlog

from config.settings import AuthSettings
from config.tables.auth import AuthLimitSettings
from tests.auth_site import auth_site, login, post
from tests.waiting import DEADLINE_S, until

SECRET = "0123456789abcdef0123456789abcdef"
BEARER = f"authorization: Bearer {SECRET}"


@pytest.fixture(autouse=True)
def log() -> Iterator[list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def limited(**limits: Any) -> AuthSettings:
    return AuthSettings(limits=AuthLimitSettings(**limits))


SHORT = timedelta(milliseconds=300)


# ---- answers ----


async def test_each_result_is_a_200_that_says_so() -> None:
    async with auth_site(AuthSettings()) as site:
        answers = await site.ask(*(login(name) for name in ("allow", "deny", "ignore", "soon")))
        assert [answer.result for answer in answers] == ["allow", "deny", "ignore", "allow"]
        assert all("date" in answer.fields and "connection" not in answer.fields for answer in answers)
        topics = [{"action": "publish", "topic": topic} for topic in ("mine/1", "other")]
        answers = await site.ask(*(post(topic, "/authz?access=1") for topic in topics))
        assert [answer.result for answer in answers] == ["allow", "deny"]
        assert [site.count("requests", "authn", result) for result in ("allow", "deny", "ignore", "error")] == [
            2, 1, 1, 0,
        ]  # fmt: skip
        assert [site.count("requests", "authz", result) for result in ("allow", "deny")] == [1, 1]
        assert site.metrics.request_seconds.child("authn").count == 4


@pytest.mark.parametrize("path", ["/authn", "/authz"])
@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b"[" * 200_000, b'{"username":"\\u0000"}', b'{"qos":' + b"9" * 9999 + b"}"]
)
async def test_what_is_no_question_is_denied_in_words_that_emqx_understands(
    path: str, body: bytes, log: list[dict[str, Any]]
) -> None:
    async with auth_site(AuthSettings()) as site:
        (answer,) = await site.ask(post(body, path))
        assert answer.result == "deny"
        assert site.count("requests", path[1:], "error") == 1
        assert [line["event"] for line in log] == ["auth_request_unreadable"]


async def test_a_body_beyond_the_limit_is_denied_and_the_connection_goes_on() -> None:
    async with auth_site(limited(request_bytes=2048)) as site:
        answers = await site.ask(post(b'{"username": "allow"}' + b" " * 3_000_000), login("allow"))
        assert [answer.result for answer in answers] == ["deny", "allow"]
        assert site.count("requests", "authn", "error") == 1


@pytest.mark.parametrize("name", ["defect", "late defect"])
async def test_a_defect_is_denied_logged_and_counted(name: str, log: list[dict[str, Any]]) -> None:
    async with auth_site(AuthSettings()) as site:
        answers = await site.ask(login(name), login("allow"))
        assert [answer.result for answer in answers] == ["deny", "allow"]
        assert site.count("requests", "authn", "error") == 1
        (line,) = log
        assert line["event"] == "auth_defect"
        assert line["exc_info"]


async def test_a_defect_of_the_rules_is_denied() -> None:
    async with auth_site(AuthSettings()) as site:
        (answer,) = await site.ask(post({"action": "publish", "topic": "defect"}, "/authz"))
        assert answer.result == "deny"
        assert site.count("requests", "authz", "error") == 1


async def test_a_login_that_takes_too_long_is_answered_as_backend_down_says(log: list[dict[str, Any]]) -> None:
    async with auth_site(AuthSettings(answer_timeout=SHORT)) as site:
        client = await site.connect()
        client.send(login("waits"))
        begun = time.monotonic()
        assert (await client.answer()).result == "deny"
        assert time.monotonic() - begun >= 0.29
        await until(lambda: site.decisions.cancelled == 1, "the login goes on although it has been answered")
        assert site.count("answers_late") == 1
        assert site.count("requests", "authn", "deny") == 1
        assert site.count("logins_waiting") == 0
        assert [line["event"] for line in log] == ["auth_answer_late"]


# ---- the shared secret, paths, methods ----


@pytest.mark.parametrize(
    "field",
    ["x: y", "authorization: Bearer wrong", f"authorization: Basic {SECRET}", f"authorization: Bearer {SECRET}x"],
)
async def test_without_the_shared_secret_nothing_is_said(field: str, log: list[dict[str, Any]]) -> None:
    async with auth_site(AuthSettings(shared_secret=SECRET)) as site:
        client = await site.connect()
        client.send(login("allow", field) + login("allow", BEARER.replace("Bearer", "bearer")))
        refused = await client.answer()
        assert (refused.status, refused.body) == (401, b"")
        assert refused.fields["www-authenticate"] == "Bearer"
        assert (await client.answer()).result == "allow"
        assert len(site.decisions.logins) == 1
        assert site.count("requests_refused", "secret") == 1
        assert site.count("requests", "authn", "error") == 1
        assert SECRET not in str(log)


@pytest.mark.parametrize(("request_", "status", "reason"), [
    (post({}, "/other"), 404, "path"),
    (post({}, "/authn/"), 404, "path"),
    (b"GET /authn HTTP/1.1\r\nhost: a\r\n\r\n", 405, "method"),
    (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed"),
    (b"\x16\x03\x01\x00\x05hello\r\n\r\n", 400, "malformed"),
    (b"GET /" + b"x" * 20_000, 431, "malformed"),
])  # fmt: skip
async def test_what_no_emqx_sends_is_refused_and_said(
    request_: bytes, status: int, reason: str, log: list[dict[str, Any]]
) -> None:
    async with auth_site(AuthSettings()) as site:
        (answer,) = await site.ask(request_)
        assert answer.status == status
        assert site.count("requests_refused", reason) == 1
        assert log[-1]["event"] == "auth_request_refused"


# ---- connections ----


async def test_pipelined_requests_are_worked_on_together_and_answered_in_order() -> None:
    async with auth_site(AuthSettings()) as site:
        client = await site.connect()
        client.send(login("wait-1") + login("allow") + login("wait-2") + login("deny"))
        await until(lambda: len(site.decisions.logins) == 4, "requests behind a slow one are not looked at")
        site.decisions.hold.set()
        answers = [await client.answer() for _ in range(4)]
        assert [answer.result for answer in answers] == ["allow", "allow", "allow", "deny"]
        assert [json.loads(answer.body).get("user") for answer in answers] == ["wait-1", None, "wait-2", None]


async def test_more_pipelined_requests_than_are_held_are_all_answered() -> None:
    async with auth_site(AuthSettings()) as site:
        client = await site.connect()
        client.send(b"".join(login(f"waits-{number}") for number in range(1000)))
        await until(lambda: len(site.decisions.logins) >= 128, "requests are not looked at")
        assert len(site.decisions.logins) == 128  # the rest waits where it costs EMQX's memory, not ours
        site.decisions.hold.set()
        users = [json.loads((await client.answer()).body)["user"] for _ in range(1000)]
        assert users == [f"waits-{number}" for number in range(1000)]


@pytest.mark.parametrize("part", [b"P", login("allow")[:40], login("allow")[:-1], post(b"x" * 10_000)[:-5000]])
async def test_a_request_that_does_not_come_to_its_end_is_cut_off(part: bytes, log: list[dict[str, Any]]) -> None:
    async with auth_site(limited(read_timeout=SHORT)) as site:
        client = await site.connect()
        client.send(part)
        begun = time.monotonic()
        assert await client.ended() == b""
        assert time.monotonic() - begun < DEADLINE_S / 2
        assert site.count("connections_refused", "slow_sender") == 1
        assert log[-1]["reason"] == "slow_sender"


async def test_a_request_that_drips_has_its_time_from_its_first_byte() -> None:
    async with auth_site(limited(read_timeout=SHORT)) as site:
        client = await site.connect()
        end = time.monotonic() + DEADLINE_S
        for byte in login("allow") * 100:
            client.send(bytes([byte]))
            if client.reader.at_eof() or client.reader.exception() is not None:  # a reset, if bytes were under way
                break
            await asyncio.sleep(0.01)
            assert time.monotonic() < end, "a drip feed keeps the connection"
        assert site.count("connections_refused", "slow_sender") == 1
        assert not site.decisions.logins


async def test_the_body_of_a_stranger_has_no_more_time() -> None:
    async with auth_site(AuthSettings(shared_secret=SECRET, limits=AuthLimitSettings(read_timeout=SHORT))) as site:
        client = await site.connect()
        client.send(b"POST /authn HTTP/1.1\r\nhost: a\r\ncontent-length: 999999999999\r\n\r\nx")
        assert await client.ended() == b""


async def test_an_idle_connection_stays() -> None:
    """EMQX keeps its pool; to close it would make its next request fail, which it takes for ignore."""
    async with auth_site(limited(read_timeout=timedelta(milliseconds=100))) as site:
        client, fresh = await site.connect(), await site.connect()
        client.send(login("allow"))
        assert (await client.answer()).result == "allow"
        slow = await site.connect()
        slow.send(b"P")  # its end shows that the time-out has passed for the others, too
        await slow.ended()
        for one in (client, fresh):
            one.send(login("deny"))
            assert (await one.answer()).result == "deny"


async def test_who_does_not_take_the_answers_is_cut_off() -> None:
    async with auth_site(limited(read_timeout=SHORT)) as site:
        client = await site.connect(limit=1024)
        client.writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.writer.transport.pause_reading()
        client.send(login("large") * 2000)
        await until(lambda: site.count("connections_refused", "slow_reader") == 1, "a slow reader keeps the connection")
        assert len(site.decisions.logins) < 2000  # it was not read on either
        await until(lambda: site.count("connections") == 0, "the connection is still there")


async def test_connections_beyond_the_limit_are_closed_and_those_that_ask_stay() -> None:
    async with auth_site(limited(connections=3)) as site:
        asking = [await site.connect() for _ in range(3)]
        for client in asking:
            client.send(login("allow"))
            await client.answer()
        refused = await site.connect()
        assert await refused.ended() == b""
        assert site.count("connections_refused", "full") == 1
        for client in asking:
            client.send(login("allow"))
            assert (await client.answer()).result == "allow"


async def test_connections_that_never_asked_make_room() -> None:
    async with auth_site(limited(connections=3)) as site:
        idle = [await site.connect() for _ in range(3)]
        await until(lambda: site.count("connections") == 3, "connections are not taken")
        for _ in range(3):
            client = await site.connect()
            client.send(login("allow"))
            assert (await client.answer()).result == "allow"
        for client in idle:
            assert await client.ended() == b""
        assert site.count("connections_refused", "evicted") == 3


async def test_who_sends_nothing_more_still_gets_the_answers() -> None:
    async with auth_site(AuthSettings()) as site:
        client = await site.connect()
        client.send(login("wait-1") + login("deny"))
        client.writer.write_eof()
        await until(lambda: len(site.decisions.logins) == 2, "the requests are not looked at")
        site.decisions.hold.set()
        assert [(await client.answer()).result for _ in range(2)] == ["allow", "deny"]
        assert await client.ended() == b""


async def test_who_goes_while_a_login_waits_leaves_nothing_behind() -> None:
    async with auth_site(AuthSettings()) as site:
        client = await site.connect()
        client.send(login("waits"))
        await until(lambda: len(site.decisions.logins) == 1, "the request is not looked at")
        client.writer.transport.abort()
        await until(lambda: site.count("connections") == 0, "the connection is still there")
        site.decisions.hold.set()
        await until(lambda: site.count("logins_waiting") == 0, "the login is still there")


@pytest.mark.parametrize("request_", [login("allow", "connection: close"), b"POST /authn HTTP/1.0\r\n\r\n"])
async def test_a_client_that_wants_no_further_answer_is_left(request_: bytes) -> None:
    async with auth_site(AuthSettings()) as site:
        client = await site.connect()
        client.send(request_ + login("allow"))
        answer = await client.answer()
        assert answer.fields["connection"] == "close"
        assert await client.ended() == b""


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked() -> None:
    async with auth_site(AuthSettings()) as site:
        client = await site.connect()
        head, _, body = login("allow", "expect: 100-continue").partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert (await client.answer()).result == "allow"


# ---- start and stop ----


async def test_a_stop_finishes_the_answers_under_way() -> None:
    async with auth_site(AuthSettings()) as site:
        idle, client = await site.connect(), await site.connect()
        client.send(login("wait-1") + login("wait-2"))
        await until(lambda: len(site.decisions.logins) == 2, "the requests are not looked at")
        stopping = asyncio.create_task(site.server.stop(time.monotonic_ns() + 60 * 1_000_000_000))
        assert await idle.ended() == b""
        assert not stopping.done()
        site.decisions.hold.set()
        answers = [await client.answer() for _ in range(2)]
        assert [answer.result for answer in answers] == ["allow", "allow"]
        assert answers[-1].fields["connection"] == "close"
        assert await client.ended() == b""
        await stopping


async def test_a_stop_does_not_wait_beyond_its_deadline() -> None:
    async with auth_site(AuthSettings()) as site:
        client = await site.connect()
        client.send(login("waits"))
        await until(lambda: len(site.decisions.logins) == 1, "the request is not looked at")
        async with asyncio.timeout(DEADLINE_S):
            await site.server.stop(time.monotonic_ns() + 200_000_000)
        assert await client.ended() == b""
        await until(lambda: site.decisions.cancelled == 1, "the login goes on after the stop")
