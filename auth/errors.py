"""The errors of credentials and access decisions.

GatewayError
└── AuthError                   anything below
    ├── BackendDownError        a source of users did not answer; the chain decides what follows
    │   └── OverloadedError     this service has no room for the question
    ├── StoreError              the built-in database cannot be used, or an edit of it is refused
    │   └── NotStoredError      what was named is not in it
    ├── ImportFormatError       a file of users or rules that cannot be read
    ├── RuleFormatError         access rules of a token or of EMQX that are not in their form
    └── CredentialError         no credential for EMQX or Kafka
"""

from typing import Literal

from config.errors import ExitStatus, GatewayError

DownCause = Literal[
    "unreachable",  # no such host, connection refused, no route
    "tls",  # no TLS there, a certificate that is not trusted
    "login",  # the server refuses our own user or password
    "settings",  # it answers, but not to this query: a table, a column, a right is missing
    "timeout",  # no answer in time
    "lost",  # the connection broke
    "busy",  # the server says that it cannot now: too many connections, starting, stopping
    "open",  # not asked, since it failed a moment ago
    "overload",  # not asked, since this service has no room
    "other",
]


class AuthError(GatewayError):
    """A failure of credentials or access decisions."""


class BackendDownError(AuthError):
    """A source of users did not answer, or not in time. ``backend`` is its name in ``auth.chain``."""

    exit_status = ExitStatus.UNAVAILABLE

    def __init__(self, backend: str, sentence: str, cause: DownCause = "other") -> None:
        super().__init__(sentence)
        self.backend = backend
        self.cause: DownCause = cause


class OverloadedError(BackendDownError):
    """The question was shed, because too many are under way. The backend is not at fault."""

    def __init__(self, backend: str, sentence: str, cause: DownCause = "overload") -> None:
        super().__init__(backend, sentence, cause)


class StoreError(AuthError):
    """The built-in database cannot be opened, read or written, or an edit does not fit what is there."""


class NotStoredError(StoreError):
    """A user, rule, tenant or ban that was named is not in the built-in database."""

    exit_status = ExitStatus.NOT_FOUND


class ImportFormatError(AuthError):
    """A line or entry of an import file is wrong; nothing of the file was taken over."""

    exit_status = ExitStatus.CONFIG


class RuleFormatError(AuthError):
    """An access rule in one of EMQX's forms that is wrong, or that has no counterpart here."""

    exit_status = ExitStatus.CONFIG


class CredentialError(AuthError):
    """No token or certificate for EMQX or Kafka; the sentence names its source and the reason."""

    exit_status = ExitStatus.UNAVAILABLE
