"""The reasons of answers to logins and accesses: closed sets, for metrics, logs and ``explain``.

A device does not get the reason: EMQX gets allow, deny or ignore, and tells the device that it is not authorised.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, cast, get_args

LoginReason = Literal[
    "verified", "cached", "anonymous", "unknown", "bad_password", "bad_token", "expired", "disabled", "refused",
    "remembered", "banned", "locked_out", "tenant_disabled", "rules_unexpressible", "rate_limited", "shed", "timeout",
    "backend_down",
]  # fmt: skip
LOGIN_REASONS: Final[Mapping[LoginReason, str]] = MappingProxyType(
    {
        "verified": "an authenticator knows the client, and its secret is right",
        "cached": "the same login was verified a moment ago",
        "anonymous": "an unknown client without a secret, let in by auth.anonymous",
        "unknown": "no authenticator of auth.chain knows the client",
        "bad_password": "the password is wrong",
        "bad_token": "no key of auth.jwt signed the token, or its claims do not fit",
        "expired": "the user or the token has expired, or is not valid yet",
        "disabled": "the user is disabled",
        "refused": "an authenticator refused it for a reason of its own",
        "remembered": "the same login was refused a moment ago (auth.limits.negative_ttl)",
        "banned": "the client id, the user name or the address is banned",
        "locked_out": "too many wrong passwords for this user, or from this address",
        "tenant_disabled": "the user's tenant is disabled",
        "rules_unexpressible": "EMQX has no form for its groups, or for the rules of its token",
        "rate_limited": "more logins a second than auth.limits or the tenant's limit allows",
        "shed": "no room for one more verification (auth.limits.in_flight, auth.hashing.queue)",
        "timeout": "no answer within auth.answer_timeout",
        "backend_down": "a backend could not be asked",
    }
)

AccessReason = Literal["rule", "no_rule", "banned", "tenant_disabled", "backend_down"]
ACCESS_REASONS: Final[Mapping[AccessReason, str]] = MappingProxyType(
    {
        "rule": "a rule decided",
        "no_rule": "no rule matches, and what no rule allows is denied",
        "banned": "the client id, the user name or the address is banned",
        "tenant_disabled": "the client's tenant is disabled",
        "backend_down": "the built-in database could not be read",
    }
)

assert set(LOGIN_REASONS) == set(get_args(LoginReason))
assert set(ACCESS_REASONS) == set(get_args(AccessReason))


def login_reason(text: str) -> LoginReason:
    """An authenticator's reason as one of the closed set; ``refused`` for any other word."""
    return cast("LoginReason", text) if text in LOGIN_REASONS else "refused"
