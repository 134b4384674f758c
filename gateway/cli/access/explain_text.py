"""An explanation as text and JSON."""

import json
from collections.abc import Iterator
from typing import Any, Final

from auth.logins.chain import Step
from auth.logins.explain import AccessStory, Explanation
from auth.logins.reasons import LOGIN_REASONS
from auth.model import AccessRequest, Rule
from auth.moments import format_moment
from auth.names import shown
from config.tables.auth import AuthSettings

_BOLD, _GREEN, _RED, _DIM = "1", "32", "31", "2"
_SAID: Final = {
    "allow": "knows it",
    "deny": "refuses it",
    "ignore": "does not know it",
    "down": "cannot be asked",
    "shed": "has no room",
    "timeout": "did not answer in time",
}
_NEEDS_PASSWORD: Final = frozenset({"ldap", "jwt"})  # these check it themselves
_RULES_SHOWN: Final = 40


def as_text(explanation: Explanation, settings: AuthSettings, *, color: bool) -> str:
    """A page for a terminal, without escape sequences unless ``color``."""
    paint = _Paint(color)
    lines = [*_login(explanation, paint), "", *_conditions(explanation, settings, paint)]
    if explanation.access is not None:
        lines += ["", *_access(explanation, explanation.access, paint)]
    lines += ["", *_login_answer(explanation, settings, paint)]
    lines += [f"! {problem}" for problem in explanation.problems]
    return "\n".join(lines)


class _Paint:
    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._color else text


def _login(explanation: Explanation, paint: _Paint) -> Iterator[str]:
    request = explanation.request
    names = {
        "user name": request.username,
        "client id": request.clientid,
        "address": request.peerhost,
        "certificate": request.cert_common_name,
    }
    who = ", ".join(f"{kind} {shown(value)}" for kind, value in names.items() if value)
    yield paint(f"Login with {who}", _BOLD)
    steps = explanation.outcome.steps
    width = max((len(one) for one in (*(step.name for step in steps), *explanation.not_asked)), default=0)
    for number, step in enumerate(steps, 1):
        code = _GREEN if step.said == "allow" else _DIM if step.said == "ignore" else _RED
        said = _SAID[step.said]
        why = _why(step, checked=explanation.checked)
        yield f"  {number}  {step.name:{width}}  {paint(said, code)}{f': {why}' if why else ''}"
    for number, name in enumerate(explanation.not_asked, len(steps) + 1):
        yield paint(f"  {number}  {name:{width}}  is not asked: the chain has ended before it", _DIM)
    obstacle = explanation.obstacle
    if obstacle:
        yield f"  {paint('It is not let in.', _RED)} {obstacle}"
        return
    source = explanation.outcome.source or "auth.anonymous"
    condition = "" if explanation.checked or source == "anonymous" else ", if its password or certificate is right"
    yield f"  {paint('It is let in', _GREEN)} by {source}{condition}."


def _why(step: Step, *, checked: bool) -> str:  # checked: a password was given
    if not checked and step.name in _NEEDS_PASSWORD and step.said in {"deny", "ignore"}:
        return "it checks the password itself, and none was given (--password-file)"
    if step.said == "allow":
        return f"as {shown(step.why)}" if step.why else ""
    if step.said == "ignore" and step.why == "unknown":
        return ""
    return LOGIN_REASONS.get(step.why, step.why)  # type: ignore[call-overload, no-any-return]


def _conditions(explanation: Explanation, settings: AuthSettings, paint: _Paint) -> Iterator[str]:
    allow, subject = explanation.allow, explanation.subject
    yield paint("What holds for it", _BOLD)
    yield f"  tenant      {shown(subject.tenant) or '-'}{_tenant_note(explanation, settings)}"
    yield f"  groups      {shown(', '.join(sorted(subject.groups))) or '-'}"
    pairs = ", ".join(f"{name}={shown(value)}" for name, value in sorted(subject.attributes.items()))
    yield f"  attributes  {pairs or '-'}"
    if allow is not None and allow.is_superuser:
        yield f"  superuser   {paint('yes: EMQX asks nothing about it and allows everything', _RED)}"
    ban = explanation.ban
    if ban is None:
        yield f"  ban         {_none(explanation)}"
    else:
        until = f"until {format_moment(ban.until_s)}" if ban.until_s is not None else "until it is lifted"
        yield f"  ban         {paint(f'{ban.kind} {shown(ban.value)} {until}', _RED)}"
    if explanation.expire_at_s is not None:
        yield f"  logged in   until {format_moment(explanation.expire_at_s)} at the latest; then it has to log in again"
    yield from _lock_out(explanation, settings, paint)


def _none(explanation: Explanation) -> str:
    return "none" if explanation.request.peerhost else "none of its names; give its --address for those of the address"


def _lock_out(explanation: Explanation, settings: AuthSettings, paint: _Paint) -> Iterator[str]:
    locked = explanation.lock_out
    if locked is not None:
        where = f" from {shown(locked.address)}" if locked.address else ""
        text = f"{locked.kind} {shown(locked.name)}{where}, for {locked.left_ns // 1_000_000_000} s more"
        if explanation.past_lock_out:
            yield f"  lock-out    {text}; it does not concern a generated secret"
        else:
            yield f"  lock-out    {paint(text, _RED)}; a password given anew ends that of a user in the database"
    elif explanation.lock_outs_known:
        yield f"  lock-out    {_none(explanation)}"
    elif explanation.more_lock_outs:
        yield paint("  lock-out    not known: the service has more than it tells, and tells the newest", _DIM)
    elif settings.protection.failures or settings.protection.address_failures:
        where = f"{settings.operator_host}:{settings.operator_port}"
        text = f"  lock-out    not known: no service tells it at {where} (auth.operator_port; http.token opens it)"
        yield paint(text, _DIM)


def _tenant_note(explanation: Explanation, settings: AuthSettings) -> str:
    """What is known of the tenant, in brackets, to follow its name; empty without one."""
    tenant = explanation.tenant
    default = settings.limits.tenant_logins_per_second
    own = default if tenant is None or tenant.logins_per_second is None else tenant.logins_per_second
    limit = f"{own} new logins a second" if own else ""
    if tenant is None:
        named = "not laid down, so nothing of its own holds" if explanation.subject.tenant else ""
        return f"  ({'; '.join(one for one in (named, limit) if one)})" if named else ""
    return f"  ({'; '.join(one for one in ('' if tenant.enabled else 'disabled', limit) if one) or 'no limits'})"


def _access(explanation: Explanation, story: AccessStory, paint: _Paint) -> Iterator[str]:
    request = story.request
    yield paint(_asked(request), _BOLD)
    judgements = story.judgements
    cut = judgements[-_RULES_SHOWN:]
    if len(cut) < len(judgements):
        yield paint(f"  … {len(judgements) - len(cut)} rules before these do not match", _DIM)
    rows = [(*_cells(one.rule), one.why_not) for one in cut]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(5)]
    for number, row in enumerate(rows, len(judgements) - len(cut) + 1):
        cells = "  ".join(f"{cell:{width}}" for cell, width in zip(row[:5], widths, strict=True)).rstrip()
        line = f"  {number:>3}  {cells}"
        if row[5]:
            yield paint(f"{line}\n         {row[5]}", _DIM)
        else:
            yield f"{line}\n         {paint('decides', _BOLD)}"
    if story.rest:
        yield paint(f"  … {story.rest} later rules, which are not asked", _DIM)
    if not judgements:
        yield paint("  No rule concerns this client.", _DIM)
    allow = explanation.allow
    if allow is not None and allow.is_superuser:
        yield f"  {paint('Allowed', _GREEN)}: it is a superuser, so EMQX does not ask."
        return
    word = paint("Allowed", _GREEN) if story.decision.allowed else paint("Denied", _RED)
    yield f"  {word}: {story.decision.reason}."
    if story.decision.allowed and explanation.obstacle:
        yield f"  {paint('But it is not let in', _RED)}: see above."


def _asked(request: AccessRequest) -> str:
    retained = ", retained" if request.retain else ""
    verb = "Publish to" if request.action == "publish" else "Subscribe to"
    return f"{verb} {shown(request.topic)} (QoS {request.qos}{retained})"


def _cells(rule: Rule) -> tuple[str, str, str, str, str]:
    action = "all" if len(rule.actions) > 1 else next(iter(rule.actions), "-")
    who = " and ".join("everybody" if kind == "all" else f"{kind} {shown(value)}" for kind, value in rule.who)
    topic = f"eq {rule.topic}" if rule.eq else rule.topic
    return rule.permission, action, shown(topic), who, rule.source


def _login_answer(explanation: Explanation, settings: AuthSettings, paint: _Paint) -> Iterator[str]:
    yield paint("The answer to EMQX at its login", _BOLD)
    told = explanation.told
    if told is None or explanation.obstacle:
        yield "  nothing: it is not let in"
        return
    body = json.loads(told.body(explanation.expire_at_s))
    yield f"  client_attrs  {json.dumps(body['client_attrs'])}"
    acl = body.get("acl")
    if acl is None:
        if body["is_superuser"]:
            yield "  acl           none: EMQX asks nothing about a superuser"
        else:
            yield "  acl           none, so it asks topic by topic (auth.hand_over_rules is off, or no rule fits EMQX)"
        return
    whole = acl[-1] == {"permission": "deny", "action": "all", "topic": "#"}  # EMQX asks about nothing
    for entry in acl[:_RULES_SHOWN]:
        extra = "".join(f", {name} {entry[name]}" for name in ("qos", "retain") if name in entry)
        yield f"  {entry['permission']:5} {entry['action']:9} {shown(entry['topic'])}{extra}"
    if len(acl) > _RULES_SHOWN:
        yield paint(f"  … {len(acl) - _RULES_SHOWN} more", _DIM)
    if whole:
        yield paint("  EMQX decides by these alone; a change reaches the device at its next login.", _DIM)
    else:
        limit = settings.hand_over_max
        yield paint(
            f"  What none of these matches EMQX asks, topic by topic (auth.hand_over_max is {limit}; not all rules can "
            "be said in EMQX's words).",
            _DIM,
        )


def as_json(explanation: Explanation) -> str:
    outcome, told, allow = explanation.outcome, explanation.told, explanation.allow
    subject = explanation.subject
    document: dict[str, Any] = {
        "login": {
            "allowed": not explanation.obstacle,
            "password_checked": explanation.checked,
            "chain": [{"source": step.name, "said": step.said, "why": step.why} for step in outcome.steps],
            "not_asked": list(explanation.not_asked),
            "result": outcome.result,
            "reason": outcome.reason,
            "source": outcome.source,
            "user": outcome.user,
            "obstacle": explanation.obstacle or None,
        },
        "subject": {
            "username": subject.username,
            "clientid": subject.clientid,
            "address": subject.peerhost,
            "common_name": subject.cert_common_name,
            "tenant": subject.tenant,
            "groups": sorted(subject.groups),
            "attributes": dict(subject.attributes),
            "is_superuser": allow is not None and allow.is_superuser,
        },
        "ban": None
        if explanation.ban is None
        else {
            "kind": explanation.ban.kind,
            "value": explanation.ban.value,
            "reason": explanation.ban.reason,
            "until": None if explanation.ban.until_s is None else format_moment(explanation.ban.until_s),
        },
        "lock_out": None
        if explanation.lock_out is None
        else {
            "kind": explanation.lock_out.kind,
            "name": explanation.lock_out.name,
            "address": explanation.lock_out.address,
            "seconds": explanation.lock_out.left_ns // 1_000_000_000,
        },
        "lock_outs_known": explanation.lock_outs_known,
        "tenant_enabled": None if explanation.tenant is None else explanation.tenant.enabled,
        "answer": None if told is None or explanation.obstacle else json.loads(told.body(explanation.expire_at_s)),
        "problems": list(explanation.problems),
    }
    if explanation.access is not None:
        document["access"] = _access_document(explanation.access, superuser=document["subject"]["is_superuser"])
    return json.dumps(document, indent=2)


def _access_document(story: AccessStory, *, superuser: bool) -> dict[str, Any]:
    return {
        "action": story.request.action,
        "topic": story.request.topic,
        "qos": story.request.qos,
        "retain": story.request.retain,
        "allowed": superuser or story.decision.allowed,
        "reason": "a superuser: EMQX does not ask" if superuser else story.decision.reason,
        "rules": [
            {**_rule_document(one.rule), "decides": not one.why_not, "why_not": one.why_not or None}
            for one in story.judgements
        ],
        "rules_behind": story.rest,
    }


def _rule_document(rule: Rule) -> dict[str, Any]:
    return {
        "source": rule.source,
        "permission": rule.permission,
        "actions": sorted(rule.actions),
        "topic": rule.topic,
        "eq": rule.eq,
        "who": [f"{kind} {value}".rstrip() for kind, value in rule.who],
        "qos": sorted(rule.qos),
        "retain": rule.retain,
    }
