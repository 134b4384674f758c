"""Keys that verify tokens: what each is good for, a shared secret, and a public key in a file."""

from __future__ import annotations

__all__ = ["FileKeys", "KeySource", "SecretKeys", "VerificationKey", "public_key", "usable"]

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import get_default_algorithms

from bridge.fresh_secret import fresh
from config.errors import ConfigError
from config.values.jwt_secrets import decoded_secret
from config.values.secret_files import FileSecret

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from auth.jwt.parsing import Token
    from config.auth import AuthJwtKeySettings

log = structlog.get_logger("auth")

_ALGORITHMS = get_default_algorithms()
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA_BITS = range(2048, 8192 + 1)  # fewer are broken or soon will be; more cost milliseconds a login
_LOOKED_AT_NS = 1_000_000_000  # between two looks at a file
_LARGEST_FILE = 64 << 10


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """One key, and the algorithms that it can be used with: of these a token may name one, and no other."""

    material: Any = field(repr=False)
    algorithms: frozenset[str]
    key_id: str | None = None

    def fits(self, token: Token) -> bool:
        """Whether this key made the token's signature. 2 µs (HS) to 500 µs (ES512), mostly below 100: less than it
        would cost to have a thread do it."""
        if token.algorithm not in self.algorithms:
            return False
        try:
            return _ALGORITHMS[token.algorithm].verify(token.signed, self.material, token.signature)
        except ValueError:  # a signature of the wrong shape
            return False


class KeySource(Protocol):
    """Where the keys of one ``auth.jwt.keys`` entry come from."""

    async def start(self) -> None:
        """Raises ConfigError when there can never be a key."""

    async def candidates(self, token: Token) -> Sequence[VerificationKey]:
        """The keys that may have signed it, in bounded number and time. Raises BackendDownError when there are none
        at all now."""

    def awaits(self, token: Token) -> bool:
        """Whether the key that the token names may be one that is still to be fetched: no verdict on it is final."""

    @property
    def up(self) -> bool:
        """Whether there are keys."""

    async def close(self) -> None:
        """Let go of tasks. Never raises."""


class SecretKeys:
    """A secret that issuer and service share. One that stands in a file of its own is read again when it changes, as
    the file is looked at once a second; what then cannot be a secret changes nothing."""

    def __init__(
        self, settings: AuthJwtKeySettings, where: str, *, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        assert settings.secret is not None
        self._secret = settings.secret
        self._settings = settings
        self._setting = f"{where}.secret"
        self._monotonic_ns = monotonic_ns
        self._looked_ns = 0
        self._text = ""
        self._keys: tuple[VerificationKey, ...] = ()
        self.up = True

    async def start(self) -> None:
        self._looked_ns = self._monotonic_ns()
        try:
            self._take(self._secret.get_secret_value())
        except ValueError as error:
            raise ConfigError(f"{self._setting} {error}.") from None

    def awaits(self, _token: Token) -> bool:
        """No key is fetched."""
        return False

    async def candidates(self, _token: Token) -> Sequence[VerificationKey]:
        if isinstance(self._secret, FileSecret):
            now_ns = self._monotonic_ns()
            if now_ns - self._looked_ns >= _LOOKED_AT_NS:
                self._looked_ns = now_ns
                self._look()
        return self._keys

    async def close(self) -> None:
        """Nothing to do."""

    def _look(self) -> None:
        text = fresh(self._secret, self._setting)
        if text != self._text:
            try:
                self._take(text)
            except ValueError as error:
                self._text = text
                log.warning("jwt_key_kept", key=self._settings.name, file=self._setting, reason=f"it {error}")

    def _take(self, text: str) -> None:
        settings = self._settings
        secret = decoded_secret(text, settings.algorithms, base64_text=settings.secret_base64)
        self._text = text
        self._keys = (VerificationKey(secret, frozenset(settings.algorithms)),)


class FileKeys:
    """The public key of a PEM file, looked at once a second at most and read again when it has changed. What then
    cannot be read changes nothing: the key before stays."""

    def __init__(
        self, settings: AuthJwtKeySettings, where: str, *, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        assert settings.public_key_file is not None
        self._file = settings.public_key_file
        self._setting = f"{where}.public_key_file"
        self._name = settings.name
        self._wanted = frozenset(settings.algorithms)
        self._monotonic_ns = monotonic_ns
        self._looked_ns = 0
        self._seen: object = None
        self._keys: tuple[VerificationKey, ...] = ()
        self.up = True

    async def start(self) -> None:
        self._looked_ns = self._monotonic_ns()
        try:
            self._seen = self._state()
            self._keys = (self._read(),)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._setting} {self._file} cannot be used: {_said(error)}.") from error

    def awaits(self, _token: Token) -> bool:
        """No key is fetched."""
        return False

    async def candidates(self, _token: Token) -> Sequence[VerificationKey]:
        now_ns = self._monotonic_ns()
        if now_ns - self._looked_ns >= _LOOKED_AT_NS:
            self._looked_ns = now_ns
            self._look()
        return self._keys

    async def close(self) -> None:
        """Nothing to do."""

    def _look(self) -> None:
        try:
            if (state := self._state()) == self._seen:
                return
            self._seen = state
            self._keys = (self._read(),)
        except (OSError, ValueError) as error:
            log.warning("jwt_key_kept", key=self._name, file=str(self._file), reason=_said(error))
            return
        log.info("jwt_key_read", key=self._name, file=str(self._file))

    def _state(self) -> object:
        found = os.stat(self._file)  # noqa: PTH116 - a third of the price, once a second
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> VerificationKey:
        with self._file.open("rb") as file:
            key = public_key(file.read(_LARGEST_FILE))
        if not self._wanted <= key.algorithms:
            raise ValueError(
                f"its key is for {', '.join(sorted(key.algorithms))}, but algorithms is "
                f"{', '.join(sorted(self._wanted))}"
            )
        return VerificationKey(key.material, self._wanted)


def public_key(pem: bytes) -> VerificationKey:
    """The public key, or that of the certificate, in a PEM text, with all algorithms that it can do. Raises ValueError
    with what is wrong."""
    if b"PRIVATE KEY" in pem:
        raise ValueError("it holds a private key, which only the issuer may have; give its public key")
    try:
        if b"BEGIN CERTIFICATE" in pem:
            return usable(x509.load_pem_x509_certificate(pem).public_key())
        return usable(load_pem_public_key(pem))
    except UnsupportedAlgorithm:
        raise ValueError("it holds a key of a kind that signs no tokens") from None


def usable(material: object, key_id: str | None = None) -> VerificationKey:
    """A public key with the algorithms that it can be used with. Raises ValueError for one that is too short, too
    long or of another kind."""
    match material:
        case RSAPublicKey():
            if material.key_size not in _RSA_BITS:
                raise ValueError(
                    f"it has {material.key_size} bits, and RSA keys have {_RSA_BITS[0]} to {_RSA_BITS[-1]} here"
                )
            return VerificationKey(material, _RSA, key_id)
        case EllipticCurvePublicKey() if material.curve.name in _CURVES:
            return VerificationKey(material, frozenset({_CURVES[material.curve.name]}), key_id)
        case Ed25519PublicKey() | Ed448PublicKey():
            return VerificationKey(material, frozenset({"EdDSA"}), key_id)
        case _:
            raise ValueError("it is a key of a kind that signs no tokens")


def _said(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    # cryptography's own text speaks of its internals.
    return str(error) if str(error).startswith("it") else "it holds no public key in PEM"
