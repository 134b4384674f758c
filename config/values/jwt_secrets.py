"""The shared secret of tokens: its bytes and limits."""

import base64
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

SECRET_BYTES: Final[Mapping[str, int]] = MappingProxyType({"HS256": 32, "HS384": 48, "HS512": 64})
"""Least length of a secret: that of the algorithm's hash (RFC 7518, 3.2)."""

_PUBLIC = (b"-----BEGIN", b"ssh-", b"ecdsa-")


def decoded_secret(text: str, algorithms: Collection[str], *, base64_text: bool) -> bytes:
    """The bytes of a secret for these algorithms, all HS…. Raises ValueError with the end of a sentence, to follow the
    secret's name; it contains no part of the secret."""
    try:
        secret = base64.b64decode(text, validate=True) if base64_text else text.encode()
    except ValueError:
        raise ValueError("is not base64, as secret_base64 says") from None
    if secret.lstrip().startswith(_PUBLIC):
        raise ValueError(
            "looks like a key pair's key: tokens signed with a public key as the secret are what forgers make"
        )
    strongest = max(algorithms, key=lambda one: SECRET_BYTES[one])
    if len(secret) < SECRET_BYTES[strongest]:
        raise ValueError(
            f"has {len(secret)} bytes, and {strongest} needs {SECRET_BYTES[strongest]} at least: a shorter one can be "
            "guessed from a single token"
        )
    return secret
