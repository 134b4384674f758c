"""EMQX's REST API is asked as EMQX 5 wants it, and every way in which it cannot be is told apart."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from config.errors import ExitStatus
from config.settings import EmqxSettings
from config.values.secret_files import FileSecret
from gateway.health.emqx.api import EmqxApi, EmqxApiError, EmqxRefusedError
from tests.brokers.emqx_rest import EmqxRest
from tests.brokers.packets import Message
from tests.brokers.raw import RawClient
from tests.brokers.scripted import ScriptedBroker, publish
from tests.brokers.scripted_rules import Rules
from tests.servers.authority import Authority

SHARE = "$share/gw/devices/#"


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker(Rules(queue=10)) as broker:
        yield broker


@pytest.fixture
async def rest(broker: ScriptedBroker) -> AsyncIterator[EmqxRest]:
    async with EmqxRest(broker) as rest:
        yield rest


def api(url: str, **changes: Any) -> EmqxApi:
    values = {"url": url, "api_key": "key", "api_secret": "secret", "timeout": "1m", **changes}
    return EmqxApi(EmqxSettings.model_validate(values))


async def test_a_client_s_queue_window_and_drops_are_told(broker: ScriptedBroker, rest: EmqxRest) -> None:
    async with RawClient(broker.port, "gw-0-0", receive_maximum=5) as client:
        await client.subscribe(SHARE)
        publish(broker, range(18))
        (found,) = (await api(rest.url).clients(["gw-0-0"])).values()
        assert found.connected
        assert (found.inflight_cnt, found.inflight_max) == (5, 5)
        assert (found.mqueue_len, found.mqueue_max, found.mqueue_dropped) == (10, 10, 3)
        assert found.session_ms == broker.session("gw-0-0").created_ms
        assert "fields=" in rest.requests[-1]
    one = await api(rest.url).client("gw-0-0")
    assert one is not None
    assert one.mqueue_dropped == 3


async def test_ids_that_emqx_does_not_know_are_not_there(broker: ScriptedBroker, rest: EmqxRest) -> None:
    odd = "Gerät/ü&+ %3"
    async with RawClient(broker.port, odd), RawClient(broker.port, "a"):
        assert sorted(await api(rest.url).clients([odd, "a", "nobody", odd])) == sorted([odd, "a"])
        assert await api(rest.url).client("nobody") is None
        assert await api(rest.url).clients([]) == {}


async def test_many_ids_are_asked_for_in_lines_that_fit(broker: ScriptedBroker, rest: EmqxRest) -> None:
    names = [f"gateway-{number:03}-{'x' * 80}" for number in range(120)]
    clients = [RawClient(broker.port, name) for name in names]
    for client in clients:
        await client.__aenter__()
    try:
        assert sorted(await api(rest.url).clients(names)) == names
    finally:
        for client in clients:
            await client.__aexit__()
    assert 2 <= len(rest.requests) < 10
    assert max(map(len, rest.requests)) < 8000


async def test_an_emqx_that_looks_at_the_last_id_alone_is_asked_for_each(broker: ScriptedBroker) -> None:
    async with EmqxRest(broker, version="5.0.3") as rest, RawClient(broker.port, "a"), RawClient(broker.port, "b"):
        assert sorted(await api(rest.url).clients(["a", "b"])) == ["a", "b"]
        assert (await api(rest.url).nodes())[0].version == "5.0.3"


async def test_names_of_fields_that_it_does_not_know_are_left_out(broker: ScriptedBroker, rest: EmqxRest) -> None:
    rest.unknown_fields = frozenset({"send_msg.dropped.too_large"})
    async with RawClient(broker.port, "a"):
        asker = api(rest.url)
        assert list(await asker.clients(["a"])) == ["a"]
        assert list(await asker.clients(["a"])) == ["a"]
    assert ["fields=" in request for request in rest.requests] == [True, False, False]


async def test_nodes_zone_bans_and_counters(broker: ScriptedBroker, rest: EmqxRest) -> None:
    rest.broker.bans = [
        {"as": "clientid", "who": f"bad-{n}", "reason": "flapping", "until": "infinity"} for n in range(1001)
    ]
    broker.publish(Message("elsewhere", b"", 1))
    (node,) = await api(rest.url).nodes()
    assert (node.status, node.version) == ("running", "5.8.9")
    zone = await api(rest.url).zone()
    assert (zone.max_inflight, zone.max_mqueue_len, zone.durable_sessions) == (32, 10, False)
    assert zone.shared_subscription_strategy == "round_robin"
    assert [ban.who for ban in await api(rest.url).bans()] == [f"bad-{n}" for n in range(1001)], "two pages"
    assert (await api(rest.url).metrics())["messages.dropped.no_subscribers"] == 1


async def test_a_wrong_key_is_refused_and_says_what_to_check(rest: EmqxRest) -> None:
    with pytest.raises(EmqxRefusedError) as caught:
        await api(rest.url, api_secret="another").nodes()
    assert caught.value.trouble == "refused"
    assert caught.value.exit_status is ExitStatus.REFUSED
    assert "refuses the key 'key' (BAD_API_KEY_OR_SECRET)" in str(caught.value)
    assert "another" not in str(caught.value)


async def test_a_key_of_a_role_that_may_not_look(rest: EmqxRest) -> None:
    rest.keys["key"] = ("secret", "publisher")
    with pytest.raises(EmqxRefusedError, match=r"does not let .* read /nodes .* role viewer") as caught:
        await api(rest.url).nodes()
    assert caught.value.trouble == "forbidden"


async def test_a_secret_that_is_rotated_in_its_file_is_shown_anew(rest: EmqxRest, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("old\n")
    settings = EmqxSettings(url=rest.url, api_key="key", api_secret=SecretStr("x"))
    asker = EmqxApi(settings.model_copy(update={"api_secret": FileSecret("old", file)}))
    with pytest.raises(EmqxRefusedError):
        await asker.nodes()
    file.write_text("secret\n")
    assert await asker.nodes()


@pytest.mark.parametrize(("fault", "trouble", "says"), [
    ("deep", "not_emqx", "is no JSON"),
    ("html", "not_emqx", "is no JSON. Is this EMQX's dashboard port (18083)"),
    ("error", "answer", "failed on /nodes (500 NODE_DOWN)"),
    ("shape", "answer", "does not answer as EMQX 5 does (/nodes: no list)"),
    ("hang", "unreachable", "has not answered within 0.2s"),
])  # fmt: skip
async def test_answers_that_are_none(rest: EmqxRest, fault: Any, trouble: str, says: str) -> None:
    rest.fault = fault
    with pytest.raises(EmqxApiError) as caught:
        await api(rest.url, timeout="200ms" if fault == "hang" else "1m").nodes()
    assert caught.value.trouble == trouble
    assert says in str(caught.value)
    assert "emqx.url" in str(caught.value)


async def test_an_api_that_does_not_see_what_is_asked_for_is_not_read_to_its_end(
    broker: ScriptedBroker, rest: EmqxRest
) -> None:
    """All clients of a cluster would not fit a worker's memory."""
    rest.fault = "deaf"
    async with contextlib.AsyncExitStack() as stack:
        for number in range(12):
            await stack.enter_async_context(RawClient(broker.port, f"c{number}"))
        with pytest.raises(EmqxApiError, match=r"/clients: more than 8 rows"):
            await api(rest.url).clients(["c0", "c1"])
    assert len(rest.requests) == 1
    assert "limit=9&" in rest.requests[0]


async def test_an_emqx_4_is_named(broker: ScriptedBroker) -> None:
    async with EmqxRest(broker, version="4.4.19") as rest:
        with pytest.raises(EmqxApiError, match=r"is an EMQX 4, which has another REST API") as caught:
            await api(rest.url).clients(["a"])
    assert caught.value.trouble == "emqx_4"


async def test_nobody_there_and_mqtt_s_own_port(broker: ScriptedBroker, rest: EmqxRest) -> None:
    url = rest.url
    await rest.stop()
    with pytest.raises(EmqxApiError, match=r"cannot be reached \(connection refused\). Is it running\?"):
        await api(url).nodes()
    await rest.start()
    with pytest.raises(EmqxApiError, match="Does the port speak HTTP"):
        await api(f"http://127.0.0.1:{broker.port}").nodes()
    broker.violations.clear()  # an HTTP request is no MQTT


async def test_https_with_and_without_its_authority(broker: ScriptedBroker, authority: Authority) -> None:
    async with EmqxRest(broker, tls=authority.issue("emqx").server_context()) as rest:
        assert await api(rest.url, tls={"ca_file": str(authority.ca_file)}).nodes()
        with pytest.raises(EmqxApiError, match=r"shows a certificate that is not trusted .*emqx\.tls\.ca_file"):
            await api(rest.url).nodes()
        with pytest.raises(EmqxApiError, match="broke the answer off"):
            await api(rest.url.replace("https", "http")).nodes()
