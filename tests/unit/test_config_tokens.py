"""Settings of tokens and of the servers that give them: what is refused at load, and what is warned of."""

import os
from pathlib import Path

import pytest

from config.errors import ConfigError
from config.loading.load import Loaded, load
from config.values.addresses import is_readable_on_the_way, parse_http_url

SECRET = "hunter2-hunter2"
OAUTH = f"""
token_url = "https://idp.example/token"
client_id = "gateway"
client_secret = "{SECRET}"
"""
SIDES = {
    "mqtt.token": '[mqtt]\naddresses = ["mqtts://emqx.example"]\nusername = "u"\n',
    "kafka.sasl.token": '[kafka]\nsecurity = "SASL_SSL"\n[kafka.sasl]\nmechanism = "OAUTHBEARER"\n',
}


@pytest.fixture(params=SIDES)
def side(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    assert not any(name.startswith("GATEWAY_") for name in os.environ)
    return str(request.param)


def loaded(side: str, token: str) -> Loaded:
    """The settings with this table; ``oauth:`` in front of what is in its table of that name."""
    own, _, oauth = token.partition("oauth:")
    text = f"{SIDES[side]}[{side}]\n{own}\n" + (f"[{side}.oauth]\n{oauth}\n" if oauth else "")
    Path("gateway.toml").write_text(text)
    return load(environ={})


def refused(side: str, token: str) -> str:
    with pytest.raises(ConfigError) as failure:
        loaded(side, token)
    assert len(failure.value.problems) == 1, failure.value
    assert "hunter2" not in str(failure.value)
    return str(failure.value)


@pytest.mark.parametrize("token", [f'value = "{SECRET}"', 'file = "token"', f"oauth:{OAUTH}"])
def test_each_source_alone_is_sound(side: str, token: str) -> None:
    assert loaded(side, token).warnings == ()


PARAMETERS = "{}.oauth.parameters (gateway.toml:"


@pytest.mark.parametrize(("token", "begins", "says"), [
    ("renew_at = 0.5", "{} (gateway.toml:", ["none of value, file and oauth"]),
    (f'value = "{SECRET}"\nfile = "token"', "{}.value ", ["and {}.file ", "only one can be the token"]),
    (f'file = "token"\noauth:{OAUTH}', "{}.file ", ["and {}.oauth ", "only one can be the token"]),
    (f'value = "{SECRET}"\noauth:{OAUTH}', "{}.value ", ["and {}.oauth ", "only one can be the token"]),
    ('oauth:token_url = "https://idp/token"\nclient_id = "gateway"', "",
        ["neither {}.oauth.client_secret nor {}.oauth.tls.certificate_file"]),
    (f'oauth:{OAUTH}tls.key_file = "k.pem"', "{}.oauth.tls.key_file ", ["without {}.oauth.tls.certificate_file"]),
    (f'oauth:{OAUTH}tls.key_password = "hunter2"', "{}.oauth.tls.key_password ",
        ["without {}.oauth.tls.certificate_file"]),
    (f'oauth:{OAUTH}parameters = {{scope = "hunter2"}}', PARAMETERS, ['has "scope"', "write it to {}.oauth.scope"]),
    (f'oauth:{OAUTH}parameters = {{client_secret = "hunter2"}}', PARAMETERS,
        ['has "client_secret"', "write it to {}.oauth.client_secret"]),
    (f'oauth:{OAUTH}parameters = {{grant_type = "hunter2"}}', PARAMETERS, ['has "grant_type"', "remove it"]),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_its_settings(side: str, token: str, begins: str, says: list[str]) -> None:
    said = refused(side, token)
    assert said.startswith(begins.format(side))
    for part in says:
        assert part.format(side, side) in said


def test_a_client_certificate_is_proof_enough(side: str) -> None:
    loaded(side, 'oauth:token_url = "https://idp/token"\nclient_id = "gateway"\ntls.certificate_file = "c.pem"')


@pytest.mark.parametrize(
    ("url", "warned"), [("http://idp.example/token", True), ("http://127.0.0.1:8080/token", False)]
)
def test_a_secret_on_an_open_line_is_warned_of(side: str, url: str, *, warned: bool) -> None:
    warnings = loaded(side, f"oauth:{OAUTH}".replace("https://idp.example/token", url)).warnings
    assert any(f'{side}.oauth.token_url = "{url}"' in one and "use https://" in one for one in warnings) is warned
    assert "hunter2" not in str(warnings)


def test_an_identity_provider_that_is_not_verified_is_warned_of(side: str) -> None:
    [warning] = loaded(side, f"oauth:{OAUTH}tls.verify = false").warnings
    assert f"{side}.oauth.tls.verify = false" in warning
    assert f"{side}.oauth.tls.ca_file" in warning


@pytest.mark.parametrize(("url", "host"), [
    ("https://idp.example/oauth2/token?api=1", "idp.example"),
    ("HTTPS://idp.example", "idp.example"),
    ("http://127.0.0.1:8080/jwks", "127.0.0.1"),
    ("https://[::1]:8443/jwks", "::1"),
    ("https://idp.example/a%20b", "idp.example"),
])  # fmt: skip
def test_what_is_a_url(url: str, host: str) -> None:
    assert parse_http_url(url) == host


@pytest.mark.parametrize(("url", "says"), [
    ("idp.example/token", "starts with its scheme"),
    ("ftp://idp.example", "starts with its scheme"),
    ("file:///etc/passwd", "starts with its scheme"),
    ("https://", "host is missing"),
    ("https:///token", "host is missing"),
    ("https://user:hunter2@idp/token", "no user name or password"),
    ("https://idp/token#hunter2", '"#" part'),
    ("https://idp/to ken", "no spaces"),
    ("https://idp/token\r\nX: y", "no spaces"),
    ("https://idp/tökén", "beyond ASCII"),
    ("https://idp:0/token", "a port is"),
    ("https://idp:99999/token", "a port is"),
    ("https://i_d-/token", "neither a host name"),
    ("https://[::1/token", "no IPv6 address"),
])  # fmt: skip
def test_what_is_no_url(url: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as failure:
        parse_http_url(url)
    assert "hunter2" not in str(failure.value)


def test_only_this_machine_may_be_spoken_to_openly() -> None:
    assert is_readable_on_the_way("http://idp.example/token")
    assert is_readable_on_the_way("HTTP://10.0.0.1/token")
    assert not is_readable_on_the_way("https://idp.example/token")
    assert not is_readable_on_the_way("http://localhost:80/token")
    assert not is_readable_on_the_way("http://[::1]/token")
