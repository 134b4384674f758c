"""The verdict on a verified token's claims, by the settings of its key."""

import hmac
import math
import re
from collections.abc import Mapping
from typing import Any

from auth.errors import RuleFormatError
from auth.jwt.parsing import moment
from auth.model import Allow, Deny, LoginRequest, Rule
from auth.rules.acl_claim import rules_of_claim
from config.tables.auth import AuthJwtKeySettings, AuthJwtSettings
from config.values.auth_placeholders import tells_apart

_IAT_SLACK_S = 60.0  # EMQX ignores iat; an issuer's clock may be a little fast
_LONGEST = 1024  # characters of a name: tenant, group, attribute
_MOST = 256  # groups, attributes

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class _Refused(Exception):  # noqa: N818 - it is a finding, not a failure
    """The detail of a Deny, and its reason, one of ``auth.logins.reasons``."""

    reason = "bad_token"


class _OutOfTime(_Refused):
    """The token has expired, or is not valid yet."""

    reason = "expired"


class ClaimRules:
    """Judges the claims of one key's tokens. No I/O."""

    def __init__(self, key: AuthJwtKeySettings, settings: AuthJwtSettings) -> None:
        self._key = key
        self._settings = settings
        self._source = f"jwt {key.name}"
        self._leeway_s = settings.leeway.total_seconds()
        self._lifetime_max_s = settings.lifetime_max.total_seconds() if settings.lifetime_max is not None else math.inf

    def judge(self, claims: Mapping[str, Any], request: LoginRequest, now_s: float) -> Allow | Deny:
        """The verdict on a token with a right signature, at ``now_s`` (Unix seconds)."""
        user = claims.get("sub")
        user = user if isinstance(user, str) and _is_name(user) else ""
        try:
            expires_at_s = self._check_times(claims, now_s)
            self._check_claims(claims, request)
            rules, closed = self._rules(claims)
            return Allow(
                source=self._source,
                user=user,
                tenant=self._tenant(claims),
                groups=self._groups(claims),
                attributes=_attributes(claims),
                is_superuser=self._key.superuser and claims.get("is_superuser") is True,
                expires_at_s=expires_at_s,
                rules=rules,
                closed=closed,
            )
        except _Refused as refused:
            return Deny(self._source, refused.reason, user, detail=str(refused))

    def _check_times(self, claims: Mapping[str, Any], now_s: float) -> int | None:
        """The end of the login in whole Unix seconds; None without one."""
        if (not_before := _moment(claims, "nbf")) is not None and not_before - self._leeway_s > now_s:
            raise _OutOfTime("the token is not valid yet (nbf)")
        issued = _moment(claims, "iat")
        if issued is not None and issued - max(self._leeway_s, _IAT_SLACK_S) > now_s:
            raise _Refused("the token was issued in the future (iat)")
        expires = _moment(claims, "exp")
        if expires is None:
            if self._key.require_expiry:
                raise _Refused("the token never expires (it has no exp)")
            if self._lifetime_max_s is not math.inf:
                raise _Refused("the token is good for longer than auth.jwt.lifetime_max (it has no exp)")
            return None
        if expires - now_s > self._lifetime_max_s:
            raise _Refused("the token is good for longer than auth.jwt.lifetime_max")
        # Whole seconds, as EMQX wants them; and after now, because EMQX refuses a login that has ended.
        ends_s = math.floor(expires + self._leeway_s)
        if ends_s <= now_s:
            raise _OutOfTime("the token has expired (exp)")
        return ends_s

    def _check_claims(self, claims: Mapping[str, Any], request: LoginRequest) -> None:
        """Raises _Refused if issuer, audience or another claim is not as the settings want it."""
        if self._key.issuer is not None and not _same(claims.get("iss"), self._key.issuer):
            raise _Refused("the token is of another issuer (iss)")
        if self._key.audience is not None and not _contains(claims.get("aud"), self._key.audience):
            raise _Refused("the token is for another audience (aud)")
        for name, template in self._key.claims.items():
            wanted = _filled(template, request)
            if name not in claims:
                raise _Refused(f"the token lacks the claim {name}")
            fits = wanted is not None and (_contains if name == "aud" else _same)(claims[name], wanted)
            if not fits:
                raise _Refused(f"the token's claim {name} is not as auth.jwt.keys wants it")

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        tenant = claims.get(self._settings.tenant_claim, "") if self._settings.tenant_claim else ""
        if not _is_name(tenant):
            raise _Refused(f"the token's claim {self._settings.tenant_claim} is no name of a tenant")
        return str(tenant)

    def _groups(self, claims: Mapping[str, Any]) -> frozenset[str]:
        """The groups in the token; none without the claim. Raises _Refused."""
        name = self._settings.groups_claim
        groups = claims.get(name, []) if name else []
        # EMQX would make two groups of one with a comma.
        if not isinstance(groups, list) or len(groups) > _MOST or not all(_is_name(one, ",") for one in groups):
            raise _Refused(f"the token's claim {name} is no list of at most {_MOST} names of groups, without commas")
        return frozenset(groups) - {""}

    def _rules(self, claims: Mapping[str, Any]) -> tuple[tuple[Rule, ...], bool]:
        """The rules in the token, and whether what they do not name is denied. Raises _Refused."""
        name = self._settings.acl_claim
        if not name or name not in claims:
            return (), False
        try:
            rules, closed = rules_of_claim(claims[name], source=f"{self._source} {name}")
        except RuleFormatError as error:
            raise _Refused(f"the rules in the token's claim {name} cannot be taken: {error}") from None
        return rules, closed


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    """A claim's Unix seconds; None without the claim. Raises _Refused for anything else."""
    if name not in claims:
        return None
    if (value := moment(claims[name])) is None:
        raise _Refused(f"the token's {name} is no moment in seconds since 1970 (milliseconds?)")
    return value


def _filled(template: str, request: LoginRequest) -> str | None:
    """The value that a claim must have; None if one of its placeholders has no value, or if other values would make the
    same, so that no claim matches."""
    known = {"clientid": request.clientid, "username": request.username}
    pieces = _PLACEHOLDER.split(template)
    values = [known.get(name, "") for name in pieces[1::2]]
    if not tells_apart(pieces[::2], values):
        return None
    pieces[1::2] = values
    return "".join(pieces)


def _same(claim: object, wanted: str) -> bool:
    """Compares in constant time, because the wanted value may be a secret."""
    if isinstance(claim, bool):
        claim = "true" if claim else "false"
    elif isinstance(claim, int):
        claim = str(claim)
    if not isinstance(claim, str):
        return False
    return hmac.compare_digest(claim.encode(errors="surrogatepass"), wanted.encode(errors="surrogatepass"))


def _contains(claim: object, wanted: str) -> bool:
    """For aud, which is one text or several (RFC 7519, 4.1.3)."""
    return any([_same(one, wanted) for one in (claim if isinstance(claim, list) else [claim])])  # noqa: C419 - all of them


def _is_name(value: object, without: str = "\x00") -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST and without not in value and _CONTROL.search(value) is None


def _attributes(claims: Mapping[str, Any]) -> Mapping[str, str]:
    """``client_attrs`` in EMQX's form. Other values and names are left out. So are tenant and groups, which have claims
    of their own."""
    given = claims.get("client_attrs", {})
    if not isinstance(given, dict) or len(given) > _MOST:
        raise _Refused(f"the token's claim client_attrs is no object of at most {_MOST} texts")
    return {
        name: value
        for name, value in given.items()
        if _ATTRIBUTE_NAME.fullmatch(name) and name not in {"tenant", "groups"} and _is_name(value)
    }
