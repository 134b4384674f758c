"""Who decides about a login, what a refusal costs, and that the chain ends closed."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from auth.errors import OverloadedError
from auth.hashing import Hasher
from auth.logins.chain import Chain, Outcome, make_chain
from auth.model import Deny, LoginRequest
from auth.store.store import Store
from config.errors import ConfigError
from config.tables.auth import AuthSettings
from tests.unit.access_parts import FakeAuthenticator, FakeHasher, access_settings, login
from tests.unit.manual_time import manual_time


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """The tracebacks of defects that are made here are of no interest."""
    with capture_logs():
        yield


def chain_of(*sources: FakeAuthenticator, **tables: Any) -> tuple[Chain, FakeHasher]:
    hasher = FakeHasher()
    for one in sources:
        one.hasher = hasher
    return Chain(sources, hasher, access_settings(**tables)), hasher


def knowing(name: str, *users: str) -> FakeAuthenticator:
    one = FakeAuthenticator(name)
    for user in users:
        one.add(user, "right")
    return one


async def test_the_first_that_knows_the_client_decides() -> None:
    first, second = knowing("mysql", "ada"), knowing("redis", "ada", "bob")
    chain, _ = chain_of(first, second)
    ada, bob = await chain.ask(login("ada")), await chain.ask(login("bob"))
    assert (ada.result, ada.source) == ("allow", "mysql")
    assert (bob.result, bob.source) == ("allow", "redis")
    assert [request.username for request in second.asked] == ["bob"]
    assert [(step.name, step.said) for step in bob.steps] == [("mysql", "ignore"), ("redis", "allow")]


@pytest.mark.parametrize(("request_", "tables", "result"), [
    (LoginRequest(clientid="c"), {}, "deny"),
    (LoginRequest(clientid="c"), {"anonymous": True}, "allow"),
    (LoginRequest(clientid="c", peerhost="10.0.0.1"), {"anonymous": True}, "allow"),
    (LoginRequest(clientid="c", username="u"), {"anonymous": True}, "deny"),
    (LoginRequest(clientid="c", password="p"), {"anonymous": True}, "deny"),
    (LoginRequest(clientid="c", cert_common_name="n"), {"anonymous": True}, "deny"),
])  # fmt: skip
async def test_anonymous_is_who_shows_nothing_at_all_where_that_is_allowed(
    request_: LoginRequest, tables: dict[str, bool], result: str
) -> None:
    chain, _ = chain_of(knowing("mysql"), **tables)
    assert (await chain.ask(request_)).result == result


class TestBackendDown:
    async def test_nobody_is_anonymous_while_one_that_might_know_it_is_down(self) -> None:
        chain, _ = chain_of(FakeAuthenticator("mysql", up=False), backend_down="ignore", anonymous=True)
        assert (await chain.ask(LoginRequest(clientid="c"))).result == "ignore"

    async def test_a_defect_is_a_backend_that_is_down(self) -> None:
        broken = FakeAuthenticator("mysql", error=ZeroDivisionError("half a secret"))
        chain, _ = chain_of(broken, knowing("redis", "ada"))
        outcome = await chain.ask(login("ada"))
        assert (outcome.result, outcome.reason) == ("deny", "backend_down")
        assert "half a secret" not in repr(outcome)
        assert chain.counts.backends["mysql"].down == 1

    async def test_who_is_down_is_told_and_who_is_back_too(self) -> None:
        one = knowing("mysql", "ada")
        chain, _ = chain_of(one)
        one.up = False
        await chain.ask(login())
        assert chain.down() == ["mysql"]
        assert chain.degraded
        assert not chain.counts.backends["mysql"].up
        one.up = True
        chain.watch()
        assert chain.down() == []
        assert not chain.degraded
        assert chain.counts.backends["mysql"].up

    @manual_time
    async def test_the_whole_answer_has_one_time_out(self) -> None:
        slow = [knowing(name, "ada") for name in ("mysql", "redis", "ldap")]
        for one in slow:
            one.gate = asyncio.Event()
        chain, _ = chain_of(*slow, answer_timeout="500ms", backend_down="ignore")
        began = asyncio.get_running_loop().time()
        outcome = await chain.ask(login())
        assert asyncio.get_running_loop().time() - began <= 0.5
        assert (outcome.result, outcome.reason, outcome.source) == ("ignore", "timeout", "mysql")
        assert outcome.degraded

    @manual_time
    async def test_a_denial_stands_when_its_hash_takes_too_long(self) -> None:
        chain, hasher = chain_of(knowing("mysql"), backend_down="ignore")
        hasher.gate = asyncio.Event()
        assert (await chain.ask(login("nobody"))).result == "deny"


@pytest.mark.parametrize("policy", ["deny", "ignore"])
async def test_without_room_a_wrong_password_and_an_unknown_user_look_alike(policy: str) -> None:
    chain, hasher = chain_of(knowing("mysql", "ada"), backend_down=policy)
    hasher.room = 0
    outcomes = [await chain.ask(login("ada", "wrong")), await chain.ask(login("nobody", "wrong"))]
    assert {(one.result, one.reason) for one in outcomes} == {(policy, "shed")}


class TestCost:
    """What a refusal costs, counted in argon2id hashes: the same for whoever is refused."""

    def chain(self) -> tuple[Chain, FakeHasher]:
        one = FakeAuthenticator("mysql")
        one.add("person", "slow:right")
        one.add("device", "fast:right")
        one.users["off"] = Deny("mysql", "disabled", "off")
        one.users["token"] = Deny("mysql", "bad_token", "token")
        return chain_of(knowing("redis"), one)

    @pytest.mark.parametrize("username", ["person", "device", "off", "token", "nobody", "", "a" * 65_536])
    async def test_every_refusal_costs_one(self, username: str) -> None:
        chain, hasher = self.chain()
        outcome = await chain.ask(login(username, "wrong"))
        assert outcome.result == "deny"
        assert hasher.argon2 == 1, f"{username[:10]!r} could be told from others by the time it takes"

    async def test_a_device_that_is_let_in_costs_none(self) -> None:
        chain, hasher = self.chain()
        assert (await chain.ask(login("device"))).result == "allow"
        assert hasher.argon2 == 0

    async def test_while_the_only_backend_is_down_nothing_is_computed_in_vain(self) -> None:
        chain, hasher = chain_of(FakeAuthenticator("mysql", up=False))
        await chain.ask(login())
        assert hasher.argon2 == 0

    @pytest.mark.parametrize("policy", ["deny", "ignore"])
    async def test_a_backend_that_is_down_behind_another_does_not_tell_whom_that_knows(self, policy: str) -> None:
        chain, hasher = chain_of(knowing("redis", "person"), FakeAuthenticator("mysql", up=False), backend_down=policy)
        for name in ("person", "nobody"):
            before = hasher.argon2
            await chain.ask(login(name, "wrong"))
            assert hasher.argon2 - before == 1, name


SAYINGS = ("allow", "deny", "ignore", "down", "shed", "defect")


def saying(name: str, what: str) -> FakeAuthenticator:
    one = FakeAuthenticator(name)
    if what == "allow":
        one.add("ada")
    elif what == "deny":
        one.users["ada"] = Deny(name, "a word of its own", "ada")
    elif what == "down":
        one.up = False
    elif what == "shed":
        one.error = OverloadedError(name, "full")
    elif what == "defect":
        one.error = KeyError(name)
    return one


def check(outcome: Outcome, sayings: tuple[str, ...], policy: str) -> None:
    """The table of the module's docstring, written once more."""
    for said in sayings:
        if said in {"allow", "deny"}:
            assert outcome.result == said
            assert (outcome.allow is not None) == (said == "allow")
            return
        if said == "shed" or (said in {"down", "defect"} and policy == "deny"):
            assert outcome.result == policy
            return
    down = {"down", "defect"} & set(sayings)
    assert outcome.result == ("ignore" if down else "deny")


@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize("policy", ["deny", "ignore"])
@pytest.mark.parametrize("length", range(4))
async def test_nobody_is_let_in_whom_no_authenticator_allows_at_the_cost_of_one_hash(
    length: int, policy: str, anonymous: bool
) -> None:
    for sayings in itertools.product(SAYINGS, repeat=length):
        chain, hasher = chain_of(
            *(saying(f"backend{number}", said) for number, said in enumerate(sayings)),
            backend_down=policy,
            anonymous=anonymous,
        )
        outcome = await chain.ask(login())
        check(outcome, sayings, policy)
        assert hasher.argon2 <= 1
        assert sum(one.asked for one in chain.counts.backends.values()) == len(outcome.steps)


async def test_starting_and_closing_reaches_all() -> None:
    ones = knowing("mysql"), knowing("redis")
    chain, _ = chain_of(*ones)
    await chain.start()
    assert all(one.started for one in ones)
    await chain.close()
    assert all(one.closed for one in ones)


class TestMaking:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Store(tmp_path / "auth" / "auth.sqlite3")

    async def test_the_chain_is_made_of_what_the_settings_name(self, store: Store) -> None:
        names = ["database", "users_file", "jwt", "postgresql", "mysql", "redis", "ldap"]
        settings_ = AuthSettings.model_validate({"chain": names, "users_file": {"file": "users.csv"}})
        hasher = Hasher(settings_.hashing)
        chain = make_chain(settings_, store, hasher)
        hasher.close()
        assert [one.name for one in chain.authenticators] == names
        assert list(chain.counts.backends) == names

    def test_a_missing_package_is_a_sentence(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> None:
            raise ModuleNotFoundError("No module named 'asyncpg'", name="asyncpg")

        monkeypatch.setattr("auth.logins.chain.importlib.import_module", missing)
        settings_ = AuthSettings.model_validate({"chain": ["postgresql"]})
        hasher = Hasher(settings_.hashing)
        with pytest.raises(ConfigError, match=r"asyncpg.*not installed.*\[auth\]"):
            make_chain(settings_, store, hasher)
        hasher.close()
