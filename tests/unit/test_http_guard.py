"""Who may read what on the HTTP port."""

import base64
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from config.settings import HttpSettings, ServerTlsSettings
from config.values.secret_files import FileSecret
from gateway.http.guard import Guard, Question

TOKEN = "0123456789abcdef:with-a-colon"
ANYWHERE = "0.0.0.0"
AUTHORITIES = ServerTlsSettings(certificate_file=Path("c"), client_ca_file=Path("ca"))
PATHS = ("/", "/metrics", "/status", "/healthz", "/readyz")


def guard(host: str = "127.0.0.1", *, token: bool = False, authorities: bool = False) -> Guard:
    return Guard(
        HttpSettings(host=host, token=SecretStr(TOKEN) if token else None, tls=AUTHORITIES if authorities else None)
    )


def statuses(judge: Guard, **shown: Any) -> list[int]:
    return [judge.judge(Question(path, **shown)).status for path in PATHS]


def basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


#                                                    page metrics status  health ready
CASES: dict[str, tuple[Guard, list[int]]] = {
    "this machine alone": (guard(), [200, 200, 200, 200, 200]),
    "a name of this machine": (guard("localhost"), [200, 200, 200, 200, 200]),
    "all machines": (guard(ANYWHERE), [403, 200, 403, 200, 200]),
    "a name that may be anybody's": (guard("gateway.plant"), [403, 200, 403, 200, 200]),
    "a token": (guard(token=True), [401, 401, 401, 200, 200]),
    "a token, all machines": (guard(ANYWHERE, token=True), [401, 401, 401, 200, 200]),
    "authorities": (guard(authorities=True), [403, 403, 403, 200, 200]),
    "authorities, all machines": (guard(ANYWHERE, authorities=True), [403, 403, 403, 200, 200]),
    "a token and authorities": (guard(ANYWHERE, token=True, authorities=True), [401, 401, 401, 200, 200]),
}


@pytest.mark.parametrize(("judge", "expected"), CASES.values(), ids=CASES)
def test_who_shows_nothing_and_who_shows_a_client_certificate(judge: Guard, expected: list[int]) -> None:
    assert statuses(judge, host="localhost:9464") == expected
    assert statuses(judge, host="gateway.plant", certified=True) == [200] * 5


@pytest.mark.parametrize("name", [name for name in CASES if "token" in name])
@pytest.mark.parametrize(
    "authorization",
    [f"Bearer {TOKEN}", f"bearer   {TOKEN} ", basic("", TOKEN), basic("prometheus", TOKEN), basic("ü", TOKEN)],
)
def test_the_token_opens_everything_under_any_name(name: str, authorization: str) -> None:
    judge, _ = CASES[name]
    assert statuses(judge, host="gateway.plant", authorization=authorization) == [200] * 5
    assert not judge.judge(Question("/readyz", host="gateway.plant", authorization=authorization)).terse


@pytest.mark.parametrize("authorization", [
    "Bearer", "Bearer ", "Bearer 0123456789abcdef", f"Bearer {TOKEN}x", f"Bearer  {TOKEN} {TOKEN}",
    f"Digest {TOKEN}", TOKEN, basic(TOKEN, ""), "Basic ", "Basic ====", f"Basic {TOKEN}", "Bearer \udcff\udcfe",
    "Bearer ümlaut",
])  # fmt: skip
def test_another_token_opens_nothing_and_is_noted(authorization: str) -> None:
    verdict = guard(token=True).judge(Question("/status", authorization=authorization))
    assert verdict.status == 401
    assert verdict.tried
    assert "http.token" in verdict.sentence
    assert TOKEN not in verdict.sentence


def test_a_browser_that_has_not_asked_yet_has_tried_nothing() -> None:
    assert not guard(token=True).judge(Question("/")).tried
    assert not guard().judge(Question("/", authorization="Bearer of-something-else")).tried


def test_a_token_that_has_become_empty_opens_nothing() -> None:
    judge = Guard(HttpSettings(token=SecretStr("")))
    assert judge.judge(Question("/status", authorization="Bearer ")).status == 401


def test_a_token_is_read_again_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first-0123456789\n")
    judge = Guard(HttpSettings(token=FileSecret("first-0123456789", file)))
    first, second = (Question("/status", authorization=f"Bearer {name}-0123456789") for name in ("first", "second"))
    assert judge.judge(first).status == 200
    file.write_text("second-0123456789\n")
    assert judge.judge(first).status == 401
    assert judge.judge(second).status == 200
    file.unlink()  # it is being replaced
    assert judge.judge(second).status == 200


@pytest.mark.parametrize(("host", "text", "taken"), [
    (ANYWHERE, "short", False), ("127.0.0.1", "short", True), (ANYWHERE, "two words, and long", False),
])  # fmt: skip
def test_a_token_that_a_start_would_refuse_is_not_taken_from_its_file(
    tmp_path: Path, host: str, text: str, taken: bool
) -> None:
    file = tmp_path / "token"
    judge = Guard(HttpSettings(host=host, token=FileSecret(TOKEN, file)))
    file.write_text(text)
    assert judge.judge(Question("/status", authorization=f"Bearer {text}")).status == (200 if taken else 401)
    assert judge.judge(Question("/status", authorization=f"Bearer {TOKEN}")).status == (401 if taken else 200)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:9464", "127.0.0.1:9464", "127.8.8.8", "[::1]:9464", "localhost.:9464", "a.localhost", ""],
)
def test_names_of_this_machine_are_answered(host: str) -> None:
    assert statuses(guard(), host=host) == [200] * 5
    assert not guard().judge(Question("/readyz", host=host)).terse


@pytest.mark.parametrize(
    "host",
    ["evil.example:9464", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]", "[", "10.0.0.1", "x@127.0.0.1"],
)
def test_a_strangers_name_that_leads_here_is_not_answered(host: str) -> None:
    """DNS rebinding: the browser takes the page that asks for one of the same origin."""
    assert statuses(guard(), host=host) == [403, 403, 403, 200, 200]
    assert guard().judge(Question("/readyz", host=host)).terse
    assert "http.token" in guard().judge(Question("/status", host=host)).sentence


def test_readyz_gives_reasons_on_this_machine_alone() -> None:
    assert not guard().judge(Question("/readyz", host="localhost")).terse
    assert guard(ANYWHERE).judge(Question("/readyz", host="localhost")).terse
    assert guard(ANYWHERE, token=True).judge(Question("/readyz")).terse


@pytest.mark.parametrize("site", ["cross-site", "same-site", "something new"])
def test_what_another_sites_page_asks_for_is_refused_whatever_is_sent_along(site: str) -> None:
    for judge, shown in (
        (guard(), {}),
        (guard(token=True), {"authorization": basic("", TOKEN)}),
        (guard(authorities=True), {"certified": True}),
    ):
        assert statuses(judge, host="localhost", fetch_site=site, fetch_dest="script", **shown) == [403] * 5
        assert statuses(judge, host="localhost", fetch_site=site, fetch_dest="iframe", **shown) == [403] * 5
        # A link that somebody follows opens the page itself, which the other site cannot read.
        assert statuses(judge, host="localhost", fetch_site=site, fetch_dest="document", **shown) == [200] * 5


def test_its_own_page_and_the_address_bar_are_answered() -> None:
    for site in ("same-origin", "none"):
        assert statuses(guard(), host="localhost", fetch_site=site, fetch_dest="empty") == [200] * 5


def test_what_is_closed_says_what_opens_it() -> None:
    exposed = guard(ANYWHERE).judge(Question("/status")).sentence
    assert "http.host = 0.0.0.0" in exposed
    assert "http.token" in exposed
    assert "http.tls.client_ca_file" in exposed
    assert "http.tls.client_ca_file" in guard(authorities=True).judge(Question("/")).sentence
    named = Guard(HttpSettings(host=ANYWHERE), "auth.operator_host").judge(Question("/status")).sentence
    assert "auth.operator_host = 0.0.0.0" in named
