"""What follows for a login from a user that this service itself keeps: in the built-in database or the users file."""

from __future__ import annotations

__all__ = ["LocalJudge", "asked_identities"]

import time
from typing import TYPE_CHECKING, Final

import structlog

from auth.model import Allow, Deny
from auth.wording import NAME_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from auth.hashing import Hasher
    from auth.model import LoginRequest, Tenant, Verdict
    from auth.store.records import IdentityKind, User

log = structlog.get_logger("auth")

_WITH_PASSWORDS: Final = frozenset({"username", "clientid"})


def asked_identities(request: LoginRequest, kinds: Sequence[IdentityKind]) -> Iterator[tuple[IdentityKind, str]]:
    """What the client can be found by, in the order of ``kinds``, without what it does not have, and without names
    too long for a password to be looked up by them."""
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


class LocalJudge:
    """Judges users of one source; ``name`` is that source's in ``auth.chain``.

    A user found by certificate name or address is let in without a password: EMQX has verified the certificate, and
    who lists an address trusts it.
    """

    def __init__(self, name: str, hasher: Hasher, clock: Callable[[], float] = time.time) -> None:
        self._name = name
        self._hasher = hasher
        self._clock = clock

    def at_once(self, user: User, tenant: Tenant | None, password: str, version: int = 0) -> Verdict | None:
        """The verdict, where it needs no slow hash. None: ``judge`` has to be awaited. Raises ValueError for a stored
        password that cannot be used."""
        refused = self._refused(user, tenant)
        if refused:
            return Deny(self._name, refused, user.identity)
        if user.kind in _WITH_PASSWORDS:
            if not user.password:
                return Deny(self._name, "bad_password", user.identity, detail="This user has no password.")
            if not self._hasher.verify_at_once(user.password, password):
                return None
        return self.allow(user, tenant, version)

    def past_lock_out(self, user: User | None, tenant: Tenant | None, password: str, version: int) -> Allow | None:
        """Its Allow, where ``password`` is a generated secret of this user: nobody guesses that. All others cost the
        same work. Raises ValueError as ``at_once``."""
        stored = user.password if user is not None and user.kind in _WITH_PASSWORDS else ""
        if not self._hasher.generated_matches(stored, password) or user is None or self._refused(user, tenant):
            return None
        return self.allow(user, tenant, version)

    async def judge(self, user: User, tenant: Tenant | None, password: str, version: int = 0) -> Verdict:
        """The verdict, after ``at_once`` has not had one. Raises OverloadedError, and ValueError as ``at_once``."""
        if not await self._hasher.verify(user.password, password):
            return Deny(self._name, "bad_password", user.identity, hashed=True)
        return self.allow(user, tenant, version)

    def allow(self, user: User, tenant: Tenant | None, version: int = 0) -> Allow:
        """What the user brings with it."""
        attributes = user.attributes
        if tenant is not None and tenant.attributes:
            attributes = {**tenant.attributes, **attributes}
        return Allow(
            self._name,
            user.identity,
            user.tenant,
            user.groups,
            attributes,
            user.is_superuser,
            user.expires_at_s,
            version=version,
        )

    def unreadable(self, user: User, error: ValueError) -> Deny:
        """The verdict on a user whose stored password cannot be used; it is nobody else's failure."""
        log.warning("auth_password_unreadable", source=self._name, kind=user.kind, user=user.identity, error=str(error))
        return Deny(self._name, "refused", user.identity, detail=f"The stored password cannot be used: {error}.")

    def _refused(self, user: User, tenant: Tenant | None) -> str:
        if user.disabled:
            return "disabled"
        if user.expires_at_s is not None and user.expires_at_s <= self._clock():
            return "expired"
        if tenant is not None and not tenant.enabled:
            return "tenant_disabled"
        return ""
