"""Keys that verify tokens: their algorithms, a shared secret, and a public key in a file."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import get_default_algorithms

from auth.jwt.parsing import Token
from bridge.fresh_secret import fresh
from config.errors import ConfigError
from config.tables.auth import AuthJwtKeySettings
from config.values.jwt_secrets import decoded_secret

log = structlog.get_logger("auth")

_ALGORITHMS = get_default_algorithms()
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA_BITS = range(2048, 8192 + 1)  # shorter keys are weak; longer ones cost milliseconds per login
_LOOKED_AT_NS = 1_000_000_000  # between two checks of a file
_LARGEST_FILE = 64 << 10


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """One key, and its algorithms. A token must name one of these."""

    material: Any = field(repr=False)
    algorithms: frozenset[str]
    key_id: str | None = None

    def fits(self, token: Token) -> bool:
        """Whether this key made the token's signature. 2 µs (HS) to 500 µs (ES512), mostly below 100: a thread would
        cost more."""
        if token.algorithm not in self.algorithms:
            return False
        try:
            return _ALGORITHMS[token.algorithm].verify(token.signed, self.material, token.signature)
        except ValueError:  # a signature of the wrong shape
            return False


class KeySource(Protocol):
    """The source of the keys of one ``auth.jwt.keys`` entry."""

    async def start(self) -> None:
        """Raises ConfigError if there can never be a key."""

    async def candidates(self, token: Token) -> Sequence[VerificationKey]:
        """The keys that may have signed the token, limited in number and time. Raises BackendDownError without any
        key."""

    def lacks(self, token: Token) -> bool:
        """Whether the token's key, if it is one of these, has to be fetched."""

    def awaits(self, token: Token) -> bool:
        """Whether a later fetch may bring the token's key, so that no verdict is final."""

    @property
    def up(self) -> bool:
        """Whether there are keys."""

    async def close(self) -> None:
        """End all tasks. Never raises."""


class _LocalKeys(ABC):
    """A key of this machine, read again when it changes. A change that cannot be used keeps the last key."""

    up = True

    def __init__(self, settings: AuthJwtKeySettings, place: str, monotonic_ns: Callable[[], int]) -> None:
        self._settings = settings
        self._place = place  # its name in sentences
        self._monotonic_ns = monotonic_ns
        self._looked_ns = monotonic_ns()
        self._seen: object = None  # the ``_state`` of the key that was read
        self._keys: tuple[VerificationKey, ...] = ()

    @abstractmethod
    def _state(self) -> object:
        """A value that changes with the key."""

    @abstractmethod
    def _read(self) -> VerificationKey:
        """The key as it is now. Raises OSError or ValueError with a reason that follows "cannot be used"."""

    async def start(self) -> None:
        try:
            self._take()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._place} cannot be used: {_said(error)}.") from None

    def awaits(self, _token: Token) -> bool:
        """No key is fetched."""
        return False

    lacks = awaits

    async def candidates(self, _token: Token) -> Sequence[VerificationKey]:
        """The key, which is looked at again every few seconds."""
        now_ns = self._monotonic_ns()
        if now_ns - self._looked_ns >= _LOOKED_AT_NS:
            self._looked_ns = now_ns
            try:
                if self._take():
                    log.info("jwt_key_read", key=self._settings.name, file=self._place)
            except (OSError, ValueError) as error:
                name, place = self._settings.name, self._place
                log.warning("jwt_key_kept", key=name, file=place, reason=_said(error), repeat_key=place)
        return self._keys

    def _take(self) -> bool:
        """Read the key if it has changed. Returns whether it had."""
        if (state := self._state()) == self._seen:
            return False
        self._keys = (self._read(),)
        self._seen = state  # after it: what could not be read is tried again
        return True

    async def close(self) -> None:  # noqa: B027 - a key of this machine holds nothing open
        """Nothing to do."""


class SecretKeys(_LocalKeys):
    """A secret that issuer and service share."""

    def __init__(
        self, settings: AuthJwtKeySettings, where: str, *, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        assert settings.secret is not None
        super().__init__(settings, f"{where}.secret", monotonic_ns)
        self._secret = settings.secret

    def _state(self) -> str:
        return fresh(self._secret, self._place)

    def _read(self) -> VerificationKey:
        """The secret as a key. Raises ValueError with a reason that follows "cannot be used"."""
        settings = self._settings
        text = self._secret.get_secret_value()
        try:
            secret = decoded_secret(text, settings.algorithms, base64_text=settings.secret_base64)
        except ValueError as error:
            raise ValueError(f"it {error}") from None
        return VerificationKey(secret, frozenset(settings.algorithms))


class FileKeys(_LocalKeys):
    """The public key of a PEM file."""

    def __init__(
        self, settings: AuthJwtKeySettings, where: str, *, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        assert settings.public_key_file is not None
        self._file = settings.public_key_file
        super().__init__(settings, f"{where}.public_key_file {self._file}", monotonic_ns)

    def _state(self) -> object:
        found = os.stat(self._file)  # noqa: PTH116 - a third of the price, once a second
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> VerificationKey:
        """The file's key, for all algorithms of the settings. Raises OSError, or ValueError with a reason."""
        wanted = frozenset(self._settings.algorithms)
        with self._file.open("rb") as file:
            key = public_key(file.read(_LARGEST_FILE))
        if not wanted <= key.algorithms:
            raise ValueError(
                f"its key is for {', '.join(sorted(key.algorithms))}, but algorithms is {', '.join(sorted(wanted))}"
            )
        return VerificationKey(key.material, wanted)


def public_key(pem: bytes) -> VerificationKey:
    """The public key, or the certificate's, in a PEM text, with all its algorithms. Raises ValueError with the
    fault."""
    if b"PRIVATE KEY" in pem:
        raise ValueError("it holds a private key, which only the issuer may have; give its public key")
    try:
        if b"BEGIN CERTIFICATE" in pem:
            return usable(x509.load_pem_x509_certificate(pem).public_key())
        return usable(load_pem_public_key(pem))
    except UnsupportedAlgorithm:
        raise ValueError("it holds a key of a kind that signs no tokens") from None


def usable(material: object, key_id: str | None = None) -> VerificationKey:
    """A public key with its algorithms. Raises ValueError for a key of the wrong length or kind."""
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
