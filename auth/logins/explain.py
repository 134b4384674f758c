"""The decision about a login and an access with its reasons: ``gateway auth explain``.

It changes, counts and locks nothing. Without a password each source answers as for the right password. A source that
checks passwords itself (LDAP, tokens) cannot, and reports that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from auth.errors import BackendDownError
from auth.logins.answers import Answer, AnswerWriter
from auth.logins.chain import Chain, Outcome
from auth.logins.lockouts import LockedNow, address_group
from auth.logins.login_attempts import finds_by_clientid
from auth.model import AccessRequest, Action, Allow, Ban, Decision, LoginRequest, Rule, Subject, Tenant
from auth.names import bounded, lock_name
from auth.ports import AccessStore
from auth.rules.reasons import mismatch
from auth.rules.rules import decide
from config.tables.auth import AuthSettings


class TrustingHasher:
    """Accepts every password at no cost. Only for ``explain`` without a password."""

    observe = None

    def learn(self, _keys: Mapping[str, bytes]) -> None:
        """Needs no keys."""

    def verify_at_once(self, _stored: str, _password: str) -> bool:
        return True

    async def verify(self, _stored: str, _password: str, **_how: object) -> bool:
        return True

    def generated_matches(self, stored: str, _password: str) -> bool:
        """Right, if the stored password is such a secret."""
        return stored.startswith("$device$")

    async def burn(self) -> None:
        """No delay: an operator may see every difference."""

    async def hash(self, _password: str) -> str:
        """Never called, since no hash is outdated."""
        raise NotImplementedError

    def outdated(self, _stored: str) -> bool:
        """No hash is renewed by explaining."""
        return False


@dataclass(frozen=True, slots=True)
class Judgement:
    """A rule that was compared. It decided if ``why_not`` is empty."""

    rule: Rule
    why_not: str


@dataclass(frozen=True, slots=True)
class AccessStory:
    """The decision about one topic. ``rest`` counts the rules after the deciding one."""

    request: AccessRequest
    decision: Decision
    judgements: tuple[Judgement, ...]
    rest: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole explanation. ``problems`` are sentences about failed reads."""

    request: LoginRequest
    checked: bool  # a password was shown
    outcome: Outcome
    not_asked: tuple[str, ...]
    subject: Subject
    ban: Ban | None = None
    tenant: Tenant | None = None
    expire_at_s: int | None = None
    told: Answer | None = None  # the answer for EMQX
    lock_out: LockedNow | None = None  # in the running service
    past_lock_out: bool = False  # with a generated secret, which a lock-out does not concern
    lock_outs_known: bool = False  # only the running service knows them
    more_lock_outs: bool = False  # the service has more than it told
    access: AccessStory | None = None
    problems: tuple[str, ...] = field(default=())

    @property
    def allow(self) -> Allow | None:
        """The login that the chain allowed."""
        return self.outcome.allow

    @property
    def obstacle(self) -> str:
        """Why the login is refused, as a sentence; empty when it is not."""
        if self.ban is not None:
            why = f": {self.ban.reason}" if self.ban.reason else ""
            return f"The {_BAN_WORDS[self.ban.kind]} {self.ban.value} is banned{why}."
        if self.lock_out is not None and not self.past_lock_out:
            kind, left_s = self.lock_out.kind, self.lock_out.left_ns // 1_000_000_000
            return f"Its {kind} is locked out for {left_s} s more, unless it logged in from its address lately."
        if self.outcome.allow is None:
            return _REFUSALS.get(self.outcome.reason, "It is refused.")
        if self.tenant is not None and not self.tenant.enabled:
            return f"The tenant {self.tenant.name} is disabled."
        if self.told is not None and self.told.problem:
            return f"{self.told.problem[0].upper()}{self.told.problem[1:]}."
        return ""


_BAN_WORDS = {"clientid": "client id", "username": "user name", "address": "address"}
_REFUSALS = {
    "unknown": "No authenticator of auth.chain knows it.",
    "bad_password": "The password is wrong, or the user has none.",
    "bad_token": "The token is refused.",
    "expired": "It has expired, or is not valid yet.",
    "disabled": "The user is disabled.",
    "tenant_disabled": "The user's tenant is disabled.",
    "backend_down": "A backend that might know it could not be asked.",
    "timeout": "A backend that might know it did not answer in time.",
}


async def explain(
    settings: AuthSettings,
    store: AccessStore,
    chain: Chain,
    request: LoginRequest,
    *,
    access: tuple[Action, str, int, bool] | None = None,
    known: Allow | None = None,
    lock_outs: Sequence[LockedNow] | None = None,
    more_lock_outs: bool = False,
    now_s: float,
) -> Explanation:
    """How the service decides about a login and, with ``access`` (action, topic, QoS, retain), about a topic.

    Args:
        settings: of ``[auth]``.
        store: the built-in database, open.
        chain: started; made with a ``TrustingHasher`` where ``request`` has no password.
        request: who connects.
        access: what it wants to do.
        known: tenant, groups and attributes that the caller knows of, for a client whose source cannot be asked.
        lock_outs: what the running service says; None: it could not be asked.
        more_lock_outs: whether the service has more than it says.
        now_s: Unix seconds.

    Raises BackendDownError when the built-in database cannot be read.
    """
    outcome = await chain.ask(request)
    asked = {step.name for step in outcome.steps}
    allow = outcome.allow or known or Allow(source="")
    if known is not None and outcome.allow is not None:
        allow = replace(
            outcome.allow,
            tenant=known.tenant or outcome.allow.tenant,
            groups=known.groups | outcome.allow.groups,
            attributes={**outcome.allow.attributes, **known.attributes},
        )
    writer = AnswerWriter(settings, store)
    subject = writer.subject(request, allow)
    problems: list[str] = []
    story = told = None
    rules = (*allow.rules, *store.rules_for(subject)) if not allow.closed else allow.rules
    if access is not None:
        action, topic, qos, retain = access
        story = _story(rules, AccessRequest(subject, action, topic, qos, retain))
    if outcome.allow is not None:
        try:
            told = writer.write(request, allow)
        except BackendDownError as error:
            problems.append(str(error))
    lock_out = next((one for one in lock_outs or () if _concerns(one, request, settings)), None)
    return Explanation(
        request=replace(request, password=""),
        checked=bool(request.password),
        outcome=outcome if outcome.allow is None else replace(outcome, allow=allow),
        not_asked=tuple(one.name for one in chain.authenticators if one.name not in asked),
        subject=subject,
        ban=store.find_ban(request.clientid, request.username, request.peerhost, now_s),
        tenant=store.tenant(allow.tenant) if allow.tenant else None,
        expire_at_s=writer.expire_at_s(allow, now_s) if outcome.allow is not None else None,
        told=told,
        lock_out=lock_out,
        past_lock_out=chain.past_lock_out(request) is not None,
        lock_outs_known=lock_out is not None or (lock_outs is not None and not more_lock_outs),
        more_lock_outs=more_lock_outs,
        access=story,
        problems=tuple(problems),
    )


def _concerns(locked: LockedNow, request: LoginRequest, settings: AuthSettings) -> bool:
    """Whether this lock-out is one of the login's user, client id or address: without an address one at any."""
    address = bounded(request.peerhost)
    if locked.kind == "address":
        return locked.name == address_group(address)
    names = {lock_name(request.username, request.clientid)}
    if finds_by_clientid(settings):
        names.add(lock_name("", request.clientid))
    return locked.name in names and (locked.address in {"", address} or not address)


def _story(rules: tuple[Rule, ...], request: AccessRequest) -> AccessStory:
    """The decision, why each rule before the deciding one does not match, and how many follow it."""
    decision = decide(rules, request)
    judgements = []
    for rule in rules:
        if rule is decision.rule:
            judgements.append(Judgement(rule, ""))
            break
        judgements.append(Judgement(rule, mismatch(rule, request) or "it does not match"))
    return AccessStory(request, decision, tuple(judgements), len(rules) - len(judgements))
