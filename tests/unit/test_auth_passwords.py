"""Stored passwords of every kind: made, read, compared, and refused when they cannot be."""

import hashlib
import hmac
import sys

import bcrypt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auth import passwords
from auth.passwords import Argon2Cost, Kind, UnknownKindError
from config.errors import ConfigError

CHEAP = Argon2Cost(8, 1)
KEY = bytes(range(32))
KEYS = {passwords.device_key_id(KEY): KEY}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def matches(stored: str, password: str, **how: str) -> bool:
    return passwords.matches(passwords.parse(stored, **how), password, KEYS)  # type: ignore[arg-type]


class TestOwnKinds:
    @settings(max_examples=30, deadline=None)
    @given(password=TEXT, other=TEXT)
    def test_argon2id_matches_the_password_alone(self, password: str, other: str) -> None:
        stored = passwords.hash_argon2id(password, CHEAP)
        assert stored.startswith("$argon2id$v=19$m=8,t=1,p=1$")
        assert matches(stored, password)
        assert matches(stored, other) == (other == password)

    @given(other=TEXT)
    def test_a_device_secret_matches_itself_alone(self, other: str) -> None:
        secret = passwords.generate_secret()
        stored = passwords.hash_device_secret(secret, KEY)
        assert matches(stored, secret)
        assert not matches(stored, other)
        assert not matches(stored, secret + "x")
        assert secret not in stored

    def test_secrets_have_190_bits_and_no_awkward_characters(self) -> None:
        made = {passwords.generate_secret() for _ in range(1000)}
        assert len(made) == 1000
        assert all(len(one) == 32 and one.isalnum() and one.isascii() for one in made)

    def test_the_same_secret_twice_is_stored_differently(self) -> None:
        one, two = (passwords.parse(passwords.hash_device_secret("s", KEY)) for _ in range(2))
        assert one.salt != two.salt
        assert one.hash != two.hash

    def test_a_device_secret_needs_its_databases_key(self) -> None:
        stored = passwords.hash_device_secret("s", b"x" * 32)
        with pytest.raises(UnknownKindError, match="which is missing here"):
            matches(stored, "s")
        other = {passwords.device_key_id(b"x" * 32): KEY}  # the right name over the wrong key
        assert not passwords.matches(passwords.parse(stored), "s", other)

    @pytest.mark.parametrize("password", ["x" * 65_536, "\ud800", "ä" * 40_000])
    def test_what_mqtt_cannot_carry_is_nobodys_password(self, password: str) -> None:
        assert not matches(passwords.hash_argon2id("a", CHEAP), password)
        with pytest.raises(ValueError, match="65535 bytes"):
            passwords.hash_argon2id(password, CHEAP)

    @pytest.mark.parametrize(
        ("password", "others"), [("x" * 65_535, ["x" * 65_534 + "y"]), ("a\0b", ["a", "a\0c"])], ids=["longest", "null"]
    )
    def test_a_password_counts_to_its_last_byte(self, password: str, others: list[str]) -> None:
        stored = passwords.hash_argon2id(password, CHEAP)
        assert matches(stored, password)
        assert not any(matches(stored, other) for other in others)


class TestBcrypt:
    def test_what_others_have_made_matches(self) -> None:
        for mark in ("$2a$", "$2b$", "$2y$"):
            stored = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode().replace("$2b$", mark)
            assert matches(stored, "secret")
            assert not matches(stored, "Secret")

    def test_72_bytes_are_looked_at_and_the_rest_is_no_proof(self) -> None:
        stored = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
        read = passwords.parse(stored)
        assert matches(stored, "x" * 72 + "tail")
        assert not passwords.is_proof(read, "x" * 72 + "tail")
        assert passwords.is_proof(read, "x" * 72)
        assert not matches(stored, "x" * 71)

    def test_a_null_byte_is_refused(self) -> None:
        stored = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
        assert not matches(stored, "secret\0anything")

    def test_an_excessive_cost_is_refused_before_it_is_paid(self) -> None:
        stored = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode().replace("$04$", "$31$")
        with pytest.raises(UnknownKindError, match="cost"):
            matches(stored, "secret")


class TestEmqx:
    """Bare hashes as EMQX's own databases and tables hold them."""

    @pytest.mark.parametrize(
        ("algorithm", "digest"), [("md5", "md5"), ("sha", "sha1"), ("sha256", "sha256"), ("sha512", "sha512")]
    )
    @pytest.mark.parametrize("position", ["prefix", "suffix", "disable"])
    @given(password=TEXT, salt=TEXT)
    @settings(max_examples=20, deadline=None)
    def test_salted_digests(self, algorithm: str, digest: str, position: str, password: str, salt: str) -> None:
        text = {"prefix": salt + password, "suffix": password + salt, "disable": password}[position]
        stored = hashlib.new(digest, text.encode()).hexdigest()
        how = {"salt": salt, "algorithm": algorithm, "salt_position": position}
        assert matches(stored, password, **how)
        assert matches(stored.upper(), password, **how)
        assert not matches(stored, password + "x", **how)
        kept = passwords.salted_text(stored, **how)
        assert matches(kept, password)
        assert not matches(kept, password + "x")

    @given(password=TEXT)
    def test_plain(self, password: str) -> None:
        assert matches(password, password, algorithm="plain", salt_position="disable")
        assert not matches(password, password + "x", algorithm="plain", salt_position="disable")

    @pytest.mark.parametrize("digest", ["sha", "sha256", "sha512"])
    def test_pbkdf2(self, digest: str) -> None:
        name = {"sha": "sha1"}.get(digest, digest)
        made = hashlib.pbkdf2_hmac(name, b"secret", b"salt", 1000, 32).hex()
        kept = passwords.pbkdf2_text(made, salt="salt", digest=digest, iterations=1000)
        assert matches(kept, "secret")
        assert not matches(kept, "Secret")

    def test_bare_pbkdf2_has_emqxs_defaults(self) -> None:
        made = hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 4096, 32).hex()
        assert matches(made, "secret", algorithm="pbkdf2", salt="salt")
        assert not matches(made, "secret", algorithm="pbkdf2", salt="pepper")

    def test_passlibs_pbkdf2_is_read(self) -> None:
        # The digest as passlib writes it: 1000 rounds, salt b"0123456789abcdef", "." for "+", no padding.
        import base64

        made = hashlib.pbkdf2_hmac("sha256", b"secret", b"0123456789abcdef", 1000)
        text = "$pbkdf2-sha256$1000${}${}".format(
            *(base64.b64encode(part, b"./").rstrip(b"=").decode() for part in (b"0123456789abcdef", made))
        )
        assert matches(text, "secret")
        assert not matches(text, "secrets")


class TestUnreadable:
    @pytest.mark.parametrize(("stored", "how"), [
        ("", {}),
        ("hunter2", {}),
        ("$argon2id$v=19$m=8,t=1,p=1$hunter2", {}),
        ("$argon2id$v=19$m=99999999,t=1,p=1$aGVsbG8xMjM$aHVudGVyMg", {}),
        ("$argon2id$v=19$m=8,t=999,p=1$aGVsbG8xMjM$aHVudGVyMg", {}),
        ("$pbkdf2-hunter2$1$aaaa$hunter2hunter2", {}),
        ("$pbkdf2-sha256$99999999$aaaa$hunter2hunter2", {}),
        ("$pbkdf2-sha256$0$aaaa$hunter2hunter2", {}),
        ("$pbkdf2-sha256$1$aaaa$hunter2", {}),
        ("hunter2", {"algorithm": "sha256"}),
        ("abcd", {"algorithm": "sha256"}),
        ("hunter2", {"algorithm": "pbkdf2"}),
        ("hunter2", {"algorithm": "hunter2"}),
        ("00" * 32, {"algorithm": "sha256", "salt_position": "hunter2"}),
        ("\ud800hunter2", {"algorithm": "plain"}),
        ("$salted-sha256$prefix$!$hunter2", {}),
    ])  # fmt: skip
    def test_it_is_refused_without_being_shown(self, stored: str, how: dict[str, str]) -> None:
        with pytest.raises(UnknownKindError) as refused:
            passwords.parse(stored, **how)  # type: ignore[arg-type]
        assert "hunter2" not in str(refused.value)

    @given(stored=st.text(max_size=200))
    def test_any_text_is_read_or_refused(self, stored: str) -> None:
        for text in (stored, f"$argon2id${stored}", f"$device${stored}", f"$pbkdf2-sha256${stored}", f"$2b${stored}"):
            try:
                passwords.parse(text)
            except UnknownKindError:
                continue

    def test_a_reading_shows_no_hash(self) -> None:
        assert "KOPbX" not in repr(passwords.parse("$2b$04$3sKl60o7fz4BK/bnv8EBOuYgnXjjRH4HJd8n.ku0qFj13cyKOPbXe"))


def test_comparisons_are_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fast kind compares through hmac.compare_digest, and nothing else."""
    asked: list[int] = []

    def compare(one: bytes, other: bytes) -> bool:
        asked.append(len(one))
        return hmac_compare(one, other)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    device = passwords.hash_device_secret("s", KEY)
    salted = passwords.salted_text("00" * 32, salt="s", algorithm="sha256", salt_position="prefix")
    derived = passwords.pbkdf2_text("00" * 32, salt="s", digest="sha256", iterations=1)
    for stored in (device, salted, derived):
        assert not matches(stored, "wrong")
    assert asked == [32, 32, 32]


def test_slow_kinds_are_known() -> None:
    assert {kind for kind in Kind if kind.slow} == {Kind.ARGON2, Kind.BCRYPT, Kind.PBKDF2}


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    with pytest.raises(ConfigError, match=r"package bcrypt.* -m pip install .*auth"):
        passwords.load_libraries()
