"""The users file in the chain: who is in it, and what happens when it changes or breaks."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from auth import passwords
from auth.backends.users_file import UsersFileAuthenticator
from auth.errors import BackendDownError
from auth.hashing import Hasher
from auth.logins.chain import Chain
from auth.model import Allow, Deny, Ignore, LoginRequest, Tenant
from auth.store.records import User
from auth.store.store import Store
from auth.store.user_formats import export_lines
from config.tables.auth import AuthHashingSettings, AuthSettings, AuthUsersFileSettings
from gateway.auth_service.metrics import AuthMetrics
from tests.kinds import is_a
from tests.unit.access_parts import FakeHasher, opened_store
from tests.waiting import until

HASHING = AuthHashingSettings(memory=8 << 10, passes=1, threads=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "users.csv"
    path.write_text("user_id,password,is_superuser\nann,secret,true\n")
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened_store(tmp_path / "auth" / "auth.sqlite3") as one:
        yield one


@pytest.fixture
async def users(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[UsersFileAuthenticator]:
    monkeypatch.setattr("auth.backends.users_file._LOOK_S", 3600.0)  # only the test looks at the file
    hasher = Hasher(HASHING)
    one = UsersFileAuthenticator(AuthSettings(users_file=AuthUsersFileSettings(file=path)), store, hasher)
    yield one
    await one.close()
    hasher.close()


async def test_who_is_in_the_file_is_let_in(users: UsersFileAuthenticator) -> None:
    await users.start()
    verdict = is_a(Allow, await users.authenticate(LoginRequest("ann", "c", "secret")))
    assert (verdict.source, verdict.is_superuser) == ("users_file", True)
    wrong = is_a(Deny, await users.authenticate(LoginRequest("ann", "c", "wrong")))
    assert (wrong.reason, wrong.hashed) == ("bad_password", True)
    assert await users.authenticate(LoginRequest("bob", "c", "secret")) == Ignore("users_file")


async def test_a_changed_file_counts_once_it_has_settled(users: UsersFileAuthenticator, path: Path) -> None:
    await users.start()
    write(path, "user_id,password\nbob,secret\n")
    assert not await users.look()
    assert await users.look()
    assert not await users.look()
    assert isinstance(await users.authenticate(LoginRequest("bob", "c", "secret")), Allow)
    assert isinstance(await users.authenticate(LoginRequest("ann", "c", "secret")), Ignore)


@pytest.mark.parametrize("content", ["user_id,password\nann\n", "\0", None])
async def test_a_bad_file_changes_nothing(users: UsersFileAuthenticator, path: Path, content: str | None) -> None:
    await users.start()
    if content is None:
        remove(path)
    else:
        write(path, content)
    assert not await users.look(settled=True)
    assert users.problem
    assert users.up
    assert isinstance(await users.authenticate(LoginRequest("ann", "c", "secret")), Allow)
    write(path, "user_id,password\nbob,secret\n")
    assert await users.look(settled=True)
    assert not users.problem


async def test_a_file_that_cannot_be_read_is_tried_again(
    users: UsersFileAuthenticator, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await users.start()
    write(path, "user_id,password\nbob,secret\n")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
        for _ in range(2):
            assert not await users.look(settled=True)
    assert (users.problem, users.reloads["failure"]) == (f"{path} cannot be read: Permission denied.", 2)
    assert await users.look(settled=True)
    assert not users.problem


async def test_a_file_that_never_was_good_is_down(users: UsersFileAuthenticator, path: Path) -> None:
    write(path, "user_id,password\nann\n")
    await users.start()
    assert not users.up
    with pytest.raises(BackendDownError, match="line 2"):
        await users.authenticate(LoginRequest("ann", "c", "secret"))
    write(path, "user_id,password\nann,secret\n")
    await users.look(settled=True)
    assert users.up
    assert isinstance(await users.authenticate(LoginRequest("ann", "c", "secret")), Allow)


async def test_an_export_of_the_database_is_a_users_file(
    users: UsersFileAuthenticator, path: Path, store: Store
) -> None:
    secret, key = passwords.generate_secret(), b"k" * 32
    everybody = [
        User("clientid", "d1", passwords.hash_device_secret(secret, key), "acme"),
        User("clientid", "d2", passwords.hash_device_secret(secret, key), "closed"),
        User("common_name", "cn", groups=frozenset({"plant"})),
        User("address", "10.0.0.0/8"),
        User("address", "10.1.0.0/16", disabled=True),
    ]
    tenants = [Tenant("acme", True, 7, attributes={"plan": "small"}), Tenant("closed", enabled=False)]
    lines = export_lines({passwords.device_key_id(key): key}, tenants, everybody)
    write(path, "".join(f"{line}\n" for line in lines))
    await users.start()
    one = is_a(Allow, await users.authenticate(LoginRequest("", "d1", secret)))
    assert dict(one.attributes) == {"plan": "small"}
    known = [store.tenant(name) for name in ("acme", "closed")]
    assert [(it.logins_per_second, it.enabled) for it in known if it] == [(7, True), (None, False)], (
        "as limits and topics ask"
    )
    assert is_a(Deny, await users.authenticate(LoginRequest("", "d2", secret))).reason == "tenant_disabled"
    assert isinstance(await users.authenticate(LoginRequest("", "d1", "wrong")), Deny)
    assert isinstance(await users.authenticate(LoginRequest(cert_common_name="cn")), Allow)
    assert isinstance(await users.authenticate(LoginRequest(peerhost="10.2.0.1")), Allow)
    assert isinstance(await users.authenticate(LoginRequest(peerhost="10.1.0.1")), Deny)
    assert isinstance(await users.authenticate(LoginRequest(peerhost="11.1.0.1")), Ignore)


async def test_a_defect_in_one_look_does_not_end_the_looks(
    users: UsersFileAuthenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auth.backends.users_file._LOOK_S", 0.001)
    await users.start()
    looks = Mock(side_effect=RuntimeError)
    monkeypatch.setattr(users, "_signature", looks)
    await until(lambda: looks.call_count > 3)


async def test_the_tenant_of_the_database_counts_where_the_file_has_none(
    users: UsersFileAuthenticator, path: Path, store: Store
) -> None:
    with store.edit("test") as edit:
        edit.tenants.add(Tenant("acme", enabled=False))
    write(path, "user_id,password,tenant\nann,secret,acme\n")
    await users.start()
    assert is_a(Deny, await users.authenticate(LoginRequest("ann", "", "secret"))).reason == "tenant_disabled"


async def test_the_watcher_finds_a_change_by_itself(
    users: UsersFileAuthenticator, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auth.backends.users_file._LOOK_S", 0.01)
    await users.start()
    write(path, "user_id,password\nbob,secret\n")
    async with asyncio.timeout(60):
        while not isinstance(await users.authenticate(LoginRequest("bob", "c", "secret")), Allow):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_reloads_are_counted_for_the_metrics(users: UsersFileAuthenticator, path: Path, store: Store) -> None:
    hasher = FakeHasher()
    metrics = AuthMetrics(AuthSettings())
    metrics.watch_chain(Chain([users], hasher, AuthSettings(chain=("users_file",))))
    await users.start()
    for text in ("user_id,password\nbob,secret\n", "no users", "user_id,password\nann,secret\n"):
        write(path, text)
        for _ in range(3):  # an alert lasts as long as the file stays unusable
            await users.look(settled=True)
    rows = metrics.reloads.read()
    assert (rows["users_file", "success"], rows["users_file", "failure"]) == (2, 3)


async def test_a_user_that_is_gone_is_not_taken_for_another_of_the_same_reading(
    users: UsersFileAuthenticator, path: Path
) -> None:
    both = [User("username", "ann", ""), User("clientid", "c", "")]
    path = path.with_suffix(".jsonl")
    path.write_text("".join(f"{line}\n" for line in export_lines({}, [], both)))
    users.path = path  # type: ignore[misc]
    await users.start()
    request = LoginRequest("ann", "c")
    before = users.stamp(request)
    path.write_text("".join(f"{line}\n" for line in export_lines({}, [], both[1:])))
    assert await users.look(settled=True)
    assert users.stamp(request) not in {0, before}


async def test_a_stamp_moves_with_its_own_user_alone(users: UsersFileAuthenticator, path: Path, store: Store) -> None:
    write(path, "user_id,password\nann,secret\nbob,secret\n")
    await users.start()
    ann, bob = LoginRequest("ann", "", "secret"), LoginRequest("bob", "", "secret")
    verdict = is_a(Allow, await users.authenticate(ann))
    before = users.stamp(bob)
    assert (users.stamp(ann), users.stamp(LoginRequest("carl"))) == (verdict.version, 0)
    version = store.version
    write(path, "user_id,password\nann,secret\nbob,other\n")
    await users.look(settled=True)
    assert store.version > version
    assert users.stamp(ann) == verdict.version
    assert users.stamp(bob) not in {0, before}


async def test_a_stamp_moves_with_the_database_that_its_tenant_is_of(
    users: UsersFileAuthenticator, path: Path, store: Store
) -> None:
    write(path, next(reversed([*export_lines({}, [], [User("username", "ann", "", "acme")])])))
    await users.start()
    stamps = set()
    for enabled in (True, False):
        for old in store.path.parent.iterdir():
            old.unlink()
        with store.edit("test") as edit:
            edit.tenants.add(Tenant("acme", enabled=enabled))
        store.refresh()
        stamps.add(users.stamp(LoginRequest("ann")))
    assert len(stamps) == 2, "the revision of the tenant is the same in both"
