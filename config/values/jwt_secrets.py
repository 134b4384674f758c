"""The shared secret of tokens: its bytes, and what it may not be."""

from __future__ import annotations

__all__ = ["SECRET_BYTES", "decoded_secret"]

import base64
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

SECRET_BYTES: Final[Mapping[str, int]] = MappingProxyType({"HS256": 32, "HS384": 48, "HS512": 64})
"""How long a secret has to be: as long as the hash of the algorithm (RFC 7518, 3.2)."""

_PUBLIC = (b"-----BEGIN", b"ssh-", b"ecdsa-")


def decoded_secret(text: str, algorithms: Collection[str], *, base64_text: bool) -> bytes:
    """The bytes of a secret for these algorithms, all HS…. Raises ValueError with what is wrong, which follows the
    secret's name in a sentence and holds nothing of it."""
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
            "found by trying, from a single token"
        )
    return secret
