"""Histories of users, logins and clocks, over each server of users behind tokens: the service answers as a plain model
of it does."""

from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auth.backends import remote
from auth.backends.breaker import Breaker, BreakerState
from auth.backends.jwt import JwtAuthenticator
from auth.logins.chain import Chain
from auth.service import AccessService
from config.tables.auth import AuthJwtSettings
from tests.integration.auth_sites import *  # noqa: F403 - a fixture is taken from the module that uses it
from tests.integration.auth_sites import LdapNameSite, Site
from tests.unit.access_parts import FakeAuthenticator, FakeHasher, FakeStore, ManualClock, access_settings, login
from tests.unit.jwt_tokens import key, token
from tests.waiting import until

START_S = int(ManualClock().now_s())
ENDS_S = {token({"sub": "lamp", "exp": START_S + life_s}): START_S + life_s for life_s in (20, 90)}
TOKENS = [*ENDS_S, token({"sub": "lamp"}, secret="of-another-issuer-not-this-service's")]
FAILURES, LOCKOUT_MAX, TTL = 3, 50, 45
WINDOW, LOCKOUT, NEGATIVE_TTL = 60, 30, 5  # the defaults


class Model:
    """``users``: by name their password, "none" without one, "bad" if the record (of "one") cannot be read. Behind the
    server comes a weak source, which knows lamp alone. Monotonic times are seconds."""

    def __init__(self, site: Site, policy: str) -> None:
        self.site, self.policy = site, policy
        self.users: dict[str, str] = {}
        self.down = False
        self.cached: dict[Any, tuple[float, int | None]] = {}
        self.refused: dict[Any, float] = {}
        self.trusted: dict[Any, str] = {}
        self.counts: dict[Any, tuple[int, float]] = {}
        self.locks: dict[Any, tuple[float, float]] = {}

    def verdict(self, user: str, password: str, wall_s: float) -> tuple[str, str, str | None]:
        """Result, reason, and whom it is about: None if no failure counts."""
        if password in ENDS_S:
            return ("allow", "verified", "lamp") if ENDS_S[password] > wall_s else ("deny", "expired", None)
        state = self.users.get(user)
        if self.down and self.policy == "deny":
            return "deny", "backend_down", None
        if not self.down and (state or isinstance(self.site, LdapNameSite)):
            if state == "bad" and (password == "one" or not self.site.by_bind):
                return "deny", "refused", None
            right = state == password and password in {"one", "two"}
            return ("allow", "verified", user) if right else ("deny", "bad_password", user)
        if user == "lamp":
            return ("allow", "verified", user) if password == "weak" else ("deny", "bad_password", user)
        return ("ignore", "backend_down", None) if self.down else ("deny", "unknown", "")

    def login(self, user: str, password: str, address: str, now: float, wall_s: float) -> tuple[str, str]:
        asked = (user, password, address)
        until, expires_s = self.cached.pop(asked, (0, None))
        if until > now and (expires_s is None or expires_s > wall_s):
            self.cached[asked] = until, expires_s
            return "allow", "cached"
        identity = (user, address, password in TOKENS)
        name, pair = user.lower(), (user.lower(), address)
        if self.locks.get(pair if identity in self.trusted else name, (0, 0))[0] > now:
            return "deny", "locked_out"
        if self.refused.get(asked, 0) > now:
            return "deny", "remembered"
        result, reason, found = self.verdict(user, password, wall_s)
        degraded = self.down and password not in ENDS_S
        if result == "allow":
            self.trusted[identity] = str(found)
            if not degraded:
                expires_s = ENDS_S.get(password)
                self.cached[asked] = now + min(TTL, TTL if expires_s is None else expires_s - wall_s), expires_s
            return result, reason
        if found is not None:
            if password in TOKENS and self.trusted.get(identity) != found.lower():
                self.trusted.pop(identity, None)
            self.failed(pair if identity in self.trusted else name, now)
        if not degraded:
            self.refused[asked] = now + NEGATIVE_TTL
        return result, reason

    def failed(self, name: Any, now: float) -> None:
        count, first = self.counts.pop(name, (0, now))
        count, first = (count + 1, first) if now - first < WINDOW else (1, now)
        if count < FAILURES:
            self.counts[name] = count, first
            return
        until, length = self.locks.get(name, (0, 0))
        length = min(2 * length, LOCKOUT_MAX) if length and now - until < LOCKOUT_MAX else LOCKOUT
        self.locks[name] = now + length, length


PASSWORDS = st.sampled_from(["one", "two", "weak", "x", *TOKENS])
LOGIN = st.tuples(st.just("login"), st.sampled_from(["lamp", "plug", "Lamp"]), PASSWORDS, st.sampled_from(["a", "b"]))
STATES = st.sampled_from(["one", "two", "none", "bad", ""])
USER = st.tuples(st.just("user"), st.sampled_from(["lamp", "plug"]), STATES)
AGAIN = st.just(("again",))
OTHER = st.sampled_from([("down",), ("up",), *(("pass", one) for one in (1, 6, 31, 61)), ("set", 40), ("set", -40)])
HISTORY = st.lists(LOGIN | LOGIN | AGAIN | AGAIN | USER | OTHER, min_size=10, max_size=60)


async def change(site: Site, user: str, state: str) -> None:
    """Replace the user's record."""
    site.remove(user)
    if state == "none" and not site.by_bind:
        site.put(user, password_hash=None, is_superuser=True)
    elif state:
        password: Any = {"bad": "one", "none": None}.get(state, state)
        bad: Any = {"groups": ["a,b"]} if site.by_bind else {"tenant": "a/b"}
        await site.put_password(user, password, **(bad if state == "bad" else {}))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(HISTORY, st.sampled_from(["deny", "ignore"]))
async def test_the_service_answers_as_the_model_does(
    site: Site, monkeypatch: pytest.MonkeyPatch, history: list[Any], policy: str
) -> None:
    monkeypatch.setattr(remote, "RETRY_INITIAL_NS", 1_000_000)
    model, clock, weak = Model(site, policy), ManualClock(), FakeAuthenticator("weak", hasher=FakeHasher())
    weak.add("lamp", "weak")
    wanted = access_settings(
        chain=["jwt", site.name],
        backend_down=policy,
        limits={"cache_ttl": f"{TTL}s"},
        protection={"failures": FAILURES, "address_failures": 0, "lockout_max": f"{LOCKOUT_MAX}s"},
    )
    jwt = JwtAuthenticator(AuthJwtSettings(keys=(key(),)), clock=clock.now_s)
    async with site.running(**({"group_attribute": "departmentNumber"} if site.by_bind else {})) as users:
        users.breaker = Breaker(retry_initial_ns=1_000_000, retry_max_ns=1_000_000)  # type: ignore[misc]
        chain = Chain([jwt, users, weak], site.hasher, wanted)
        chain._timeout_s = 60.0
        await jwt.start()
        service = AccessService(wanted, FakeStore(), chain, clock=clock.now_ns, wall=clock.now_s)
        try:
            last = ["lamp", "x", "a"]
            for at, (word, *what) in enumerate(history):
                match word:
                    case "login" | "again":
                        last = what = what or last
                        request = login(what[0], what[1], peerhost=what[2])
                        answer = service.login_at_once(request) or await service.login(request)
                        expected = model.login(*what, clock.ns / 1e9, clock.now_s())
                        assert (answer.result, answer.reason) == expected, f"{at}: {what}"
                    case "user":
                        await change(site, *what)
                        model.users[what[0]] = what[1]
                    case "down" | "up":
                        model.down = word == "down"
                        for name in ("_open", "_ask", "_probe"):
                            users.__dict__.pop(name, None)
                            if model.down:
                                setattr(users, name, AsyncMock(side_effect=ConnectionRefusedError))
                        if not model.down:
                            await until(lambda: users.up and users.breaker.state is BreakerState.CLOSED, "a probe")
                    case "pass":
                        clock.forward(what[0])
                    case "set":  # the wall clock
                        clock.set_s += what[0]
            assert sum(service.counts.logins.values()) == sum(one[0] in {"login", "again"} for one in history)
        finally:
            await service.logins.close()
            for user in model.users:
                site.remove(user)
