"""Accesses: whether a client may publish to a topic or subscribe to a filter, by the rules of the database."""

from collections.abc import Callable
from typing import cast

from auth.errors import BackendDownError
from auth.logins.counts import Counts
from auth.logins.decisions import DecisionCache
from auth.logins.events import Events
from auth.logins.reasons import AccessReason
from auth.model import AccessAnswer, AccessRequest
from auth.ports import AccessStore
from auth.rules.rules import decide
from config.tables.auth import AuthSettings


class Accesses:
    """Decides about accesses. Belongs to the service's event loop. ``wall``: Unix seconds."""

    def __init__(
        self, settings: AuthSettings, store: AccessStore, counts: Counts, events: Events, wall: Callable[[], float]
    ) -> None:
        self.counts = counts
        self._store = store
        self._events = events
        self._now_s = wall  # Unix seconds
        self._decisions = DecisionCache(settings.limits.cache_entries)
        deny = b'{"result":"deny"}'
        down = deny if settings.backend_down == "deny" else b'{"result":"ignore"}'
        self._allowed = AccessAnswer("allow", b'{"result":"allow"}', "rule")
        reasons: tuple[AccessReason, ...] = ("rule", "no_rule", "banned", "tenant_disabled")
        self._denied = {reason: AccessAnswer("deny", deny, reason) for reason in reasons}
        self._no_answer = AccessAnswer(settings.backend_down, down, "backend_down")

    def authorise(self, request: AccessRequest) -> AccessAnswer:
        """The decision of the database's rules. EMQX does not ask about superusers."""
        store = self._store
        key = self._decisions.key(request)
        version = (store.version, store.ban_version)
        answer = None if key is None else self._decisions.get(key, version)
        if answer is not None:
            self.counts.decision_hits += 1
        else:
            self.counts.decision_misses += 1
            try:
                answer = self._decide(request)
            except BackendDownError as error:
                self._events.store_failed(error)
                answer = self._no_answer
            else:
                # A ban ends by time, without a new version.
                if key is not None and answer.reason != "banned":
                    self._decisions.put(key, version, answer)
        self.counts.access(answer.result, cast("AccessReason", answer.reason))
        return answer

    def _decide(self, request: AccessRequest) -> AccessAnswer:
        """The decision without the cache. Raises BackendDownError."""
        subject = request.subject
        store = self._store
        if store.find_ban(subject.clientid, subject.username, subject.peerhost, self._now_s()):
            return self._denied["banned"]
        tenant = store.tenant(subject.tenant) if subject.tenant else None
        if tenant is not None and not tenant.enabled:
            return self._denied["tenant_disabled"]
        decision = decide(store.rules_for(subject), request)
        if decision.allowed:
            return self._allowed
        return self._denied["no_rule" if decision.rule is None else "rule"]
