"""Tokens for tests, honest and forged; made by hand where no library would make them."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from pydantic import SecretStr

from auth.backends.jwt import JwtAuthenticator
from auth.model import LoginRequest, Verdict
from config.tables.auth import AuthJwtKeySettings, AuthJwtSettings
from tests.servers.identity_provider import make_key

SECRET = "an-issuer-and-this-service-share-it"
NOW_S = 1_800_000_000
PAIRS = {name: make_key(name) for name in ("RS256", "ES256", "ES384", "ES512", "EdDSA")}
RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


def pem(private: Any) -> bytes:
    made: bytes = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return made


def key_file(folder: Path, algorithm: str = "RS256") -> Path:
    file = folder / f"{algorithm}.pem"
    file.write_bytes(pem(PAIRS[algorithm].private))
    return file


def segment(data: bytes | str | Mapping[str, Any]) -> str:
    """One part of a token."""
    if not isinstance(data, bytes | str):
        data = json.dumps(data)
    data = data if isinstance(data, bytes) else data.encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def hand_made(
    header: bytes | str | Mapping[str, Any], payload: bytes | str | Mapping[str, Any], secret: bytes | str = SECRET
) -> str:
    """A token signed with HS256, whatever it says of itself."""
    signed = f"{segment(header)}.{segment(payload)}"
    key = secret if isinstance(secret, bytes) else secret.encode()
    return f"{signed}.{segment(hmac.digest(key, signed.encode(), hashlib.sha256))}"


def token(
    claims: Mapping[str, Any] | None = None, *, secret: Any = SECRET, algorithm: str = "HS256", **header: Any
) -> str:
    """An honest one that is good for five minutes at NOW_S. A claim of None is left out."""
    whole = {"sub": "dev-1", "exp": NOW_S + 300, **(claims or {})}
    whole = {name: value for name, value in whole.items() if value is not None}
    return jwt.encode(whole, secret, algorithm=algorithm, headers=header or None)


def key(**changes: Any) -> AuthJwtKeySettings:
    given: dict[str, Any] = {"name": "k", "algorithms": ("HS256",), **changes}
    if not {"secret", "public_key_file", "jwks_url"} & given.keys():
        given["secret"] = SecretStr(SECRET)
    return AuthJwtKeySettings(**given)


async def login(
    text: str,
    *keys: AuthJwtKeySettings,
    now_s: float = NOW_S,
    clientid: str = "dev-1",
    username: str = "user-1",
    **settings: Any,
) -> Verdict:
    """What an authenticator with these keys (or one with SECRET) says of a login with this password."""
    authenticator = JwtAuthenticator(AuthJwtSettings(keys=keys or (key(),), **settings), clock=lambda: now_s)
    await authenticator.start()
    try:
        return await authenticator.authenticate(LoginRequest(username, clientid, text))
    finally:
        await authenticator.close()
