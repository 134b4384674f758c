"""Logins by token: what is let in, what is refused, and what is left to the next in the chain."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from auth.backends.jwt import JwtAuthenticator
from auth.jwt.jwks import JwksKeys
from auth.jwt.parsing import parse_token
from auth.model import Allow, Deny, Ignore
from config.tables.auth import AuthJwtSettings
from tests.kinds import is_a
from tests.servers.identity_provider import make_key
from tests.unit.jwt_tokens import NOW_S, PAIRS, RSA_ALGORITHMS, hand_made, key, key_file, login, pem, segment, token

HS256 = {"alg": "HS256", "typ": "JWT"}


# --- what is let in ---------------------------------------------------------------------------------------------------
async def test_a_good_token_lets_its_bearer_in_until_it_expires() -> None:
    verdict = await login(token())
    assert verdict == Allow(source="jwt k", user="dev-1", expires_at_s=NOW_S + 300)


@pytest.mark.parametrize(("algorithm", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
async def test_each_algorithm_with_a_secret(algorithm: str, size: int) -> None:
    secret = "s" * size
    shared = key(secret=SecretStr(secret), algorithms=(algorithm,))
    assert isinstance(await login(token(secret=secret, algorithm=algorithm), shared), Allow)
    assert isinstance(await login(token(secret="t" * size, algorithm=algorithm), shared), Ignore)


@pytest.mark.parametrize("algorithm", [*RSA_ALGORITHMS, "ES256", "ES384", "ES512", "EdDSA"])
async def test_each_algorithm_with_a_public_key(algorithm: str, tmp_path: Path) -> None:
    pair = "RS256" if algorithm in RSA_ALGORITHMS else algorithm
    wanted = key(public_key_file=key_file(tmp_path, pair), algorithms=(algorithm,))
    text = token(secret=PAIRS[pair].private, algorithm=algorithm)
    assert isinstance(await login(text, wanted), Allow)
    other = make_key(pair).private
    assert isinstance(await login(token(secret=other, algorithm=algorithm), wanted), Ignore)
    damaged = text[:-8] + ("AAAAAAAA" if not text.endswith("AAAAAAAA") else "BBBBBBBB")
    assert isinstance(await login(damaged, wanted), Ignore)


async def test_key_sets_that_are_fetched_are_closed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[JwksKeys] = []

    async def close(keys: JwksKeys) -> None:
        closed.append(keys)

    monkeypatch.setattr(JwksKeys, "close", close)
    fetched = key(jwks_url="https://issuer.example/keys", algorithms=("RS256",))
    authenticator = JwtAuthenticator(AuthJwtSettings(keys=(key(name="own"), fetched)))
    await authenticator.close()
    assert closed == [*authenticator.key_sets.values()]
    assert closed


async def test_a_secret_may_be_bytes_in_base64() -> None:
    secret = bytes(range(200, 248))
    text = base64.b64encode(secret).decode()
    wanted = key(secret=SecretStr(text), secret_base64=True)
    assert isinstance(await login(token(secret=secret), wanted), Allow)
    assert isinstance(await login(token(secret=text), wanted), Ignore)


async def test_the_public_key_may_stand_in_a_certificate(tmp_path: Path) -> None:
    private = PAIRS["ES256"].private
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    begun = x509.CertificateBuilder(name, name, private.public_key(), 1)
    made = (
        begun.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2040, 1, 1, tzinfo=UTC))
        .sign(private, hashes.SHA256())
    )
    file = tmp_path / "issuer.crt"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    wanted = key(public_key_file=file, algorithms=("ES256",))
    assert isinstance(await login(token(secret=private, algorithm="ES256"), wanted), Allow)


async def test_the_token_may_be_the_user_name() -> None:
    assert isinstance(await login("a password", username=token(), source="username"), Allow)
    assert isinstance(await login(token(), username="", source="username"), Ignore)


async def test_keys_are_tried_in_order_and_the_first_that_lets_in_decides(tmp_path: Path) -> None:
    first = key(name="first", public_key_file=key_file(tmp_path), algorithms=("RS256",))
    second, third = key(name="second", audience="b"), key(name="third", audience="c")
    keys = (first, second, third)
    assert is_a(Allow, await login(token({"aud": "c"}), *keys)).source == "jwt third"
    assert is_a(Deny, await login(token({"aud": "d"}), *keys)).source == "jwt second"


async def test_an_issuer_is_not_asked_for_the_key_of_anothers_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each login would wait a second while that issuer is down, and it was asked every ten seconds."""

    async def start(_keys: JwksKeys) -> None: ...

    async def candidates(*_: object) -> list[object]:
        pytest.fail("the issuer is asked")

    monkeypatch.setattr(JwksKeys, "start", start)
    monkeypatch.setattr(JwksKeys, "candidates", candidates)
    fetched = key(name="fetched", jwks_url="https://issuer.example/keys", algorithms=("RS256",))
    own = key(name="own", public_key_file=key_file(tmp_path), algorithms=("RS256",))
    text = token(secret=PAIRS["RS256"].private, algorithm="RS256")
    assert isinstance(await login(text, fetched, own), Allow)


async def test_what_a_token_says_of_its_bearer_comes_with_it() -> None:
    unusable = {"bad name": "x", "number": 5, "tenant": "evil", "groups": "evil", "nul": "\x00"}
    claims = {
        "tenant": "acme",
        "groups": ["b", "a", ""],
        "client_attrs": {"site": "berlin", **unusable},
        "is_superuser": True,
    }
    verdict = is_a(Allow, await login(token(claims)))
    assert (verdict.tenant, verdict.groups) == ("acme", {"a", "b"})
    assert dict(verdict.attributes) == {"site": "berlin"}
    assert not verdict.is_superuser, "a key makes superusers only where told"


@pytest.mark.parametrize(
    ("claim", "superuser"), [(True, True), (False, False), ("true", False), (1, False), (None, False)]
)
async def test_a_key_may_be_allowed_to_make_superusers(claim: object, *, superuser: bool) -> None:
    verdict = is_a(Allow, await login(token({"is_superuser": claim}), key(superuser=True)))
    assert verdict.is_superuser is superuser


async def test_claims_whose_names_are_turned_off_are_not_read() -> None:
    claims = {"tenant": 5, "groups": 5, "acl": 5}
    verdict = is_a(Allow, await login(token(claims), tenant_claim="", groups_claim="", acl_claim=""))
    verdict = await login(token({**claims, "t": "acme", "g": ["x"]}), tenant_claim="t", groups_claim="g", acl_claim="a")
    assert (verdict.tenant, verdict.groups) == ("acme", {"x"})


async def test_the_rules_of_an_acl_claim_come_with_the_login() -> None:
    verdict = is_a(Allow, await login(token({"acl": [{"permission": "deny", "action": "pub", "topics": ["a", "b"]}]})))
    assert [(rule.permission, rule.topic) for rule in verdict.rules] == [("deny", "a"), ("deny", "b")]
    assert not verdict.closed
    verdict = await login(token({"acl": {"sub": ["a/#"]}}))
    assert [rule.topic for rule in verdict.rules] == ["a/#"]
    assert verdict.closed


@pytest.mark.parametrize("acl", [5, "all", [{"permission": "maybe", "action": "all", "topic": "t"}], [5]])
async def test_an_acl_claim_that_holds_no_rules_refuses_the_login(acl: object) -> None:
    assert "acl" in is_a(Deny, await login(token({"acl": acl}))).detail


# --- what is left to the next in the chain ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text", ["", "hunter2", "a.b", "a.b.c", "..", "a.b.c.d.e", "ä.b.c", "eyJ9.e30.", " ", "\x00.\x00.\x00"]
)
async def test_what_is_no_token_is_left_to_others(text: str) -> None:
    assert isinstance(await login(text), Ignore)


CLAIMS = {"sub": "dev-1", "exp": NOW_S + 300}
UNREADABLE = {
    "alg none": f"{segment({'alg': 'none'})}.{segment(CLAIMS)}.",
    "alg None": f"{segment({'alg': 'None'})}.{segment(CLAIMS)}.",
    "alg none with a signature": hand_made({"alg": "none"}, CLAIMS),
    "alg missing": hand_made({"typ": "JWT"}, CLAIMS),
    "alg a list": hand_made({"alg": ["HS256"]}, CLAIMS),
    "alg null": hand_made({"alg": None}, CLAIMS),
    "alg in small letters": hand_made({"alg": "hs256"}, CLAIMS),
    "alg with spaces": hand_made({"alg": "HS256 "}, CLAIMS),
    "alg twice": hand_made('{"alg":"none","alg":"HS256"}', CLAIMS),
    "an extension that must be known": hand_made({"alg": "HS256", "crit": ["exp"], "exp": 1}, CLAIMS),
    "an unencoded payload": hand_made({"alg": "HS256", "crit": ["b64"], "b64": False}, CLAIMS),
    "an empty crit": hand_made({"alg": "HS256", "crit": []}, CLAIMS),
    "a key id that is no text": hand_made({"alg": "HS256", "kid": 5}, CLAIMS),
    "a key id that is a path": hand_made({"alg": "HS256", "kid": "../" * 100}, CLAIMS),
    "a header that is a list": hand_made('["HS256"]', CLAIMS),
    "a header that is no JSON": hand_made("{alg:HS256}", CLAIMS),
    "a header that is no text": hand_made(b'{"alg":"HS256\xff"}', CLAIMS),
    "a header with NaN": hand_made('{"alg":"HS256","x":NaN}', CLAIMS),
    "a header with half a character": hand_made('{"alg":"HS256","x":"\\ud800"}', CLAIMS),
    "a large header": hand_made({"alg": "HS256", "x": "y" * 4096}, CLAIMS),
    "a deep header": hand_made('{"alg":"HS256","x":' + "[" * 1000 + "]" * 1000 + "}", CLAIMS),
    "no signature": token().rpartition(".")[0] + ".",
    "half a signature": token()[:-10],
    "another's signature": token().rpartition(".")[0] + "." + token({"sub": "x"}).rpartition(".")[2],
    "padding": token() + "=",
    "a line end": token() + "\n",
    "a space before": " " + token(),
    "a scheme before": "Bearer " + token(),
    "too long": token({"filler": "x" * (64 << 10)}),
    "encrypted": f"{segment({'alg': 'dir', 'enc': 'A256GCM'})}..a.b.c",
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_a_forged_token_is_no_token(name: str) -> None:
    assert "dev-1" not in is_a(Ignore, await login(UNREADABLE[name])).reason


async def test_a_public_key_is_no_secret(tmp_path: Path) -> None:
    """The classic: the issuer's public key, as everybody can have it, used as the secret of an HS256 token."""
    file = key_file(tmp_path)
    text = pem(PAIRS["RS256"].private)
    wanted = key(public_key_file=file, algorithms=("RS256",))
    numbers = PAIRS["RS256"].private.public_key()
    der = numbers.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    for secret in (text, text.strip(), der):
        for algorithm in ("HS256", "RS256"):
            assert isinstance(await login(hand_made({"alg": algorithm}, CLAIMS, secret), wanted), Ignore)


async def test_keys_in_the_header_are_not_looked_at(tmp_path: Path) -> None:
    forger = make_key("ES256")
    headers = {
        "jwk": forger.jwk(), "x5c": ["MIIB"], "x5t": "abc", **dict.fromkeys(("jku", "x5u"), "http://127.0.0.1:1/"),
    }  # fmt: skip
    wanted = key(public_key_file=key_file(tmp_path, "ES256"), algorithms=("ES256",))
    assert isinstance(await login(token(secret=forger.private, algorithm="ES256", **headers), wanted), Ignore)
    honest = token(secret=PAIRS["ES256"].private, algorithm="ES256", **headers)
    assert isinstance(await login(honest, wanted), Allow), "they do no harm either"


@pytest.mark.parametrize("raw", [b"", b"\x00" * 64, b"\xff" * 64, b"\x30" + b"\x00" * 70, b"\x00" * 132, b"x" * 9000])
@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "ES512", "EdDSA", "HS256"])
async def test_a_signature_of_any_shape_is_only_wrong(algorithm: str, raw: bytes, tmp_path: Path) -> None:
    """All zeros among them, which a careless verifier of elliptic curves takes for anything (CVE-2022-21449)."""
    pair = "RS256" if algorithm in RSA_ALGORITHMS else algorithm
    source = {} if algorithm == "HS256" else {"public_key_file": key_file(tmp_path, pair)}
    text = f"{segment({'alg': algorithm})}.{segment(CLAIMS)}.{segment(raw)}"
    assert isinstance(await login(text, key(algorithms=(algorithm,), **source)), Ignore)


@given(st.text(max_size=300))
def test_any_text_gets_a_verdict(text: str) -> None:
    assert isinstance(asyncio.run(login(text)), Ignore)


@given(st.integers(min_value=0), st.sampled_from("AZaz09-_.=!\x00é"))
def test_a_token_with_one_character_changed_is_not_let_in_as_another(at: int, character: str) -> None:
    """Except where the change is in bits of the last character that belong to no byte."""
    honest = token()
    at %= len(honest)
    changed = honest[:at] + character + honest[at + 1 :]
    verdict = asyncio.run(login(changed))
    assert isinstance(verdict, Ignore) or (
        (verdict == asyncio.run(login(honest)) and at == len(honest) - 1) or changed == honest
    )


# --- what is refused: a right signature, and claims that are not ------------------------------------------------------
@pytest.mark.parametrize(("claims", "says"), [
    ({"exp": None}, "never expires"), ({"exp": (NOW_S + 300) * 1000}, "milliseconds?"),
    *(({"exp": exp}, "has expired") for exp in (NOW_S, NOW_S - 1, 0, -5, str(NOW_S - 1))),
    *(({"exp": exp}, "exp is no moment") for exp in ("soon", "1e12", "٣" * 10, True, [NOW_S + 300], 10**29, 1e300)),
    *(({"nbf": nbf}, "not valid yet") for nbf in (NOW_S + 1, str(NOW_S + 1))), ({"nbf": "x"}, "nbf is no moment"),
    ({"iat": NOW_S + 61}, "issued in the future"), ({"iat": {}}, "iat is no moment"),
    *(({"tenant": tenant}, "tenant is no name") for tenant in (5, "a\nb")),
    *(({"groups": groups}, "groups is no list") for groups in ("a,b", ["a,b"], [5], ["g"] * 257)),
    ({"client_attrs": ["a"]}, "client_attrs is no object"),
])  # fmt: skip
async def test_a_wrong_claim_refuses(claims: dict[str, Any], says: str) -> None:
    verdict = is_a(Deny, await login(token(claims)))
    assert says in verdict.detail
    assert (verdict.source, verdict.user) == ("jwt k", "dev-1")


@pytest.mark.parametrize(("claims", "ends"), [
    ({"exp": NOW_S + 1}, NOW_S + 1), ({"exp": NOW_S + 1.9}, NOW_S + 1), ({"exp": str(NOW_S + 60)}, NOW_S + 60),
    ({"exp": f"{NOW_S + 60}.5"}, NOW_S + 60), ({"nbf": NOW_S}, NOW_S + 300), ({"iat": NOW_S + 60}, NOW_S + 300),
    ({"iat": str(NOW_S)}, NOW_S + 300),
])  # fmt: skip
async def test_moments_are_numbers_or_numeric_texts(claims: dict[str, Any], ends: int) -> None:
    assert is_a(Allow, await login(token(claims))).expires_at_s == ends


async def test_a_login_never_ends_before_it_begins() -> None:
    """EMQX refuses a login whose expire_at is not ahead, so whole seconds are not rounded into the past."""
    assert isinstance(await login(token({"exp": NOW_S + 0.9}), now_s=NOW_S + 0.5), Deny)


async def test_leeway_moves_both_ends_and_the_end_of_the_login() -> None:
    verdict = is_a(Allow, await login(token({"exp": NOW_S - 4, "nbf": NOW_S + 5}), leeway=timedelta(seconds=5)))
    assert verdict.expires_at_s == NOW_S + 1
    assert isinstance(await login(token({"exp": NOW_S - 5}), leeway=timedelta(seconds=5)), Deny)
    assert isinstance(await login(token({"nbf": NOW_S + 6}), leeway=timedelta(seconds=5)), Deny)


async def test_a_token_without_expiry_where_that_is_allowed() -> None:
    for_ever = key(require_expiry=False)
    assert is_a(Allow, await login(token({"exp": None}), for_ever)).expires_at_s is None
    assert isinstance(await login(token({"exp": None}), for_ever, lifetime_max=timedelta(days=1)), Deny)


async def test_a_token_that_is_good_for_too_long_is_refused() -> None:
    limit = timedelta(seconds=300)
    assert isinstance(await login(token(), lifetime_max=limit), Allow)
    assert "lifetime_max" in is_a(Deny, await login(token({"exp": NOW_S + 301}), lifetime_max=limit)).detail


@pytest.mark.parametrize(("claims", "allowed"), [
    ({"iss": "us", "aud": "mqtt"}, True), ({"iss": "us", "aud": ["x", "mqtt"]}, True),
    ({"iss": "us", "aud": ["x"]}, False), ({"iss": "us", "aud": []}, False), ({"iss": "us", "aud": "MQTT"}, False),
    ({"iss": "us", "aud": {"mqtt": 1}}, False), ({"iss": "us"}, False), ({"iss": "them", "aud": "mqtt"}, False),
    ({"iss": ["us"], "aud": "mqtt"}, False), ({"aud": "mqtt"}, False),
])  # fmt: skip
async def test_issuer_and_audience(claims: dict[str, Any], *, allowed: bool) -> None:
    verdict = await login(hand_made(HS256, CLAIMS | claims), key(issuer="us", audience="mqtt"))
    assert isinstance(verdict, Allow if allowed else Deny)


@pytest.mark.parametrize(("wanted", "claims", "allowed"), [
    ({"sub": "${clientid}"}, {"sub": "dev-1"}, True),
    *(({"sub": "${clientid}"}, {"sub": subject}, False) for subject in ("dev-2", None, ["dev-1"], "${clientid}")),
    ({"sub": "device:${clientid}/${username}"}, {"sub": "device:dev-1/user-1"}, True),
    ({"aud": "${username}"}, {"aud": ["x", "user-1"]}, True),
    ({"role": "device", "sub": "${clientid}"}, {"role": "device"}, True),
    ({"role": "device", "sub": "${clientid}"}, {"role": "admin"}, False),
    ({"version": "2"}, {"version": 2}, True), ({"version": "2"}, {"version": 2.0}, False),
    ({"managed": "true"}, {"managed": True}, True), ({"managed": "True"}, {"managed": True}, False),
    ({"note": "Zürich"}, {"note": "Zürich"}, True),
])  # fmt: skip
async def test_claims_that_are_wanted(wanted: dict[str, str], claims: dict[str, Any], *, allowed: bool) -> None:
    verdict = await login(token(claims), key(claims=wanted))
    assert isinstance(verdict, Allow if allowed else Deny)


@pytest.mark.parametrize("name", ["clientid", "username"])
async def test_an_empty_placeholder_matches_nothing_not_even_the_empty(name: str) -> None:
    """Else a client that connects without a user name has the rights of every token that names none."""
    wanted = key(claims={"sub": f"${{{name}}}"})
    assert isinstance(await login(token({"sub": ""}), wanted, **{name: ""}), Deny)
    surrounded = key(claims={"sub": f"a${{{name}}}b"})
    assert isinstance(await login(token({"sub": "ab"}), surrounded, **{name: ""}), Deny)


async def test_a_token_of_two_names_is_good_for_no_others() -> None:
    wanted = key(claims={"sub": "${username}-${clientid}"})
    assert isinstance(await login(token({"sub": "a-b-c"}), wanted, username="a", clientid="b-c"), Allow)
    assert isinstance(await login(token({"sub": "a-b-c"}), wanted, username="a-b", clientid="c"), Deny)


async def test_a_client_id_cannot_bring_a_placeholder_of_its_own() -> None:
    wanted = key(claims={"sub": "${clientid}"})
    assert isinstance(await login(token({"sub": "user-1"}), wanted, clientid="${username}"), Deny)


PAYLOADS = {
    "no JSON": "{",
    "a list": "[1]",
    "a member twice": f'{{"exp":{NOW_S + 300},"sub":"dev-1","sub":"admin"}}',
    "a member twice, deep": f'{{"exp":{NOW_S + 300},"a":{{"b":1,"b":2}}}}',
    "NaN": '{"exp":NaN}',
    "Infinity": '{"exp":Infinity}',
    "a float without end": '{"exp":1e999}',
    "a number of ten thousand digits": '{"exp":' + "9" * 10_000 + "}",
    "a number of forty digits": '{"exp":' + "9" * 40 + "}",
    "depth": f'{{"exp":{NOW_S + 300},"a":' + "[" * 20_000 + "]" * 20_000 + "}",
    "depth in objects": f'{{"exp":{NOW_S + 300},"a":' + '{"a":' * 5000 + "1" + "}" * 5000 + "}",
    "depth without end": "[" * 40_000,
    "no text": b'{"exp":\xff}',
    "half a character": f'{{"exp":{NOW_S + 300},"sub":"\\ud800"}}',
    "UTF-16": f'{{"exp":{NOW_S + 300}}}'.encode("utf-16"),
}


@pytest.mark.parametrize("name", PAYLOADS)
async def test_claims_that_cannot_be_read_refuse(name: str) -> None:
    costs_s = []
    for _ in range(3):  # the garbage collector may run in one
        began_s = time.process_time()
        verdict = is_a(Deny, await login(hand_made(HS256, PAYLOADS[name])))
        costs_s.append(time.process_time() - began_s)
    assert min(costs_s) < 0.2, "it cost too much"
    assert "cannot be read" in verdict.detail


async def test_claims_of_a_stranger_are_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(_data: bytes) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("auth.backends.jwt.json_object", parse)
    assert isinstance(await login(hand_made(HS256, "[" * 40_000, "another secret")), Ignore)


def test_a_header_costs_no_more_than_its_length() -> None:
    """Anybody may send one, and it is read on the event loop. A text without an end that is full of escaped quotes
    took 75 ms: from each of them the rest was read again."""

    def cost_s(header: str) -> float:
        text = f"{segment(header.encode())}.e30.AA"
        costs = []
        for _ in range(5):
            began_s = time.process_time()
            with pytest.raises(ValueError, match="it holds no JSON"):
                parse_token(text)
            costs.append(time.process_time() - began_s)
        return min(costs)

    brackets = "[" * 20
    assert cost_s('{"a":"' + '\\"' * 1450 + brackets) < 20 * cost_s('{"a":"' + "x" * 2900 + brackets)


async def test_texts_with_brackets_are_not_deep() -> None:
    assert isinstance(await login(token({"note": "[{" * 100 + '\\"[', "list": [[["]"]]]})), Allow)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    ),
    st.sampled_from(
        ["exp", "nbf", "iat", "sub", "aud", "iss", "tenant", "groups", "client_attrs", "is_superuser", "acl"]
    ),
)
def test_any_value_of_any_claim_gets_a_verdict(value: Any, name: str) -> None:
    payload = json.dumps({"exp": NOW_S + 300, name: value})
    strict = key(issuer="us", superuser=True, claims={"sub": "${clientid}"})
    assert isinstance(asyncio.run(login(hand_made(HS256, payload), strict)), Deny)
    verdict = asyncio.run(login(hand_made(HS256, payload)))
    assert isinstance(verdict, Allow | Deny)
    if isinstance(verdict, Allow):
        assert verdict.expires_at_s is not None
        assert verdict.expires_at_s > NOW_S
        assert not verdict.is_superuser
        json.dumps([verdict.tenant, sorted(verdict.groups), dict(verdict.attributes)], ensure_ascii=False).encode()
