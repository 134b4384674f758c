"""``gateway auth serve`` under attack: names, bodies and tokens that are meant to break in, or to break it."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from auth.model import Rule
from tests.asking import exchange
from tests.auth_process import AuthServe, auth_serve
from tests.integration.auth_sites import *  # noqa: F403 - a fixture is taken from the module that uses it
from tests.integration.auth_sites import GOOD, Site
from tests.integration.test_auth_service_backends import tables

DEVICE = "s" * 32
NAMES = {
    "NUL": "a\0b",
    "64 KiB": "n" * 65_535,
    "more than MQTT has": "n" * 65_536,
    "64 KiB of four bytes": "\N{HOT BEVERAGE}" * 16_383,
    "hash": "#",
    "plus": "+",
    "upwards": "../../etc/passwd",
    "a placeholder": "${clientid}",
    "SQL": "' OR '1'='1' --",
    "SQL, stacked": "x'; DROP TABLE users; --",
    "LDAP": "*)(uid=*))(|(uid=*",
    "a line of a log": '\n{"event": "auth_ready"}',
    "half a surrogate pair": "\ud800",
    "right to left": "\u202eada",
    "a Redis command": "x\r\nFLUSHALL\r\n",
    "JSON": '","is_superuser":true,"x":"',
}
BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "a deep array": b"[" * 500_000,
    "a deep object": b'{"a":' * 100_000,
    "a long number": b'{"username":' + b"9" * 500_000 + b"}",
    "many fields": b"{" + b",".join(b'"f%d":1' % number for number in range(60_000)) + b"}",
    "a field twice": b'{"username":"ada","username":"root"}',
    "NaN": b'{"username":NaN}',
    "too large": b'{"username":"' + b"x" * (1 << 20) + b'"}',
    "not UTF-8": b'{"username":"\xff"}',
    "texts that are none": b'{"username":["ada"],"password":{"$ne":""}}',
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[AuthServe]:
    auth = "[auth.protection]\naddress_failures = 0\n"
    auth += "[auth.hashing]\nrenew = false\n"  # in the background: a test counts hashes
    with auth_serve(tmp_path, auth=auth) as one:
        one.add_user("ada", "right")
        one.add_user("pump", DEVICE, generated=True)
        with one.edit() as editor:
            editor.rules.append(Rule("allow", "devices/${clientid}/#"))
        one.until(lambda: one.login("ada", "right")["result"] == "allow", "a new user is not known")
        yield one
        assert one.login("ada", "right")["result"] == "allow", "it did not survive"
        assert not [line for line in one.lines if line["event"] in {"auth_defect", "text"}], one.log.read_text()
        assert len([line for line in one.lines if line["event"] == "auth_ready"]) == 1, (
            "a name forged a line of the log"
        )


def test_hostile_names_are_nobody(served: AuthServe) -> None:
    for what, name in NAMES.items():
        for field in ("username", "clientid", "password", "peerhost", "cert_common_name"):
            question = {"username": "nobody", "clientid": "c", "password": "x", field: name}
            answer = served.ask("/authn", question)
            assert (answer.status, answer.data) == (200, {"result": "deny"}), f"{what} as {field}"
    for name in ("ADA", "ada ", "ada\0", ""):
        assert served.login(name, "right") == {"result": "deny"}, f"{name!r} is taken for ada"
    assert served.login("ada", "") == {"result": "deny"}


def test_hostile_client_ids_give_no_rights(served: AuthServe) -> None:
    """The rule is for the client's own topics; what it calls itself must not make them everybody's."""
    for what, name in NAMES.items():
        answer = served.ask("/authn", {"username": "ada", "clientid": name, "password": "right"}).data
        for rule in answer.get("acl", []):
            open_ = rule["permission"] == "allow" and re.search(r"[+#]|\$\{", rule["topic"].removesuffix("/#"))
            assert not open_, f"{what}: {rule}"
        for action, topic in (("subscribe", "devices/#"), ("publish", "devices/other/x"), ("subscribe", "#")):
            question = {"username": "ada", "clientid": name, "action": action, "topic": topic}
            assert served.ask("/authz", question).data == {"result": "deny"}, f"{what}: {action} {topic}"


def test_hostile_bodies_are_denied_and_cost_little(served: AuthServe) -> None:
    service = psutil.Process(served.process.pid)
    for what, body in BODIES.items():
        for path in ("/authn", "/authz"):
            before_s = sum(service.cpu_times()[:2])
            status, _, answer = exchange(served.port(), path, "POST", body, {"content-type": "application/json"})
            assert (status, json.loads(answer)) == (200, {"result": "deny"}), f"{what} at {path}"
            assert sum(service.cpu_times()[:2]) - before_s < 4, f"{what} takes longer than EMQX waits"


def hashes(served: AuthServe) -> int:
    """Slow hashes computed so far."""
    found = re.search(r"^gateway_auth_hashing_seconds_count(?:\{\})? (\d+)", served.get("/metrics").body, re.MULTILINE)
    assert found is not None, "there is no such metric"
    return int(found[1])


def cost(served: AuthServe, username: str, password: str) -> int:
    before = hashes(served)
    assert served.login(username, password) == {"result": "deny"}
    return hashes(served) - before


def test_every_refusal_costs_one_hash(served: AuthServe) -> None:
    """Time cannot be measured on a busy machine; what it is made of can be counted."""
    served.add_user("off", "right", disabled=True)
    served.add_user("over", "right", expires_at_s=1)
    served.add_user("off-device", DEVICE, generated=True, disabled=True)
    costs = {
        f"{name} {password}": cost(served, name, password)
        for name in ("nobody", "ada", "pump", "off", "over", "off-device")
        for password in ("wrong 1", "wrong 2", "")
    }
    costs |= {
        f"{name} right": cost(served, name, secret) for name, secret in (("off", "right"), ("off-device", DEVICE))
    }
    assert set(costs.values()) == {1}, costs


async def test_every_refusal_costs_one_hash_wherever_users_are(site: Site, tmp_path: Path) -> None:
    await site.put_password("lamp")

    def run() -> dict[str, int]:
        with auth_serve(tmp_path, auth=tables(site)) as served:
            assert served.login("lamp", GOOD)["result"] == "allow"
            return {
                f"{name} {password!r}": cost(served, name, password)
                for name in ("lamp", "nobody", "x'--", "*)(uid=*", "n" * 65_535)
                for password in ("wrong", "")
            }

    costs = await asyncio.to_thread(run)
    assert set(costs.values()) == {1}, costs
