"""Requests, answers and verdicts of logins and accesses, and the rules, tenants and bans that decide them.

EMQX writes absent values as empty text, or as ``undefined``. ``gateway.auth_service.dialect`` turns both into empty
text, so "" always means "absent" here.

Objects made for each login are not frozen, although nothing changes them: a frozen dataclass takes four times as long
to make, which was a tenth of a login without the cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Action = Literal["publish", "subscribe"]
Permission = Literal["allow", "deny"]
Result = Literal["allow", "deny", "ignore"]
BanKind = Literal["clientid", "username", "address"]
SubjectKind = Literal["username", "clientid", "group", "tenant", "address", "common_name", "attribute", "all"]
Condition = tuple[SubjectKind, str]
Who = tuple[Condition, ...]
EVERYBODY: Who = (("all", ""),)
_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


def _no_attributes() -> Mapping[str, str]:
    """For ``field``: before Python 3.12 a mappingproxy has no hash, and dataclasses refuse that as a default."""
    return _NO_ATTRIBUTES


@dataclass(slots=True)
class LoginRequest:
    """A client that wants to connect. The texts come from the client and are not trusted."""

    username: str = ""
    clientid: str = ""
    password: str = field(default="", repr=False)
    peerhost: str = ""  # the client's address as EMQX sees it, without port
    cert_common_name: str = ""  # of the client certificate that EMQX's listener verified


@dataclass(slots=True)
class Subject:
    """A client, as rules see it."""

    username: str = ""
    clientid: str = ""
    peerhost: str = ""
    cert_common_name: str = ""
    tenant: str = ""
    groups: frozenset[str] = frozenset()
    attributes: Mapping[str, str] = field(default_factory=_no_attributes)  # placeholder ${client_attrs.NAME}


@dataclass(slots=True)
class AccessRequest:
    """One topic that a client wants to publish to, or one filter that it wants to subscribe to."""

    subject: Subject
    action: Action
    topic: str  # for a subscription perhaps $share/GROUP/FILTER
    qos: int = 0
    retain: bool = False  # of a publish


@dataclass(slots=True, unsafe_hash=True)
class Rule:
    """One line of an access list: first match wins. Never changed: a client's own rules are made for each login.

    ``who`` is one condition, or several that must all hold: pairs of kind and value. ``("all", "")`` is everybody,
    ``("address", "10.0.0.0/8")`` a network, ``("attribute", "site=berlin")`` a client attribute; ``username`` and
    ``clientid`` are compared whole. ``topic`` is a filter with placeholders (``${clientid}``, ``${username}``,
    ``${tenant}``, ``${cert_common_name}``, ``${client_attrs.NAME}``); with ``eq`` it is compared as text, wildcards
    included. ``qos`` empty: any. ``retain`` None: either; of publishing alone.
    """

    permission: Permission
    topic: str
    who: Who = EVERYBODY
    actions: frozenset[Action] = frozenset({"publish", "subscribe"})
    eq: bool = False
    qos: frozenset[int] = frozenset()
    retain: bool | None = None
    source: str = ""  # for explain: "database rule 17", "jwt acl[2]"


@dataclass(frozen=True, slots=True)
class Ban:
    """A ban of a client id, a user name or an address (a network, as CIDR), whatever the password."""

    kind: BanKind
    value: str
    reason: str = ""  # for people
    until_s: int | None = None  # Unix seconds; None: until it is lifted
    by: str = ""  # who made it
    created_s: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """The settings of all users of a tenant. A tenant without an entry has no limits of its own."""

    name: str
    enabled: bool = True  # False: none of its users may log in, publish or subscribe
    logins_per_second: int | None = None  # None: auth.limits.tenant_logins_per_second; 0: no limit
    users_max: int | None = None  # in the built-in database; None: no limit
    attributes: Mapping[str, str] = field(default_factory=_no_attributes)  # of its users that do not set them
    created_s: int = 0
    changed_s: int = 0
    revision: int = 0  # version of the database after its last change


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an access is allowed. ``rule`` decided; None if none matched, which denies."""

    allowed: bool
    rule: Rule | None
    reason: str  # a sentence for `explain`


@dataclass(slots=True)
class Allow:
    """An authenticator knows the client and admits it. ``source`` names the authenticator, for logs and ``explain``."""

    source: str
    user: str = ""  # the name by which it was found in that backend
    tenant: str = ""
    groups: frozenset[str] = frozenset()
    attributes: Mapping[str, str] = field(default_factory=_no_attributes)
    is_superuser: bool = False
    expires_at_s: int | None = None  # Unix seconds; the end of the login
    rules: tuple[Rule, ...] = ()  # of the login itself (a token's acl claim); they come before all others
    closed: bool = False  # whether those rules are a white list, which denies all else
    version: int = 0  # of the data behind the verdict, if the source counts versions: see auth.ports.Stamping


@dataclass(frozen=True, slots=True)
class Deny:
    """An authenticator knows the client and refuses it. ``reason`` is one of ``auth.chain``'s, for metrics and logs."""

    source: str
    reason: str
    user: str = ""
    hashed: bool = False  # whether it cost an argon2id hash (PasswordHasher.verify was False), so no burn is needed
    detail: str = ""  # a sentence for `explain` and logs; never a hash or password


@dataclass(frozen=True, slots=True)
class Ignore:
    """An authenticator does not know the client: the next one is asked."""

    source: str
    reason: str = "unknown"
    final: bool = True  # False: it may know the client soon, so a refusal is no guess and is not remembered


Verdict = Allow | Deny | Ignore


@dataclass(slots=True)
class LoginAnswer:
    """The answer to a login. ``body`` is the JSON to send, so a cached login costs no encoding."""

    result: Result
    body: bytes = field(repr=False)
    reason: str = ""  # one of the service's own words, for metrics and logs


@dataclass(frozen=True, slots=True)
class AccessAnswer:
    """The answer to an access; ``body`` as with LoginAnswer."""

    result: Result
    body: bytes = field(repr=False)
    reason: str = ""
