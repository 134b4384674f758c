"""What databases say of a user and what clients call themselves, each against its real server."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import bcrypt
import pytest

from auth.model import Allow, Deny, Ignore
from tests.integration.auth_sites import DATABASES, GOOD, Site, login

HOSTILE = {
    "quote": "'",
    "or true": "' OR '1'='1",
    "union": "' UNION SELECT 'x' AS password_hash -- ",
    "drop": "lamp'; DROP TABLE mqtt_user; --",
    "backslash quote": "\\' OR 1=1 -- ",
    "backslash": "lamp\\",
    "double quote": '" OR ""="',
    "percent": "%",
    "percent s": "lamp%s%(x)s",
    "underscore": "l_mp",
    "placeholder": "${username}",
    "dollar one": "$1",
    "null inside": "lamp\0",
    "null alone": "\0",
    "redis lines": "lamp\r\nSET pwned 1\r\n",
    "redis bulk": "\r\n*1\r\n$8\r\nFLUSHALL\r\n",
    "ldap filter": "*)(uid=*",
    "ldap or": "*)(|(uid=*",
    "ldap dn": "lamp,ou=people",
    "star": "*",
    "emoji": "lamp\U0001f4a1",
    "combining": "la\u0301mp",
    "rtl": "\u202epmal",
    "space behind": "lamp ",
    "space before": " lamp",
    "long": "x" * 65_535,
    "long and wide": "\u20ac" * 21_845,
    "not there": "plug",
}


@pytest.fixture(params=DATABASES)
async def site(request: pytest.FixtureRequest, unique: str) -> AsyncIterator[Site]:
    made = DATABASES[request.param](request.getfixturevalue(f"{request.param}_server"), unique)
    yield made
    made.close()


async def test_hostile_names_find_nobody_and_hurt_nobody(site: Site) -> None:
    await site.put_password("lamp", is_superuser=True)
    async with site.running() as authenticator:
        for what, name in HOSTILE.items():
            verdict = await login(authenticator, name)
            assert isinstance(verdict, Ignore), f"{what}: {verdict}"
            verdict = await login(authenticator, "lamp", name)
            assert isinstance(verdict, Deny), f"{what} as password: {verdict}"
        assert isinstance(await login(authenticator, "lamp"), Allow), "the table was hurt"
        assert not authenticator.failures, "a client's name counted against the server"


async def test_a_user_who_really_has_such_a_name_is_found_by_it(site: Site) -> None:
    names = [name for name in HOSTILE.values() if "\0" not in name and len(name) < 200]
    for name in names:
        await site.put_password(name, f"of {name}")
    async with site.running() as authenticator:
        for name in names:
            assert isinstance(await login(authenticator, name, f"of {name}"), Allow), repr(name)
            assert isinstance(await login(authenticator, name, "of another"), Deny), repr(name)


async def test_all_that_is_known_of_a_user_comes_with_the_login(site: Site) -> None:
    attributes = {"site": "berlin", "floor": "3", "ünïcode-is-only-in-values": "ä"}
    attributes = {name: value for name, value in attributes.items() if name.isascii()} | {"note": "a,b/#+ ä"}
    await site.put_password("lamp", is_superuser=True, tenant="acme", groups=["b", "a"], attributes=attributes)
    async with site.running() as authenticator:
        verdict = await login(authenticator, "lamp")
        assert isinstance(verdict, Allow), verdict
        assert verdict.is_superuser
        assert verdict.tenant == "acme"
        assert verdict.groups == {"a", "b"}
        assert dict(verdict.attributes) == attributes


async def test_empty_columns_say_nothing(site: Site) -> None:
    await site.put_password("lamp", salt="", is_superuser=False, tenant="", groups=[], attributes={})
    async with site.running() as authenticator:
        verdict = await login(authenticator, "lamp")
        assert isinstance(verdict, Allow), verdict
        assert (verdict.is_superuser, verdict.tenant, verdict.groups) == (False, "", frozenset())


async def test_no_password_set_lets_nobody_in(site: Site) -> None:
    site.put("lamp", password_hash=None, is_superuser=True)
    site.put("plug", password_hash="", is_superuser=True)
    async with site.running() as authenticator:
        for name in ("lamp", "plug"):
            for password in ("", GOOD, "None", "NULL"):
                verdict = await login(authenticator, name, password)
                assert isinstance(verdict, Deny), f"{name} with {password!r}: {verdict}"
                assert verdict.reason == "bad_password"
                assert not verdict.hashed, "a burn is due"


@pytest.mark.parametrize(("record", "named"), [
    ({"attributes": {"floor": 3}}, "attributes.floor is no text but int"),
    ({"attributes": {"fl oor": "3"}}, "attributes has a name"),
    ({"attributes": {"tenant": "other"}}, "attributes names tenant"),
    ({"tenant": "a/b"}, "tenant holds '/'"),
    ({"tenant": "t" * 257}, "tenant has 257 characters"),
    ({"groups": [f"g{number}" for number in range(101)]}, "groups has 101 names"),
    ({"password_hash": "$argon2id$cut"}, "argon2 hash is cut off"),
    ({"password_hash": "no hash at all"}, "of no known kind"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
async def test_an_unreadable_record_refuses_its_own_user_alone(site: Site, record: dict[str, Any], named: str) -> None:
    hashed = await site.hasher.hash(GOOD)
    site.put("lamp", **{"password_hash": hashed, **record})
    await site.put_password("plug")
    async with site.running() as authenticator:
        verdict = await login(authenticator, "lamp")
        assert isinstance(verdict, Deny), verdict
        assert verdict.reason == "refused"
        assert named in verdict.detail
        assert hashed not in verdict.detail
        assert "no hash" not in verdict.detail
        assert isinstance(await login(authenticator, "plug"), Allow)
        assert authenticator.up
        assert not authenticator.failures


SALT = "5a17"
EMQX_HASHES = {  # all that there are: tests/unit/test_auth_passwords.py
    "sha256 suffix": (
        hashlib.sha256((GOOD + SALT).encode()).hexdigest(),
        {"algorithm": "sha256", "salt_position": "suffix"},
    ),
    "bcrypt by itself": (bcrypt.hashpw(GOOD.encode(), bcrypt.gensalt(5)).decode(), {}),
    "pbkdf2 1000": (
        hashlib.pbkdf2_hmac("sha256", GOOD.encode(), SALT.encode(), 1000, 20).hex(),
        {"algorithm": "pbkdf2", "pbkdf2_iterations": 1000},
    ),
}


@pytest.mark.parametrize(("stored", "settings"), EMQX_HASHES.values(), ids=EMQX_HASHES)
async def test_hashes_as_emqx_stores_them(site: Site, stored: str, settings: dict[str, Any]) -> None:
    site.put("lamp", password_hash=stored, salt=SALT)
    async with site.running(**settings) as authenticator:
        assert isinstance(await login(authenticator, "lamp"), Allow)
        wrong = await login(authenticator, "lamp", GOOD + "!")
        assert isinstance(wrong, Deny)
        assert wrong.hashed, "it costs what an unknown user costs"
