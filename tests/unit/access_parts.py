"""What the access service is made of in tests: a clock that stands still, a hasher that counts, users in memory."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from auth.errors import BackendDownError, OverloadedError
from auth.logins.chain import Chain
from auth.model import Allow, Ban, Deny, Ignore, LoginAnswer, LoginRequest, Rule, Subject, Tenant, Verdict
from auth.names import ban_name
from auth.service import AccessService
from auth.store.edit import Editor
from auth.store.records import User
from auth.store.store import Store
from config.tables.auth import AuthSettings

SECOND = 1_000_000_000
EPOCH_S = 1_800_000_000


@contextmanager
def opened_store(path: Path) -> Iterator[Store]:
    """The built-in database in that file."""
    store = Store(path)
    store.open()
    try:
        yield store
    finally:
        store.close()


def edited(store: Store, *changes: Callable[[Editor], object]) -> bool:
    """Make changes as another process would; whether the store has seen them."""
    with store.edit("test") as edit:
        for change in changes:
            change(edit)
    return store.refresh()


def add_users(store: Store, *users: User) -> None:
    edited(store, *(lambda edit, user=user: edit.users.add(user) for user in users))


def add_bans(store: Store, *bans: Ban) -> None:
    edited(store, *(lambda edit, ban=ban: edit.bans.add(ban) for ban in bans))


def any_rule(**fields: SearchStrategy[Any]) -> SearchStrategy[Rule]:
    """Rules with these fields, and any permission, actions, QoS and retain flag."""
    usual = {
        "permission": st.sampled_from(["allow", "deny"]),
        "actions": st.sampled_from([{"publish"}, {"subscribe"}, {"publish", "subscribe"}]).map(frozenset),
        "eq": st.booleans(),
        "qos": st.sampled_from([(), (0,), (0, 2), (1, 2)]).map(frozenset),
        "retain": st.sampled_from([None, True, False]),
    }
    return st.builds(Rule, **{**usual, **fields})


class ManualClock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.ns = 5_000 * SECOND
        self.set_s = 0.0  # by how much a person has set the wall clock

    def now_ns(self) -> int:
        return self.ns

    def now_s(self) -> float:
        return EPOCH_S + self.ns / SECOND + self.set_s

    def forward(self, seconds: float) -> None:
        self.ns += int(seconds * SECOND)


class FakeHasher:
    """``slow:x`` is the argon2id hash of x, ``fast:x`` the keyed one. ``argon2`` counts what was computed."""

    def __init__(self) -> None:
        self.argon2 = 0
        self.burns = 0
        self.room = 1_000_000
        self.gate: asyncio.Event | None = None  # slow ones wait for it

    async def _slow(self) -> None:
        if self.room <= 0:
            raise OverloadedError("hashing", "no room")
        self.room -= 1
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.room += 1
        self.argon2 += 1

    async def verify(self, stored: str, password: str, **_ignored: Any) -> bool:
        kind, _, right = stored.partition(":")
        if kind == "slow":
            await self._slow()
            return right == password
        if right == password:
            return True
        await self._slow()  # as PasswordHasher promises: a False has always cost one
        return False

    async def burn(self) -> None:
        await self._slow()
        self.burns += 1


@dataclass
class FakeAuthenticator:
    """Users by name; ``asked`` are the requests that reached it."""

    name: str = "postgresql"
    users: dict[str, Allow | Deny] = field(default_factory=dict)
    passwords: dict[str, str] = field(default_factory=dict)
    hasher: FakeHasher | None = None
    up: bool = True
    error: Exception | None = None
    gate: asyncio.Event | None = None
    asked: list[LoginRequest] = field(default_factory=list)
    started: bool = False
    closed: bool = False

    def add(self, username: str, password: str = "", **fields: Any) -> None:
        self.users[username] = Allow(self.name, username, **fields)
        if password:
            self.passwords[username] = password if ":" in password else f"slow:{password}"

    async def start(self) -> None:
        self.started = True

    async def authenticate(self, request: LoginRequest) -> Verdict:
        self.asked.append(request)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        if not self.up:
            raise BackendDownError(self.name, f"{self.name} does not answer")
        verdict = self.users.get(request.username)
        if verdict is None:
            return Ignore(self.name)
        stored = self.passwords.get(request.username)
        if stored is not None and not await self.hasher.verify(stored, request.password):
            return Deny(self.name, "bad_password", request.username, hashed=True)
        return verdict

    async def close(self) -> None:
        self.closed = True


class FakeStore:
    """The built-in database in memory: every change is seen at once, as after a refresh."""

    def __init__(self) -> None:
        self.version = 1
        self.ban_version = 1
        self.problem = ""
        self.rules: list[Rule] = []
        self.bans: list[Ban] = []
        self.tenants: dict[str, Tenant] = {}
        self.writes_fail: Exception | None = None
        self.reads = 0

    def _read(self) -> None:
        self.reads += 1
        if self.problem:
            raise BackendDownError("database", self.problem)

    def change(self, *rules: Rule) -> None:
        self.rules = list(rules)
        self.version += 1

    def refresh(self) -> bool:
        self._read()
        return False

    def find_ban(self, clientid: str, username: str, address: str, now_s: float) -> Ban | None:
        self._read()
        names = {"clientid": clientid, "username": username, "address": address}
        for ban in self.bans:
            if (
                ban.value
                and ban_name(ban.kind, names[ban.kind]) == ban_name(ban.kind, ban.value)
                and (ban.until_s is None or ban.until_s > now_s)
            ):
                return ban
        return None

    def tenant(self, name: str) -> Tenant | None:
        self._read()
        return self.tenants.get(name)

    def rules_for(self, subject: Subject) -> tuple[Rule, ...]:
        self._read()
        return tuple(self.rules)

    async def ban(self, ban: Ban, *, by: str) -> None:
        if self.writes_fail is not None:
            raise self.writes_fail
        assert by
        self.add_ban(ban)

    def add_ban(self, ban: Ban) -> None:
        self.bans.append(ban)
        self.ban_version += 1


def access_settings(**tables: Any) -> AuthSettings:
    """``[auth]`` with these settings."""
    return AuthSettings.model_validate(tables)


def login(username: str = "ada", password: str = "right", **fields: str) -> LoginRequest:
    """A login from some address with a client id of its own."""
    fields.setdefault("clientid", f"c-{username}")
    fields.setdefault("peerhost", "10.0.0.1")
    return LoginRequest(username=username, password=password, **fields)


@dataclass
class Service:
    """A service and its parts."""

    access: AccessService
    store: FakeStore
    clock: ManualClock
    hasher: FakeHasher
    sources: tuple[FakeAuthenticator, ...]

    async def ask(self, request: LoginRequest) -> LoginAnswer:
        """As the server does it: in a task, which begins after the verification."""
        answer = self.access.login_at_once(request)
        return answer if answer is not None else await asyncio.create_task(self.access.login(request))


def make_service(*sources: FakeAuthenticator, rules: Sequence[Rule] = (), **tables: Any) -> Service:
    """A service of these authenticators, or of one that knows ada with the password "right"."""
    settings = access_settings(**tables)
    hasher = FakeHasher()
    if not sources:
        sources = (FakeAuthenticator(),)
        sources[0].add("ada", "right")
    for one in sources:
        one.hasher = hasher
    clock, store = ManualClock(), FakeStore()
    if rules:
        store.change(*rules)
    chain = Chain(sources, hasher, settings)
    return Service(
        AccessService(settings, store, chain, clock=clock.now_ns, wall=clock.now_s), store, clock, hasher, sources
    )
