"""The HTTP port answers from the event loop that carries the messages; one that cannot be opened is a sentence."""

import asyncio
import base64
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
import structlog
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from pydantic import SecretStr

from bridge.ledger import Ledger
from config.errors import ExitStatus
from config.settings import HttpSettings, Settings
from gateway.base.lifecycle import Lifecycle, State
from gateway.base.metrics import Metrics
from gateway.base.readiness import ReadinessSnapshot, SessionView, TopicView
from gateway.http.answers import WorkerAnswers
from gateway.http.connection import Connection
from gateway.http.listener import HttpPortError
from gateway.http.server import HttpServer

SECOND_NS = 1_000_000_000
GOOD = ReadinessSnapshot(
    state=State.RUNNING,
    sessions=(SessionView("0", connected=True, subscribed=True, unacked=3, client_id="plant-0-0", window=32),),
    metadata_age_ns=SECOND_NS,
    topics=(TopicView("telemetry", partitions=12),),
    oldest_unacked_age_ns=250_000_000,
)


class Worker:
    """What the server reads, and the server, on a free port."""

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, token: SecretStr | None = None, page: bool = True
    ) -> None:
        settings = Settings(http=HttpSettings(host=host, port=port, token=token))
        self.metrics = Metrics(settings)
        self.lifecycle = Lifecycle(now_ns=lambda: SECOND_NS)  # stands still
        self.ledger = Ledger(lambda: 3)
        self.metrics.watch_ledger(self.ledger)
        self.snapshot = GOOD
        answers = WorkerAnswers(
            settings, metrics=self.metrics, lifecycle=self.lifecycle, ledger=self.ledger,
            snapshot=lambda: self.snapshot, facts=lambda: {"instance_id": "17"},
        )  # fmt: skip
        self.server = HttpServer(settings.http, answers, page=page)

    async def stop(self) -> None:
        await self.server.stop(time.monotonic_ns() + 5 * SECOND_NS)


@asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[aiohttp.ClientSession]:
    await worker.server.start()
    try:
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(worker.server.url, timeout=timeout) as client:
            yield client
    finally:
        await worker.stop()


async def status(client: aiohttp.ClientSession, path: str, **options: Any) -> int:
    async with client.get(path, **options) as response:
        await response.read()
        return response.status


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
ODD = ("application/openmetrics-text;version=x", "text/plain;version=,;=", "*/*", "§")


@pytest.mark.parametrize("accept", [PROMETHEUS, "application/openmetrics-text;version=1.0.0", *ODD])
async def test_what_prometheus_sends_gets_openmetrics_and_what_is_odd_gets_plain_text(accept: str) -> None:
    worker = Worker()
    worker.ledger.received = 3
    async with serving(worker) as client, client.get("/metrics", headers={"Accept": accept}) as response:
        assert response.status == 200
        kind, parse = ("text/plain; version=0.0.4", parse_text)
        if accept not in ODD:
            kind, parse = ("application/openmetrics-text; version=1.0.0", parse_openmetrics)
        assert response.headers["Content-Type"].startswith(kind)
        families = {family.name: family for family in parse(await response.text())}
        assert families["gateway_ledger_in_flight"].samples[0].value == 3


async def test_health_is_good_in_every_state_as_long_as_it_is_answered() -> None:
    worker = Worker()
    async with serving(worker) as client:
        for state in [State.STARTING, State.RECOVERY, State.RUNNING, State.PENDING_CONTROLLED_SHUTDOWN]:
            worker.lifecycle.advance(state)
            async with client.get("/healthz") as response:
                assert response.status == 200
                assert await response.json() == {"alive": True, "state": state.name, "in_state_seconds": 0}


async def test_readiness_is_200_or_503_with_its_reasons() -> None:
    worker = Worker()
    async with serving(worker) as client:
        async with client.get("/readyz") as response:
            assert response.status == 200
            assert await response.json() == {"ready": True, "reasons": []}
        worker.snapshot = replace(GOOD, state=State.STARTING, metadata_age_ns=None)
        async with client.get("/readyz") as response:
            assert response.status == 503
            assert response.headers["Cache-Control"] == "no-store"
            answer = await response.json()
            assert answer["ready"] is False
            assert answer["reasons"][0] == "The worker is starting."
            assert answer["reasons"][1].startswith("Kafka has not answered")
        worker.snapshot = replace(GOOD, oldest_unacked_age_ns=31 * SECOND_NS)
        assert await status(client, "/readyz") == 503, "http.overdue_after"


async def test_status_tells_the_sessions_and_the_account() -> None:
    worker = Worker()
    worker.ledger.received, worker.ledger.delivered = 10, 6
    async with serving(worker) as client, client.get("/status") as response:
        assert response.status == 200
        document = await response.json()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document.pop("since"))
        assert document == {
            "state": "RUNNING", "ready": True, "reasons": [], "unacked": 3, "oldest_unacked_age_seconds": 0.25,
            "sessions": [
                {"session": "0", "client_id": "plant-0-0", "connected": True, "subscribed": True, "unacked": 3,
                 "window": 32, "problem": None}
            ],
            "topics": [{"topic": "telemetry", "partitions": 12, "used": None, "leaderless": [], "problem": None}],
            "instance_id": "17",
            "ledger": {
                "received": 10, "recovered": 0, "delivered": 6, "filtered": 0, "dead_lettered": 0, "copies": 0,
                "in_flight": 3, "returned": 0, "lost": 0, "imbalance": 1,
            },
        }  # fmt: skip


async def test_other_paths_and_methods_are_refused_with_a_sentence() -> None:
    async with serving(Worker()) as client:
        for path in ["/nowhere", "/status/", "/metrics/x", "/%2e%2e/etc/passwd"]:
            async with client.get(path) as response:
                assert response.status == 404
                assert "There is: /, /runbook, /metrics, /healthz, /readyz, /status." in await response.text()
                assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND"]:
            async with client.request(method, "/metrics", data=b"x" * 1000) as response:
                assert response.status == 405
                assert response.headers["Allow"] == "GET, HEAD"
                assert await response.text() == f"/metrics is only read: GET or HEAD, and not {method}.\n"
        async with client.head("/readyz") as response:
            assert response.status == 200
            assert await response.read() == b""


async def test_a_server_without_the_page_has_nothing_at_its_root() -> None:
    async with serving(Worker(page=False)) as client:
        assert await status(client, "/") == 404


async def test_no_answer_may_be_framed_stored_guessed_or_read_by_another_origin() -> None:
    async with serving(Worker()) as client:
        for path in ["/", "/metrics", "/status", "/readyz", "/nowhere"]:
            async with client.get(path, headers={"Origin": "http://evil.example"}) as response:
                headers = response.headers
                assert headers["X-Content-Type-Options"] == "nosniff"
                assert headers["X-Frame-Options"] == "DENY"
                assert headers["Cache-Control"] == "no-store"
                assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
                assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
                assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
                assert headers["Server"] == "gateway"
                left = {"Set-Cookie"} | {name for name in headers if name.startswith("Access-Control-")}
                assert not left & headers.keys(), "cookies, or leave for other origins"


async def test_a_port_for_all_machines_shows_metrics_and_yes_or_no() -> None:
    worker = Worker(host="0.0.0.0")
    worker.snapshot = replace(GOOD, state=State.STARTING)
    async with serving(worker) as client:
        assert await status(client, "/metrics") == 200
        async with client.get("/readyz") as response:
            assert response.status == 503
            assert await response.json() == {"ready": False}
        for path in ["/", "/status"]:
            async with client.get(path) as response:
                assert response.status == 403
                assert "http.token" in await response.text()


async def test_with_a_token_a_browser_is_asked_for_it_and_a_scraper_sends_it() -> None:
    token = "of-the-test-0123456789"
    basic = f"Basic {base64.b64encode(f'anybody:{token}'.encode()).decode()}"
    worker = Worker(token=SecretStr(token))
    async with serving(worker) as client:
        with structlog.testing.capture_logs() as logs:
            async with client.get("/") as response:
                assert response.status == 401
                assert response.headers["WWW-Authenticate"] == 'Basic realm="gateway", charset="UTF-8"'
            assert logs == []
            assert await status(client, "/metrics", headers={"Authorization": "Bearer wrong"}) == 401
            [line] = logs
        assert (line["event"], line["log_level"], line["path"]) == ("http_token_wrong", "warning", "/metrics")
        assert "wrong" not in {value for key, value in line.items() if key != "event"}
        assert await status(client, "/metrics", headers={"Authorization": f"Bearer {token}"}) == 200
        assert await status(client, "/status", headers={"Authorization": basic}) == 200
        assert await status(client, "/healthz") == 200


async def test_connections_beyond_the_limit_close_the_oldest() -> None:
    """Or whoever reaches the port could take the descriptors that MQTT and Kafka need."""
    worker = Worker()
    async with serving(worker) as client:
        assert await status(client, "/healthz") == 200
        idle = [await asyncio.open_connection("127.0.0.1", worker.server.port) for _ in range(120)]
        try:
            assert await status(client, "/healthz") == 200
            async with asyncio.timeout(60):
                assert await idle[0][0].read() == b"", "the oldest is still open"
        finally:
            for _, writer in idle:
                writer.close()


def test_many_connections_in_one_turn_of_the_loop_close_as_many() -> None:
    peers = [Mock(spec=Connection) for _ in range(250)]
    server = Worker().server
    for peer in peers:
        server.opened(peer)
    assert [peer.abort.call_count for peer in peers] == [1] * 150 + [0] * 100


async def test_several_scrapers_at_once_are_answered_over_kept_connections() -> None:
    async with serving(Worker()) as client:
        assert await asyncio.gather(*(status(client, "/metrics") for _ in range(20))) == [200] * 20


async def test_a_stop_closes_the_port_though_a_client_keeps_its_connection() -> None:
    worker = Worker()
    async with serving(worker) as client:
        assert await status(client, "/healthz") == 200
        port = worker.server.port
        await asyncio.wait_for(worker.stop(), 60)
        with pytest.raises(OSError, match=r"refused|reset"):
            socket.create_connection(("127.0.0.1", port), timeout=60)


@pytest.mark.parametrize("when", ["before the start", "at once after it", "twice", "past its deadline"])
async def test_a_stop_at_any_time_leaves_no_open_port(when: str) -> None:
    worker = Worker()
    port = 0
    if when != "before the start":
        await worker.server.start()
        port = worker.server.port
    if when == "past its deadline":
        async with aiohttp.ClientSession(worker.server.url) as client, client.get("/healthz") as response:
            assert response.status == 200
            await worker.server.stop(time.monotonic_ns() - SECOND_NS)
    await worker.stop()
    if when == "twice":
        await worker.stop()
    if port:
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            again.bind(("127.0.0.1", port))  # raises if the port is still open


async def test_a_port_that_was_closed_is_opened_again_by_the_same_process() -> None:
    first = Worker()
    async with serving(first) as client, client.get("/healthz") as response:
        assert response.status == 200
        port = first.server.port
    async with serving(Worker(port=port)) as client:
        assert await status(client, "/healthz") == 200


async def exchange(worker: Worker, request: bytes) -> bytes:
    """All that the server answers, which closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.server.port)
    writer.write(request)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_defect_is_logged_and_the_port_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    async with serving(worker) as client:
        monkeypatch.setattr(worker, "snapshot", None)
        with structlog.testing.capture_logs() as logs:
            assert await status(client, "/status") == 500
        assert [line["event"] for line in logs] == ["http_defect"]
        assert await status(client, "/healthz") == 200


async def test_requests_that_come_at_once_are_answered_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, under_way, most = Worker(), 0, 0
    answer = worker.server._answers.answer

    async def slowly(path: str, accept: str) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        found = await answer(path, accept)
        under_way -= 1
        return found

    monkeypatch.setattr(worker.server._answers, "answer", slowly)
    paths = (b"/metrics", b"/nowhere", b"/healthz")
    async with serving(worker):
        requests = [b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in paths]
        requests.append(b"HEAD /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answered = await exchange(worker, b"".join(requests))
    assert re.findall(rb"^HTTP/1.1 (\d+) ", answered, re.MULTILINE) == [b"200", b"404", b"200", b"200"]
    assert answered.endswith(b"Connection: close\r\n\r\n")
    assert most == 1


@pytest.mark.parametrize(("request_", "status"), [
    (b"no HTTP at all\r\n\r\n", b"400"),
    (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
    (b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
    (b"GET /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411"),
])  # fmt: skip
async def test_what_is_no_request_is_refused_and_ends_its_connection(request_: bytes, status: bytes) -> None:
    worker = Worker()
    async with serving(worker):
        assert (await exchange(worker, request_)).startswith(b"HTTP/1.1 " + status)


async def test_what_follows_a_refused_request_costs_no_answer() -> None:
    """What was left unread reset the connection."""
    worker = Worker()
    async with serving(worker):
        requests = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nno HTTP at all\r\n\r\n"
        answer = await exchange(worker, requests + b"x" * 4_000_000)
    assert re.findall(rb"^HTTP/1.1 (\d+) ", answer, re.MULTILINE) == [b"200", b"400"]


async def test_a_request_that_does_not_come_to_its_end_is_closed() -> None:
    worker = Worker()
    worker.server.read_timeout_s = 0.05
    async with serving(worker):
        assert await exchange(worker, b"GET /healthz HTTP/1.1\r\nHo") == b""


async def test_a_taken_port_is_a_sentence_and_its_own_exit_status() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        worker = Worker(port=taken.getsockname()[1])
        with pytest.raises(HttpPortError) as caught:
            await worker.server.start()
    assert caught.value.exit_status == ExitStatus.UNAVAILABLE == 69
    assert caught.value.port == worker.server._port
    assert str(caught.value) == (
        f"The HTTP port (http.host = 127.0.0.1, http.port = {caught.value.port}) cannot be opened:"
        f" port {caught.value.port} is taken, perhaps by another gateway on this machine."
        " Stop it, or set another http.port; 0 takes any free one."
    )
    await worker.stop()


async def test_a_host_that_is_not_ours_is_a_sentence() -> None:
    with pytest.raises(HttpPortError, match=r"192\.0\.2\.1 is no address of this machine"):
        await Worker(host="192.0.2.1").server.start()


async def test_a_name_without_address_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    with pytest.raises(HttpPortError, match=r"the name gateway\.example has no address\. Check http\.host\."):
        await Worker(host="gateway.example").server.start()


async def test_ipv6_loopback() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 in this Python")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback on this machine")
    worker = Worker(host="::1")
    async with serving(worker) as client:
        assert worker.server.url.startswith("http://[::1]:")
        assert await status(client, "/healthz") == 200
