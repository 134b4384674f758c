"""What a login and an access are asked about, who a device then is, and what the answers are.

EMQX renders absent values as empty text, or as ``undefined`` in some places; ``gateway.auth_service.dialect`` turns
both into empty text, so here "" is always "there is none".

What is made for each login is not frozen, though nobody changes it: a frozen dataclass takes four times as long to
make, which was a tenth of a login that no cache knows.
"""

from __future__ import annotations

__all__ = [
    "AccessAnswer",
    "AccessRequest",
    "Action",
    "Allow",
    "Ban",
    "BanKind",
    "Decision",
    "Deny",
    "Ignore",
    "LoginAnswer",
    "LoginRequest",
    "Permission",
    "Result",
    "Rule",
    "Subject",
    "SubjectKind",
    "Tenant",
    "Verdict",
]

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Action = Literal["publish", "subscribe"]
Permission = Literal["allow", "deny"]
Result = Literal["allow", "deny", "ignore"]
BanKind = Literal["clientid", "username", "address"]
SubjectKind = Literal["username", "clientid", "group", "tenant", "address", "common_name", "attribute", "all"]
_NO_ATTRIBUTES: Mapping[str, str] = MappingProxyType({})


def _no_attributes() -> Mapping[str, str]:
    """For ``field``: before Python 3.12 a mappingproxy has no hash, and dataclasses refuse that as a default."""
    return _NO_ATTRIBUTES


@dataclass(slots=True)
class LoginRequest:
    """What EMQX says of a client that wants to connect. Texts as the client sent them: hostile until proven."""

    username: str = ""
    clientid: str = ""
    password: str = field(default="", repr=False)
    peerhost: str = ""  # the client's address as EMQX sees it, without port
    cert_common_name: str = ""  # out of a client certificate that EMQX's listener has verified
    cert_subject: str = ""
    listener: str = ""
    zone: str = ""


@dataclass(slots=True)
class Subject:
    """Who a client is, as far as rules can ask."""

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


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of an access list: first match wins.

    ``who`` is one condition, or several that must all hold: pairs of kind and value. ``("all", "")`` is everybody,
    ``("address", "10.0.0.0/8")`` a network, ``("attribute", "site=berlin")`` a client attribute; ``username`` and
    ``clientid`` are compared whole. ``topic`` is a filter with placeholders (``${clientid}``, ``${username}``,
    ``${tenant}``, ``${cert_common_name}``, ``${client_attrs.NAME}``); with ``eq`` it is compared as text, wildcards
    included. ``qos`` empty: any. ``retain`` None: either; of publishing alone.
    """

    permission: Permission
    topic: str
    who: tuple[tuple[SubjectKind, str], ...] = (("all", ""),)
    actions: frozenset[Action] = frozenset({"publish", "subscribe"})
    eq: bool = False
    qos: frozenset[int] = frozenset()
    retain: bool | None = None
    source: str = ""  # for explain: "database rule 17", "jwt acl[2]"


@dataclass(frozen=True, slots=True)
class Ban:
    """Who is kept out, whatever it shows: a client id, a user name, or an address (a network, as CIDR)."""

    kind: BanKind
    value: str
    reason: str = ""  # for people
    until_s: int | None = None  # Unix seconds; None: until it is lifted
    by: str = ""  # who has laid it down
    created_s: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """What holds for all users of a tenant. One that is named nowhere has no limits of its own."""

    name: str
    enabled: bool = True  # else none of its users may log in, publish or subscribe
    logins_per_second: int | None = None  # None: auth.limits.tenant_logins_per_second; 0: no limit
    users_max: int | None = None  # in the built-in database; None: no limit
    attributes: Mapping[str, str] = field(default_factory=_no_attributes)  # of each of its users who lacks them
    created_s: int = 0
    changed_s: int = 0
    revision: int = 0  # the version of the database that its last change made


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an access is allowed, and what decided: ``rule`` is None when none matched (then it is denied)."""

    allowed: bool
    rule: Rule | None
    reason: str  # a sentence for `explain`


@dataclass(slots=True)
class Allow:
    """An authenticator knows the client and lets it in. ``source`` says which one, for logs and ``explain``."""

    source: str
    user: str = ""  # what it was found by, e.g. the user's name in that backend
    tenant: str = ""
    groups: frozenset[str] = frozenset()
    attributes: Mapping[str, str] = field(default_factory=_no_attributes)
    is_superuser: bool = False
    expires_at_s: int | None = None  # Unix seconds; the login is not good beyond it
    rules: tuple[Rule, ...] = ()  # that come with the login itself (a token's acl claim); before all others
    closed: bool = False  # those rules are a white list: what none of them allows is denied
    version: int = 0  # of the data it was decided from, where the source counts that: see auth.ports.Stamping


@dataclass(frozen=True, slots=True)
class Deny:
    """An authenticator knows the client and refuses it. ``reason`` is one of ``auth.chain``'s, for metrics and logs."""

    source: str
    reason: str
    user: str = ""
    hashed: bool = False  # it has cost an argon2id hash (PasswordHasher.verify said False): no burn is due
    detail: str = ""  # a sentence for `explain` and logs where the reason leaves a question; never a hash or password


@dataclass(frozen=True, slots=True)
class Ignore:
    """An authenticator does not know the client: the next one is asked."""

    source: str
    reason: str = "unknown"
    final: bool = True  # else it may know the client in a moment: its refusal is no guess, and is not remembered


Verdict = Allow | Deny | Ignore


@dataclass(slots=True)
class LoginAnswer:
    """What EMQX is told of a login. ``body`` is the JSON, ready to be sent: a cached login costs no encoding."""

    result: Result
    body: bytes = field(repr=False)
    reason: str = ""  # one of the service's own words, for metrics and logs


@dataclass(frozen=True, slots=True)
class AccessAnswer:
    """What EMQX is told of an access; ``body`` as with LoginAnswer."""

    result: Result
    body: bytes = field(repr=False)
    reason: str = ""
