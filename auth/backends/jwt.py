"""Logins by JSON Web Token.

Ignore: no token, no JWT, or none of the keys signed it. It may be a password for the next authenticator.
Deny: one of the keys signed the token, but its claims are wrong. EMQX does the same (emqx_authn_jwt).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from auth.errors import BackendDownError
from auth.jwt.claims import ClaimRules
from auth.jwt.jwks import JwksKeys
from auth.jwt.keys import FileKeys, KeySource, SecretKeys
from auth.jwt.parsing import Token, json_object, parse_token
from auth.model import Allow, Deny, Ignore, LoginRequest, Verdict
from config.tables.auth import AuthJwtKeySettings, AuthJwtSettings


@dataclass(frozen=True, slots=True)
class _Key:
    name: str
    algorithms: frozenset[str]
    source: KeySource
    rules: ClaimRules


class JwtAuthenticator:
    """The ``jwt`` of ``auth.chain``. ``clock`` gives Unix seconds for tokens, ``monotonic_ns`` the time for refreshing
    keys."""

    name = "jwt"

    def __init__(
        self,
        settings: AuthJwtSettings,
        *,
        clock: Callable[[], float] = time.time,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._from_username = settings.source == "username"
        self._clock = clock  # Unix seconds
        self._keys = tuple(
            _Key(
                key.name,
                frozenset(key.algorithms),
                _source(key, f'auth.jwt.keys "{key.name}"', monotonic_ns),
                ClaimRules(key, settings),
            )
            for key in settings.keys
        )

    async def start(self) -> None:
        """Read the keys; JWK sets come later. Raises ConfigError for a key that cannot be used."""
        for key in self._keys:
            await key.source.start()

    async def authenticate(self, request: LoginRequest) -> Verdict:
        """The verdict. The first key admits that signed the token and whose claims fit. Raises BackendDownError."""
        text = request.username if self._from_username else request.password
        if not text:
            return Ignore(self.name, "no token")
        try:
            token = parse_token(text)
        except ValueError as error:
            return Ignore(self.name, f"no token that can be read: {error}")
        denied: Deny | None = None
        down: BackendDownError | None = None
        awaited = False
        fitting = [key for key in self._keys if token.algorithm in key.algorithms]
        # An issuer is asked last: the token is perhaps of another one, and this login would wait for the answer.
        for key in sorted(fitting, key=lambda one: one.source.lacks(token)):
            try:
                signed = any(one.fits(token) for one in await key.source.candidates(token))
            except BackendDownError as error:
                down = error
                continue
            awaited = awaited or (not signed and key.source.awaits(token))
            if signed:
                # Two keys may be of one issuer, with an audience each: the second one judges too.
                verdict = self._judge(token, key, request)
                if isinstance(verdict, Allow):
                    return verdict
                denied = denied or verdict
        if denied is not None:
            return denied
        if down is not None:
            raise down
        if awaited:
            return Ignore(self.name, "a key that is not known yet", final=False)  # a fetch may bring it
        return Ignore(self.name, "no key that its signature is of")

    def past_lock_out(self, request: LoginRequest) -> Ignore | None:
        """See ``auth.ports.KnowingSecrets``. A token is no generated secret."""
        text = request.username if self._from_username else request.password
        return Ignore(self.name, "no token") if text.count(".") != 2 else None

    def _judge(self, token: Token, key: _Key, request: LoginRequest) -> Allow | Deny:
        """The verdict by the claims of a token that ``key`` signed."""
        try:
            claims = json_object(token.payload)
        except ValueError as error:
            return Deny(f"{self.name} {key.name}", "bad_token", detail=f"the token's claims cannot be read: {error}")
        return key.rules.judge(claims, request, self._clock())

    @property
    def key_sets(self) -> dict[str, JwksKeys]:
        """The JWK sets that are fetched, by the names of their keys."""
        return {key.name: key.source for key in self._keys if isinstance(key.source, JwksKeys)}

    @property
    def up(self) -> bool:
        return all(key.source.up for key in self._keys)

    async def close(self) -> None:
        for key in self._keys:
            await key.source.close()


def _source(key: AuthJwtKeySettings, where: str, monotonic_ns: Callable[[], int]) -> KeySource:
    """Where the key comes from: its secret, its file, or a JWK set. ``where`` is its name in sentences."""
    if key.secret is not None:
        return SecretKeys(key, where, monotonic_ns=monotonic_ns)
    if key.public_key_file is not None:
        return FileKeys(key, where, monotonic_ns=monotonic_ns)
    return JwksKeys(key, where, monotonic_ns=monotonic_ns)
