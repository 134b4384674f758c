"""Tokens by client credentials from an identity provider that is slow, wrong, hostile and away."""

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from pydantic import SecretStr

from auth.errors import CredentialError
from auth.outward.tokens import OAuthTokens
from config.errors import ConfigError, GatewayError
from config.settings import OAuthSettings, TlsSettings
from config.values.secret_files import FileSecret
from tests.servers.authority import Authority
from tests.servers.identity_provider import Clock, IdentityProvider
from tests.waiting import until

S = 1_000_000_000
SECRET = "client-secret-0815"


def settings(provider: IdentityProvider, **changes: Any) -> OAuthSettings:
    given = {"token_url": provider.token_url, "client_id": "gateway", "client_secret": SecretStr(SECRET)}
    return OAuthSettings(**given | changes)


@contextlib.asynccontextmanager
async def running(clock: Clock, wanted: OAuthSettings) -> AsyncIterator[OAuthTokens]:
    source = OAuthTokens(wanted, "mqtt.token.oauth", monotonic_ns=clock)
    await source.start()
    try:
        yield source
    finally:
        await source.close()


async def refusal(clock: Clock, wanted: OAuthSettings) -> str:
    """Why there is no token; never with the secret in it."""
    async with running(clock, wanted) as source:
        with pytest.raises(CredentialError) as failure:
            await source.current()
    sentence = str(failure.value)
    assert sentence.startswith("mqtt.token.oauth.token_url: http")
    assert SECRET not in sentence
    return sentence


async def test_a_token_is_fetched_with_the_secret_in_the_header(provider: IdentityProvider, clock: Clock) -> None:
    async with running(clock, settings(provider)) as source:
        before = clock()
        credential = await source.current()
        assert credential.token == provider.issued[0]
        assert credential.expires_at_ns is not None
        assert before - 60 * S < credential.expires_at_ns - 300 * S <= clock()
        assert (await source.current()) is credential
    assert provider.counts["token"] == 1
    [form], [headers] = provider.forms, provider.headers
    assert form == {"grant_type": "client_credentials"}
    assert headers["Accept"] == "application/json"
    assert headers["Accept-Encoding"] == "identity"


async def test_a_token_is_fetched_with_the_secret_in_the_form(provider: IdentityProvider, clock: Clock) -> None:
    wanted = settings(
        provider,
        client_authentication="post",
        scope="mqtt kafka",
        audience="emqx",
        parameters={"resource": "urn:plant"},
    )
    async with running(clock, wanted) as source:
        claims = jwt.decode((await source.current()).token, options={"verify_signature": False})
    assert (claims["scope"], claims["aud"], claims["sub"]) == ("mqtt kafka", "emqx", "gateway")
    assert provider.forms == [
        {
            "grant_type": "client_credentials",
            "resource": "urn:plant",
            "scope": "mqtt kafka",
            "audience": "emqx",
            "client_id": "gateway",
            "client_secret": SECRET,
        }
    ]
    assert "Authorization" not in provider.headers[0]


@pytest.mark.parametrize("way", ["basic", "post"])
async def test_ids_and_secrets_of_any_characters_arrive(provider: IdentityProvider, clock: Clock, way: Any) -> None:
    name, secret = "gate:way ü&=%+", "s:p/ä c%20+&=?"
    provider.clients[name] = secret
    wanted = settings(provider, client_id=name, client_secret=SecretStr(secret), client_authentication=way)
    async with running(clock, wanted) as source:
        assert (await source.current()).token == provider.issued[0]
    if way == "basic":
        assert base64.b64decode(provider.headers[0]["Authorization"].removeprefix("Basic ")).decode().count(":") == 1


async def test_a_client_certificate_in_place_of_a_secret(clock: Clock, authority: Authority) -> None:
    shown = authority.issue("gateway")
    with IdentityProvider(certificate=authority.issue("server"), client_ca=authority.ca_file) as provider:
        tls = TlsSettings(ca_file=authority.ca_file, certificate_file=shown.certificate, key_file=shown.key)
        async with running(clock, settings(provider, client_secret=None, tls=tls)) as source:
            assert (await source.current()).token == provider.issued[0]
        assert provider.forms[0]["client_id"] == "gateway"
        bare = settings(provider, tls=TlsSettings(ca_file=authority.ca_file))
        async with running(clock, bare) as source:
            with pytest.raises(CredentialError):
                await source.current()


async def test_a_strange_certificate_gets_no_secret(clock: Clock, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    with IdentityProvider(certificate=authority.issue("server")) as provider:
        sentence = await refusal(clock, settings(provider, tls=TlsSettings(ca_file=stranger.ca_file)))
        assert "certificate that is not trusted" in sentence
        assert "mqtt.token.oauth.tls.ca_file" in sentence
        assert provider.counts["token"] == 0


async def test_tls_files_that_cannot_be_used_end_the_start(clock: Clock, tmp_path: Path) -> None:
    wanted = OAuthSettings(
        token_url="https://127.0.0.1:1/token",
        client_id="c",
        client_secret=SecretStr("s"),
        tls=TlsSettings(ca_file=tmp_path / "none.pem"),
    )
    with pytest.raises(ConfigError, match=r"mqtt\.token\.oauth\.tls\.ca_file"):
        await OAuthTokens(wanted, "mqtt.token.oauth", monotonic_ns=clock).start()


async def test_while_the_provider_is_down_the_old_token_is_shown_and_then_none(
    provider: IdentityProvider, clock: Clock
) -> None:
    async with running(clock, settings(provider)) as source:
        old = await source.current()
        provider.down()
        clock.ahead_ns += 250 * S
        source.refused(old)  # which makes it look at once
        assert (await source.current()) is old
        clock.ahead_ns += 51 * S
        with pytest.raises(CredentialError, match=r"cannot be reached \(connection refused\)"):
            await source.current()
        provider.up()
        clock.ahead_ns += 60 * S
        new = await source.current()
        assert new.token == provider.issued[-1]
        assert new.number == 2


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong secret": (
        {"client_secret": SecretStr("wrong")},
        "(401 invalid_client). Check client_id, client_secret and",
    ),
    "a wrong secret in the form": (
        {"client_secret": SecretStr("wrong"), "client_authentication": "post"},
        "(401 invalid_client). Check client_id",
    ),
    "a scope": ({"scope": "forbidden"}, "(400 invalid_scope). Check scope."),
    "a grant": ({"parameters": {"grant_type": "password"}}, "(400 unsupported_grant_type)"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_the_provider_refuses_is_told_with_what_to_check(
    provider: IdentityProvider, clock: Clock, name: str
) -> None:
    changes, says = REFUSALS[name]
    assert says in await refusal(clock, settings(provider, **changes))


FAULTS = {
    "error": "answers with status 500. The provider has trouble",
    "refused": "refuses (403 unauthorized_client). The provider must allow",
    "garbage": "does not answer with a token",
    "list": "does not answer with a token",
    "empty": "answers without access_token",
    "redirect": "redirects (302), which is not followed",
    "huge": "more than 262144 bytes",
    "cut": "broke the answer off",
    "held": "has not answered within 0.5s",
    "endless": "has not answered within 0.5s",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_provider_that_misbehaves_is_told_and_gets_nothing_more(
    provider: IdentityProvider, clock: Clock, fault: Any
) -> None:
    provider.token_fault = fault
    with IdentityProvider() as thief:
        provider.redirect_to = thief.token_url
        began = time.monotonic()
        timeout = 0.5 if "within" in FAULTS[fault] else 20
        assert FAULTS[fault] in await refusal(clock, settings(provider, timeout=timeout))
        assert time.monotonic() - began < 60
        assert not thief.counts, "the secret was taken where a redirect leads"


@pytest.mark.parametrize(
    ("kind", "says"), [("mac", "not of type Bearer"), ("bearer", ""), ("BEARER", ""), (None, "not of type Bearer")]
)
async def test_the_type_of_a_token_is_looked_at(provider: IdentityProvider, clock: Clock, kind: Any, says: str) -> None:
    provider.token_type = kind
    if says:
        assert says in await refusal(clock, settings(provider))
        return
    async with running(clock, settings(provider)) as source:
        assert (await source.current()).token == provider.issued[0]


@pytest.mark.parametrize(("expires_in", "opaque", "life_s"), [
    (60, True, 60),
    ("60", True, 60),
    (60.5, True, 60),
    (60, False, 60),  # its exp says 300: what the provider counts needs no clock to agree with ours
    (None, False, 300),
    (None, True, 120),
    (0, True, 120),
    (-5, False, 300),
    ("soon", True, 120),
    (True, True, 120),
    (10**15, True, 120),
    ([60], True, 120),
])  # fmt: skip
async def test_how_long_a_token_is_good(
    provider: IdentityProvider, clock: Clock, expires_in: Any, life_s: int, *, opaque: bool
) -> None:
    provider.expires_in, provider.opaque = expires_in, opaque
    async with running(clock, settings(provider, lifetime=120)) as source:
        credential = await source.current()
        assert credential.expires_at_ns is not None
        assert abs(credential.expires_at_ns - clock() - life_s * S) < 30 * S


async def test_a_secret_in_a_file_may_be_rotated(provider: IdentityProvider, clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    async with running(clock, settings(provider, client_secret=FileSecret(SECRET, file))) as source:
        first = await source.current()
        provider.clients["gateway"] = "the-next-secret"
        file.write_text("the-next-secret\n")
        clock.ahead_ns += 10 * S
        source.refused(first)

        async def is_another() -> bool:
            return (await source.current()).number != first.number

        await until(is_another, "another token")
        assert (await source.current()).token == provider.issued[1]


async def test_proxies_of_the_environment_get_no_secret(
    provider: IdentityProvider, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with running(clock, settings(provider)) as source:
        assert (await source.current()).token == provider.issued[0]


async def test_neither_secret_nor_token_is_said(
    provider: IdentityProvider, clock: Clock, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(clock, settings(provider)) as source:
        first = await source.current()
        clock.ahead_ns += 10 * S
        source.refused(first)
        second = await source.current()
        provider.token_fault = "refused"
        clock.ahead_ns += 301 * S
        with pytest.raises(GatewayError):
            await source.current()
        shown = repr(source) + repr(first) + repr(settings(provider))
    said = capsys.readouterr()
    everything = said.out + said.err + caplog.text + shown
    assert "token_taken" in everything
    assert "token_refused" in everything
    assert "token_failed" in everything
    for secret in (SECRET, first.token, second.token, base64.b64encode(f"gateway:{SECRET}".encode()).decode()):
        assert secret not in everything


async def test_a_stop_does_not_wait_for_the_provider(provider: IdentityProvider) -> None:
    provider.token_fault = "held"
    source = OAuthTokens(settings(provider, timeout="2m"), "mqtt.token.oauth")
    await source.start()
    await asyncio.to_thread(provider.wait_for, lambda: provider.counts["token"] == 1, "the first request")
    async with asyncio.timeout(60):
        await source.close()
        await source.close()
