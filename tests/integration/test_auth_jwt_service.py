"""``gateway auth serve`` with tokens: what EMQX hears, for how long it holds, and what forgers get."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.auth_process import AuthServe, auth_serve
from tests.servers.identity_provider import IdentityProvider, make_key
from tests.unit.jwt_tokens import hand_made

SECRET = "an-issuer-and-this-service-share-it"
CHAIN = """
chain = ["jwt", "database"]
[auth.jwt]
[[auth.jwt.keys]]
name = "devices"
algorithms = ["HS256"]
secret_file = "jwt-secret"
claims = {{sub = "${{clientid}}"}}
[[auth.jwt.keys]]
name = "people"
algorithms = ["ES256", "RS256"]
jwks_url = "{jwks_url}"
issuer = "{issuer}"
audience = "mqtt"
"""


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as started:
        started.claims = {"aud": "mqtt"}
        yield started


@pytest.fixture(scope="module")
def served(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthServe]:
    folder = tmp_path_factory.mktemp("jwt")
    (folder / "jwt-secret").write_text(SECRET + "\n")
    auth = CHAIN.format(jwks_url=provider.jwks_url, issuer=provider.url)
    with auth_serve(folder, auth=auth) as started:
        started.wait_for("auth_ready")
        started.wait_for("jwks_fetched")
        started.add_user("alice", "correct horse")
        yield started
        assert started.stop() < 0
        assert started.wait_for("auth_stopped")["clean"] is True
        events = {line["event"] for line in started.lines}
        assert not events & {"text", "jwks_defect", "auth_defect", "auth_backend_defect"}


def device_token(clientid: str, life_s: float = 300, **claims: object) -> str:
    return hand_made({"alg": "HS256"}, {"sub": clientid, "exp": int(time.time() + life_s), **claims}, SECRET)


def test_emqx_hears_who_the_device_is_what_it_may_and_until_when(served: AuthServe) -> None:
    ends = int(time.time()) + 500
    acl = [{"permission": "allow", "action": "publish", "topic": "d/${clientid}/#"}]
    text = hand_made(
        {"alg": "HS256"},
        {"sub": "c", "exp": ends, "tenant": "acme", "groups": ["b", "a"], "acl": acl, "is_superuser": True},
        SECRET,
    )
    answer = served.login("", text)
    assert answer["result"] == "allow"
    assert answer["is_superuser"] is False
    assert answer["expire_at"] == ends
    assert answer["client_attrs"] == {"tenant": "acme", "groups": "a,b"}
    [rule] = [one for one in answer["acl"] if one["permission"] == "allow"]
    assert (rule["action"], rule["topic"]) == ("publish", "d/c/#")
    assert served.login("", text) == answer, "the same from the cache"


def test_a_password_is_for_the_next_in_the_chain(served: AuthServe) -> None:
    served.until(lambda: served.login("alice", "correct horse")["result"] == "allow", "the user is not known")
    assert served.login("alice", "wrong") == {"result": "deny"}


def test_no_cache_outlives_the_token(served: AuthServe) -> None:
    for life_s in (5, 20, 60):  # a busy machine may take longer than the first of them
        text = device_token("c", life_s=life_s)
        if (answer := served.login("", text))["result"] == "allow":
            break
    while (asked_s := time.time()) < answer["expire_at"]:
        if served.login("", text)["result"] == "deny":
            assert time.time() >= answer["expire_at"], f"denied at {asked_s}, before {answer['expire_at']}"
    assert served.login("", text) == {"result": "deny"}


def test_forgers_are_told_no_and_no_token_is_in_the_log(served: AuthServe, provider: IdentityProvider) -> None:
    refused = [
        hand_made({"alg": "HS256"}, {"sub": "c", "exp": 4_000_000_000}, "guessed"),
        provider.sign({"aud": "mqtt"}, key=make_key("ES256")),
        provider.sign({"aud": "billing"}),
        device_token("c", life_s=-10),
        device_token("root"),
        "a." + "b" * 65_000 + ".c",
    ]
    good = device_token("c")
    assert served.login("", good)["result"] == "allow"
    for text in refused:
        reply = served.ask("/authn", {"username": "", "clientid": "c", "password": text})
        assert (reply.status, reply.data) == (200, {"result": "deny"})
    log = served.log.read_text()
    for secret in (*refused, good, good.rpartition(".")[2], SECRET):
        assert secret not in log


def test_readiness_says_that_no_keys_have_come(provider: IdentityProvider, tmp_path: Path) -> None:
    (tmp_path / "jwt-secret").write_text(SECRET)
    provider.down()
    try:
        auth = CHAIN.format(jwks_url=provider.jwks_url, issuer=provider.url)
        with auth_serve(tmp_path, auth=auth) as alone:
            alone.wait_for("jwks_failed")
            alone.until(lambda: alone.get("/readyz").status == 503, "/readyz does not say that keys are missing")
            assert "jwt" in str(alone.get("/readyz").data["reasons"])
            assert alone.login("", device_token("c"))["result"] == "allow", "the other key is there"
            assert alone.login("bob", provider.sign({"aud": "mqtt"})) == {"result": "deny"}
            provider.up()
            alone.until(
                lambda: alone.login("bob", provider.sign({"aud": "mqtt"}))["result"] == "allow", "the keys do not come"
            )
            alone.until(lambda: alone.get("/readyz").status == 200, "/readyz does not say that keys have come")
    finally:
        provider.up()
