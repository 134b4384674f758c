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
    with open("gateway.toml", "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(text)
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


def test_a_table_without_a_source_is_refused(side: str) -> None:
    said = refused(side, "renew_at = 0.5")
    assert said.startswith(f"{side} (gateway.toml:")
    assert "none of value, file and oauth" in said


@pytest.mark.parametrize(
    ("token", "names"),
    [
        (f'value = "{SECRET}"\nfile = "token"', ("value", "file")),
        (f'file = "token"\noauth:{OAUTH}', ("file", "oauth")),
        (f'value = "{SECRET}"\noauth:{OAUTH}', ("value", "oauth")),
    ],
)
def test_two_sources_are_refused(side: str, token: str, names: tuple[str, str]) -> None:
    said = refused(side, token)
    assert said.startswith(f"{side}.{names[0]} ")
    assert f"and {side}.{names[1]} " in said
    assert "only one can be the token" in said


def test_a_client_that_cannot_prove_itself_is_refused(side: str) -> None:
    said = refused(side, 'oauth:token_url = "https://idp/token"\nclient_id = "gateway"')
    assert f"neither {side}.oauth.client_secret nor {side}.oauth.tls.certificate_file" in said


def test_a_client_certificate_is_proof_enough(side: str) -> None:
    loaded(side, 'oauth:token_url = "https://idp/token"\nclient_id = "gateway"\ntls.certificate_file = "c.pem"')


@pytest.mark.parametrize("line", ['tls.key_file = "k.pem"', 'tls.key_password = "hunter2"'])
def test_a_key_without_its_certificate_is_refused(side: str, line: str) -> None:
    said = refused(side, f"oauth:{OAUTH}{line}")
    assert said.startswith(f"{side}.oauth.{line.partition(' ')[0]} ")
    assert f"without {side}.oauth.tls.certificate_file" in said


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("scope", "write it to {}.oauth.scope"),
        ("client_secret", "write it to {}.oauth.client_secret"),
        ("grant_type", "remove it"),
    ],
)
def test_a_field_that_has_a_setting_is_no_parameter(side: str, name: str, instead: str) -> None:
    said = refused(side, f'oauth:{OAUTH}parameters = {{{name} = "hunter2"}}')
    assert f"{side}.oauth.parameters (gateway.toml:" in said
    assert f'has "{name}"' in said
    assert instead.format(side) in said


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


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://idp.example/oauth2/token?api=1", "idp.example"),
        ("HTTPS://idp.example", "idp.example"),
        ("http://127.0.0.1:8080/jwks", "127.0.0.1"),
        ("https://[::1]:8443/jwks", "::1"),
        ("https://idp.example/a%20b", "idp.example"),
    ],
)
def test_what_is_a_url(url: str, host: str) -> None:
    assert parse_http_url(url) == host


@pytest.mark.parametrize(
    ("url", "says"),
    [
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
    ],
)
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
