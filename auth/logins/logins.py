"""Logins: from EMQX's question to the answer, the cheapest step first.

1. The cache of verified logins admits a client whose password was right lately.
2. Bans, lock-outs and the cache of refused logins refuse at once, existing and unknown users alike. A device with its
   generated secret passes a lock-out.
3. The limits per second apply, then the verdicts that need no other server (a device's generated secret).
4. A verification takes one of the places (``in_flight``). Equal simultaneous logins are verified once.
5. The chain decides.

After a change of the database a cached entry is checked before its use, and stays if its inputs are the same. So an
edit costs a fleet some 10 µs per returning device, and no hash.
"""

import asyncio
import contextlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from auth.errors import BackendDownError, StoreError
from auth.logins.answers import Answer, AnswerWriter
from auth.logins.cache import LoginCache, LoginDigest
from auth.logins.chain import Chain, Outcome
from auth.logins.events import Events
from auth.logins.load_shedding import LoadShedder
from auth.logins.lockouts import Names
from auth.logins.login_attempts import LoginAttempts
from auth.logins.reasons import LOGIN_REASONS, LoginReason
from auth.model import Allow, Ban, LoginAnswer, LoginRequest
from auth.names import bounded
from auth.ports import AccessStore
from bridge.waiting import end_tasks
from config.tables.auth import AuthSettings

_NS: Final = 1_000_000_000
_REFUSED_MAX: Final = 50_000  # refused logins in their own cache, so that they displace no verified ones
_ORDINARY: Final = 2048  # bytes of an answer; a larger one counts as several entries of the cache
_BY: Final = "service"  # the author of automatic bans in the audit


class _Seen(NamedTuple):
    """The inputs of a verdict. While they are the same, so is the verdict."""

    version: int
    ban_version: int
    stamp: tuple[int, ...]


@dataclass(slots=True)
class _Verified:
    """An admitted login. It has an ``answer`` to send, or a ``draft`` if the time of expiry depends on the login. Both
    would take a third more memory."""

    allow: Allow
    draft: Answer | None
    answer: LoginAnswer | None
    expires_at_ns: int
    seen: _Seen


@dataclass(slots=True)
class _Refused:
    """A login that was refused."""

    expires_at_ns: int
    seen: _Seen


class Logins:
    """Decides about logins. Belongs to the service's event loop. ``clock`` is monotonic, in nanoseconds, ``wall`` in
    Unix seconds."""

    def __init__(
        self,
        settings: AuthSettings,
        store: AccessStore,
        chain: Chain,
        events: Events,
        clock: Callable[[], int],  # monotonic ns
        wall: Callable[[], float],  # Unix seconds
    ) -> None:
        limits = settings.limits
        self.counts: Final = chain.counts
        self._attempts = LoginAttempts(settings, store, chain, events)
        self.lockouts: Final = self._attempts.lockouts
        self.answer_writer: Final = AnswerWriter(settings, store)
        self._shedder: Final = LoadShedder(limits.in_flight, limits.logins_per_second, limits.tenant_logins_per_second)
        self._chain = chain
        self._store = store
        self._events = events
        self._now_ns = clock
        self._now_s = wall
        self._ttl_ns = int(limits.cache_ttl.total_seconds() * _NS)
        self._negative_ttl_ns = int(limits.negative_ttl.total_seconds() * _NS)
        self._digest = LoginDigest()
        self._verified: LoginCache[_Verified] = LoginCache(limits.cache_entries)
        self._refused: LoginCache[_Refused] = LoginCache(min(limits.cache_entries, _REFUSED_MAX))
        self._under_way: dict[bytes, asyncio.Task[LoginAnswer]] = {}
        self._writing: set[asyncio.Task[None]] = set()
        self._flapping_on = settings.protection.flapping_logins > 0
        deny = b'{"result":"deny"}'
        down = deny if settings.backend_down == "deny" else b'{"result":"ignore"}'
        self._denials = {reason: LoginAnswer("deny", deny, reason) for reason in LOGIN_REASONS}
        self._no_answers = {reason: LoginAnswer(settings.backend_down, down, reason) for reason in LOGIN_REASONS}

    def sweep(self) -> None:
        """Drop expired entries, and update the gauges."""
        now_ns = self._now_ns()
        self._verified.sweep(now_ns)
        self._refused.sweep(now_ns)
        counts = self.counts
        counts.locked = self.lockouts.sweep(now_ns)
        counts.cache_entries = len(self._verified)
        counts.cache_evicted = self._verified.evicted

    async def close(self) -> None:
        """End the verifications under way. Bans being written are completed."""
        await end_tasks(*self._under_way.values())
        if self._writing:
            await asyncio.wait(self._writing)

    def login_at_once(self, request: LoginRequest) -> LoginAnswer | None:
        """The answer that needs no waiting; None: await ``login``."""
        now_ns = self._now_ns()
        key = self._digest(request)
        entry = self._verified.get(key, now_ns)
        if entry is not None:
            answer = self._from_cache(key, entry, request, now_ns)
            if answer is not None:
                return answer
        self.counts.cache_misses += 1
        if key in self._under_way:
            self.counts.joined += 1
            return None
        try:
            # Read before everything else: a change meanwhile must make this verdict old.
            version, ban_version = self._store.version, self._store.ban_version
            names = self._attempts.names(request)
            reason = self._kept_out(key, request, names, now_ns)
            # A wrong guess does not count against the limit: a storm at one locked name would shed all others.
            if reason == "locked_out" and self._shedder.rate_left(now_ns):
                secret = self._chain.past_lock_out(request)
                if secret is not None and secret.allow is not None:
                    self._shedder.admit_rate(now_ns)
                    seen = _Seen(version, ban_version, secret.stamp)
                    return self._count(self._admit(key, request, names, secret, seen))
            if reason is not None:
                return self._refuse(request, reason)
            if not self._shedder.admit_rate(now_ns):
                return self._no_answer(request, "rate_limited")
            outcome = self._chain.at_once(request)
            if outcome is not None and outcome.allow is not None:
                seen = _Seen(version, ban_version, outcome.stamp)
                return self._count(self._admit(key, request, names, outcome, seen))
            seen = _Seen(version, ban_version, self._chain.stamp(request))
            if self._attempts.guessing(names, request.password, now_ns) or not self._shedder.enter():
                return self._no_answer(request, "shed")
        except BackendDownError as error:
            self._events.store_failed(error)
            return self._no_answer(request, "backend_down")
        self.counts.in_flight = self._shedder.in_flight
        counted = self._attempts.begin(names, request.password, now_ns)
        task = self._under_way[key] = asyncio.get_running_loop().create_task(
            self._verify(key, request, names, seen, counted), name="auth verification"
        )
        # After its end, not at it: a verdict without a wait (a token, a backend that is down) is there before the
        # server's own task calls ``login``, which would verify a second time.
        task.add_done_callback(lambda _ended: self._under_way.pop(key, None))
        return None

    async def login(self, request: LoginRequest) -> LoginAnswer:
        """The answer. A cancelled waiter does not end the verification: others may wait for it, and the cache keeps
        it."""
        key = self._digest(request)
        task = self._under_way.get(key)
        if task is None:
            answer = self.login_at_once(request)
            if answer is not None:
                return answer
            task = self._under_way[key]  # ``login_at_once`` has begun it
        return self._count(await asyncio.shield(task))

    def backend_down(self, reason: str) -> LoginAnswer:
        """The answer of ``auth.backend_down``, for a login that was not decided in time."""
        known: LoginReason = cast("LoginReason", reason) if reason in LOGIN_REASONS else "timeout"
        return self._count(self._no_answers[known])

    def _from_cache(self, key: bytes, entry: _Verified, request: LoginRequest, now_ns: int) -> LoginAnswer | None:
        """The answer to a login that was verified before, counted; None: it is decided anew."""
        store = self._store
        seen = entry.seen
        expires_at_s = entry.allow.expires_at_s
        if expires_at_s is not None and expires_at_s <= self._now_s():
            self._verified.drop(key)  # the clock was set; the chain decides
            return None
        if (seen.version != store.version or seen.ban_version != store.ban_version) and not self._still_holds(
            key, entry, request
        ):
            self._verified.drop(key)
            self.counts.cache_invalidated += 1
            return None
        if self._flapping_on:
            if self.lockouts.flapped(bounded(request.clientid), now_ns):
                return self._refuse(request, "banned")
            self._note_login(request.clientid, now_ns)
        answer = entry.answer
        if answer is None:
            assert entry.draft is not None
            expire_at_s = self.answer_writer.expire_at_s(entry.allow, self._now_s())
            answer = LoginAnswer("allow", entry.draft.body(expire_at_s), "cached")
        counts = self.counts
        counts.cache_hits += 1
        if self._chain.degraded:
            counts.cache_hits_while_down += 1
        counts.logins["allow"] += 1
        counts.login_reasons["cached"] += 1
        return answer

    def _still_holds(self, key: bytes, entry: _Verified, request: LoginRequest) -> bool:
        """Whether an entry stays valid after a change of the database; it is then updated.

        While the database cannot be read, entries stay valid."""
        store = self._store
        version, ban_version = store.version, store.ban_version
        try:
            if self._banned(request):
                return False
            if entry.seen.version != version:
                if self._chain.stamp(request) != entry.seen.stamp or self._tenant_disabled(entry.allow.tenant):
                    return False
                body = self.answer_writer.write(request, entry.allow)
                if body.problem:
                    return False
                sent = body.body(self.answer_writer.expire_at_s(entry.allow, self._now_s()))
                self._remember(key, entry, body, sent, self._now_ns())
        except BackendDownError as error:
            self._events.store_failed(error)
            return True
        entry.seen = entry.seen._replace(version=version, ban_version=ban_version)
        return True

    def _remember(self, key: bytes, entry: _Verified, body: Answer, sent: bytes, now_ns: int) -> None:
        """Cache the answer ``sent``, or its ``body`` where each login has a time of expiry of its own."""
        if self.answer_writer.moving:
            entry.draft = body
        else:
            entry.answer = LoginAnswer("allow", sent, "cached")
        self._verified.put(key, entry, now_ns, 1 + len(sent) // _ORDINARY)

    def _kept_out(self, key: bytes, request: LoginRequest, names: Names, now_ns: int) -> LoginReason | None:
        """Why a login is refused without asking the chain; None if it is not. Raises BackendDownError."""
        if self._flapping_on and self.lockouts.flapped(bounded(request.clientid), now_ns):
            return "banned"
        if self._banned(request):
            return "banned"
        if self._attempts.locked(names, now_ns):
            return "locked_out"
        refused = self._refused.get(key, now_ns)
        if refused is not None:
            if refused.seen.version == self._store.version or refused.seen.stamp == self._chain.stamp(request):
                self.counts.negative_hits += 1
                return "remembered"
            self._refused.drop(key)
        return None

    def _banned(self, request: LoginRequest) -> bool:
        return self._store.find_ban(request.clientid, request.username, request.peerhost, self._now_s()) is not None

    def _overtaken(self, request: LoginRequest, seen: _Seen) -> bool:
        """Whether the client's data changed during its verification."""
        store = self._store
        if store.ban_version != seen.ban_version and self._banned(request):
            return True
        return store.version != seen.version and self._chain.stamp(request) != seen.stamp

    async def _verify(
        self, key: bytes, request: LoginRequest, names: Names, seen: _Seen, counted: list[Hashable]
    ) -> LoginAnswer:
        """The chain's answer, and what follows from it for caches and lock-outs. Each waiter counts it, as several may
        wait."""
        try:
            outcome = await self._chain.ask(request)
            while self._overtaken(request, seen):  # logins that came after the change wait here too
                seen = _Seen(self._store.version, self._store.ban_version, self._chain.stamp(request))
                if self._banned(request):
                    self._events.refused(request, "banned")
                    return self._denials["banned"]
                outcome = await self._chain.ask(request)
            now_ns = self._now_ns()
            if outcome.guess:
                self._attempts.failed(request, names, outcome.user, seen.version, seen.stamp, now_ns)
            if outcome.allow is not None:
                return self._admit(key, request, names, outcome, seen)
            if not outcome.degraded:
                self._refused.put(key, _Refused(now_ns + self._negative_ttl_ns, seen), now_ns)
            self._events.refused(request, outcome.reason, source=outcome.source)
            answers = self._denials if outcome.result == "deny" else self._no_answers
            return answers[outcome.reason]
        except BackendDownError as error:
            self._events.store_failed(error)
            return self._no_answers["backend_down"]
        finally:
            self._shedder.release()
            self.counts.in_flight = self._shedder.in_flight
            self._attempts.end(counted, request.password)

    def _admit(self, key: bytes, request: LoginRequest, names: Names, outcome: Outcome, seen: _Seen) -> LoginAnswer:
        """The answer to a login that the chain admits, not counted yet. Raises BackendDownError."""
        allow = outcome.allow
        assert allow is not None
        now_ns, now_s = self._now_ns(), self._now_s()
        tenant = self._store.tenant(allow.tenant) if allow.tenant else None
        if tenant is not None and not tenant.enabled:
            self._events.refused(request, "tenant_disabled", source=outcome.source)
            return self._denials["tenant_disabled"]
        limit = None if tenant is None else tenant.logins_per_second
        if allow.tenant and not self._shedder.admit_tenant(allow.tenant, limit, now_ns):
            self._events.refused(request, "rate_limited", source=outcome.source)
            return self._no_answers["rate_limited"]
        expire_at_s = self.answer_writer.expire_at_s(allow, now_s)
        if expire_at_s is not None and expire_at_s <= now_s:
            self._events.refused(request, "expired", source=outcome.source)
            return self._denials["expired"]
        body = self.answer_writer.write(request, allow)
        if body.problem:
            self._events.refused(request, "rules_unexpressible", source=outcome.source, problem=body.problem)
            return self._denials["rules_unexpressible"]
        sent = body.body(expire_at_s)
        self._attempts.succeeded(request, names, allow.user)
        if self._flapping_on:
            self._note_login(request.clientid, now_ns)
        if not outcome.degraded:
            life_ns = self._ttl_ns
            if allow.expires_at_s is not None:
                life_ns = min(life_ns, int((allow.expires_at_s - now_s) * _NS))
            self._remember(key, _Verified(allow, None, None, now_ns + life_ns, seen), body, sent, now_ns)
        return LoginAnswer("allow", sent, outcome.reason)

    def _tenant_disabled(self, name: str) -> bool:
        tenant = self._store.tenant(name) if name else None
        return tenant is not None and not tenant.enabled

    def _refuse(self, request: LoginRequest, reason: LoginReason) -> LoginAnswer:
        self._events.refused(request, reason)
        return self._count(self._denials[reason])

    def _no_answer(self, request: LoginRequest, reason: LoginReason) -> LoginAnswer:
        self._events.refused(request, reason)
        return self._count(self._no_answers[reason])

    def _count(self, answer: LoginAnswer) -> LoginAnswer:
        self.counts.login(answer.result, cast("LoginReason", answer.reason))
        return answer

    def _note_login(self, clientid: str, now_ns: int) -> None:
        """Count a login, and ban a flapping client id from its next login on."""
        name = bounded(clientid)
        if not self.lockouts.flaps(name, now_ns):
            return
        until_s = int(self._now_s()) + self.lockouts.flapping_ban_s
        self._events.banned(clientid, until_s)
        ban = Ban("clientid", clientid, reason="flapping: it logged in again and again", until_s=until_s)
        task = asyncio.get_running_loop().create_task(self._write_ban(ban, name), name="auth ban")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_ban(self, ban: Ban, name: str) -> None:
        """Store the ban of a flapping client id, whose bounded name is ``name``."""
        try:
            await self._store.ban(ban, by=_BY)
        except StoreError as error:
            # The ban still holds in this process.
            self._events.ban_not_written(error)
            return
        with contextlib.suppress(BackendDownError):
            self._store.refresh()
            self.lockouts.flapping_ban_written(name)
