"""Keys of tokens that stand in files: what can be one, and what a change does."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448
from pydantic import SecretStr

from auth.backends.jwt import JwtAuthenticator
from auth.jwt.keys import FileKeys, public_key
from auth.jwt.parsing import parse_token
from auth.model import Allow, LoginRequest
from config.errors import ConfigError
from config.tables.auth import AuthJwtSettings
from config.values.secret_files import FileSecret
from tests.servers.identity_provider import make_key
from tests.unit.jwt_tokens import NOW_S, PAIRS, SECRET, key, key_file, pem, token


@pytest.mark.parametrize("kind", ["public_key_file", "secret"])
async def test_a_key_in_a_file_is_read_again_when_it_changes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, now_ns = tmp_path / "key", 0
    if kind == "secret":
        algorithm, source, old, new = "HS256", {kind: FileSecret(SECRET, file)}, SECRET, SECRET[::-1]
        unusable = [b"short", b"", b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 60]
    else:
        algorithm, source, old, new = "ES256", {kind: file}, PAIRS["ES256"].private, make_key("ES256").private
        unusable = [b"", b"rubbish", pem(PAIRS["RS256"].private), pem(PAIRS["ES384"].private)]
    old_file, new_file = (f"{one}\n".encode() if kind == "secret" else pem(one) for one in (old, new))
    file.write_bytes(old_file)
    settings = AuthJwtSettings(keys=(key(algorithms=(algorithm,), **source),))
    authenticator = JwtAuthenticator(settings, clock=lambda: NOW_S, monotonic_ns=lambda: now_ns)
    await authenticator.start()

    async def lets_in(secret: Any) -> bool:
        text = token(secret=secret, algorithm=algorithm)
        return isinstance(await authenticator.authenticate(LoginRequest(password=text)), Allow)

    def replace(content: bytes) -> None:
        (tmp_path / "new").write_bytes(content)
        os.replace(tmp_path / "new", file)  # noqa: PTH105

    assert await lets_in(old)
    replace(new_file)
    assert await lets_in(old), "it is looked at once a second, not for every login"
    now_ns += 1_000_000_000
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
        assert await lets_in(old)
    now_ns += 1_000_000_000
    assert await lets_in(new)
    assert not await lets_in(old)
    for bad in unusable:
        replace(bad)
        now_ns += 1_000_000_000
        assert await lets_in(new), f"a bad file took the good key away: {bad[:40]!r}"
    file.unlink()
    now_ns += 1_000_000_000
    assert await lets_in(new)
    replace(old_file)
    now_ns += 1_000_000_000
    assert await lets_in(old)
    await authenticator.close()


@pytest.mark.parametrize(("content", "algorithms", "says"), [
    (None, ("RS256",), "no such file"),
    (b"", ("RS256",), "no public key in PEM"),
    (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", ("RS256",), "no public key in PEM"),
    ("rsa1024", ("RS256",), "has 1024 bits"),
    ("private", ("ES256",), "private key"),
    ("ES256", ("RS256",), "is for ES256, but algorithms is RS256"),
    ("ES384", ("ES256",), "is for ES384"),
    ("secp256k1", ("ES256",), "kind that signs no tokens"),
])  # fmt: skip
async def test_a_key_file_that_cannot_be_used_ends_the_start(
    content: bytes | str | None, algorithms: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "key.pem"
    if content == "rsa1024":
        content = pem(make_key("RS256", bits=1024).private)
    elif content == "secp256k1":
        content = pem(ec.generate_private_key(ec.SECP256K1()))
    elif content == "private":
        content = PAIRS["ES256"].private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    elif isinstance(content, str):
        content = pem(PAIRS[content].private)
    if content is not None:
        file.write_bytes(content)
    authenticator = JwtAuthenticator(AuthJwtSettings(keys=(key(public_key_file=file, algorithms=algorithms),)))
    with pytest.raises(ConfigError) as failure:
        await authenticator.start()
    assert str(failure.value).startswith(f'auth.jwt.keys "k".public_key_file {file} cannot be used: ')
    assert says in str(failure.value)


async def test_a_secret_that_is_none_ends_the_start() -> None:
    authenticator = JwtAuthenticator(AuthJwtSettings(keys=(key(secret=SecretStr("hunter2")),)))
    with pytest.raises(ConfigError, match=r'auth\.jwt\.keys "k"\.secret cannot be used: it has 7 bytes') as failure:
        await authenticator.start()
    assert "hunter2" not in str(failure.value)


async def test_a_key_of_a_file_is_for_its_algorithms_alone(tmp_path: Path) -> None:
    source = FileKeys(key(public_key_file=key_file(tmp_path), algorithms=("RS256", "PS256")), "auth.jwt.keys")
    await source.start()
    [found] = await source.candidates(parse_token(token()))
    assert found.algorithms == {"RS256", "PS256"}
    private = PAIRS["RS256"].private
    assert found.fits(parse_token(token(secret=private, algorithm="PS256")))
    assert not found.fits(parse_token(token(secret=private, algorithm="RS512")))
    assert not found.fits(parse_token(token(secret=PAIRS["ES256"].private, algorithm="ES256")))
    assert not found.fits(parse_token(token()))


def test_both_edwards_curves_are_known() -> None:
    assert public_key(pem(ed448.Ed448PrivateKey.generate())).algorithms == {"EdDSA"}


def test_nothing_of_a_key_shows() -> None:
    authenticator = JwtAuthenticator(AuthJwtSettings(keys=(key(),)))
    assert SECRET not in repr(vars(authenticator)) + repr([vars(one.source) for one in authenticator._keys])
