"""The built-in database in the chain: who is let in by what, and whose hash is renewed."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from auth import passwords
from auth.backends.database import DatabaseAuthenticator
from auth.errors import BackendDownError
from auth.hashing import Hasher
from auth.model import Allow, Deny, Ignore, LoginRequest, Tenant
from auth.store.records import User
from auth.store.store import Store
from config.tables.auth import AuthDatabaseSettings, AuthHashingSettings, AuthSettings
from tests.kinds import is_a, there
from tests.unit.access_parts import add_users, edited, opened_store

COST = passwords.Argon2Cost(8, 1)
HASHING = AuthHashingSettings(memory=8 << 10, passes=1, threads=1)
SECRET = passwords.hash_argon2id("secret", COST)
NOW = 1_800_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened_store(tmp_path / "auth" / "auth.sqlite3") as one:
        yield one


@pytest.fixture
async def database(store: Store) -> AsyncIterator[DatabaseAuthenticator]:
    hasher = Hasher(HASHING)
    one = DatabaseAuthenticator(AuthSettings(), store, hasher, lambda: NOW)
    await one.start()
    yield one
    await one.close()
    hasher.close()


def change(store: Store, kind: Any, identity: str, **fields: Any) -> None:
    edited(store, lambda edit: edit.users.change(kind, identity, **fields))


async def test_a_right_password_brings_what_the_user_is(store: Store, database: DatabaseAuthenticator) -> None:
    edited(store, lambda edit: edit.tenants.add(Tenant("acme", attributes={"plan": "small", "site": "hq"})))
    add_users(
        store,
        User("username", "ann", SECRET, "acme", frozenset({"ops"}), {"site": "berlin"}, True, expires_at_s=NOW + 1),
    )
    verdict = is_a(Allow, await database.authenticate(LoginRequest("ann", "c1", "secret")))
    assert (verdict.source, verdict.user, verdict.tenant, verdict.groups) == ("database", "ann", "acme", {"ops"})
    assert dict(verdict.attributes) == {"plan": "small", "site": "berlin"}
    assert (verdict.is_superuser, verdict.expires_at_s) == (True, NOW + 1)


async def test_a_wrong_password_has_cost_a_hash(store: Store, database: DatabaseAuthenticator) -> None:
    stored = passwords.hash_device_secret("secret", next(iter(store.device_keys().values())))
    add_users(store, User("username", "ann", SECRET), User("clientid", "d1", stored))
    for request in (LoginRequest("ann", "", "wrong"), LoginRequest("", "d1", "wrong"), LoginRequest("ann", "", "")):
        verdict = is_a(Deny, await database.authenticate(request))
        assert (verdict.reason, verdict.hashed) == ("bad_password", True)


async def test_the_first_identity_that_names_a_user_decides(store: Store, database: DatabaseAuthenticator) -> None:
    add_users(store, User("username", "x", SECRET), User("clientid", "c", disabled=True), User("common_name", "cn"))
    assert isinstance(await database.authenticate(LoginRequest("x", "c", "secret")), Allow)
    assert isinstance(await database.authenticate(LoginRequest("y", "c", "secret", cert_common_name="cn")), Deny)
    assert isinstance(await database.authenticate(LoginRequest("y", "d", "secret", cert_common_name="cn")), Allow)
    assert await database.authenticate(LoginRequest("y", "d", "secret")) == Ignore("database")


async def test_only_configured_identities_are_asked(store: Store) -> None:
    add_users(store, User("common_name", "cn"), User("address", "10.0.0.0/8"))
    hasher = Hasher(HASHING)
    settings = AuthSettings(database=AuthDatabaseSettings(identities=("username",)))
    one = DatabaseAuthenticator(settings, store, hasher)
    assert isinstance(one.at_once(LoginRequest(cert_common_name="cn", peerhost="10.1.1.1")), Ignore)
    hasher.close()


async def test_an_address_suffices(store: Store, database: DatabaseAuthenticator) -> None:
    add_users(store, User("address", "10.0.0.0/8", groups=frozenset({"plant"})))
    verdict = is_a(Allow, database.at_once(LoginRequest("whoever", "x", "whatever", "10.1.1.1")))
    assert (verdict.user, verdict.groups) == ("10.0.0.0/8", {"plant"})


@pytest.mark.parametrize(("fields", "password", "reason"), [
    ({"disabled": True}, "secret", "disabled"),
    ({"expires_at_s": NOW}, "secret", "expired"),
    ({"password": ""}, "secret", "bad_password"),
    ({"password": ""}, "", "bad_password"),
])  # fmt: skip
async def test_who_is_not_let_in_with_what_would_be_the_right_password(
    store: Store, database: DatabaseAuthenticator, fields: dict[str, Any], password: str, reason: str
) -> None:
    add_users(store, User("username", "ann", SECRET))
    change(store, "username", "ann", **fields)
    verdict = is_a(Deny, await database.authenticate(LoginRequest("ann", "", password)))
    assert (verdict.reason, verdict.user) == (reason, "ann")


@pytest.mark.parametrize("stored", [
    bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode(),
    passwords.salted_text(
        hashlib.sha256(b"saltsecret").hexdigest(), salt="salt", algorithm="sha256", salt_position="prefix"
    ),
], ids=["bcrypt", "sha256"])  # fmt: skip
async def test_a_hash_of_another_kind_is_renewed_at_a_login(
    store: Store, database: DatabaseAuthenticator, stored: str
) -> None:
    add_users(store, User("username", "ann", stored))
    stamp = database.stamp(LoginRequest("ann"))
    assert isinstance(await database.authenticate(LoginRequest("ann", "", "wrong")), Deny)
    assert not database._rehashes
    assert isinstance(await database.authenticate(LoginRequest("ann", "", "secret")), Allow)
    await asyncio.gather(*database._rehashes)
    assert store.writer.flush(60)
    assert there(store.find_user("username", "ann")).password.startswith("$argon2id$")
    assert database.stamp(LoginRequest("ann")) == stamp
    assert isinstance(await database.authenticate(LoginRequest("ann", "", "secret")), Allow)
    assert not database._rehashes


async def test_what_bcrypt_did_not_look_at_is_not_hashed_anew(store: Store, database: DatabaseAuthenticator) -> None:
    add_users(store, User("username", "ann", bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()))
    assert isinstance(await database.authenticate(LoginRequest("ann", "", "x" * 72 + "an attacker's own")), Allow)
    assert not database._rehashes


async def test_a_stamp_moves_with_its_own_user_and_tenant_alone(store: Store, database: DatabaseAuthenticator) -> None:
    edited(store, lambda edit: edit.tenants.add(Tenant("acme")))
    add_users(store, User("username", "ann", SECRET, "acme"), User("username", "bob", SECRET))
    request = LoginRequest("ann", "c", "secret")
    verdict = is_a(Allow, await database.authenticate(request))
    assert database.stamp(request) == verdict.version
    change(store, "username", "bob", disabled=True)
    assert database.stamp(request) == verdict.version
    change(store, "username", "ann", disabled=True)
    assert database.stamp(request) != verdict.version
    before = database.stamp(request)
    edited(store, lambda edit: edit.tenants.change("acme", enabled=False))
    assert database.stamp(request) not in {verdict.version, before}
    edited(store, lambda edit: edit.users.remove("username", "ann"))
    assert database.stamp(request) == 0


@pytest.mark.parametrize("other", [User("clientid", "c", SECRET), User("address", "10.0.0.0/8")])
async def test_a_removed_user_is_not_taken_for_another_of_the_same_import(
    store: Store, database: DatabaseAuthenticator, other: User
) -> None:
    """Both have the same revision, and the login finds the second once the first is gone."""
    add_users(store, User("username", "ann", SECRET), other)
    request = LoginRequest("ann", "c", "secret", "10.0.0.1")
    verdict = is_a(Allow, await database.authenticate(request))
    edited(store, lambda edit: edit.users.remove("username", "ann"))
    assert database.stamp(request) not in {0, verdict.version}


async def test_a_key_that_comes_with_an_import_is_known_at_once(
    store: Store, database: DatabaseAuthenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = next(iter(store.device_keys().values()))
    add_users(store, User("clientid", "d0", passwords.hash_device_secret("secret", own)))
    assert isinstance(database.at_once(LoginRequest("", "d0", "secret")), Allow)
    monkeypatch.setattr("auth.store.store._LOOK_NS", 1 << 60)  # the store has not looked at the file since
    key = b"q" * 32
    with store.edit("test") as edit:
        edit.add_device_key(key)
        edit.users.add(User("clientid", "d1", passwords.hash_device_secret("secret", key)))
    assert isinstance(database.at_once(LoginRequest("", "d1", "secret")), Allow)
    assert isinstance(await database.authenticate(LoginRequest("", "d1", "wrong")), Deny)


async def test_a_secret_whose_key_is_lost_refuses_its_user_alone(store: Store, database: DatabaseAuthenticator) -> None:
    add_users(store, User("clientid", "d1", passwords.hash_device_secret("secret", b"z" * 32)))
    verdict = is_a(Deny, await database.authenticate(LoginRequest("", "d1", "secret")))
    assert verdict.reason == "refused"
    assert "is missing here" in verdict.detail
    assert database.up


async def test_a_database_that_cannot_be_read_is_down(store: Store, database: DatabaseAuthenticator) -> None:
    for one in store.path.parent.iterdir():
        one.unlink()
    with pytest.raises(BackendDownError):
        store.refresh()
    assert not database.up
    with pytest.raises(BackendDownError):
        await database.authenticate(LoginRequest("ann"))


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "' OR 1=1 --", "x" * 70_000, "#", "${clientid}"])
async def test_hostile_names_are_unknown(database: DatabaseAuthenticator, name: str) -> None:
    request = LoginRequest(name, name, name, name, name)
    assert await database.authenticate(request) == Ignore("database")
