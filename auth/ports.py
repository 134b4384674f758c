"""What the chain, the decisions and the outward credentials ask of their parts. Implementations match by shape."""

from __future__ import annotations

__all__ = [
    "AccessDecisions",
    "AccessStore",
    "AnsweringAtOnce",
    "Authenticator",
    "KnowingSecrets",
    "PasswordHasher",
    "RuleSource",
    "Stamping",
]

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from auth.model import (
        AccessAnswer,
        AccessRequest,
        Allow,
        Ban,
        Ignore,
        LoginAnswer,
        LoginRequest,
        Rule,
        Subject,
        Tenant,
        Verdict,
    )


class AccessDecisions(Protocol):
    """What the server that EMQX asks needs: an answer to each question. Belongs to the service's event loop.

    The server bounds the time (``auth.answer_timeout``) by cancelling ``login``; what is raised is a defect, which it
    logs and answers with deny.
    """

    def login_at_once(self, request: LoginRequest) -> LoginAnswer | None:
        """The answer, where it is known without waiting for anybody: from a cache, a ban, a lock-out, or because the
        login is shed. None: ``login`` has to be awaited. Most logins of a reconnecting fleet end here, without a
        task of their own."""

    async def login(self, request: LoginRequest) -> LoginAnswer:
        """The answer of the chain; called after ``login_at_once`` returned None."""

    def authorise(self, request: AccessRequest) -> AccessAnswer:
        """The answer of the rules; does not wait for anybody."""

    def backend_down(self, reason: str) -> LoginAnswer:
        """What ``auth.backend_down`` says, for a login that could not be decided in time or for want of room."""


class Authenticator(Protocol):
    """One source of users in the chain. Belongs to the service's event loop."""

    name: str  # as in auth.chain

    async def start(self) -> None:
        """Open what is needed. A backend that is down does not fail the start; a setting that cannot work raises
        ConfigError."""

    async def authenticate(self, request: LoginRequest) -> Verdict:
        """What it says of this login. Raises BackendDownError (its own time-out kept) when it cannot tell; anything
        else raised is a defect, and counts as down."""

    @property
    def up(self) -> bool:
        """Whether the last question was answered (or none was asked yet); for /readyz and a metric."""

    async def close(self) -> None:
        """Let go of connections. Never raises."""


@runtime_checkable
class AnsweringAtOnce(Protocol):
    """An authenticator that knows many verdicts without waiting for anybody."""

    def at_once(self, request: LoginRequest) -> Verdict | None:
        """What ``authenticate`` would say, where it needs no slow hash and nobody else's answer; else None. Raises
        BackendDownError."""


@runtime_checkable
class KnowingSecrets(Protocol):
    """An authenticator that can tell at once whether a password is a secret that was generated for its user."""

    def past_lock_out(self, request: LoginRequest) -> Allow | Ignore | None:
        """Allow: it is, and the user may log in, locked out or not. Ignore: it does not know the user. None: anything
        else. Takes the same work whether or not the user has such a secret, and checks no slow hash. Raises
        BackendDownError."""


@runtime_checkable
class Stamping(Protocol):
    """An authenticator that can tell whether an earlier verdict of it still holds, without checking a password. The
    built-in database does: a cached login then outlives changes of all users but its own."""

    def stamp(self, request: LoginRequest) -> int:
        """What an Allow for this request would have as ``version`` now; 0 for an Ignore. Raises BackendDownError."""


class PasswordHasher(Protocol):
    """Verifies passwords; slow kinds run in threads of their own, a bounded number at a time."""

    async def verify(
        self,
        stored: str,
        password: str,
        *,
        salt: str = "",
        algorithm: str = "auto",
        salt_position: str = "prefix",
        iterations: int = 0,
    ) -> bool:
        """Whether ``password`` is the one that ``stored`` was made of. Fast kinds (keyed, sha…) are computed at once
        on the loop; slow ones (argon2id, bcrypt, pbkdf2) in a thread. A False has always cost an argon2id hash,
        whatever kind ``stored`` is of, so the refusal that follows is ``hashed``. Raises OverloadedError when too many
        wait, and ValueError for a stored text of no known kind (never the text itself in the message).
        ``iterations``: of a bare PBKDF2 hash, 0 for EMQX's default."""

    async def burn(self) -> None:
        """Takes as long as verifying a wrong argon2id password: what a login costs whose user does not exist. Raises
        OverloadedError as ``verify`` does."""

    async def hash(self, password: str) -> str:
        """A new argon2id hash (``$argon2id$…``)."""

    def outdated(self, stored: str) -> bool:
        """Whether a verified password should be hashed anew: another kind than today's, or weaker settings."""


class RuleSource(Protocol):
    """Where a subject's rules come from."""

    def rules_for(self, subject: Subject) -> tuple[Rule, ...]:
        """The rules that can concern this subject, in order; conditions on who it is may still be checked by the
        caller. Does not block longer than a read of a local file. Raises BackendDownError."""

    @property
    def version(self) -> int:
        """Grows with every change of rules, users or tenants that anybody has made. Not with bans, which are asked for
        at each login: else banning one client would make the service forget the logins of all others."""


class AccessStore(RuleSource, Protocol):
    """The built-in database, as the decisions see it. Reads are of a local file and done on the event loop; each of
    them raises BackendDownError when the file cannot be read."""

    def refresh(self) -> bool:
        """Look whether anybody has changed anything; ``version`` has moved if so. Cheap enough for every second."""

    @property
    def ban_version(self) -> int:
        """Grows with every change of bans; ``version`` does not, so that a ban makes nobody's login forgotten."""

    @property
    def problem(self) -> str:
        """Why the last read failed, as a sentence; empty when it did not."""

    def find_ban(self, clientid: str, username: str, address: str, now_s: float) -> Ban | None:
        """The ban that keeps this client out now, if any. "" matches no ban."""

    def tenant(self, name: str) -> Tenant | None:
        """What was laid down for a tenant; None for one that is not named anywhere."""

    async def ban(self, ban: Ban, *, by: str) -> None:
        """Write a ban, with its line in the audit; a writer thread does it. Raises StoreError."""
