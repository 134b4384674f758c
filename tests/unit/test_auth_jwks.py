"""JSON web key sets: which keys are taken, and when they are fetched."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.jwt.jwks import MOST_KEYS, Schedule, parse_key_set
from tests.servers.identity_provider import make_key

KEYS = {name: make_key(name, kid=f"kid-{name}") for name in ("RS256", "ES256", "ES384", "ES512", "EdDSA")}
S = 1_000_000_000


def body(*jwks: Any) -> bytes:
    return json.dumps({"keys": list(jwks)}).encode()


def changed(name: str = "ES256", **members: Any) -> dict[str, Any]:
    """A published key with other members; None leaves one out."""
    return {key: value for key, value in (KEYS[name].jwk() | members).items() if value is not None}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_is_for_the_algorithm_that_it_names(name: str) -> None:
    [key] = parse_key_set(body(KEYS[name].jwk())).keys
    assert (key.algorithms, key.key_id) == ({name}, f"kid-{name}")


@pytest.mark.parametrize(("name", "algorithms"), [
    ("RS256", {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}), ("ES256", {"ES256"}), ("ES384", {"ES384"}),
    ("EdDSA", {"EdDSA"}),
])  # fmt: skip
def test_a_key_that_names_none_is_for_what_its_kind_can_do(name: str, algorithms: set[str]) -> None:
    [key] = parse_key_set(body(changed(name, alg=None, use=None))).keys
    assert key.algorithms == algorithms


@pytest.mark.parametrize(("jwk", "says"), [
    *(({"kty": "oct", "k": "c2VjcmV0", **more}, "shared secret") for more in ({"kid": "x"}, {"alg": "HS256"})),
    *((changed(alg=alg), "its alg is not one") for alg in ("HS256", "RS256", "none", 5)),
    (changed("RS256", alg="ES256"), "its alg is not one"), (changed(use="enc"), 'use is not "sig"'),
    (changed(use=None, key_ops=["encrypt"]), 'no "verify"'),
    *((changed(key_ops=operations), 'no "verify"') for operations in (["sign"], "verify")),
    (changed(kid=5), "kid is no text"), *((changed(kty=kind), "kty is unknown") for kind in ("XX", None, ["EC"])),
    *((changed(x=x), "its numbers") for x in ("AAAA", KEYS["ES256"].jwk()["y"], 5, "ä")),
    (changed(kty="RSA"), "its numbers"), (changed(y=KEYS["ES384"].jwk()["y"]), "its numbers"),
    (changed(crv="P-192"), "its numbers"), (changed(crv="secp256k1"), "its "), (changed("EdDSA", crv="X25519"), "its "),
    (changed("RS256", e="AA"), "its numbers"), (changed("RS256", n=None), "its numbers"),
    (changed("RS256", n="AQAB"), "its "), (changed("RS256", n="_" * 1400), "bits"),
    (make_key("RS256", bits=1024).jwk(), "has 1024 bits"), ("kid", "no object"), (None, "no object"),
])  # fmt: skip
def test_a_key_that_cannot_be_used_is_left_out_and_the_others_taken(jwk: Any, says: str) -> None:
    found = parse_key_set(body(jwk, KEYS["EdDSA"].jwk()))
    assert [key.key_id for key in found.keys] == ["kid-EdDSA"]
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("keys[0]: ")
    assert says in found.skipped[0]


def test_of_a_private_key_the_public_part_is_taken() -> None:
    pair = KEYS["ES256"]
    numbers = pair.private.private_numbers()
    leaked = changed(d=KEYS["EdDSA"].jwk()["x"], p="AQAB", key_ops=["sign", "verify"])
    [key] = parse_key_set(body(leaked)).keys
    assert key.material.public_numbers() == numbers.public_numbers


def test_keys_of_one_id_are_all_kept() -> None:
    found = parse_key_set(body(changed("ES256", kid="a"), changed("RS256", kid="a"), changed("EdDSA", kid=None)))
    assert [one.algorithms for one in found.by_id["a"]] == [{"ES256"}, {"RS256"}]
    assert len(found.keys) == 3


def test_an_empty_set_is_a_set() -> None:
    assert parse_key_set(body()).keys == ()


@pytest.mark.parametrize(("data", "says"), [
    (b"", "no JSON"), (b"<html>", "no JSON"), (b"[]", "no object"), (b"{}", 'no list "keys"'),
    (b'{"keys": {}}', 'no list "keys"'), (b'{"keys": [], "keys": []}', "twice"),
    (b'{"keys": ' + b"[" * 100_000, "nested"), (b"\xff", "no text"),
    (body(*[{}] * (MOST_KEYS + 1)), f"more than {MOST_KEYS}"),
])  # fmt: skip
def test_what_is_no_set_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_key_set(data)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
NAMES = st.sampled_from(["kty", "n", "e", "crv", "x", "y", "alg", "use", "key_ops", "kid"])


@given(st.sampled_from(sorted(KEYS)), st.dictionaries(NAMES, JSON, max_size=3))
def test_any_key_is_taken_or_left_out(name: str, members: dict[str, Any]) -> None:
    found = parse_key_set(body(KEYS[name].jwk() | members))
    assert len(found.keys) + len(found.skipped) == 1
    for key in found.keys:
        assert not key.algorithms & {"HS256", "HS384", "HS512", "none"}


# --- when -------------------------------------------------------------------------------------------------------------
def schedule(refresh_s: int = 300, keep_s: int = 3600) -> Schedule:
    return Schedule(refresh_s * S, keep_s * S, rng=random.Random(7))


def test_the_first_fetch_is_due_at_once() -> None:
    assert schedule().due_ns() == 0
    assert not schedule().good(0)


def test_a_set_is_fetched_anew_before_the_refresh_is_over_and_kept_beyond_it() -> None:
    plan = schedule()
    plan.began(0)
    plan.succeeded(S)
    assert 271 * S <= plan.due_ns() <= 301 * S
    assert plan.good((1 + 300 + 3600) * S)
    assert not plan.good((1 + 300 + 3600 + 6) * S)


def test_a_failed_fetch_is_tried_again_soon_and_then_less_often() -> None:
    plan, now, waits = schedule(), 0, []
    for _ in range(12):
        plan.began(now)
        plan.failed(now)
        waits.append(plan.due_ns() - now)
        now = plan.due_ns()
    assert waits[0] <= 1.2 * S
    assert all(wait <= 60 * S for wait in waits)
    assert waits[-1] > 30 * S
    plan.began(now)
    plan.succeeded(now)
    plan.failed(now)
    assert plan.due_ns() - now <= 1.2 * S


def test_a_missing_key_is_fetched_at_once_but_not_more_often_than_every_ten_seconds() -> None:
    plan = schedule()
    plan.began(0)
    plan.succeeded(0)
    assert not plan.ask(3 * S)
    assert plan.due_ns() == 10 * S, "what was asked for too early is done when it is its turn"
    plan.began(10 * S)
    plan.succeeded(10 * S)
    assert plan.due_ns() > 100 * S, "what was asked for is done"
    assert plan.ask(20 * S)
    assert plan.due_ns() == 20 * S


def test_asking_does_not_put_a_fetch_off() -> None:
    plan = schedule(refresh_s=10)
    plan.began(0)
    plan.succeeded(0)
    plan.ask(S)
    assert plan.due_ns() <= 10 * S


@given(st.lists(st.tuples(st.sampled_from(["ask", "works", "fails"]), st.integers(1, 20 * S)), max_size=60))
def test_however_much_is_asked_fetches_keep_their_distance(events: list[tuple[str, int]]) -> None:
    """No two fetches within ten seconds, unless the one before failed: then within the backoff's."""
    plan, now, last, failed = schedule(refresh_s=86_400), 0, None, False
    for what, after in events:
        now += after
        if what == "ask":
            plan.ask(now)
        if plan.due_ns() <= now:
            assert last is None or failed or now - last >= 10 * S
            plan.began(now)
            last, failed = now, what == "fails"
            (plan.failed if failed else plan.succeeded)(now)
