"""The protocols of the chain's parts, of decisions and of outward credentials. Implementations match by shape."""

from typing import Protocol, runtime_checkable

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
    """Decides for the HTTP server that EMQX asks. Belongs to the service's event loop.

    The server cancels ``login`` after ``auth.answer_timeout``. An exception is a defect, which the server logs and
    answers with deny.
    """

    def login_at_once(self, request: LoginRequest) -> LoginAnswer | None:
        """The answer without waiting: from the cache, a ban or a lock-out, or for a shed login. None: await ``login``.
        Most logins of a reconnecting fleet end here, without a task."""

    async def login(self, request: LoginRequest) -> LoginAnswer:
        """The answer of the chain, after ``login_at_once`` returned None."""

    def authorise(self, request: AccessRequest) -> AccessAnswer:
        """The answer of the rules. Does not wait."""

    def backend_down(self, reason: str) -> LoginAnswer:
        """The answer of ``auth.backend_down``, for a login without a verdict in time or without room."""


class Authenticator(Protocol):
    """One source of users in the chain. Belongs to the service's event loop."""

    name: str  # as in auth.chain

    async def start(self) -> None:
        """Open connections. A backend that is down does not end the start. Raises ConfigError for a wrong setting."""

    async def authenticate(self, request: LoginRequest) -> Verdict:
        """The verdict on this login. Raises BackendDownError (after its own time-out) when there is none. Any other
        exception is a defect and counts as down."""

    @property
    def up(self) -> bool:
        """Whether the last question was answered (or none was asked yet); for /readyz and a metric."""

    async def close(self) -> None:
        """Close all connections. Never raises."""


@runtime_checkable
class AnsweringAtOnce(Protocol):
    """An authenticator that decides about many logins without waiting."""

    def at_once(self, request: LoginRequest) -> Verdict | None:
        """The verdict of ``authenticate`` without a slow hash or another server; else None. Raises BackendDownError."""


@runtime_checkable
class KnowingSecrets(Protocol):
    """An authenticator that checks generated secrets without waiting."""

    def past_lock_out(self, request: LoginRequest) -> Allow | Ignore | None:
        """Allow: the secret is right, so the user may log in despite a lock-out. Ignore: the user is unknown. None:
        anything else. The work is the same with and without such a secret, and has no slow hash. Raises
        BackendDownError."""


@runtime_checkable
class Stamping(Protocol):
    """An authenticator that tells without a password whether its earlier verdict still holds. With the built-in
    database a cached login stays valid when other users change."""

    def stamp(self, request: LoginRequest) -> int:
        """The ``version`` of an Allow for this request now; 0 for an Ignore. Raises BackendDownError."""


class PasswordHasher(Protocol):
    """Verifies passwords. Slow kinds run in a bounded number of threads."""

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
        """Whether ``password`` matches ``stored``. Fast kinds (keyed, sha…) are computed on the loop, slow kinds
        (argon2id, bcrypt, pbkdf2) in a thread. A False costs an argon2id hash, whatever the kind of ``stored``, so the
        refusal is ``hashed``. Raises OverloadedError when too many wait, and ValueError for a text of no known kind,
        without the text. ``iterations``: of a bare PBKDF2 hash, 0 for EMQX's default."""

    async def burn(self) -> None:
        """Take as long as a wrong argon2id password, for an unknown user. Raises OverloadedError."""

    async def hash(self, password: str) -> str:
        """A new argon2id hash (``$argon2id$…``)."""

    def outdated(self, stored: str) -> bool:
        """Whether a verified password should be hashed anew: another kind than today's, or weaker settings."""


class RuleSource(Protocol):
    """Where a subject's rules come from."""

    def rules_for(self, subject: Subject) -> tuple[Rule, ...]:
        """The rules that may concern this subject, in order. The caller checks their conditions. Blocks for a read of a
        local file at most. Raises BackendDownError."""

    @property
    def version(self) -> int:
        """Grows with each change of rules, users or tenants by any process. Bans have their own version: otherwise one
        ban would discard all cached logins."""


class AccessStore(RuleSource, Protocol):
    """The built-in database for decisions. Each read is of a local file, on the event loop, and raises
    BackendDownError when the file cannot be read."""

    def refresh(self) -> bool:
        """Whether the database has changed; ``version`` is then higher. Cheap."""

    @property
    def ban_version(self) -> int:
        """Grows with every change of bans. ``version`` does not, so a ban discards no cached login."""

    @property
    def problem(self) -> str:
        """Why the last read failed, as a sentence; empty when it did not."""

    def find_ban(self, clientid: str, username: str, address: str, now_s: float) -> Ban | None:
        """The present ban of this client, if any. "" matches no ban."""

    def tenant(self, name: str) -> Tenant | None:
        """The settings of a tenant; None without an entry."""

    async def ban(self, ban: Ban, *, by: str) -> None:
        """Write a ban and its audit line, in the writer's thread. Raises StoreError."""
