"""EMQX, as deploy/emqx configures it, and a real `gateway auth serve`: who gets in, what they may do, and that nobody
gets more when the service is killed, frozen, wrong or told lies."""

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auth.model import Rule
from auth.store.edit import edit
from gateway.local.embedded.access_process import AccessProcess
from tests.brokers.emqx_auth import Connection, EmqxModel, Refused
from tests.brokers.emqx_conf import AuthConf, deployed
from tests.command_line import run_gateway
from tests.waiting import until

MakeService = Callable[..., AccessProcess]

DEVICES = [f"d{number}" for number in range(1, 6)]
REFUSED = Refused("not_authorized")


def emqx_conf(service: AccessProcess, **changes: Any) -> AuthConf:
    """deploy/emqx/emqx.conf, pointed at the service, with the secrets that were made for EMQX."""
    # Where EMQX would take no answer for one, a busy machine must not: the service has its own limit.
    return deployed(service.emqx_folder, service.service.port, **{"request_timeout_s": 60.0, **changes})


@asynccontextmanager
async def emqx_of(service: AccessProcess, **changes: Any) -> AsyncIterator[EmqxModel]:
    async with EmqxModel(emqx_conf(service, **changes)) as model:
        yield model


def gateway(service: AccessProcess, *arguments: str, stdin: str = "") -> str:
    """What `gateway auth …` prints, run as an operator runs it: in a process of its own."""
    ran = run_gateway("auth", *arguments, "--config", service.config, stdin=stdin)
    assert ran.returncode == 0, f"{arguments}: {ran.stderr}"
    return ran.stdout


def metrics(service: AccessProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{service.operator_port}/metrics") as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture(scope="module")
def make_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeService]:
    made: list[AccessProcess] = []

    def make(auth_toml: str = "", *, devices: list[str] = DEVICES, more: str = "") -> AccessProcess:
        folder = tmp_path_factory.mktemp("auth")
        filters = ["devices/+/telemetry"]
        toml = f'answer_timeout = "4s"\n{auth_toml}'  # a busy machine may take long; EMQX waits 5 s
        service = AccessProcess(folder, filters=filters, instance="plant", auth_toml=toml, more_toml=more)
        made.append(service)
        service.prepare(devices)
        service.start()
        return service

    yield make
    for service in made:
        service.stop()


@pytest.fixture(scope="module")
def service(make_service: MakeService) -> AccessProcess:
    """Shared by the tests that only ask."""
    return make_service()


ASKED_TOPIC_BY_TOPIC = "hand_over_rules = false\n"


@pytest.fixture(scope="module", params=["", ASKED_TOPIC_BY_TOPIC], ids=["handed-over", "asked"])
def either(request: pytest.FixtureRequest, make_service: MakeService) -> AccessProcess:
    """A service that hands rules over with the login, and one that is asked about each topic."""
    return make_service(request.param)


async def connected(emqx: EmqxModel, service: AccessProcess, name: str, clientid: str = "", **more: Any) -> Connection:
    password = service.gateway_password_file.read_text() if name == "gateway" else service.devices[name]
    made = await emqx.connect(name, clientid or name, password, **more)
    assert isinstance(made, Connection), f"{name} was refused: {made}"
    return made


# --- who gets in, and what they may do -------------------------------------------------------------------------------


async def test_a_device_may_use_its_own_topics_alone(either: AccessProcess) -> None:
    async with emqx_of(either) as emqx:
        device = await connected(emqx, either, "d1")
        for topic in ("devices/d1/telemetry", "devices/d1/a/b"):
            assert await emqx.publish(device, topic, 1) == "allow"
        for topic in ("devices/d2/telemetry", "devices/d1x", "devices", "gateways/plant/status", "$SYS/brokers"):
            assert await emqx.publish(device, topic, 1) == "deny", topic
        assert await emqx.subscribe(device, "devices/d1/#") == "allow"
        assert await emqx.subscribe(device, "$share/g/devices/d1/+") == "allow"
        for topic_filter in ("#", "+/+/+", "devices/#", "devices/+/telemetry", "$share/g/#", "$SYS/#", "$queue/#"):
            assert await emqx.subscribe(device, topic_filter) == "deny", topic_filter


async def test_one_question_for_each_connection(service: AccessProcess) -> None:
    async with emqx_of(service) as emqx:
        device = await connected(emqx, service, "d1")
        for number in range(50):
            assert await emqx.publish(device, f"devices/d1/{number}") == "allow"
            assert await emqx.publish(device, f"elsewhere/{number}") == "deny"
        assert emqx.asked == (1, 0)
        assert device.decided_by == "login"


async def test_the_gateway_gets_its_routes_and_its_status_topic(either: AccessProcess) -> None:
    async with emqx_of(either) as emqx:
        ours = await connected(emqx, either, "gateway", "plant-0-0")
        assert await emqx.subscribe(ours, "$share/gateway/devices/+/telemetry", 1) == "allow"
        assert await emqx.publish(ours, "gateways/plant/status", 1, retain=True) == "allow"
        assert await emqx.subscribe(ours, "#") == "deny"
        assert await emqx.publish(ours, "devices/d1/commands") == "deny"


async def test_a_wrong_secret_of_emqx_lets_nobody_in(either: AccessProcess) -> None:
    conf = emqx_conf(either)
    wrong = {**conf.authentication[0].headers, "authorization": "Bearer another"}
    async with EmqxModel(conf) as emqx:
        device = await connected(emqx, either, "d1")
    strange_login = replace(conf, authentication=(replace(conf.authentication[0], headers=wrong),))
    async with EmqxModel(strange_login) as emqx:
        assert await emqx.connect("d1", "d1", either.devices["d1"]) == REFUSED
    http, acl = conf.sources
    assert not isinstance(http, Path)
    async with EmqxModel(replace(conf, sources=(replace(http, headers=wrong), acl))) as emqx:
        assert await emqx.publish(device, "devices/d2/telemetry") == "deny"


async def test_secrets_stay_out_of_the_log_and_the_metrics(service: AccessProcess) -> None:
    async with emqx_of(service) as emqx:
        await connected(emqx, service, "d1")
        await emqx.connect("d1", "d1", "a-wrong-password-to-look-for")
    told = metrics(service)
    log = service.log.read_text()
    assert "auth_login_refused" in log
    assert "gateway_auth_requests_total" in told
    for secret in (*service.devices.values(), "a-wrong-password-to-look-for", service.service.secret):
        assert secret not in log
        assert secret not in told


# --- hostile client ids ----------------------------------------------------------------------------------------------

HOSTILE = [
    "#", "+", "../", "${clientid}", "${username}", "$share/g/#", "a/b", "/", "", "eq #", "x" * 65535, "a\0b", "\0",
    "undefined", "\u2028", "%c", "%2f", "c/other",
]  # fmt: skip


async def test_hostile_client_ids_get_nothing_of_others(either: AccessProcess) -> None:
    """A rule gives each client the topics of its client id, which nobody has checked."""
    with edit(either.database, "test") as editor:
        mine = editor.rules.insert(Rule("allow", "c/${clientid}/#"))
    async with emqx_of(either) as emqx:
        await until(lambda: _has_rule(emqx, either), "told of the rule")
        for clientid in HOSTILE:
            made = await emqx.connect("d1", clientid, either.devices["d1"])
            if isinstance(made, Refused):
                continue
            for topic in ("c/other/x", "c/x", "c//x", "c/a/x", "c/", "$SYS/x", "x", "devices/d2/telemetry"):
                if topic != f"c/{clientid}/x":
                    assert await emqx.publish(made, topic) == "deny", (clientid[:12], topic)
            for wanted in ("#", "c/#", "c/+/x", "c/other/#", "+/+", "+/other/x", "c/+/#", "$SYS/#", "devices/#"):
                assert await emqx.subscribe(made, wanted) == "deny", (clientid[:12], wanted)
    with edit(either.database, "test") as editor:
        editor.rules.remove([mine])


async def _has_rule(emqx: EmqxModel, service: AccessProcess) -> bool:
    plain = await connected(emqx, service, "d1", "plain")
    return await emqx.publish(plain, "c/plain/x") == "allow"


# --- nobody answers --------------------------------------------------------------------------------------------------


async def test_a_killed_service_lets_nobody_in_and_gives_nobody_more(make_service: MakeService) -> None:
    for toml in ("", ASKED_TOPIC_BY_TOPIC):
        service = make_service(toml)
        async with emqx_of(service) as emqx:
            device = await connected(emqx, service, "d1")
            assert await emqx.publish(device, "devices/d1/telemetry") == "allow"
            service.kill()
            assert await emqx.connect("d2", "d2", service.devices["d2"]) == REFUSED
            for topic in ("devices/d2/telemetry", "x", "$SYS/x"):
                assert await emqx.publish(device, topic) == "deny"
            assert await emqx.subscribe(device, "#") == "deny"
            # What it was told in the last minute is in EMQX's cache; the rest, where the login told the rules.
            assert await emqx.publish(device, "devices/d1/telemetry") == "allow"
            assert device.decided_by == "cache"
            new = await emqx.publish(device, "devices/d1/new")
            assert new == ("deny" if toml else "allow")
            service.start()
            await connected(emqx, service, "d2")


async def test_a_frozen_service_lets_nobody_in_and_gives_nobody_more(make_service: MakeService) -> None:
    service = make_service(ASKED_TOPIC_BY_TOPIC)
    async with emqx_of(service, request_timeout_s=3.0) as emqx:
        device = await connected(emqx, service, "d1")
        service.freeze()
        try:
            made = await asyncio.gather(*(emqx.connect(name, name, service.devices[name]) for name in DEVICES))
            assert set(made) == {REFUSED}
            assert await emqx.publish(device, "devices/d1/telemetry") == "deny"
            assert device.decided_by == "file"
        finally:
            service.thaw()
        # What EMQX has given up is answered into the void; the next questions get their own answers.

        async def let_in() -> bool:
            return isinstance(await emqx.connect("d1", "d1", service.devices["d1"]), Connection)

        await until(let_in, "let in again")
        again = await asyncio.gather(*(connected(emqx, service, name) for name in DEVICES))
        assert [one.client.username for one in again] == DEVICES
        for one in again:
            assert await emqx.publish(one, f"devices/{one.client.username}/telemetry") == "allow"
            assert await emqx.publish(one, "devices/another/telemetry") == "deny"


async def test_a_damaged_database_lets_nobody_in(make_service: MakeService) -> None:
    service = make_service(more="[auth.limits]\ncache_entries = 0\n")
    async with emqx_of(service) as emqx:
        await connected(emqx, service, "d1")
        kept = service.database.rename(service.database.with_suffix(".away"))
        service.database.write_bytes(b"no database at all, " * 1000)

        async def refused() -> bool:
            return await emqx.connect("d1", "d1", service.devices["d1"]) == REFUSED

        await until(refused, "refused")
        service.database.unlink()
        kept.rename(service.database)

        async def admitted() -> bool:
            return isinstance(await emqx.connect("d1", "d1", service.devices["d1"]), Connection)

        await until(admitted, "let in again")


# --- changes without a restart ---------------------------------------------------------------------------------------


async def test_users_come_and_go_at_the_command_line(make_service: MakeService) -> None:
    service = make_service()
    async with emqx_of(service) as emqx:

        async def lets_in(password: str, *, wanted: bool = True) -> bool:
            made = await emqx.connect("pump 7", "pump-7", password)
            return isinstance(made, Connection) is wanted

        assert await lets_in("anything", wanted=False)
        first = json.loads(gateway(service, "user", "add", "pump 7", "--generate", "--json"))["secret"]
        await until(lambda: lets_in(first), "let in")
        gateway(service, "user", "passwd", "pump 7", "--password-stdin", stdin="a person's own\n")
        await until(lambda: lets_in(first, wanted=False), "refused with the old secret")
        assert await lets_in("a person's own")
        gateway(service, "user", "disable", "pump 7")
        await until(lambda: lets_in("a person's own", wanted=False), "refused")
        gateway(service, "user", "enable", "pump 7")
        await until(lambda: lets_in("a person's own"), "let in")
        gateway(service, "ban", "add", "clientid", "pump-7", "--until", "1h", "--reason", "test")
        await until(lambda: lets_in("a person's own", wanted=False), "banned")
        gateway(service, "ban", "remove", "clientid", "pump-7")
        await until(lambda: lets_in("a person's own"), "let in")
        gateway(service, "user", "remove", "pump 7")
        await until(lambda: lets_in("a person's own", wanted=False), "gone")
        others = await connected(emqx, service, "d1")
        assert await emqx.publish(others, "devices/d1/x") == "allow", "nobody else noticed"


async def test_a_dashboard_sees_its_own_tenant_and_changes_nothing(make_service: MakeService) -> None:
    for toml in ("", ASKED_TOPIC_BY_TOPIC):
        service = make_service(toml)
        secrets = {}
        for tenant in ("acme", "globex"):
            gateway(service, "tenant", "add", tenant)
            user = ("user", "add", f"{tenant}-board", "--tenant", tenant, "--group", "dashboards")
            secrets[tenant] = json.loads(gateway(service, *user, "--generate", "--json"))["secret"]
        gateway(service, "acl", "add", "allow", "${tenant}/#", "--group", "dashboards", "--action", "subscribe")
        async with emqx_of(service) as emqx:

            async def reads_its_own() -> bool:
                board = await emqx.connect("acme-board", "screen-1", secrets["acme"])  # noqa: B023
                return isinstance(board, Connection) and await emqx.subscribe(board, "acme/#") == "allow"

            await until(reads_its_own, "its rule is known")
            made = await emqx.connect("acme-board", "screen-1", secrets["acme"])
            assert isinstance(made, Connection)
            assert await emqx.subscribe(made, "$share/screens/acme/+/state") == "allow"
            for other in ("globex/#", "+/+/state", "#", "+/#"):
                assert await emqx.subscribe(made, other) == "deny", other
            assert await emqx.publish(made, "acme/valve") == "deny"
            gateway(service, "tenant", "set", "acme", "--disable")

            async def kept_out() -> bool:
                return await emqx.connect("acme-board", "screen-1", secrets["acme"]) == REFUSED  # noqa: B023

            await until(kept_out, "kept out")
            assert isinstance(await emqx.connect("globex-board", "screen-2", secrets["globex"]), Connection)


async def test_explain_says_what_emqx_was_told(service: AccessProcess) -> None:
    arguments = ("--username", "d1", "--clientid", "d1", "--action", "publish", "--json", "--topic")
    told = gateway(service, "explain", *arguments, "devices/d1/x")
    assert '"allow"' in told
    assert "devices/${username}/#" in told
    assert '"deny"' in gateway(service, "explain", *arguments, "devices/d2/x")


@pytest.mark.parametrize("toml", ["", ASKED_TOPIC_BY_TOPIC], ids=["handed-over", "asked"])
async def test_a_rule_takes_effect_at_the_next_login_or_after_the_cache(make_service: MakeService, toml: str) -> None:
    service = make_service(toml)
    clock = [time.time()]
    async with EmqxModel(emqx_conf(service), now=lambda: clock[0]) as emqx:
        device = await connected(emqx, service, "d1")
        assert await emqx.publish(device, "shared/news") == "deny"
        with edit(service.database, "test") as editor:
            editor.rules.insert(Rule("allow", "shared/news"))

        async def allowed_to_a_new_connection() -> bool:
            fresh = await connected(emqx, service, "d1")
            return await emqx.publish(fresh, "shared/news") == "allow"

        await until(allowed_to_a_new_connection, "allowed after a login")
        assert await emqx.publish(device, "shared/news") == "deny"
        clock[0] += 61
        # Handed over, the rules are those of the login, for as long as it lasts.
        assert await emqx.publish(device, "shared/news") == ("allow" if toml else "deny")


async def test_a_superuser_is_not_judged_and_a_login_ends(make_service: MakeService) -> None:
    service = make_service('session_max = "1h"\n')
    clock = [time.time()]
    async with EmqxModel(emqx_conf(service), now=lambda: clock[0]) as emqx:
        with edit(service.database, "test") as editor:
            editor.users.change("username", "d1", is_superuser=True)

        async def superuser() -> bool:
            return (await connected(emqx, service, "d1")).is_superuser

        await until(superuser, "a superuser")
        root = await connected(emqx, service, "d1")
        assert await emqx.publish(root, "anything/at/all") == "allow"
        device = await connected(emqx, service, "d2")
        assert device.expires_at_s is not None
        assert abs(device.expires_at_s - clock[0] - 3600) < 60
        clock[0] += 3700
        for one in (root, device):
            assert await emqx.publish(one, "devices/d2/telemetry") == "deny"
            assert not one.connected


# --- many at once ----------------------------------------------------------------------------------------------------


async def test_two_thousand_devices_reconnect_at_once(make_service: MakeService) -> None:
    names = [f"n{number}" for number in range(2000)]
    service = make_service(devices=names)
    secrets = service.devices
    async with emqx_of(service) as emqx:
        for _ in range(2):  # cold, and from the cache
            made = await asyncio.gather(*(emqx.connect(name, name, secrets[name]) for name in names))
            assert sum(isinstance(one, Connection) for one in made) == len(names)
        assert emqx.asked == (2 * len(names), 0)
    assert "gateway_auth_answers_late_total 0.0" in metrics(service)
    shed = [line for line in metrics(service).splitlines() if 'reason="shed"' in line and not line.endswith(" 0.0")]
    assert shed == []
