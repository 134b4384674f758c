"""What all authenticators that ask another server do alike, each against its real server."""

import asyncio
import contextlib
import time
from typing import Any

import pytest

from auth.backends.breaker import BreakerState
from auth.backends.remote import RemoteAuthenticator
from auth.errors import BackendDownError
from auth.model import Allow, Deny, Ignore
from config.errors import ConfigError
from tests.integration.auth_sites import *  # noqa: F403 - a fixture is taken from the module that uses it
from tests.integration.auth_sites import GOOD, SHORT, Site, login
from tests.waiting import DEADLINE_S, until


async def cause_of(authenticator: RemoteAuthenticator[Any, Any], username: str = "lamp") -> str:
    with pytest.raises(BackendDownError) as caught:
        await login(authenticator, username)
    assert caught.value.backend == authenticator.name
    assert str(caught.value).endswith((".", "?")), "no sentence"
    return caught.value.cause


async def is_let_in(authenticator: RemoteAuthenticator[Any, Any]) -> bool:
    """For a short time-out, which a busy machine may reach."""
    with contextlib.suppress(BackendDownError):
        return isinstance(await login(authenticator, "lamp"), Allow)
    return False


async def test_the_right_password_is_let_in(site: Site) -> None:
    await site.put_password("lamp")
    async with site.running() as authenticator:
        verdict = await login(authenticator, "lamp")
        assert isinstance(verdict, Allow), verdict
        assert (verdict.source, verdict.user) == (site.name, "lamp")
        assert (verdict.tenant, verdict.groups, dict(verdict.attributes)) == ("", frozenset(), {})
        assert not verdict.is_superuser
        assert authenticator.up


async def test_a_wrong_password_is_refused(site: Site) -> None:
    await site.put_password("lamp")
    async with site.running() as authenticator:
        for password in ("wrong", "", GOOD + " ", GOOD.upper(), "x" * 65_535, "\ud800", "\0", GOOD + "\0"):
            verdict = await login(authenticator, "lamp", password)
            assert isinstance(verdict, Deny), f"{password[:20]!r}: {verdict}"


async def test_a_server_that_refuses_connections_fails_the_login_and_not_the_start(site: Site) -> None:
    await site.put_password("lamp")
    site.server.kill()
    async with site.running() as authenticator:
        assert not authenticator.up
        assert "refuses connections" in authenticator.problem
        assert await cause_of(authenticator) == "open"
        site.server.start()
        await until(lambda: authenticator.up, "the probe that finds it well")
        assert isinstance(await login(authenticator, "lamp"), Allow)


async def test_a_restart_between_two_logins_fails_neither(site: Site) -> None:
    await site.put_password("lamp")
    async with site.running() as authenticator:
        for way in (site.server.halt, site.server.kill):
            assert isinstance(await login(authenticator, "lamp"), Allow)
            way()
            site.server.start()
            assert isinstance(await login(authenticator, "lamp"), Allow), "the broken connection cost a login"
        assert authenticator.breaker.state is BreakerState.CLOSED
        assert not authenticator.failures


async def test_killed_under_way_it_is_down_and_back_when_it_is(site: Site) -> None:
    await site.put_password("lamp")
    async with site.running() as authenticator:
        assert isinstance(await login(authenticator, "lamp"), Allow)
        site.server.kill()
        # At once: a probe, which comes after a quarter of a second, may be the third failure as well.
        assert await asyncio.gather(*(cause_of(authenticator) for _ in range(3))) == ["unreachable"] * 3
        assert await cause_of(authenticator) == "open"
        site.server.start()
        await until(lambda: authenticator.up, "the probe that finds it well")
        assert isinstance(await login(authenticator, "lamp"), Allow)


async def test_frozen_it_answers_in_time_then_at_once_and_heals_when_thawed(site: Site) -> None:
    await site.put_password("lamp")
    async with site.running(timeout=SHORT) as authenticator:
        await until(lambda: is_let_in(authenticator), "let in")
        site.server.freeze()
        limit_s = SHORT.total_seconds()
        began = time.monotonic()
        # At once: a probe, which comes after a quarter of a second, may be the third failure as well.
        assert await asyncio.gather(*(cause_of(authenticator) for _ in range(3))) == ["timeout"] * 3
        assert limit_s * 0.9 <= time.monotonic() - began < limit_s + DEADLINE_S
        began = time.monotonic()
        assert [await cause_of(authenticator) for _ in range(100)] == ["open"] * 100
        assert time.monotonic() - began < 60 * limit_s, "refusals of an open breaker took time"
        await until(lambda: authenticator.breaker.state is BreakerState.HALF_OPEN, "a probe")
        await until(lambda: authenticator.breaker.state is BreakerState.OPEN, "the failure of the probe")
        site.server.thaw()
        await until(lambda: authenticator.breaker.state is BreakerState.CLOSED, "the healing")
        await until(lambda: is_let_in(authenticator), "let in again")


async def test_an_answer_that_comes_late_is_nobody_elses(site: Site) -> None:
    """The caller gives up while the server is frozen; after the thaw its answer is not the next one's."""
    await site.put_password("lamp")
    await site.put_password("plug", "another")
    async with site.running(pool_size=1) as authenticator:
        assert isinstance(await login(authenticator, "lamp"), Allow)
        site.server.freeze()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(login(authenticator, "lamp"), 0.25)
        site.server.thaw()
        assert isinstance(await login(authenticator, "plug"), Deny), "that was lamp's answer"
        assert isinstance(await login(authenticator, "plug", "another"), Allow)


async def test_a_wrong_password_of_our_own_ends_the_start_with_a_sentence(site: Site) -> None:
    secret = "not-the-Secret-99"
    changes = site.own_password(secret)
    if not changes:
        return  # it logs in as nobody but the devices
    with pytest.raises(ConfigError, match="refuses the login") as caught:
        async with site.running(**changes):
            pass
    assert secret not in f"{caught.value}{caught.value.__cause__!r}"


async def test_closing_ends_questions_under_way_and_leaves_nothing_behind(site: Site) -> None:
    await site.put_password("lamp")
    authenticator = site.authenticator(timeout=4 * SHORT)
    await authenticator.start()
    await login(authenticator, "lamp")
    site.server.freeze()
    questions = [asyncio.create_task(login(authenticator, "lamp")) for _ in range(3)]
    await asyncio.sleep(0)
    await authenticator.close()
    await authenticator.close()
    outcomes = await asyncio.gather(*questions, return_exceptions=True)
    assert all(isinstance(one, BackendDownError) for one in outcomes), outcomes


async def test_over_tls_with_its_authority_and_not_without(site: Site, tmp_path: Any) -> None:
    await site.put_password("lamp")
    async with site.running(**site.over_tls()) as authenticator:
        assert isinstance(await login(authenticator, "lamp"), Allow)
    async with site.running(**site.over_tls(ca_file=None)) as authenticator:
        assert "certificate that is not trusted" in authenticator.problem
        assert authenticator.failures["tls"] >= 1
    async with site.running(**site.over_tls(server_name="elsewhere.example")) as authenticator:
        assert "certificate that is not trusted" in authenticator.problem
    missing = tmp_path / "none.pem"
    with pytest.raises(ConfigError, match=r"ca_file .*none\.pem cannot be used"):
        async with site.running(**site.over_tls(ca_file=missing)):
            pass


async def test_a_login_without_what_users_are_looked_up_by_is_not_its_business(site: Site) -> None:
    site.server.kill()
    async with site.running() as authenticator:
        assert isinstance(await login(authenticator, "", clientid="lamp"), Ignore), "and the server is not even asked"
        assert isinstance(await login(authenticator, "\ud800"), Ignore)
