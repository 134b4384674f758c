"""Logins by tokens whose keys an identity provider publishes, rotates, withdraws, and fails to give."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auth.backends.jwt import JwtAuthenticator
from auth.errors import BackendDownError
from auth.jwt.jwks import JwksKeys
from auth.logins.chain import Chain
from auth.model import Allow, Deny, Ignore, LoginRequest, Verdict
from auth.service import AccessService
from config.settings import TlsSettings
from config.tables.auth import AuthJwtKeySettings, AuthJwtSettings
from tests.servers.authority import Authority
from tests.servers.identity_provider import Clock, IdentityProvider, make_key
from tests.unit.access_parts import FakeHasher, FakeStore, access_settings
from tests.waiting import until

S = 1_000_000_000


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch may take long on a busy machine: a login waits for it longer than for a second."""
    monkeypatch.setattr("auth.jwt.jwks._WAIT_S", 60.0)


def settings(provider: IdentityProvider, **changes: Any) -> AuthJwtKeySettings:
    given = {"name": "idp", "algorithms": ("RS256", "ES256", "EdDSA"), "jwks_url": provider.jwks_url}
    return AuthJwtKeySettings(**given | {"issuer": provider.url} | changes)


@contextlib.asynccontextmanager
async def running(clock: Clock, *keys: AuthJwtKeySettings) -> AsyncIterator[JwtAuthenticator]:
    authenticator = JwtAuthenticator(AuthJwtSettings(keys=keys), monotonic_ns=clock)
    await authenticator.start()
    try:
        yield authenticator
    finally:
        await authenticator.close()


async def login(authenticator: JwtAuthenticator, token: str) -> Verdict:
    return await authenticator.authenticate(LoginRequest("user", "dev", token))


async def eventually(authenticator: JwtAuthenticator, token: str, kind: type) -> None:
    """Wait for a verdict of this kind."""

    async def given() -> bool:
        with contextlib.suppress(BackendDownError):
            return isinstance(await login(authenticator, token), kind)
        return False

    await until(given, f"a verdict that is {kind}")


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_of_a_published_key_lets_in_from_the_first_moment(
    provider: IdentityProvider, clock: Clock, algorithm: str
) -> None:
    provider.rotate(algorithm)
    async with running(clock, settings(provider)) as authenticator:
        assert isinstance(await login(authenticator, provider.sign({"sub": "dev"})), Allow)
        assert isinstance(await login(authenticator, provider.sign(lifetime_s=-1)), Deny)
        assert isinstance(await login(authenticator, provider.sign({"iss": "another"})), Deny)
        assert authenticator.up
    assert provider.counts["jwks"] == 1, "a login does not ask the issuer"


async def test_a_token_without_key_id_is_tried_with_all(provider: IdentityProvider, clock: Clock) -> None:
    provider.rotate("RS256")
    provider.rotate("ES256")
    async with running(clock, settings(provider)) as authenticator:
        for key in provider.keys:
            assert isinstance(await login(authenticator, provider.sign(key=key, kid=None)), Allow)
        stranger = make_key("ES256")
        assert isinstance(await login(authenticator, provider.sign(key=stranger, kid=None)), Ignore)
    assert provider.counts["jwks"] == 1


async def test_a_key_without_id_is_tried_with_tokens_of_any(provider: IdentityProvider, clock: Clock) -> None:
    [key] = provider.keys
    key.extra = {"kid": None}
    async with running(clock, settings(provider)) as authenticator:
        for kid in (None, "any", "other"):
            assert isinstance(await login(authenticator, provider.sign(kid=kid)), Allow)
        clock.ahead_ns += 20 * S
        assert isinstance(await login(authenticator, provider.sign(key=make_key())), Ignore)
        assert provider.counts["jwks"] == 1, "what has no id cannot be missed"
    named = provider.rotate("ES256")
    async with running(clock, settings(provider)) as authenticator:
        for wanted, kid in ((named, None), (named, named.kid), (key, None), (key, "any")):
            assert isinstance(await login(authenticator, provider.sign(key=wanted, kid=kid)), Allow)
        assert isinstance(await login(authenticator, provider.sign(key=key, kid=named.kid)), Ignore)


async def test_a_token_is_checked_with_the_key_that_it_names(provider: IdentityProvider, clock: Clock) -> None:
    other = provider.rotate("ES256")
    async with running(clock, settings(provider)) as authenticator:
        text = provider.sign(key=provider.keys[0], kid=other.kid)
        assert isinstance(await login(authenticator, text), Ignore)


async def test_a_published_key_is_for_the_algorithm_that_it_names(provider: IdentityProvider, clock: Clock) -> None:
    rsa = provider.rotate("RS256")
    curve = provider.rotate("ES256")
    wanted = settings(provider, algorithms=("RS256", "PS256", "ES256"))
    async with running(clock, wanted) as authenticator:
        assert isinstance(await login(authenticator, provider.sign(key=rsa)), Allow)
        for key, algorithm, kid in ((rsa, "PS256", rsa.kid), (curve, "ES256", rsa.kid), (rsa, "RS256", curve.kid)):
            text = provider.sign(key=replace(key, algorithm=algorithm), kid=kid)
            assert isinstance(await login(authenticator, text), Ignore), (algorithm, kid)
    assert provider.counts["jwks"] == 1


async def test_a_new_key_is_known_at_once_and_many_logins_ask_once(provider: IdentityProvider, clock: Clock) -> None:
    async with running(clock, settings(provider)) as authenticator:
        await eventually(authenticator, provider.sign(), Allow)
        provider.rotate("EdDSA")
        clock.ahead_ns += 10 * S
        verdicts = await asyncio.gather(*(login(authenticator, provider.sign()) for _ in range(100)))
        assert all(isinstance(verdict, Allow) for verdict in verdicts)
    assert provider.counts["jwks"] == 2


async def test_invented_key_ids_do_not_make_the_issuer_suffer(provider: IdentityProvider, clock: Clock) -> None:
    async with running(clock, settings(provider)) as authenticator:
        await eventually(authenticator, provider.sign(), Allow)
        async with asyncio.timeout(60):  # or each has waited for a fetch that was not its turn
            for number in range(200):
                text = provider.sign(key=make_key(kid=f"invented-{number}"))
                assert isinstance(await login(authenticator, text), Ignore)
        assert provider.counts["jwks"] == 1
        clock.ahead_ns += 10 * S
        await asyncio.gather(*(login(authenticator, provider.sign(key=make_key())) for _ in range(50)))
        assert provider.counts["jwks"] == 2


async def test_a_new_key_behind_invented_ones_is_no_guess(provider: IdentityProvider, clock: Clock) -> None:
    """Invented key ids had used up the fetch of these ten seconds, and the devices with the new key were counted as
    guessers: ten logins, and they were locked out."""
    provider.rotate("RS256")
    async with running(clock, settings(provider)) as authenticator:
        await login(authenticator, provider.sign())
        clock.ahead_ns += 11 * S
        invented = make_key(kid="invented")  # which makes it fetch
        assert (await login(authenticator, provider.sign(key=invented))) == Ignore(
            "jwt", "no key that its signature is of"
        )
        provider.rotate("RS256")
        protection = {"failures": 2, "address_failures": 2}
        hasher = FakeHasher()
        ours = access_settings(chain=["jwt"], protection=protection)
        service = AccessService(ours, FakeStore(), Chain([authenticator], hasher, ours), clock=clock)
        request = LoginRequest("user", "dev", provider.sign(), "10.0.0.1")
        for number in range(5):
            answer = await service.login(request)
            assert (answer.result, answer.reason) == ("deny", "unknown")
            assert hasher.burns == number + 1, "it was refused from memory, or at another cost than others"
        clock.ahead_ns += 11 * S
        assert (await service.login(request)).reason == "verified"
        forged = LoginRequest("other", "dev 2", provider.sign(key=invented), "10.0.0.2")
        clock.ahead_ns += 11 * S
        await service.login(forged)
        clock.ahead_ns += 11 * S
        await service.login(forged)
        clock.ahead_ns += 11 * S
        assert (await service.login(forged)).reason == "locked_out", "an invented key that was looked for is no guess"
        await service.logins.close()


async def test_a_withdrawn_key_is_good_no_more_after_the_refresh(provider: IdentityProvider, clock: Clock) -> None:
    old = provider.keys[0]
    async with running(clock, settings(provider)) as authenticator:
        await eventually(authenticator, provider.sign(key=old), Allow)
        provider.rotate(keep_old=False)
        assert isinstance(await login(authenticator, provider.sign(key=old)), Allow)
        clock.ahead_ns += 301 * S
        await eventually(authenticator, provider.sign(), Allow)  # its key is missed, which wakes the task
        assert isinstance(await login(authenticator, provider.sign(key=old)), Ignore)


async def test_while_the_issuer_is_down_the_last_keys_are_good_for_a_time(
    provider: IdentityProvider, clock: Clock
) -> None:
    async with running(clock, settings(provider)) as authenticator:
        await eventually(authenticator, provider.sign(), Allow)
        provider.down()
        clock.ahead_ns += 3600 * S
        assert isinstance(await login(authenticator, provider.sign()), Allow)
        assert isinstance(await login(authenticator, provider.sign(key=make_key())), Ignore)
        assert authenticator.up
        clock.ahead_ns += 306 * S
        with pytest.raises(BackendDownError, match=r'auth\.jwt\.keys "idp"'):
            await login(authenticator, provider.sign())
        assert not authenticator.up
        assert isinstance(await login(authenticator, "a password"), Ignore), "what is no token is others' business"
        provider.up()
        clock.ahead_ns += 60 * S
        await eventually(authenticator, provider.sign(), Allow)


async def test_a_service_that_starts_before_its_issuer_finds_it(provider: IdentityProvider, clock: Clock) -> None:
    provider.down()
    async with running(clock, settings(provider)) as authenticator:
        with pytest.raises(BackendDownError):
            await login(authenticator, provider.sign())
        assert not authenticator.up
        provider.up()
        await eventually(authenticator, provider.sign(), Allow)


FAULTS = {
    "error": "status 500",
    "refused": "status 403",
    "garbage": "not answer with a JWK set",
    "list": "not answer with a JWK set",
    "empty": "not answer with a JWK set",
    "redirect": "redirects (302), which is not followed",
    "huge": "more than 524288 bytes",
    "cut": "broke the answer off",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_answer_that_is_no_key_set_takes_no_key_away(
    provider: IdentityProvider, clock: Clock, fault: Any, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    forger = make_key("ES256")
    with IdentityProvider() as elsewhere:
        elsewhere.keys = [forger]
        provider.redirect_to = elsewhere.jwks_url
        async with running(clock, settings(provider)) as authenticator:
            await eventually(authenticator, provider.sign(), Allow)
            provider.jwks_fault = fault
            clock.ahead_ns += 10 * S
            assert isinstance(await login(authenticator, provider.sign(key=forger)), Ignore)
            assert provider.counts["jwks"] == 2
            assert isinstance(await login(authenticator, provider.sign()), Allow)
        assert elsewhere.counts["jwks"] == 0
    said = capsys.readouterr()
    told = said.out + said.err + caplog.text
    assert told.count("jwks_failed") == 1
    assert FAULTS[fault] in told
    assert f"{provider.url}/jwks" in told


@pytest.mark.parametrize("fault", ["held", "endless"])
async def test_an_issuer_that_does_not_finish_holds_no_login_up(
    provider: IdentityProvider, clock: Clock, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown key waits for four seconds here; the fetch, for two minutes."""
    monkeypatch.setattr("auth.jwt.jwks._WAIT_S", 4.0)
    monkeypatch.setattr("auth.jwt.jwks.FETCH_TIMEOUT_S", 120.0)
    async with running(clock, settings(provider)) as authenticator:
        await eventually(authenticator, provider.sign(), Allow)
        provider.jwks_fault = fault
        clock.ahead_ns += 10 * S
        unknown = [asyncio.create_task(login(authenticator, provider.sign(key=make_key()))) for _ in range(20)]
        await asyncio.to_thread(provider.wait_for, lambda: provider.counts["jwks"] == 2, "a fetch for an unknown key")
        monkeypatch.setattr("auth.jwt.jwks._WAIT_S", 600.0)  # for a known key, if it waited
        async with asyncio.timeout(60):
            assert isinstance(await login(authenticator, provider.sign()), Allow)
            assert all(isinstance(verdict, Ignore) for verdict in await asyncio.gather(*unknown))
    assert provider.counts["jwks"] == 2


async def test_over_tls_the_authority_named_is_asked_for(clock: Clock, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with IdentityProvider(certificate=authority.issue("server")) as provider:
        good = settings(provider, tls=TlsSettings(ca_file=authority.ca_file))
        async with running(clock, good) as authenticator:
            await eventually(authenticator, provider.sign(), Allow)
        bad = settings(provider, tls=TlsSettings(ca_file=stranger.ca_file))
        async with running(clock, bad) as authenticator:
            with pytest.raises(BackendDownError):
                await login(authenticator, provider.sign())
        unverified = settings(provider, tls=TlsSettings(verify=False))
        async with running(clock, unverified) as authenticator:
            await eventually(authenticator, provider.sign(), Allow)


async def test_a_client_certificate_may_be_shown_and_replaced(clock: Clock, authority: Authority) -> None:
    """Its files are read for every fetch, so a renewed one needs no restart."""
    shown = authority.issue("gateway")
    with IdentityProvider(certificate=authority.issue("server"), client_ca=authority.ca_file) as provider:
        tls = TlsSettings(ca_file=authority.ca_file, certificate_file=shown.certificate, key_file=shown.key)
        async with running(clock, settings(provider, tls=tls)) as authenticator:
            await eventually(authenticator, provider.sign(), Allow)
            shown.key.write_text("broken for a moment")
            provider.rotate()
            clock.ahead_ns += 10 * S
            assert isinstance(await login(authenticator, provider.sign()), Ignore)
            authority.issue("gateway")
            clock.ahead_ns += 10 * S
            await eventually(authenticator, provider.sign(), Allow)


async def test_a_stop_does_not_wait_for_a_fetch(provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auth.jwt.jwks.FETCH_TIMEOUT_S", 120.0)
    provider.jwks_fault = "held"
    keys = JwksKeys(settings(provider), "auth.jwt.keys")
    await keys.start()
    await asyncio.to_thread(provider.wait_for, lambda: provider.counts["jwks"] == 1, "the first fetch")
    async with asyncio.timeout(60):
        await keys.close()
        await keys.close()
