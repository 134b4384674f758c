"""Why a login or an access was answered as it was: closed sets, for metrics, logs and ``explain``.

A device is told none of this: EMQX hears allow, deny or ignore, and the device that it is not authorised.
"""

from __future__ import annotations

__all__ = ["ACCESS_REASONS", "LOGIN_REASONS", "AccessReason", "LoginReason", "login_reason"]

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

LoginReason = Literal[
    "verified",
    "cached",
    "anonymous",
    "unknown",
    "bad_password",
    "bad_token",
    "expired",
    "disabled",
    "refused",
    "remembered",
    "banned",
    "locked_out",
    "tenant_disabled",
    "rules_unexpressible",
    "rate_limited",
    "shed",
    "timeout",
    "backend_down",
]
LOGIN_REASONS: Final[Mapping[LoginReason, str]] = MappingProxyType(
    {
        "verified": "an authenticator knows the client, and what it showed is right",
        "cached": "the same login was verified a moment ago",
        "anonymous": "it showed nothing, nobody knows it, and auth.anonymous lets such clients in",
        "unknown": "nobody in auth.chain knows the client",
        "bad_password": "the password is wrong",
        "bad_token": "the token is not one that a key of auth.jwt vouches for, or its claims do not fit",
        "expired": "the time of the user, or of the token, is over or has not begun",
        "disabled": "the user is switched off",
        "refused": "an authenticator refused it for a reason of its own",
        "remembered": "the same login was refused a moment ago (auth.limits.negative_ttl)",
        "banned": "the client id, the user name or the address is banned",
        "locked_out": "too many wrong passwords for this user, or from this address",
        "tenant_disabled": "the user's tenant is switched off",
        "rules_unexpressible": "EMQX cannot be told its groups, or the rules of its token, which must not be lost",
        "rate_limited": "more logins a second than auth.limits or the tenant's own limit lets through",
        "shed": "more logins are under verification than auth.limits.in_flight or auth.hashing.queue has room for",
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
        "tenant_disabled": "the client's tenant is switched off",
        "backend_down": "the built-in database could not be read",
    }
)

assert set(LOGIN_REASONS) == set(get_args(LoginReason))
assert set(ACCESS_REASONS) == set(get_args(AccessReason))


def login_reason(text: str) -> LoginReason:
    """What an authenticator gave for a reason, as one of the closed set: a word that is none of them is ``refused``."""
    return cast("LoginReason", text) if text in LOGIN_REASONS else "refused"
