"""The answer to an admitted login, as bytes for EMQX.

It has the tenant, the groups and the configured attributes (``client_attrs``), the end of the login (``expire_at``) and
the rules (``acl``). EMQX sends the attributes back with each question about a topic, so this service keeps no list of
connected clients.

All attributes are always present, empty without a value: EMQX may take attributes from the client itself
(``client_attrs_init``), and a missing name would keep that value.

**Rules of a token.** EMQX sends no token with its questions about topics, so a token's rules are handed over with the
login, whatever ``auth.hand_over_rules`` is. If EMQX has no form for a rule that allows, the stored rules decide. If it
has none for a rule that denies, the list ends in a denial of everything (``auth.rules.hand_over.closed_list``), or the
login is refused.
"""

import json
from dataclasses import dataclass, field
from typing import Final

from auth.model import Allow, LoginRequest, Subject
from auth.ports import RuleSource
from auth.rules.acl_text import AclText
from auth.rules.hand_over import closed_list, open_list, whole_list
from config.tables.auth import AuthSettings

_ABSENT: Final = "undefined"
_NO_GROUPS: Final = frozenset({_ABSENT})
_HEADS_MAX: Final = 1000  # combinations of tenant and groups
# Characters of user name and client id, for handing over rules. A device may choose a client id of 64 KiB: a hundred
# rules with it took 140 ms of the event loop, and megabytes of the cache for each login.
_LONGEST: Final = 2048
_TOKEN_RULES_MAX: Final = 10_000  # above the rules of a token of 64 KiB; auth.hand_over_max does not apply to them
_LONGEST_S: Final = 100 * 365 * 86_400  # EMQX takes numbers far in the future for milliseconds and refuses the login


@dataclass(slots=True)
class Answer:
    """A JSON body without its time of expiry. With ``problem``, a sentence, there is no answer."""

    head: bytes = field(default=b"", repr=False)
    tail: bytes = field(default=b"", repr=False)
    problem: str = ""

    def body(self, expire_at_s: int | None) -> bytes:
        """The whole body of a login that ends at ``expire_at_s``, Unix seconds."""
        if expire_at_s is None:
            return self.head + self.tail
        return b'%b,"expire_at":%d%b' % (self.head, expire_at_s, self.tail)


class AnswerWriter:
    """Writes answers as the settings want them."""

    def __init__(self, settings: AuthSettings, rules: RuleSource) -> None:
        self._attributes = settings.client_attributes
        self._hand_over_rules = settings.hand_over_rules
        self._hand_over_max = settings.hand_over_max
        self._session_max_s = None if settings.session_max is None else int(settings.session_max.total_seconds())
        self.moving: Final = self._session_max_s is not None  # whether the time of expiry depends on that of the login
        self._rules = rules
        self._acl_text = AclText(settings.hand_over_max)
        self._heads: dict[tuple[bool, str, frozenset[str]], bytes] = {}  # by is_superuser, tenant, groups

    def expire_at_s(self, allow: Allow, now_s: float) -> int | None:
        """When the login ends, Unix seconds; None: never."""
        expires_at_s = allow.expires_at_s
        if self._session_max_s is not None:
            longest = int(now_s) + self._session_max_s
            expires_at_s = longest if expires_at_s is None else min(expires_at_s, longest)
        return None if expires_at_s is None else min(expires_at_s, int(now_s) + _LONGEST_S)

    def subject(self, request: LoginRequest, allow: Allow) -> Subject:
        """The client for the rules, with the same data as in EMQX's questions about topics."""
        known = allow.attributes
        return Subject(
            username=request.username,
            clientid=request.clientid,
            peerhost=request.peerhost,
            cert_common_name=request.cert_common_name,
            tenant=allow.tenant,
            groups=allow.groups,
            attributes={name: known[name] for name in self._attributes if known.get(name)} if known else known,
        )

    def write(self, request: LoginRequest, allow: Allow) -> Answer:
        """The answer with its rules. Blocks as long as a read of rules. Raises BackendDownError."""
        if allow.tenant == _ABSENT or (allow.groups and allow.groups <= _NO_GROUPS):
            return Answer(problem=f"its tenant or group is called {_ABSENT!r}, which EMQX writes where there is none")
        if allow.groups and any("," in group or not group for group in allow.groups):
            # Editing and importing refuse such a name, but a directory or a table may have any.
            return Answer(
                problem="one of its groups has a name with a comma, or none: EMQX would make two groups of it"
            )
        acl = ""
        if not allow.is_superuser:  # EMQX asks nothing about superusers
            subject = self.subject(request, allow)
            if allow.rules or allow.closed:
                found = self._token_acl(subject, allow)
                if isinstance(found, str):
                    return Answer(problem=found)
                acl = _json(found)
            elif self._hand_over_rules and len(request.username) + len(request.clientid) <= _LONGEST:
                acl = self._acl_text.write(self._rules.rules_for(subject), subject)
        tail = f',"acl":{acl}}}' if acl else "}"
        return Answer(self._head(allow), tail.encode())

    def _head(self, allow: Allow) -> bytes:
        """What does not depend on the client's own names, remembered for those without attributes of their own."""
        if self._attributes and allow.attributes:
            return self._new_head(allow)
        key = (allow.is_superuser, allow.tenant, allow.groups)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            head = self._heads[key] = self._new_head(allow)
        return head

    def _new_head(self, allow: Allow) -> bytes:
        """The beginning of an answer, with the client's attributes, tenant and groups."""
        attributes = {name: allow.attributes.get(name, "") for name in self._attributes}
        attributes["tenant"] = allow.tenant
        attributes["groups"] = ",".join(sorted(allow.groups))
        superuser = "true" if allow.is_superuser else "false"
        return f'{{"result":"allow","is_superuser":{superuser},"client_attrs":{_json(attributes)}'.encode()

    def _token_acl(self, subject: Subject, allow: Allow) -> list[dict[str, object]] | str:
        """The list for a token with rules: the token's, then the database's. A text says why the login must be
        refused."""
        stored = self._rules.rules_for(subject)
        if not allow.closed:
            if self._hand_over_rules:
                found = whole_list((*allow.rules, *stored), subject, limit=self._hand_over_max)
                if found is not None:
                    return found
            if all(rule.permission == "allow" for rule in allow.rules):
                # About what EMQX cannot be told it asks, and hears less than the token allows, never more.
                return open_list(allow.rules, subject, limit=_TOKEN_RULES_MAX, behind=stored)
        # A question would be answered without the token's denials: nothing may be left to ask.
        rules = allow.rules if allow.closed else (*allow.rules, *stored)
        acl, whole = closed_list(rules, subject, limit=_TOKEN_RULES_MAX, behind=stored)
        return acl if whole else _LOST


_LOST: Final = (
    "EMQX cannot be told all that the token's rules (acl) deny, and none must be lost: a denial's topic is no topic "
    "filter, begins with 'eq ', $share/ or the like, or holds ${…} as text; or there are too many rules"
)


_json: Final = json.JSONEncoder(separators=(",", ":")).encode
