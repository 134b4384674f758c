"""How passwords are stored, and whether one matches what is stored.

A stored password is one text that says itself how it was made::

    $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH     a person's password; what this service makes
    $device$KEY$SALT$HASH                        a device secret that this service generated
    $2b$10$…  (also $2a$, $2y$)                  bcrypt
    $pbkdf2-sha256$ITERATIONS$SALT$HASH          PBKDF2 (sha256, sha512, …; plain $pbkdf2$ is SHA-1)
    $salted-sha256$prefix$SALT$HEX               what EMQX makes by itself: md5, sha, sha256, sha512, plain

A table that others fill (PostgreSQL, Redis, …) holds the bare forms of EMQX instead; ``parse`` is then told the
algorithm and where the salt stood.

**Device secrets have a fast hash, on purpose.** A slow hash makes each guess of a chosen password expensive. A device
secret has 190 random bits, which cannot be guessed at any speed. A slow hash would only cost 20 ms for each of 100,000
reconnecting devices. Keyed BLAKE2b with a salt takes a few microseconds. The key belongs to the database, so hashes of
two databases cannot be compared, and a hash without its database is useless. Never use this kind for a password that a
person chose.

**bcrypt uses 72 bytes.** EMQX's C code hashes the first 72 bytes of a password and stops at a null byte. Migrated
hashes are checked the same way, so that those devices can log in. A null byte is refused. A password longer than 72
bytes is not hashed anew at its login (``is_proof``), because its rest was never compared.

All comparisons are of digests, in constant time.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import string
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, NamedTuple

from config.errors import ConfigError
from config.extras import how_to_install

Algorithm = Literal["auto", "plain", "md5", "sha", "sha256", "sha512", "bcrypt", "pbkdf2"]

PASSWORD_BYTES: Final = 65_535  # MQTT 5.0 section 1.5.6: binary data has a length of two bytes
DEVICE_KEY_BYTES: Final = 32
_BCRYPT_BYTES: Final = 72
_SECRET_CHARACTERS: Final = string.ascii_letters + string.digits  # none that a shell or a URL takes for its own
_SECRET_LENGTH: Final = 32  # 190 bits

# A stored text may come from a foreign table. Its cost is limited, so that it cannot stop the service.
_MOST_MEMORY_KIB: Final = 1 << 22
_MOST_PASSES: Final = 100
_MOST_LANES: Final = 64
_MOST_BCRYPT_ROUNDS: Final = 16
_MOST_ITERATIONS: Final = 10_000_000

_DIGESTS: Final = {"md5": "md5", "sha": "sha1", "sha256": "sha256", "sha512": "sha512"}
_PBKDF2_DIGESTS: Final = frozenset({"md5", "sha1", "sha224", "sha256", "sha384", "sha512"})
_EMQX_ITERATIONS: Final = 4096

_ARGON2: Final = re.compile(
    r"\$argon2(?:id|i|d)\$(?:v=\d+\$)?m=(\d{1,10}),t=(\d{1,10}),p=(\d{1,10})\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+", re.ASCII
)
_BCRYPT: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}", re.ASCII)
_PBKDF2: Final = re.compile(
    r"\$pbkdf2(?:-([a-z0-9]{1,16}))?\$(\d{1,10})\$([A-Za-z0-9./+]{0,4096}={0,2})\$([A-Za-z0-9./+]+={0,2})", re.ASCII
)
_DEVICE: Final = re.compile(r"\$device\$([0-9a-f]{8})\$([A-Za-z0-9_-]{22})\$([A-Za-z0-9_-]{43})", re.ASCII)
_SALTED: Final = re.compile(
    r"\$salted-(plain|md5|sha|sha256|sha512)\$(prefix|suffix|disable)\$([A-Za-z0-9_-]*)\$([A-Za-z0-9_-]*)", re.ASCII
)
_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2})+", re.ASCII)


class Kind(Enum):
    ARGON2 = "argon2"
    DEVICE = "device"
    BCRYPT = "bcrypt"
    PBKDF2 = "pbkdf2"
    SALTED = "salted"

    @property
    def slow(self) -> bool:
        """Whether a check takes milliseconds by design, and so runs in a thread."""
        return self in _SLOW


_SLOW: Final = frozenset({Kind.ARGON2, Kind.BCRYPT, Kind.PBKDF2})


class UnknownKindError(ValueError):
    """A stored password that cannot be read. The sentence never carries the text itself."""


class Argon2Cost(NamedTuple):
    memory_kib: int
    passes: int
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Stored:
    """The parts of a stored password. Fields of other kinds are empty."""

    kind: Kind
    digest: str  # algorithm of hashlib, or "plain"; of argon2 and bcrypt the kind says it all
    text: str = field(default="", repr=False)
    salt: bytes = field(default=b"", repr=False)
    hash: bytes = field(default=b"", repr=False)
    suffix: bool = False  # the salt stood behind the password
    iterations: int = 0
    key_id: str = ""
    cost: Argon2Cost | None = None


def parse(
    stored: str, *, salt: str = "", algorithm: str = "auto", salt_position: str = "prefix", iterations: int = 0
) -> Stored:
    """The parts of ``stored``. A text that names its kind is read so, whatever ``algorithm`` is, except for ``plain``
    and digests, which mean the text itself.

    ``iterations`` is for a bare PBKDF2 hash (hex, as EMQX stores it, SHA-256); 0 means EMQX's own 4096. Raises
    UnknownKindError.
    """
    if algorithm in {"auto", "bcrypt", "pbkdf2"}:
        for read in _READERS:
            found = read(stored)
            if found is not None:
                return found
        if algorithm == "pbkdf2":
            return _bare_pbkdf2(stored, salt, iterations or _EMQX_ITERATIONS)
        raise UnknownKindError(_UNKNOWN)
    if algorithm == "plain" or algorithm in _DIGESTS:
        return _bare_salted(stored, salt, algorithm, salt_position)
    raise UnknownKindError(
        "the algorithm of a stored password is none of auto, plain, md5, sha, sha256, sha512, bcrypt, pbkdf2"
    )


_UNKNOWN: Final = (
    "a stored password is of no known kind ($argon2id$…, $2b$…, $pbkdf2-sha256$…, $device$…): check the algorithm"
)


def _read_argon2(stored: str) -> Stored | None:
    """An argon2 hash; None for another kind. Raises UnknownKindError for a damaged or too costly one."""
    if not stored.startswith("$argon2"):
        return None
    found = _ARGON2.fullmatch(stored)
    if found is None:
        raise UnknownKindError("a stored argon2 hash is cut off or damaged")
    cost = Argon2Cost(*(int(number) for number in found.groups()))
    if cost.memory_kib > _MOST_MEMORY_KIB or cost.passes > _MOST_PASSES or cost.lanes > _MOST_LANES:
        raise UnknownKindError("a stored argon2 hash asks for more memory or passes than is allowed (4 GiB, 100)")
    return Stored(Kind.ARGON2, stored[1 : stored.index("$", 1)], stored, cost=cost)


def _read_bcrypt(stored: str) -> Stored | None:
    """A bcrypt hash; None for another kind. Raises UnknownKindError for a cost out of bounds."""
    found = _BCRYPT.fullmatch(stored)
    if found is None:
        return None
    if not 4 <= int(found[1]) <= _MOST_BCRYPT_ROUNDS:
        raise UnknownKindError(f"a stored bcrypt hash has a cost outside 4 to {_MOST_BCRYPT_ROUNDS}")
    return Stored(Kind.BCRYPT, "bcrypt", stored)


def _read_pbkdf2(stored: str) -> Stored | None:
    found = _PBKDF2.fullmatch(stored)
    if found is None:
        return None
    return _pbkdf2(found[1] or "sha1", int(found[2]), _unpadded(found[3]), _unpadded(found[4]))


def _read_device(stored: str) -> Stored | None:
    """A device secret's parts; None for another kind."""
    found = _DEVICE.fullmatch(stored)
    if found is None:
        return None
    key_id, salt, hash_ = found.groups()  # of lengths and an alphabet that need no further look
    return Stored(
        Kind.DEVICE,
        "blake2b",
        salt=base64.urlsafe_b64decode(salt + "=="),
        hash=base64.urlsafe_b64decode(hash_ + "="),
        key_id=key_id,
    )


def _read_salted(stored: str) -> Stored | None:
    found = _SALTED.fullmatch(stored)
    if found is None:
        return None
    return _salted(found[1], found[2], _unpadded(found[3]), _unpadded(found[4]))


_READERS: Final = (_read_argon2, _read_device, _read_bcrypt, _read_pbkdf2, _read_salted)


def _pbkdf2(digest: str, iterations: int, salt: bytes, hash_: bytes) -> Stored:
    """The checked parts of a PBKDF2 hash. Raises UnknownKindError."""
    if digest not in _PBKDF2_DIGESTS:
        raise UnknownKindError(f"a stored PBKDF2 hash names a digest other than {', '.join(sorted(_PBKDF2_DIGESTS))}")
    if not 1 <= iterations <= _MOST_ITERATIONS:
        raise UnknownKindError(f"a stored PBKDF2 hash asks for 0 or more than {_MOST_ITERATIONS} iterations")
    if not 8 <= len(hash_) <= 1024:
        raise UnknownKindError("a stored PBKDF2 hash is shorter than 8 or longer than 1024 bytes")
    return Stored(Kind.PBKDF2, digest, salt=salt, hash=hash_, iterations=iterations)


def _bare_pbkdf2(stored: str, salt: str, iterations: int) -> Stored:
    if not _HEX.fullmatch(stored):
        raise UnknownKindError("a stored PBKDF2 hash is neither $pbkdf2-…$ nor hexadecimal")
    return _pbkdf2("sha256", iterations, _encoded(salt), bytes.fromhex(stored))


def _bare_salted(stored: str, salt: str, algorithm: str, salt_position: str) -> Stored:
    """A hexadecimal digest, or a readable password, whose salt stands beside it."""
    if algorithm == "plain":
        return _salted(algorithm, salt_position, _encoded(salt), _encoded(stored))
    if not _HEX.fullmatch(stored):
        raise UnknownKindError(f"a stored {algorithm} hash is not hexadecimal: check the algorithm")
    return _salted(algorithm, salt_position, _encoded(salt), bytes.fromhex(stored))


def _salted(algorithm: str, salt_position: str, salt: bytes, hash_: bytes) -> Stored:
    """The checked parts of a salted digest, or of a readable password (``plain``). Raises UnknownKindError."""
    if salt_position not in {"prefix", "suffix", "disable"}:
        raise UnknownKindError("the salt of a stored password stands neither as prefix nor as suffix nor is disabled")
    if algorithm == "plain":
        digest = "plain"
    else:
        digest = _DIGESTS[algorithm]
        if len(hash_) != hashlib.new(digest, usedforsecurity=False).digest_size:
            raise UnknownKindError(f"a stored {algorithm} hash has the wrong length: check the algorithm")
    used = b"" if salt_position == "disable" else salt
    return Stored(Kind.SALTED, digest, salt=used, hash=hash_, suffix=salt_position == "suffix")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise UnknownKindError("a stored password or its salt is not UTF-8") from None


def _unpadded(text: str) -> bytes:
    """Base64 of any of the alphabets in use, without padding."""
    plain = text.rstrip("=").translate(_ALPHABETS)
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise UnknownKindError("a stored password is damaged: its base64 cannot be read") from None


_URL_ALPHABET: Final = bytes.maketrans(b"-_", b"+/")
_ALPHABETS: Final = str.maketrans("._-", "+/+")  # passlib writes "." for "+"; the URL alphabet "-" and "_"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _passlib_text(data: bytes) -> str:
    return base64.b64encode(data, b"./").rstrip(b"=").decode()


def matches(stored: Stored, password: str, keys: Mapping[str, bytes]) -> bool:
    """Whether ``password`` matches. ``keys`` are those of device secrets, by id. Blocks as long as the kind takes.

    False for text that MQTT cannot carry (longer than 64 KiB, or not UTF-8). Raises UnknownKindError for a device
    secret whose key is missing.
    """
    data = _password_bytes(password)
    if data is None:
        return False
    if stored.kind is Kind.DEVICE:
        return hmac.compare_digest(_device_digest(data, _key(stored.key_id, keys), stored.salt), stored.hash)
    if stored.kind is Kind.SALTED:
        salted = data + stored.salt if stored.suffix else stored.salt + data
        made = salted if stored.digest == "plain" else _digest(stored.digest, salted)
        return hmac.compare_digest(made, stored.hash)
    if stored.kind is Kind.PBKDF2:
        made = hashlib.pbkdf2_hmac(stored.digest, data, stored.salt, stored.iterations, len(stored.hash))
        return hmac.compare_digest(made, stored.hash)
    if stored.kind is Kind.BCRYPT:
        return _bcrypt_matches(stored.text, data)
    return _argon2_matches(stored.text, data)


def device_secret_matches(stored: str, secret: str, keys: Mapping[str, bytes]) -> bool | None:
    """``parse`` and ``matches`` for a stored device secret, in a third of their time, for reconnecting fleets. None for
    another kind. Raises UnknownKindError as ``matches`` does."""
    found = _DEVICE.fullmatch(stored)
    if found is None:
        return None
    data = _password_bytes(secret)
    if data is None:
        return False
    text = stored.encode().translate(_URL_ALPHABET)
    salt = binascii.a2b_base64(text[found.start(2) : found.end(2)] + b"==")
    made = _device_digest(data, _key(found[1], keys), salt)
    return hmac.compare_digest(made, binascii.a2b_base64(text[found.start(3) :] + b"="))


def _key(key_id: str, keys: Mapping[str, bytes]) -> bytes:
    """The key of a device secret. Raises UnknownKindError without it."""
    key = keys.get(key_id)
    if key is None:
        raise UnknownKindError(
            f"a device secret was made with key {key_id}, which is missing here: it is in the database, or the export, "
            "that the user came from"
        )
    return key


def is_proof(stored: Stored, password: str) -> bool:
    """Whether a match covers the whole password: bcrypt compares 72 bytes only."""
    return stored.kind is not Kind.BCRYPT or len(password.encode()) <= _BCRYPT_BYTES


def _password_bytes(password: str) -> bytes | None:
    """The password as MQTT carries it; None if it cannot."""
    try:
        data = password.encode()
    except UnicodeEncodeError:
        return None
    return data if len(data) <= PASSWORD_BYTES else None


def _digest(name: str, data: bytes) -> bytes:
    return hashlib.new(name, data, usedforsecurity=False).digest()


def load_libraries() -> None:
    """Import the libraries of the slow kinds before the first login. Raises ConfigError if one is not installed."""
    try:
        import argon2.low_level  # noqa: F401 - loading them is all that is wanted
        import bcrypt  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The Python package {error.name}, which passwords are checked with, is not installed. To install it: "
            + how_to_install("auth")
        ) from error


def _bcrypt_matches(stored: str, data: bytes) -> bool:
    import bcrypt

    if b"\0" in data:
        return False
    return bcrypt.checkpw(data[:_BCRYPT_BYTES], stored.encode())  # all that bcrypt looks at


def _argon2_matches(stored: str, data: bytes) -> bool:
    """Whether a stored argon2 hash of any kind is that of the password."""
    from argon2.exceptions import VerificationError
    from argon2.low_level import Type, verify_secret

    kind = {"argon2id": Type.ID, "argon2i": Type.I, "argon2d": Type.D}[stored[1 : stored.index("$", 1)]]
    try:
        return verify_secret(stored.encode(), data, kind)
    except VerificationError:
        return False  # a mismatch, or a hash that the library cannot decode


def hash_argon2id(password: str, cost: Argon2Cost) -> str:
    """A new hash of a person's password. Blocks for some 20 ms. Raises ValueError for text that MQTT cannot carry."""
    if "argon2.low_level" not in sys.modules:
        load_libraries()
    from argon2.low_level import Type, hash_secret

    data = _password_bytes(password)
    if data is None:
        raise ValueError(f"a password is UTF-8 text of at most {PASSWORD_BYTES} bytes: MQTT carries nothing else")
    return hash_secret(data, secrets.token_bytes(16), cost.passes, cost.memory_kib, cost.lanes, 32, Type.ID).decode()


def generate_secret() -> str:
    """A new device secret: 32 letters and digits, 190 random bits."""
    return "".join(secrets.choice(_SECRET_CHARACTERS) for _ in range(_SECRET_LENGTH))


def device_key_id(key: bytes) -> str:
    """The id of a key in stored device secrets."""
    return hashlib.blake2b(key, digest_size=4, person=b"device key id").hexdigest()


def hash_device_secret(secret: str, key: bytes) -> str:
    """The stored form of a secret from ``generate_secret``; never of another password (see above)."""
    salt = secrets.token_bytes(16)
    return f"$device${device_key_id(key)}${_text(salt)}${_text(_device_digest(secret.encode(), key, salt))}"


def _device_digest(data: bytes, key: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, salt=salt, digest_size=32, person=b"device secret").digest()


def salted_text(hash_: str, *, salt: str, algorithm: str, salt_position: str) -> str:
    """A bare hash of EMQX as one text with its kind. Raises UnknownKindError."""
    stored = _bare_salted(hash_, salt, algorithm, salt_position)
    return f"$salted-{algorithm}${salt_position}${_text(stored.salt)}${_text(stored.hash)}"


def plain_text(password: str) -> str:
    """A readable password as one text, for use in memory only."""
    return salted_text(password, salt="", algorithm="plain", salt_position="disable")


def pbkdf2_text(hash_: str, *, salt: str, digest: str, iterations: int) -> str:
    """A hex PBKDF2 hash as ``parse`` reads it; ``digest``: EMQX's name (``sha``: SHA-1). Raises UnknownKindError."""
    if not _HEX.fullmatch(hash_):
        raise UnknownKindError("a stored PBKDF2 hash is not hexadecimal")
    name = _DIGESTS.get(digest, digest)
    stored = _pbkdf2(name, iterations, _encoded(salt), bytes.fromhex(hash_))
    mark = "$pbkdf2" if name == "sha1" else f"$pbkdf2-{name}"
    return f"{mark}${iterations}${_passlib_text(stored.salt)}${_passlib_text(stored.hash)}"
