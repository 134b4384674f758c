"""Logins from question to answer: what is remembered, what keeps out, what is counted; and decisions about topics."""

import asyncio
import gc
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from auth import passwords
from auth.backends.database import DatabaseAuthenticator
from auth.backends.jwt import JwtAuthenticator
from auth.backends.users_file import UsersFileAuthenticator
from auth.errors import OverloadedError, StoreError
from auth.hashing import Hasher
from auth.logins.chain import Chain
from auth.logins.reasons import LOGIN_REASONS
from auth.model import AccessRequest, Allow, Ban, Deny, Ignore, LoginAnswer, LoginRequest, Rule, Subject, Tenant
from auth.ports import AccessDecisions, Authenticator
from auth.service import AccessService
from auth.store.records import User
from auth.store.store import Store
from config.tables.auth import AuthJwtSettings
from tests.kinds import there
from tests.unit.access_parts import (
    EPOCH_S,
    FakeAuthenticator,
    FakeHasher,
    ManualClock,
    Service,
    access_settings,
    add_users,
    edited,
    login,
    make_service,
)
from tests.unit.jwt_tokens import NOW_S, key, token
from tests.unit.manual_time import manual_time


def body(answer: LoginAnswer) -> dict[str, Any]:
    document = json.loads(answer.body)
    assert document["result"] == answer.result
    assert isinstance(document, dict)
    return document


def check_counts(service: Service) -> None:
    """Every login and access has one result and one reason; nothing is under way."""
    counts = service.access.counts
    assert sum(counts.logins.values()) == sum(counts.login_reasons.values())
    assert sum(counts.accesses.values()) == sum(counts.access_reasons.values())
    assert counts.cache_hits == counts.login_reasons["cached"]
    assert counts.negative_hits == counts.login_reasons["remembered"]
    assert counts.decision_hits + counts.decision_misses == sum(counts.accesses.values())
    assert counts.in_flight == 0


class TestAnswer:
    async def test_emqx_is_told_who_the_client_is(self) -> None:
        service = make_service(client_attributes=["site", "line"], hand_over_rules=False)
        attributes = {"site": "x", "other": "y"}
        service.sources[0].add("ada", "right", tenant="acme", groups=frozenset({"b", "a"}), attributes=attributes)
        told = body(await service.ask(login()))
        assert told["client_attrs"] == {"site": "x", "line": "", "tenant": "acme", "groups": "a,b"}
        assert told["is_superuser"] is False
        assert "expire_at" not in told
        assert "acl" not in told

    async def test_a_name_that_the_user_gives_an_attribute_of_ours_does_not_replace_it(self) -> None:
        service = make_service(client_attributes=["tenant", "groups"])
        service.sources[0].add("ada", "right", tenant="acme", attributes={"tenant": "other", "groups": "admins"})
        assert body(await service.ask(login()))["client_attrs"] == {"tenant": "acme", "groups": ""}

    @pytest.mark.parametrize("known", [
        {"groups": frozenset({"staff,admins", "staff"})}, {"groups": frozenset({"", "staff"})},
        {"groups": frozenset({"undefined"})}, {"tenant": "undefined"},
    ])  # fmt: skip
    async def test_what_emqx_would_take_for_nothing_or_another_refuses_the_login(self, known: dict[str, Any]) -> None:
        service = make_service()
        service.sources[0].add("ada", "right", **known)
        answer = await service.ask(login())
        assert (answer.result, answer.reason) == ("deny", "rules_unexpressible")

    async def test_a_superuser_needs_no_rules(self) -> None:
        service = make_service(rules=[Rule("allow", "a")])
        service.sources[0].add("ada", "right", is_superuser=True)
        told = body(await service.ask(login()))
        assert told["is_superuser"] is True
        assert "acl" not in told

    async def test_no_rules_are_handed_over_to_a_name_that_would_make_them_large(self) -> None:
        """A device may choose a client id of 64 KiB, another one with each login."""
        service = make_service(rules=[*[Rule("allow", f"{number}/${{clientid}}/#") for number in range(100)]])
        assert len(body(await service.ask(login(clientid="c" * 1000)))["acl"]) == 100
        answer = await service.ask(login(clientid="c" * 60_000))
        assert answer.result == "allow"
        assert "acl" not in body(answer)

    async def test_large_answers_take_the_room_of_several_in_the_cache(self) -> None:
        service = make_service(
            limits={"cache_entries": 100}, rules=[*[Rule("allow", f"{number}/${{clientid}}/#") for number in range(90)]]
        )
        for number in range(50):
            await service.ask(login(clientid=f"{number}" + "c" * 1000))
        service.access.logins.sweep()
        assert service.access.counts.cache_entries == 2, "of 45 KiB each"
        service.store.change()
        assert (await service.ask(login(clientid="49" + "c" * 1000))).reason == "cached"
        assert not service.access.logins._verified._heavy.get(next(reversed(service.access.logins._verified._entries)))

    async def test_rules_see_the_attributes_that_emqx_will_send_back_and_no_others(self) -> None:
        rules = [Rule("allow", f"${{client_attrs.{name}}}/#") for name in ("site", "secret")]
        service = make_service(client_attributes=["site"], rules=rules)
        service.sources[0].add("ada", "right", attributes={"site": "x", "secret": "y"})
        assert [rule["topic"] for rule in body(await service.ask(login()))["acl"]] == ["x/#", "#"]

    @pytest.mark.parametrize(("expires_in_s", "session_max", "expected_s"), [
        (None, None, None), (60, None, 60), (None, "10s", 10), (60, "10s", 10), (5, "10s", 5),
    ])  # fmt: skip
    async def test_when_a_login_is_over(self, expires_in_s: int | None, session_max: Any, expected_s: Any) -> None:
        service = make_service(session_max=session_max)
        now = int(service.clock.now_s())
        service.sources[0].users["ada"] = Allow(
            "x", "ada", expires_at_s=None if expires_in_s is None else now + expires_in_s
        )
        for _ in range(2):  # verified, then out of the cache
            told = body(await service.ask(login()))
            assert told.get("expire_at") == (None if expected_s is None else now + expected_s)

    async def test_the_longest_session_begins_with_each_login(self) -> None:
        service = make_service(session_max="1h")
        first = body(await service.ask(login()))["expire_at"]
        service.clock.forward(100)
        answer = await service.ask(login())
        assert answer.reason == "cached"
        assert body(answer)["expire_at"] == first + 100

    async def test_an_expiry_that_emqx_would_take_for_milliseconds_is_brought_nearer(self) -> None:
        service = make_service()
        service.sources[0].users["ada"] = Allow("x", "ada", expires_at_s=10**14)
        assert body(await service.ask(login()))["expire_at"] < EPOCH_S * 1000 / 2


class TestTokenRules:
    """Rules that came with the login are known now and never again."""

    def service(self, *rules: Rule, closed: bool = False, stored: tuple[Rule, ...] = (), **tables: Any) -> Service:
        service = make_service(**tables, rules=stored)
        service.sources[0].users["ada"] = Allow("jwt k", "ada", rules=rules, closed=closed)
        return service

    async def test_they_come_before_those_of_the_database(self) -> None:
        service = self.service(Rule("deny", "a/#"), stored=(Rule("allow", "a/#"), Rule("allow", "b")))
        told = [(one["permission"], one["topic"]) for one in body(await service.ask(login()))["acl"]]
        assert told == [("deny", "a/#"), ("allow", "b"), ("deny", "#")]

    async def test_they_are_handed_over_although_others_are_not(self) -> None:
        service = self.service(Rule("allow", "a"), stored=(Rule("allow", "b"),), hand_over_rules=False)
        assert [one["topic"] for one in body(await service.ask(login()))["acl"]] == ["a"], "EMQX asks about the rest"

    async def test_a_white_list_is_closed(self) -> None:
        service = self.service(Rule("allow", "a"), closed=True, stored=(Rule("allow", "b"), Rule("allow", "$SYS/#")))
        told = [(one["permission"], one["topic"]) for one in body(await service.ask(login()))["acl"]]
        assert told[0] == ("allow", "a")
        assert told[-1] == ("deny", "#")
        assert ("deny", "$SYS/#") in told, "its # leaves topics with $ to the database's rules"
        assert "b" not in dict(told).values()

    async def test_more_rules_than_are_handed_over_by_choice_are_not_lost(self) -> None:
        service = self.service(*(Rule("allow", f"a/{number}") for number in range(50)), hand_over_max=10)
        assert len(body(await service.ask(login()))["acl"]) == 50

    async def test_a_denial_that_emqx_tells_otherwise_closes_the_list(self) -> None:
        # EMQX would let a subscription to a/+/c past the denial, ask, and hear of the database's rules alone.
        service = self.service(Rule("deny", "a/b/c"), stored=(Rule("allow", "#"), Rule("allow", "$SYS/#")))
        told = body(await service.ask(login()))["acl"]
        assert [(one["permission"], one["action"], one["topic"]) for one in told] == [
            ("deny", "all", "a/b/c"), ("allow", "publish", "#"), ("allow", "all", "$SYS/#"),
            ("deny", "all", "$SYS/#"), ("deny", "all", "#"),
        ]  # fmt: skip

    async def test_a_denial_that_emqx_cannot_be_told_refuses_the_login(self) -> None:
        service = self.service(Rule("deny", "a/${$}{username}/+"), stored=(Rule("allow", "#"),))
        with capture_logs() as lines:
            answer = await service.ask(login())
        assert (answer.result, answer.reason) == ("deny", "rules_unexpressible")
        assert "none must be lost" in lines[-1]["problem"]

    async def test_nor_is_a_login_remembered_beside_a_new_denial_that_emqx_cannot_be_told(self) -> None:
        service = self.service(Rule("deny", "a"), stored=(Rule("allow", "#"),))
        assert (await service.ask(login())).result == "allow"
        service.store.change(Rule("deny", "a/${$}{username}/+"), Rule("allow", "#"))
        assert (await service.ask(login())).reason == "rules_unexpressible"


class TestCache:
    async def test_it_forgets_after_its_time(self) -> None:
        service = make_service(limits={"cache_ttl": "10s"})
        await service.ask(login())
        service.clock.forward(9.9)
        assert (await service.ask(login())).reason == "cached"
        service.clock.forward(0.1)
        assert (await service.ask(login())).reason == "verified"

    @pytest.mark.parametrize("clock", ["runs", "is set"])
    @pytest.mark.parametrize("session_max", [None, "1h"])
    async def test_an_entry_never_outlives_the_login(self, clock: str, session_max: str | None) -> None:
        service = make_service(session_max=session_max)
        service.sources[0].users["ada"] = Allow("x", "ada", expires_at_s=int(service.clock.now_s()) + 3)
        await service.ask(login())
        if clock == "runs":
            service.clock.forward(3)
        else:
            service.clock.set_s = 3
        assert (await service.ask(login())).reason == "expired"

    async def test_a_changed_rule_is_in_the_next_answer_and_costs_no_verification(self) -> None:
        service = make_service(rules=[Rule("allow", "a")])
        assert body(await service.ask(login()))["acl"][0]["topic"] == "a"
        service.store.change(Rule("allow", "b"))
        answer = await service.ask(login())
        assert answer.reason == "cached"
        assert body(answer)["acl"][0]["topic"] == "b"
        assert len(service.sources[0].asked) == 1

    async def test_while_a_backend_is_down_what_is_remembered_still_answers(self) -> None:
        service = make_service()
        await service.ask(login())
        service.sources[0].up = False
        service.access.refresh()
        assert (await service.ask(login())).result == "allow"
        assert (await service.ask(login(clientid="another"))).reason == "backend_down"
        assert service.access.counts.cache_hits_while_down == 1
        assert any("postgresql" in sentence for sentence in service.access.check())

    async def test_what_was_decided_without_somebody_is_not_remembered(self) -> None:
        down, up = FakeAuthenticator("mysql", up=False), FakeAuthenticator("redis")
        up.add("ada", "right")
        service = make_service(down, up, backend_down="ignore")
        for password, told in (("right", ("allow", "verified")), ("wrong", ("deny", "bad_password"))):
            for _ in range(2):
                answer = await service.ask(login(password=password))
                assert (answer.result, answer.reason) == told
        assert service.access.counts.cache_hits == service.access.counts.negative_hits == 0

    async def test_nor_is_a_refusal_for_want_of_room(self) -> None:
        service = make_service()
        for error, reason in ((OverloadedError("hashing", "no room"), "shed"), (None, "verified")):
            service.sources[0].error = error
            assert (await service.ask(login())).reason == reason

    async def test_no_password_is_in_memory_afterwards(self) -> None:
        service = make_service()
        secret = "no trace of this"
        service.sources[0].passwords["ada"] = f"slow:{secret}"
        await service.ask(login(password=secret))
        await service.ask(login(password=f"{secret}, wrong"))
        logins = service.access.logins
        kept = [logins._verified, logins._refused, logins._under_way, logins.lockouts, logins._attempts._locks]
        assert len(logins._verified) == len(logins._refused) == 1
        for one in reachable(kept):
            assert secret not in str(one), f"a password is kept in {type(one)}"


def reachable(roots: list[object]) -> list[str | bytes]:
    """All texts that can be reached from these objects, but for code."""
    seen: set[int] = set()
    found: list[str | bytes] = []
    waiting: list[object] = list(roots)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | FunctionType | MethodType | ModuleType):
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes):
            found.append(one)
        waiting.extend(gc.get_referents(one))
    return found


class TestNegativeCache:
    async def test_it_forgets_after_its_time(self) -> None:
        service = make_service(limits={"negative_ttl": "5s"})
        await service.ask(login(password="wrong"))
        service.clock.forward(5)
        assert (await service.ask(login(password="wrong"))).reason == "bad_password"

    async def test_asking_again_and_again_with_the_same_wrong_password_locks_nobody_out(self) -> None:
        service = make_service(protection={"failures": 3})
        for _ in range(100):
            await service.ask(login(password="wrong"))
        assert (await service.ask(login())).result == "allow"


async def together(
    service: Service, *requests: LoginRequest, meanwhile: Callable[[], object] = lambda: None
) -> list[LoginAnswer]:
    """The answers to logins that are all under verification while that is called."""
    gate = service.hasher.gate = asyncio.Event()
    tasks = [asyncio.create_task(service.ask(request)) for request in requests]
    await asyncio.sleep(0.1)
    meanwhile()
    gate.set()
    return await asyncio.gather(*tasks)


class TestTogether:
    @manual_time
    async def test_the_same_login_asked_at_once_is_verified_once(self) -> None:
        service = make_service()
        answers = await together(service, *[login()] * 50)
        assert {answer.result for answer in answers} == {"allow"}
        assert len(service.sources[0].asked) == 1
        assert service.access.counts.joined == 49
        check_counts(service)

    @manual_time
    async def test_who_gives_up_takes_nobody_with_it(self) -> None:
        service = make_service()
        gate = service.hasher.gate = asyncio.Event()
        first, second = (asyncio.create_task(service.ask(login())) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.sleep(0.1)
        gate.set()
        assert (await second).result == "allow"
        assert (await service.ask(login())).reason == "cached"
        check_counts(service)

    @manual_time
    async def test_closing_ends_what_is_under_way(self) -> None:
        service = make_service(answer_timeout="4s")
        service.hasher.gate = asyncio.Event()
        await service.access.start()
        waiting = asyncio.create_task(service.ask(login()))
        await asyncio.sleep(0.1)
        await service.access.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert service.sources[0].closed


class TestKeptOut:
    @pytest.mark.parametrize(
        "ban", [Ban("clientid", "c-ada"), Ban("username", "ada"), Ban("address", "10.0.0.1")], ids=lambda ban: ban.kind
    )
    async def test_a_ban_keeps_out_at_once_who_is_in_the_cache_too(self, ban: Ban) -> None:
        service = make_service()
        await service.ask(login())
        service.store.add_ban(ban)
        answer = await service.ask(login())
        assert (answer.result, answer.reason) == ("deny", "banned")
        assert service.hasher.argon2 == 1, "a ban is no secret: it is told at once"

    async def test_a_ban_that_is_over_keeps_nobody_out(self) -> None:
        service = make_service()
        service.store.bans.append(Ban("username", "ada", until_s=int(service.clock.now_s()) + 10))
        assert (await service.ask(login())).reason == "banned"
        service.clock.forward(11)
        assert (await service.ask(login())).result == "allow"

    async def test_a_disabled_tenant_keeps_all_its_users_out_those_in_the_cache_too(self) -> None:
        service = make_service()
        service.sources[0].users["ada"] = Allow("x", "ada", tenant="acme")
        assert (await service.ask(login())).result == "allow"
        service.store.tenants["acme"] = Tenant("acme", enabled=False)
        service.store.change()
        assert (await service.ask(login())).reason == "tenant_disabled"

    async def test_guessing_locks_out_and_a_known_device_stays_in(self) -> None:
        service = make_service(protection={"failures": 3, "lockout": "30s"})
        await service.ask(login(peerhost="10.0.0.1"))
        reasons = [
            (await service.ask(login(password=f"guess {number}", peerhost="192.0.2.1"))).reason for number in range(5)
        ]
        assert reasons == ["bad_password"] * 3 + ["locked_out"] * 2
        right_from_there = await service.ask(login(peerhost="192.0.2.1"))
        assert right_from_there.reason == "locked_out", "a lock-out that the right password ends would be no lock-out"
        assert (await service.ask(login(peerhost="10.0.0.1"))).reason == "cached"
        service.clock.forward(10_000)  # the cache has forgotten it, and the guesser begins anew
        for number in range(3):
            await service.ask(login(password=f"again {number}", peerhost="192.0.2.1"))
        assert (await service.ask(login(peerhost="10.0.0.1"))).reason == "verified"

    async def test_a_locked_user_and_an_unknown_one_look_alike(self) -> None:
        service = make_service(protection={"failures": 3})
        answers: dict[str, list[LoginAnswer]] = {"ada": [], "nobody": []}
        costs: Counter[str] = Counter()
        for number in range(6):
            for name, seen in answers.items():
                before = service.hasher.argon2
                seen.append(await service.ask(login(name, f"guess {number}", peerhost=f"10.0.0.{number}")))
                costs[name] += service.hasher.argon2 - before
        assert [one.body for one in answers["ada"]] == [one.body for one in answers["nobody"]]
        assert costs["ada"] == costs["nobody"] == 3
        assert service.access.counts.lockouts_user == 2

    async def test_a_lock_out_is_told_once(self) -> None:
        service = make_service(protection={"failures": 2})
        with capture_logs() as lines:
            for number in range(5):
                await service.ask(login(password=f"guess {number}"))
        assert [line["seconds"] for line in lines if line["event"] == "auth_locked_out"] == [30]
        assert not [line for line in lines if "guess" in str(line)], "a password is in the log"

    async def test_a_flapping_device_is_banned_and_the_ban_is_in_the_database(self) -> None:
        service = make_service(protection={"flapping_logins": 3, "flapping_ban": "5m"})
        results = []
        for _ in range(5):
            results.append((await service.ask(login())).reason)
            await asyncio.sleep(0)
        assert results == ["verified", "cached", "cached", "banned", "banned"]
        [ban] = service.store.bans
        assert (ban.kind, ban.value, ban.until_s) == ("clientid", "c-ada", int(service.clock.now_s()) + 300)
        service.store.bans.clear()  # an operator lifts it
        service.store.ban_version += 1
        assert (await service.ask(login())).result == "allow"

    async def test_a_ban_that_cannot_be_written_holds_all_the_same(self) -> None:
        service = make_service(protection={"flapping_logins": 2})
        service.store.writes_fail = StoreError("the disk is full")
        for _ in range(2):
            await service.ask(login())
        await asyncio.sleep(0)
        assert (await service.ask(login())).reason == "banned"
        assert (await service.ask(login(peerhost="10.0.0.2"))).reason == "banned", "from the cache or not"

    async def test_another_user_name_gives_a_guesser_at_a_client_id_no_more_tries(self) -> None:
        """A user that is found by its client id is found whatever user name comes with it."""
        service = make_service(protection={"failures": 3})

        async def guess(number: int, clientid: str) -> str:
            return (await service.ask(login(f"name {number}", "guess", clientid=clientid))).reason

        for clientid in ("press-7", "PRESS-8"):
            assert [await guess(number, clientid) for number in range(5)] == ["unknown"] * 3 + ["locked_out"] * 2
        assert (await service.ask(login("", "guess", clientid="press-8"))).reason == "locked_out"
        assert await guess(9, "press-9") == "unknown"

    async def test_a_guesser_at_a_client_id_does_not_lock_out_who_was_in_with_it(self) -> None:
        service = make_service(protection={"failures": 3}, limits={"cache_ttl": "1s"})
        assert (await service.ask(login(clientid="press-7"))).reason == "verified"
        service.clock.forward(2)
        for number in range(5):
            await service.ask(login(f"name {number}", "guess", clientid="press-7", peerhost="192.0.2.1"))
        assert (await service.ask(login(clientid="press-7", peerhost="192.0.2.1"))).reason == "locked_out"
        assert (await service.ask(login(clientid="press-7"))).reason == "verified"

    async def test_a_client_id_that_nobody_is_found_by_is_not_counted(self) -> None:
        service = make_service(protection={"failures": 3}, database={"identities": ["username"]})
        for number in range(5):
            answer = await service.ask(login(f"name {number}", "guess", clientid="press-7"))
            assert answer.reason == "unknown"

    async def test_wrong_tokens_count_as_guesses_and_expired_ones_do_not(self) -> None:
        service = make_service(protection={"failures": 2})
        service.sources[0].users |= {"forger": Deny("jwt", "bad_token"), "late": Deny("jwt", "expired")}
        reasons = {
            name: [(await service.ask(login(name, f"token {number}"))).reason for number in range(3)]
            for name in ("forger", "late")
        }
        assert reasons == {"forger": ["bad_token", "bad_token", "locked_out"], "late": ["expired"] * 3}


class TestAtTheSameTime:
    @manual_time
    async def test_no_more_guesses_are_answered_at_once_than_would_lock_out(self) -> None:
        service = make_service(protection={"failures": 5})
        for user in ("ada", "nobody"):
            before = service.hasher.argon2
            guesses = [login(user, f"guess {n}", peerhost=f"10.0.0.{n}") for n in range(200)]
            reasons = Counter(answer.reason for answer in await together(service, *guesses))
            assert sum(reasons.values()) - reasons["shed"] == 5, reasons
            assert service.hasher.argon2 - before == 5
            assert (await service.ask(login(user, "one more"))).reason == "locked_out"
        assert not service.access.logins._attempts._under_way
        check_counts(service)

    @manual_time
    @pytest.mark.parametrize("by", ["failures", "who was in"])
    async def test_failures_that_count_already_and_a_login_from_before_allow_no_more_at_once(self, by: str) -> None:
        """Behind a proxy or NAT a guesser has the device's address."""
        service = make_service(protection={"failures": 5}, limits={"cache_ttl": "1s"})
        if by == "who was in":
            assert (await service.ask(login())).result == "allow"
            service.clock.forward(2)
        else:
            for number in range(4):
                await service.ask(login(password=f"before {number}"))
        before = service.hasher.argon2
        await together(service, *(login(password=f"guess {n}") for n in range(50)))
        assert service.hasher.argon2 - before == (1 if by == "failures" else 5)
        assert (await service.ask(login(password="one more"))).reason == "locked_out"

    @manual_time
    @pytest.mark.parametrize("was_in", [False, True])
    async def test_a_fleet_with_one_password_behind_one_address_is_verified_all_at_once(self, was_in: bool) -> None:
        service = make_service(protection={"failures": 5}, limits={"cache_ttl": "1s"})
        fleet = [login(clientid=f"device-{number}") for number in range(50)]
        for request in fleet if was_in else ():
            await service.ask(request)
        for number in range(4):  # one device has another
            await service.ask(login(password=f"former {number}"))
        service.clock.forward(2)
        assert {answer.reason for answer in await together(service, *fleet)} == {"verified"}

    @pytest.mark.parametrize(
        ("device", "guesser"),
        [({"peerhost": "10.0.0.1"}, {"peerhost": "192.0.2.1"}), ({"clientid": "ada"}, {"clientid": "another"})],
        ids=["from another address", "behind its address with another client id"],
    )
    @manual_time
    async def test_who_has_been_in_from_there_is_not_held_up_by_guessers(
        self, device: dict[str, str], guesser: dict[str, str]
    ) -> None:
        service = make_service(protection={"failures": 2}, limits={"cache_ttl": "1s"})
        await service.ask(login(**device))
        service.clock.forward(2)
        guesses = [login(password=f"{n}", **guesser) for n in range(9)]
        *_, again = await together(service, *guesses, login(**device))
        assert again.reason == "verified"
        assert not service.access.logins._attempts._under_way

    @manual_time
    async def test_a_ban_that_comes_during_the_verification_holds(self) -> None:
        service = make_service()
        (answer,) = await together(service, login(), meanwhile=lambda: service.store.add_ban(Ban("username", "ada")))
        assert answer.reason == "banned"
        check_counts(service)


class Stamped(FakeAuthenticator):
    """Tells changes, as the built-in database does; ``reading`` is called before each read."""

    revision = 1
    reading: Any = None

    def read(self) -> None:
        if self.reading is not None:
            self.reading()

    def at_once(self, request: LoginRequest) -> Allow | Ignore | None:
        self.read()
        allow = self.users.get(request.username)
        if allow is None:
            return Ignore(self.name)
        if not isinstance(allow, Allow) or request.username in self.passwords:
            return None
        return replace(allow, version=self.revision)

    def stamp(self, request: LoginRequest) -> int:
        self.read()
        return self.revision if request.username in self.users else 0


class TestChangesInBetween:
    """The database may be seen to change at each read, so between any two of them."""

    def service(self) -> tuple[Service, Stamped]:
        source = Stamped("database")
        source.add("ada")
        return make_service(source), source

    @pytest.mark.parametrize("password", ["", "right"])
    @pytest.mark.parametrize("moment", range(1, 6))
    async def test_a_user_removed_at_any_moment_is_not_let_in_after_it(self, moment: int, password: str) -> None:
        service, source = self.service()
        if password:
            source.passwords["ada"] = f"slow:{password}"
        reads = 0

        def reading() -> None:
            nonlocal reads
            reads += 1
            if reads == moment:
                source.users.clear()
                service.store.version += 1

        source.reading = reading
        await service.ask(login())
        while reads < moment:
            source.read()
        assert (await service.ask(login())).result == "deny", f"removed at read {moment}, and let in from the cache"

    @pytest.mark.parametrize(("changes", "reason"), [
        (["remove"], "unknown"), (["remove", "add"], "verified"), (["add", "remove"], "unknown"),
    ])  # fmt: skip
    async def test_each_change_during_a_verification_counts(self, changes: list[str], reason: str) -> None:
        """Also for logins that are asked after it, and wait for the same verification."""
        service, source = self.service()
        source.passwords["ada"] = "slow:right"

        async def change() -> None:
            if changes:
                source.users.clear()
                source.revision += 1
                service.store.version += 1
                if changes.pop(0) == "add":
                    source.add("ada", "right")

        service.hasher.gate = SimpleNamespace(wait=change)  # type: ignore[assignment]
        assert (await service.ask(login())).reason == reason

    async def test_with_two_that_tell_changes_a_login_is_verified_as_usual(self) -> None:
        first, second = Stamped("users_file"), Stamped("database")
        second.add("ada")
        service = make_service(first, second)
        assert (await service.ask(login())).reason == "verified"
        service.store.version += 1
        assert (await service.ask(login())).reason == "cached", "another's change costs it its place in the cache"
        first.users["ada"] = Deny("users_file", "disabled", "ada")
        service.store.version += 1
        assert (await service.ask(login())).reason == "disabled", "the first one knows it now, and comes before"


class TestOverload:
    @manual_time
    async def test_beyond_its_places_it_sheds_at_once_and_answers_from_the_cache(self) -> None:
        service = make_service(limits={"in_flight": 3})
        for number in range(20):
            service.sources[0].add(f"u{number}", "right")
        await service.ask(login())
        gate = service.hasher.gate = asyncio.Event()
        first = [asyncio.create_task(service.ask(login(f"u{number}"))) for number in range(3)]
        await asyncio.sleep(0.01)
        rest = [service.access.login_at_once(login(f"u{number}")) for number in range(3, 20)]
        assert {(one.result, one.reason) for one in rest if one} == {("deny", "shed")}
        assert (await service.ask(login())).reason == "cached"
        gate.set()
        assert {one.result for one in await asyncio.gather(*first)} == {"allow"}
        assert (await service.ask(login("u5"))).result == "allow", "what was shed is not remembered as refused"
        check_counts(service)

    async def test_what_is_shed_gets_what_backend_down_says(self) -> None:
        service = make_service(backend_down="ignore")
        service.hasher.room = 0
        answer = await service.ask(login())
        assert (answer.result, answer.reason, answer.body) == ("ignore", "shed", b'{"result":"ignore"}')

    async def test_a_tenant_has_its_own_limit_the_default_or_none(self) -> None:
        service = make_service(limits={"tenant_logins_per_second": 3})
        source = service.sources[0]
        for name, limit in (("b", 6), ("c", 0)):
            service.store.tenants[name] = Tenant(name, logins_per_second=limit)
        results = Counter()
        for number in range(10):
            for tenant in ("a", "b", "c", ""):
                source.add(f"{tenant}{number}", tenant=tenant)
                results[tenant] += (await service.ask(login(f"{tenant}{number}"))).result == "allow"
        assert results == {"a": 3, "b": 6, "c": 10, "": 10}

    async def test_a_flood_of_refusals_is_no_flood_of_lines(self) -> None:
        service = make_service(protection={"failures": 0, "address_failures": 0})
        with capture_logs() as lines:
            for number in range(500):
                await service.ask(login(f"nobody {number}"))
            service.clock.forward(1)
            await service.ask(login("last"))
        refused = [line for line in lines if line["event"] == "auth_login_refused"]
        assert len(refused) <= 21
        assert sum(line.get("left_out", 0) for line in refused) + len(refused) == 501


class TestStoreDown:
    @pytest.mark.parametrize("policy", ["deny", "ignore"])
    async def test_nobody_new_is_let_in_while_bans_cannot_be_read(self, policy: str) -> None:
        service = make_service(backend_down=policy)
        await service.ask(login())
        service.store.problem = "the disk is gone"
        assert (await service.ask(login())).reason == "cached"
        answer = await service.ask(login(clientid="another"))
        assert (answer.result, answer.reason) == (policy, "backend_down")
        access = service.access.authorise(AccessRequest(Subject("ada"), "publish", "a"))
        assert (access.result, access.reason) == (policy, "backend_down")
        assert any("the disk is gone" in sentence for sentence in service.access.check())
        assert service.access.counts.store_reads_failed >= 2
        check_counts(service)

    async def test_refreshing_survives_it_and_tells_both_turns_once(self) -> None:
        service = make_service()
        with capture_logs() as lines:
            for problem in ("gone", "gone", "", ""):
                service.store.problem = problem
                assert service.access.refresh() is False
        assert [line["event"] for line in lines] == ["auth_store_unreadable", "auth_store_readable"]
        assert service.access.check() == []


class TestAuthorise:
    def ask(self, service: Service, topic: str = "a/b", **subject: Any) -> tuple[str, str]:
        request = AccessRequest(Subject(**{"username": "ada", **subject}), "publish", topic)
        answer = service.access.authorise(request)
        assert json.loads(answer.body) == {"result": answer.result}
        return answer.result, answer.reason

    async def test_rules_decide_and_without_one_it_is_denied(self) -> None:
        service = make_service(rules=[Rule("allow", "a/#"), Rule("deny", "b")])
        assert self.ask(service, "a/b") == ("allow", "rule")
        assert self.ask(service, "b") == ("deny", "rule")
        assert self.ask(service, "c") == ("deny", "no_rule")
        check_counts(service)

    async def test_the_same_question_is_decided_once_until_something_changes(self) -> None:
        service = make_service(rules=[Rule("allow", "a/#")])
        self.ask(service)
        reads = service.store.reads
        assert [self.ask(service) for _ in range(5)] == [("allow", "rule")] * 5
        assert service.store.reads == reads
        service.store.change()
        assert self.ask(service) == ("deny", "no_rule")

    async def test_a_ban_and_a_disabled_tenant_deny(self) -> None:
        service = make_service(rules=[Rule("allow", "#")])
        assert self.ask(service, tenant="acme")[0] == "allow"
        service.store.tenants["acme"] = Tenant("acme", enabled=False)
        service.store.change(Rule("allow", "#"))
        assert self.ask(service, tenant="acme") == ("deny", "tenant_disabled")
        service.store.add_ban(Ban("username", "ada", until_s=int(service.clock.now_s()) + 5))
        assert self.ask(service) == ("deny", "banned")
        service.clock.forward(6)
        assert self.ask(service) == ("allow", "rule"), "a ban ends by itself"


def test_the_documentation_says_what_each_reason_means() -> None:
    text = (Path(__file__).parents[2] / "docs" / "auth.md").read_text(encoding="utf-8")
    for reason, meaning in LOGIN_REASONS.items():
        assert f"| `{reason}` | {meaning} |" in text, reason


@pytest.mark.parametrize(
    "spelling", ["ada", "Ada", " ADA ", "ada\u2003", "\uff41\uff44\uff41", "\u00e1da", "a\u00add\u200da", "\x01ada"]
)
async def test_another_spelling_of_a_name_gives_a_guesser_no_more_tries(spelling: str) -> None:
    service = make_service(protection={"failures": 2})
    for number in range(2):
        await service.ask(login("ada", f"guess {number}"))
    assert (await service.ask(login(spelling, "guess"))).reason == "locked_out"
    assert (await service.ask(login("adam", "guess"))).reason == "unknown"


async def test_the_service_is_what_the_server_asks() -> None:
    decisions: AccessDecisions = make_service().access
    assert decisions.backend_down("timeout").reason == "timeout"
    assert decisions.backend_down("what is this").reason == "timeout"


@pytest.mark.parametrize(
    "name", ["", "#", "+", "../", "${clientid}", "' OR 1=1 --", "*)(uid=*", "a" * 65_535, "\u202e"]
)
async def test_hostile_names_are_only_unknown(name: str) -> None:
    service = make_service()
    with capture_logs() as lines:
        answer = await service.ask(LoginRequest(name, name, name, name, name))
    assert (answer.result, answer.body) == ("deny", b'{"result":"deny"}')
    assert all(len(str(line)) < 1000 for line in lines)
    memory = sum(map(len, reachable([service.access.logins.lockouts])))
    assert memory < 10_000, "a long name takes much room in the tables of failures"


# ---- with the real database ----
COST = passwords.Argon2Cost(8, 1)
STILL_NS = ManualClock().now_ns


class Real:
    """A service of the built-in database alone, or with ``others`` behind it."""

    def __init__(self, path: Path, clock: Callable[[], int] = STILL_NS, *others: Authenticator, **tables: Any) -> None:
        settings_ = access_settings(hashing={"memory": 8 << 10, "passes": 1}, **tables)
        settings_ = settings_.model_copy(update={"answer_timeout": timedelta(minutes=1)})  # longer than may be set
        self.store = Store(path / "auth" / "auth.sqlite3")
        self.store.open()
        self.hasher = Hasher(settings_.hashing)
        self.access = AccessService(
            settings_,
            self.store,
            Chain([DatabaseAuthenticator(settings_, self.store, self.hasher), *others], self.hasher, settings_),
            clock=clock,
        )

    def add(self, name: str, password: str = "right", kind: Any = "username") -> None:
        add_users(self.store, User(kind, name, passwords.hash_argon2id(password, COST)))

    def add_device(self, name: str) -> str:
        secret = passwords.generate_secret()
        (key,) = self.store.device_keys().values()
        add_users(self.store, User("username", name, passwords.hash_device_secret(secret, key)))
        return secret

    def change(self, name: str, kind: Any = "username", **fields: Any) -> None:
        edited(self.store, lambda edit: edit.users.change(kind, name, **fields))

    async def close(self) -> None:
        await self.access.close()
        self.hasher.close()
        self.store.close()


@pytest.fixture
async def real(tmp_path: Path) -> Any:
    one = Real(tmp_path)
    yield one
    await one.close()


KEYS = AuthJwtSettings(keys=(key(),))
VICTIM = "somebody in a directory"


@pytest.mark.parametrize(("own", "guess"), [
    (login(VICTIM, clientid="press-7"), login(VICTIM, clientid="another")),
    (login(VICTIM, clientid="press-7"), login(VICTIM, clientid="PRESS-7")),
    (login(VICTIM, clientid="x", cert_common_name="plc"), login(VICTIM, clientid="x")),
    (login(VICTIM, token(), clientid="x"), login(VICTIM, clientid="x")),
    (login("ada", clientid="x"), login("ada", clientid="press-7")),
], ids=["client id", "another spelling", "certificate", "token", "user name"])  # fmt: skip
async def test_ones_own_login_gives_a_guesser_at_another_no_more_tries(
    tmp_path: Path, own: LoginRequest, guess: LoginRequest
) -> None:
    """Of 120 guesses from six addresses 60 reached the directory."""
    directory = FakeAuthenticator(hasher=FakeHasher())
    directory.add(VICTIM, "of somebody else")
    identities = ["clientid", "username", "common_name"]
    real = Real(
        tmp_path, STILL_NS, JwtAuthenticator(KEYS, clock=lambda: NOW_S), directory,
        database={"identities": identities}, jwt=KEYS, chain=["database", "jwt"],
    )  # fmt: skip
    add_users(real.store, User("common_name", "plc"))
    real.add("ada")
    real.add("press-7", kind="clientid")
    await real.access.chain.start()
    addresses = [f"10.0.0.{number}" for number in range(6)]
    for address in addresses:
        assert (await real.access.login(replace(own, peerhost=address))).result == "allow"
    reasons: Counter[str] = Counter()
    for address in addresses:
        for number in range(20):
            answer = await real.access.login(replace(guess, password=f"{address} {number}", peerhost=address))
            reasons[answer.reason] += 1
    assert reasons == {"bad_password": 10, "locked_out": 110}
    await real.close()


async def test_a_guesser_at_a_shared_user_name_does_not_lock_out_who_is_found_by_its_client_id(tmp_path: Path) -> None:
    real = Real(tmp_path, protection={"failures": 2}, limits={"cache_entries": 0})
    real.add("press-7", kind="clientid")
    assert (await real.access.login(login("fleet", clientid="press-7"))).result == "allow"
    for number in range(3):
        await real.access.login(login("fleet", f"guess {number}", clientid=f"{number}", peerhost="192.0.2.1"))
    assert (await real.access.login(login("fleet", clientid="press-7", peerhost="192.0.2.1"))).reason == "locked_out"
    assert (await real.access.login(login("fleet", clientid="press-7"))).reason == "verified"
    await real.close()


async def test_a_new_password_of_a_client_id_ends_its_lock_out(tmp_path: Path) -> None:
    real = Real(tmp_path, protection={"failures": 2})
    real.add("press-7", kind="clientid")
    real.add("ada")
    for number in range(3):
        await real.access.login(login(f"name {number}", "guess", clientid="press-7", peerhost=f"10.0.1.{number}"))
    real.change("ada", disabled=True)
    for name in ("whoever", "ada"):
        answer = await real.access.login(login(name, clientid="press-7"))
        assert answer.reason == "locked_out", "another's change ends it"
    real.change("press-7", "clientid", password=passwords.hash_argon2id("new", COST))
    assert (await real.access.login(login("whoever", "new", clientid="press-7"))).reason == "verified"
    await real.close()


async def test_a_new_password_ends_the_lock_out_of_its_user(tmp_path: Path) -> None:
    real = Real(tmp_path, protection={"failures": 2})
    for name in ("ada", "bob"):
        real.add(name)
        for number in range(2):
            await real.access.login(login(name, f"guess {number}", peerhost=f"10.0.1.{number}"))
        assert (await real.access.login(login(name))).reason == "locked_out"
    real.change("ada", password=passwords.hash_argon2id("new", COST))
    assert (await real.access.login(login("ada", "new"))).reason == "verified"
    for name, clientid in (("bob", "c-bob"), ("BOB", "c-bob"), ("bob", "ada")):
        answer = await real.access.login(login(name, clientid=clientid))
        assert answer.reason == "locked_out", "another's change ends it too"
    await real.close()


@pytest.mark.parametrize("later", [False, True])
async def test_a_new_password_ends_the_lock_outs_of_its_user_at_every_address(tmp_path: Path, later: bool) -> None:
    """Its devices at two addresses were in before, so each address has a lock-out of its own. ``later``: that at the
    second begins after the change, by a device with the old password."""
    real = Real(tmp_path, protection={"failures": 2}, limits={"cache_entries": 0})
    real.add("ada")
    places = ("10.0.0.1", "10.0.0.2")
    for place in places:
        assert (await real.access.login(login("ada", peerhost=place))).reason == "verified"

    async def lock(place: str) -> None:
        for number in range(2):
            await real.access.login(login("ada", f"guess {number}", peerhost=place))
        assert (await real.access.login(login("ada", peerhost=place))).reason == "locked_out"

    for place in places[: 1 if later else 2]:
        await lock(place)
    real.change("ada", password=passwords.hash_argon2id("new", COST))
    if later:
        await lock(places[1])
    reasons = [(await real.access.login(login("ada", "new", peerhost=place))).reason for place in places]
    assert reasons == ["verified", "locked_out" if later else "verified"]
    await real.close()


@pytest.mark.parametrize("change", [
    {"disabled": True}, {"expires_at_s": 1}, {"password": passwords.hash_argon2id("new", COST)},
], ids=lambda change: next(iter(change)))  # fmt: skip
async def test_a_changed_user_is_not_served_from_the_cache(real: Real, change: dict[str, Any]) -> None:
    real.add("ada")
    assert (await real.access.login(login("ada"))).result == "allow"
    real.change("ada", **change)
    assert (await real.access.login(login("ada"))).result == "deny"


async def test_a_user_that_is_added_or_mended_gets_in_although_it_was_refused_a_moment_ago(real: Real) -> None:
    assert (await real.access.login(login("ada"))).reason == "unknown"
    real.add("ada", password="other")
    assert (await real.access.login(login("ada"))).reason == "bad_password"
    assert (await real.access.login(login("ada"))).reason == "remembered"
    real.change("ada", password=passwords.hash_argon2id("right", COST))
    assert (await real.access.login(login("ada"))).result == "allow"


async def test_a_device_secret_is_verified_without_waiting_for_anybody(real: Real) -> None:
    secret = real.add_device("press-7")
    assert there(real.access.login_at_once(login("press-7", secret))).reason == "verified"
    wrong = login("press-7", "wrong")
    assert real.access.login_at_once(wrong) is None, "a refusal has to cost a hash first"
    assert (await real.access.login(wrong)).reason == "bad_password"


async def test_a_device_with_a_secret_gets_in_while_all_places_are_taken(tmp_path: Path) -> None:
    real = Real(tmp_path, limits={"in_flight": 1})
    real.add("person")
    secret = real.add_device("press-7")
    assert real.access.login_at_once(login("person")) is None
    assert real.access.login_at_once(login("other person")).reason == "shed"  # type: ignore[union-attr]
    assert real.access.login_at_once(login("press-7", secret)).result == "allow"  # type: ignore[union-attr]
    assert (await real.access.login(login("person"))).result == "allow"
    await real.close()


@pytest.mark.parametrize(("rules_each", "calls_max"), [(0, 150), (10, 610)])
async def test_a_login_that_no_cache_knows_takes_few_calls(real: Real, rules_each: int, calls_max: int) -> None:
    """Of functions, in Python and in C, for a device with a generated secret: 185 and 774 once."""
    secrets = {name: real.add_device(name) for name in ("press-1", "press-2")}
    with real.store.edit("test") as edit:
        edit.rules.append(Rule("allow", "devices/${username}/#"))
        for name in secrets:
            edit.rules.extend(Rule("allow", f"{name}/{n}/#", who=(("username", name),)) for n in range(rules_each))
    real.access.refresh()
    first, second = (login(name, secret, clientid=name) for name, secret in secrets.items())
    there(real.access.login_at_once(first))
    calls: Counter[str] = Counter()
    before = sys.getprofile()
    sys.setprofile(lambda _frame, event, _argument: calls.update((event,)))
    answer = real.access.login_at_once(second)
    sys.setprofile(before)
    assert there(answer).reason == "verified"
    assert 0 < calls["call"] + calls["c_call"] <= calls_max, calls


async def guess_until_locked(real: Real, name: str) -> None:
    for number in range(10):
        await real.access.login(login(name, f"guess {number}", peerhost="192.0.2.1"))
    assert (await real.access.login(login(name, "one more", peerhost="192.0.2.1"))).reason == "locked_out"


async def test_others_guesses_do_not_lock_a_device_with_a_generated_secret_out(real: Real) -> None:
    """Ten wrong passwords from anywhere, and the owner of 190 random bits was refused for 30 s to an hour."""
    secret = real.add_device("press-7")
    real.add("ada")
    for name in ("press-7", "ada"):
        await guess_until_locked(real, name)
    answer = there(real.access.login_at_once(login("press-7", secret)))
    assert (answer.result, answer.reason) == ("allow", "verified")
    assert (await real.access.login(login("ada"))).reason == "locked_out", "a slow hash was verified while locked out"
    assert real.hasher.busy == real.hasher.waiting == 0
    for change in ({"disabled": True}, {"disabled": False, "expires_at_s": 1}):
        real.change("press-7", **change)
        assert (await real.access.login(login("press-7", secret, peerhost="10.0.0.9"))).result == "deny"


async def test_bans_and_limits_hold_for_a_generated_secret_while_it_is_locked_out(tmp_path: Path) -> None:
    real = Real(tmp_path, limits={"logins_per_second": 12, "cache_entries": 0})
    secret = real.add_device("press-7")
    await guess_until_locked(real, "press-7")
    answers = [await real.access.login(login("press-7", secret, peerhost=f"10.0.0.{number}")) for number in range(30)]
    assert {one.reason for one in answers} == {"verified", "locked_out"}, "the limit of a second did not hold"
    edited(real.store, lambda edit: edit.bans.add(Ban("username", "press-7")))
    assert (await real.access.login(login("press-7", secret))).reason == "banned"
    await real.close()


async def test_guesses_at_who_is_locked_out_do_not_use_up_the_rate_of_the_others(tmp_path: Path) -> None:
    """A guesser's storm at a locked name, or from a locked address, costs neither another device nor the owner its
    login. What gets in counts."""
    clock = ManualClock()
    real = Real(tmp_path, clock.now_ns, limits={"logins_per_second": 12, "cache_entries": 0})
    secret, other = real.add_device("press-7"), real.add_device("press-8")
    await guess_until_locked(real, "press-7")
    clock.forward(2)
    for number in range(200):
        assert (await real.access.login(login("press-7", f"storm {number}"))).reason == "locked_out"
    assert (await real.access.login(login("press-8", other))).reason == "verified"
    assert (await real.access.login(login("press-7", secret))).reason == "verified"
    answers = [await real.access.login(login("press-8", other)) for _ in range(12)]
    assert [one.reason for one in answers] == ["verified"] * 10 + ["rate_limited"] * 2
    assert (await real.access.login(login("press-7", secret, peerhost="10.0.0.9"))).reason == "locked_out"
    await real.close()


async def test_a_lock_out_does_not_tell_who_has_a_generated_secret(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer and the same work: one keyed digest, whoever asks. No slow hash for anybody."""
    real.add_device("press-7")
    real.add("ada")
    for name in ("press-7", "ada", "nobody"):
        await guess_until_locked(real, name)
    digests: Counter[str] = Counter()
    at = ""
    compute = passwords._device_digest

    def counted(data: bytes, key: bytes, salt: bytes) -> bytes:
        digests[at] += 1
        return compute(data, key, salt)

    monkeypatch.setattr(passwords, "_device_digest", counted)
    answers = set()
    for at in ("press-7", "ada", "nobody"):
        answer = real.access.login_at_once(login(at, "guess"))
        assert answer is not None, f"{at} waits for a hash"
        answers.add((answer.result, answer.reason, answer.body))
    assert len(answers) == 1
    assert digests == {"press-7": 1, "ada": 1, "nobody": 1}


async def test_a_secret_passes_a_lock_out_in_a_file_of_users_behind_tokens_too(tmp_path: Path) -> None:
    secret, key = passwords.generate_secret(), b"k" * 32
    export = tmp_path / "users.jsonl"
    keys = {passwords.device_key_id(key): key.hex()}
    head = {"format": "mqtt-kafka-gateway users", "version": 1, "device_keys": keys}
    user = {"username": "press-7", "password_hash": passwords.hash_device_secret(secret, key)}
    export.write_text(f"{json.dumps(head)}\n{json.dumps(user)}\n")
    export.chmod(0o600)
    real = Real(tmp_path, users_file={"file": str(export)})
    users = UsersFileAuthenticator(access_settings(users_file={"file": str(export)}), real.store, real.hasher)
    await users.look(settled=True)
    database = real.access.chain.authenticators[0]
    for chain, passes in (
        ((JwtAuthenticator(AuthJwtSettings()), database, users), True),
        ((FakeAuthenticator(), users), False),
    ):
        one = Chain(chain, real.hasher, access_settings())
        outcome = one.past_lock_out(login("press-7", secret))
        assert (outcome is not None and outcome.allow is not None) == passes
        assert one.past_lock_out(login("press-7", "wrong")) is None
    await real.close()


# ---- anything may happen ----
WORDS = ["verify", "wrong", "unknown", "down", "up", "ban", "lift", "rule", "remove", "add", "shed", "second", "minute"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=60), st.sampled_from(["deny", "ignore"]), st.integers(0, 3))
async def test_whatever_happens_nobody_is_let_in_who_was_not_allowed_and_the_counts_balance(
    words: list[str], policy: str, cache_entries: int
) -> None:
    """Invariants: an allow needs a user that the source has, or had at most ``cache_ttl`` ago; a banned client never
    gets in; each login is counted once."""
    service = make_service(backend_down=policy, limits={"cache_entries": cache_entries, "cache_ttl": "10s"})
    source = service.sources[0]
    there_until_ns = service.clock.ns
    asked = 0
    for word in words:
        if word in {"verify", "wrong", "unknown"}:
            request = login("nobody") if word == "unknown" else login(password="right" if word == "verify" else word)
            answer = await service.ask(request)
            asked += 1
            if "ada" in source.users:
                there_until_ns = service.clock.ns
            if answer.result == "allow":
                assert word == "verify"
                assert not service.store.bans
                assert service.clock.ns - there_until_ns < 10 * 10**9, "out of the cache after its time"
            if answer.result == "ignore":
                assert policy == "ignore"
        elif word in {"down", "up"}:
            source.up = word == "up"
            service.access.refresh()
        elif word == "ban":
            service.store.bans = [Ban("username", "ada")]
            service.store.ban_version += 1
        elif word == "lift":
            service.store.bans = []
            service.store.ban_version += 1
        elif word == "rule":
            service.store.change(Rule("allow", f"a/{asked}"))
        elif word == "shed":
            source.error = None if source.error else OverloadedError("hashing", "full")
        elif word == "remove":
            source.users.pop("ada", None)
        elif word == "add":
            source.add("ada", "right")
            there_until_ns = service.clock.ns
        else:
            service.clock.forward(1 if word == "second" else 60)
            if "ada" in source.users:
                there_until_ns = service.clock.ns
    assert sum(service.access.counts.logins.values()) == asked
    check_counts(service)


@manual_time
async def test_a_storm_of_a_fleet_that_comes_back() -> None:
    """A seeded storm: 3,000 devices, half of them known from before, a third of the rest with wrong passwords, 100
    logins under verification at a time, two hashes at a time of 20 ms. All that may get in do, those in the cache at
    their first try, nobody else, and no answer takes longer than the time-out."""
    rng = random.Random(7)
    service = make_service(limits={"in_flight": 100, "negative_ttl": "60s"}, protection={"address_failures": 0})
    source = service.sources[0]
    loop = asyncio.get_running_loop()
    turn = asyncio.Semaphore(2)

    async def slow() -> None:
        async with turn:
            await asyncio.sleep(0.02)
        service.hasher.argon2 += 1

    service.hasher._slow = slow  # type: ignore[method-assign]
    source.users["off"] = Deny("postgresql", "disabled", "off")
    devices = [f"d{number}" for number in range(3000)]
    for name in devices:
        source.add(name, "fast:right")
    known, wrong = set(devices[:1500]), set(devices[1500:2000])
    for name in known:
        await service.ask(login(name))
    for name in devices[1500:]:
        source.passwords[name] = "slow:right"
    tries: Counter[str] = Counter()
    slowest = 0.0

    async def connect(name: str) -> None:
        nonlocal slowest
        await asyncio.sleep(rng.random())
        while tries[name] < 200:
            tries[name] += 1
            began = loop.time()
            answer = await service.ask(login(name, "wrong" if name in wrong else "right"))
            slowest = max(slowest, loop.time() - began)
            if answer.result == "allow":
                assert name not in wrong
                return
            if answer.reason in {"bad_password", "remembered"}:
                assert name in wrong
                return
            await asyncio.sleep(1 + rng.random())
        pytest.fail(f"{name} did not get in")

    async with asyncio.TaskGroup() as group:
        for name in devices:
            group.create_task(connect(name))
    assert {tries[name] for name in known} == {1}
    assert slowest <= 2.0
    assert service.access.counts.login_reasons["shed"] > 0
    check_counts(service)


async def test_a_ban_that_is_noticed_while_a_login_is_looked_at_is_not_lost_on_the_cache() -> None:
    """The store looks for changes by itself. One that it finds behind the look for bans was taken for one that had
    been looked at: the cached login knew of no ban until its time was over."""
    service = make_service(protection={"failures": 2})
    kept_out = service.access.logins._kept_out

    def then_banned(*arguments: Any) -> Any:
        reason = kept_out(*arguments)
        service.store.add_ban(Ban("username", "ada"))
        return reason

    service.access.logins._kept_out = then_banned  # type: ignore[method-assign]
    await service.ask(login())
    service.access.logins._kept_out = kept_out  # type: ignore[method-assign]
    assert (await service.ask(login())).reason == "banned"
