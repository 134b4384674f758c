"""The base of authenticators over users that this service keeps itself: in the built-in database or the users file."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import structlog

from auth.hashing import Hasher
from auth.model import Allow, Deny, Ignore, LoginRequest, Tenant, Verdict
from auth.names import NAME_MAX
from auth.store.records import IdentityKind, User
from auth.store.store import Store

log = structlog.get_logger("auth")

_WITH_PASSWORDS: Final = frozenset({"username", "clientid"})


def asked_identities(request: LoginRequest, kinds: Sequence[IdentityKind]) -> Iterator[tuple[IdentityKind, str]]:
    """The client's identities in the order of ``kinds``, without empty ones and without names longer than
    ``NAME_MAX``."""
    for kind in kinds:
        if kind == "username":
            identity = request.username
        elif kind == "clientid":
            identity = request.clientid
        elif kind == "common_name":
            identity = request.cert_common_name
        else:
            identity = request.peerhost
        if identity and not (kind in _WITH_PASSWORDS and len(identity) > NAME_MAX):
            yield kind, identity


class Found(NamedTuple):
    """The user of a login. ``version`` changes with the user and its tenant."""

    user: User
    tenant: Tenant | None
    version: int


class LocalUsers(ABC):
    """Implements ``auth.ports.Stamping`` and ``KnowingSecrets``, and the verdict of ``Authenticator``.

    A user found by certificate name or address needs no password: EMQX verified the certificate, and a listed address
    is trusted.
    """

    def __init__(self, name: str, store: Store, hasher: Hasher, clock: Callable[[], float] = time.time) -> None:
        """``name`` as in ``auth.chain``, ``clock`` gives Unix seconds."""
        self.name: Final = name
        self._store = store
        self._hasher = hasher
        self._clock = clock

    @abstractmethod
    def _find(self, request: LoginRequest) -> Found | None:
        """The user of this login. Raises BackendDownError."""

    async def authenticate(self, request: LoginRequest) -> Verdict:
        """The verdict, after a slow hash in a thread if one is needed. Raises BackendDownError."""
        found = self._find(request)
        if found is None:
            return Ignore(self.name)
        try:
            verdict = self._judged_at_once(found, request.password)
            return verdict if verdict is not None else await self._judged(found, request.password)
        except ValueError as error:
            return self._unreadable(found.user, error)

    def past_lock_out(self, request: LoginRequest) -> Allow | Ignore | None:
        """Allow for a right generated secret, despite a lock-out; Ignore for an unknown user; None for others."""
        found = self._find(request)
        stored = found.user.password if found is not None and found.user.kind in _WITH_PASSWORDS else ""
        try:
            matches = self._hasher.generated_matches(stored, request.password)
        except ValueError:
            return None  # the key of its secret is missing, which ``authenticate`` reports
        if found is None:
            return Ignore(self.name)
        return self._allowed(found) if matches and not self._refusal(found) else None

    def stamp(self, request: LoginRequest) -> int:
        """The present ``Allow.version`` of this request: an earlier one is equal while its inputs are the same. 0 for
        an unknown user. Some 10 µs. Raises BackendDownError."""
        found = self._find(request)
        return 0 if found is None else found.version

    def _judged_at_once(self, found: Found, password: str) -> Verdict | None:
        """The verdict without a slow hash; None: await ``_judged``. Raises ValueError for an unusable stored
        password."""
        user = found.user
        refused = self._refusal(found)
        if refused:
            return Deny(self.name, refused, user.identity)
        if user.kind in _WITH_PASSWORDS:
            if not user.password:
                return Deny(self.name, "bad_password", user.identity, detail="This user has no password.")
            if not self._hasher.verify_at_once(user.password, password):
                return None
        return self._allowed(found)

    async def _judged(self, found: Found, password: str) -> Allow | Deny:
        """Raises OverloadedError, and ValueError as ``_judged_at_once``."""
        if not await self._hasher.verify(found.user.password, password):
            return Deny(self.name, "bad_password", found.user.identity, hashed=True)
        return self._allowed(found)

    def _allowed(self, found: Found) -> Allow:
        """The Allow with what user and tenant have; the user's attributes come before the tenant's."""
        user, tenant, version = found
        attributes = user.attributes
        if tenant is not None and tenant.attributes:
            attributes = {**tenant.attributes, **attributes}
        return Allow(
            self.name,
            user.identity,
            user.tenant,
            user.groups,
            attributes,
            user.is_superuser,
            user.expires_at_s,
            version=version,
        )

    def _unreadable(self, user: User, error: ValueError) -> Deny:
        """The verdict on a user whose stored password cannot be used. Other users are not affected."""
        log.warning("auth_password_unreadable", source=self.name, kind=user.kind, user=user.identity, error=str(error))
        return Deny(self.name, "refused", user.identity, detail=f"The stored password cannot be used: {error}.")

    def _refusal(self, found: Found) -> str:
        """The reason against this user, whatever its password; empty if there is none."""
        user, tenant, _ = found
        if user.disabled:
            return "disabled"
        if user.expires_at_s is not None and user.expires_at_s <= self._clock():
            return "expired"
        if tenant is not None and not tenant.enabled:
            return "tenant_disabled"
        return ""
