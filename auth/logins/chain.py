"""Authenticators in their order: the first that knows the client decides.

Verdicts of an authenticator:

- *allow*, *deny*: the chain ends.
- *ignore* (the client is unknown): the next one is asked.
- None, because it is down. With ``auth.backend_down = "deny"`` the chain ends and refuses, because the next one might
  admit a client that this one would refuse. With ``"ignore"`` the others are asked, and their allow or deny counts.
  Without one the answer is *ignore*, as the client may be known to the missing one: EMQX's next authenticator decides.
  Such a client is not anonymous. The outcome is ``degraded`` and not cached, so it does not outlive the outage.
- None, because there is no room (``OverloadedError``): the chain ends at once with the answer of
  ``auth.backend_down``, as further questions would be more load.

At the end of the chain the answer is deny, unless ``auth.anonymous`` admits a client without credentials.

**The cost of a refusal.** Every refused login without an argon2id hash burns one: an unknown user, a wrong device
secret and a wrong token take as long as a wrong password. There are two exceptions: no authenticator looked at the
client (all that were asked were down), and the service has no room. A backend that is down *after* one that was asked
is no exception, because the time would tell whether the first one knows the client.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

import structlog

from auth.errors import BackendDownError, OverloadedError
from auth.hashing import DEADLINE_S, Hasher
from auth.logins.counts import BackendCounts, Counts
from auth.logins.reasons import LoginReason, login_reason
from auth.model import Allow, Deny, Ignore, LoginRequest, Result, Verdict
from auth.ports import AnsweringAtOnce, Authenticator, KnowingSecrets, PasswordHasher, Stamping
from auth.store.store import Store
from config.errors import ConfigError
from config.extras import how_to_install
from config.tables.auth import AuthSettings

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("auth")

Said = Literal["allow", "deny", "ignore", "down", "shed", "timeout"]

# The server stops waiting after auth.answer_timeout. The chain ends earlier, so that it can give the reason.
_SHARE_OF_TIMEOUT: Final = 0.9


@dataclass(frozen=True, slots=True)
class Step:
    """The verdict of one authenticator."""

    name: str
    said: Said
    why: str = ""


@dataclass(slots=True)
class Outcome:
    """The chain's decision about a login. It has ``allow`` if the result is allow."""

    result: Result
    reason: LoginReason
    source: str = ""  # the authenticator that decided, or that gave no answer
    user: str = ""  # the name by which the authenticator knows it
    allow: Allow | None = None
    degraded: bool = False  # whether an authenticator that might decide otherwise gave no answer: not cached
    guess: bool = False  # a wrong password or token, or an unknown user: counts towards a lock-out
    steps: tuple[Step, ...] = ()
    stamp: tuple[int, ...] = ()  # ``Chain.stamp`` at the verdict; only from ``Chain.at_once`` and ``past_lock_out``


class Chain:
    """The authenticators of ``auth.chain``, in their order. Belongs to the service's event loop. ``hasher`` burns a
    hash for refusals without one; ``counts`` get an entry for each authenticator."""

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        hasher: PasswordHasher,
        settings: AuthSettings,
        counts: Counts | None = None,  # None: new ones
    ) -> None:
        self.authenticators = tuple(authenticators)
        self.counts = counts if counts is not None else Counts()
        for one in self.authenticators:
            self.counts.backends.setdefault(one.name, BackendCounts())
        self.degraded = False  # a backend is down, as of the last look
        self._stamps = tuple(one.stamp for one in self.authenticators if isinstance(one, Stamping))
        self._stamping = tuple(one.name for one in self.authenticators if isinstance(one, Stamping))
        # Each up to the first authenticator that lacks the method, because that one may decide first.
        quick = itertools.takewhile(lambda one: isinstance(one, AnsweringAtOnce), self.authenticators)
        self._at_once = tuple((one.name, one.at_once) for one in quick if isinstance(one, AnsweringAtOnce))
        knowing = itertools.takewhile(lambda one: isinstance(one, KnowingSecrets), self.authenticators)
        self._knowing_secrets = tuple(
            (one.name, one.past_lock_out) for one in knowing if isinstance(one, KnowingSecrets)
        )
        self._hasher = hasher
        self._anonymous = settings.anonymous
        self._down_result: Result = settings.backend_down
        self._timeout_s = settings.answer_timeout.total_seconds() * _SHARE_OF_TIMEOUT
        self.observe: Callable[[str, int], None] | None = None  # receives the backend's name and the ns of its question

    async def start(self) -> None:
        """Open the backends. A backend that is down does not end the start. Raises ConfigError."""
        for one in self.authenticators:
            await one.start()

    async def close(self) -> None:
        """Close the backends, the last first."""
        for one in reversed(self.authenticators):
            await one.close()

    def down(self) -> list[str]:
        return [one.name for one in self.authenticators if not one.up]

    def watch(self) -> None:
        """Log backends that went down or came back, also without a login: some test themselves."""
        for one in self.authenticators:
            counts = self.counts.backends[one.name]
            if one.up == counts.up:
                continue
            counts.up = one.up
            if one.up:
                _log.info("auth_backend_up", backend=one.name)
            else:
                problem = getattr(one, "problem", "")  # of authenticators that ask a server
                _log.warning("auth_backend_down", backend=one.name, problem=problem, answer=self._down_result)
        self.degraded = not all(counts.up for counts in self.counts.backends.values())

    def stamp(self, request: LoginRequest) -> tuple[int, ...]:
        """A value that changes when a verdict on this request may change, as far as that is cheap to tell. Raises
        BackendDownError."""
        return tuple(stamp(request) for stamp in self._stamps)

    def at_once(self, request: LoginRequest) -> Outcome | None:
        """The outcome of an allowed login without a slow hash or another server: a device with its own secret. None for
        all others: ``ask``. Does not wait."""
        for name, ask in self._at_once:
            try:
                verdict = ask(request)
            except BackendDownError:
                return None
            if isinstance(verdict, Allow):
                if self._stamping != (name,):
                    return None  # its stamp must be read before the verdict
                self.counts.backends[name].allowed += 1
                # The verdict's version is the stamp. A second read would take 15 µs more, and may see a later change.
                return Outcome(
                    "allow", "verified", verdict.source or name, verdict.user, verdict, stamp=(verdict.version,)
                )
            if verdict is None or isinstance(verdict, Deny):
                return None
        return None

    def past_lock_out(self, request: LoginRequest) -> Outcome | None:
        """The outcome of a login with its generated secret; None for all others. A secret of 190 random bits cannot be
        guessed, so a lock-out would only refuse its owner. An authenticator that asks another machine ends the search,
        because it may decide first. Does not wait. Raises BackendDownError."""
        stamp = self.stamp(request)  # read before the verdicts
        refused = False
        for name, ask in self._knowing_secrets:
            verdict = ask(request)
            if verdict is None:
                refused = True  # the others are still asked: known and unknown users take the same time
            elif isinstance(verdict, Allow) and not refused:
                self.counts.backends[name].allowed += 1
                return Outcome("allow", "verified", verdict.source or name, verdict.user, verdict, stamp=stamp)
        return None

    async def ask(self, request: LoginRequest) -> Outcome:
        """The decision about this login, within ``auth.answer_timeout``. Raises nothing but a cancellation."""
        walk = _Walk(request)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                DEADLINE_S.set(limit.when() or math.inf)
                outcome = await self._walk(walk)
                if outcome.allow is None and walk.heard and not walk.hashed:
                    outcome = await self._burn(outcome)
        except TimeoutError:
            outcome = self._timed_out(walk)
        return outcome

    async def _walk(self, walk: _Walk) -> Outcome:
        """Ask one authenticator after the other until one decides; ``walk`` notes how far it came."""
        for one in self.authenticators:
            walk.at = one.name
            verdict, problem = await self._ask_one(one, walk)
            if isinstance(verdict, Allow):
                return walk.end(
                    "allow", "verified", source=verdict.source or one.name, user=verdict.user, allow=verdict
                )
            if isinstance(verdict, Deny):
                walk.hashed = verdict.hashed
                reason = login_reason(verdict.reason)
                return walk.end(
                    "deny",
                    reason,
                    source=verdict.source or one.name,
                    user=verdict.user,
                    guess=reason in {"bad_password", "bad_token"},
                )
            if isinstance(verdict, Ignore) and not verdict.final:
                walk.final = False
            if problem == "shed":
                return walk.end(self._down_result, "shed", source=one.name)
            if problem == "down":
                walk.down = walk.down or one.name
                if self._down_result == "deny":
                    return walk.end("deny", "backend_down", source=one.name)
        walk.at = ""
        if walk.down:
            return walk.end("ignore", "backend_down", source=walk.down)
        request = walk.request
        if self._anonymous and not (request.username or request.password or request.cert_common_name):
            return walk.end("allow", "anonymous", source="anonymous", allow=Allow(source="anonymous"))
        return walk.end("deny", "unknown", guess=walk.final)

    async def _ask_one(self, one: Authenticator, walk: _Walk) -> tuple[Verdict | None, Literal["shed", "down"] | None]:
        """The verdict of one authenticator, or why there is none."""
        counts = self.counts.backends[one.name]
        began_ns = time.monotonic_ns()
        try:
            verdict = await one.authenticate(walk.request)
        except OverloadedError as error:
            counts.shed += 1
            walk.steps.append(Step(one.name, "shed", str(error)))
            return None, "shed"
        except BackendDownError as error:
            counts.down += 1
            if counts.up and not one.up:
                counts.up = False
                self.degraded = True
                _log.warning("auth_backend_down", backend=one.name, problem=str(error), answer=self._down_result)
            walk.steps.append(Step(one.name, "down", str(error)))
            return None, "down"
        except Exception as error:  # noqa: BLE001 - see below
            # A defect of ours or of a library; its traceback goes to the log. Raised on, it would become a 500, which
            # EMQX takes for "ask the next".
            counts.down += 1
            _log.exception("auth_backend_defect", backend=one.name, answer=self._down_result, repeat_key=one.name)
            walk.steps.append(Step(one.name, "down", f"it failed with {type(error).__name__}"))
            return None, "down"
        finally:  # a question that was cut off took its time as well
            if self.observe is not None:
                self.observe(one.name, time.monotonic_ns() - began_ns)
        if not counts.up:
            self.watch()
        walk.heard = True
        if isinstance(verdict, Allow):
            counts.allowed += 1
            walk.steps.append(Step(one.name, "allow", verdict.user))
        elif isinstance(verdict, Deny):
            counts.denied += 1
            walk.steps.append(Step(one.name, "deny", verdict.detail or verdict.reason))
        else:
            counts.ignored += 1
            walk.steps.append(Step(one.name, "ignore", verdict.reason))
        return verdict, None

    async def _burn(self, outcome: Outcome) -> Outcome:
        """Spend an argon2id hash, so that the time of a refusal does not tell who exists. The outcome, or that of
        overload."""
        try:
            await self._hasher.burn()
        except OverloadedError:
            # As it would have been for a password that there is no room to verify.
            return Outcome(
                self._down_result, "shed", outcome.source, outcome.user, None, True, outcome.guess, outcome.steps
            )
        except TimeoutError:
            return outcome
        self.counts.burns += 1
        return outcome

    def _timed_out(self, walk: _Walk) -> Outcome:
        """The outcome when the time is over: the walk's, or that of a backend that is down."""
        if walk.outcome is not None:
            return walk.outcome  # decided; it was the hash that took too long
        name = walk.at
        self.counts.backends[name].down += 1
        walk.steps.append(Step(name, "timeout"))
        walk.down = walk.down or name
        return walk.end(self._down_result, "timeout", source=name)


class _Walk:
    """One login on its way through the chain."""

    __slots__ = ("at", "down", "final", "hashed", "heard", "outcome", "request", "steps")

    def __init__(self, request: LoginRequest) -> None:
        self.request = request
        self.steps: list[Step] = []
        self.at = ""  # the authenticator asked now
        self.down = ""  # the first that could not be asked
        self.final = True  # False: an authenticator may know the client soon
        self.heard = False  # an authenticator has looked at the client
        self.hashed = False  # an argon2id hash was computed for a refusal
        self.outcome: Outcome | None = None

    def end(
        self,
        result: Result,
        reason: LoginReason,
        *,
        source: str = "",
        user: str = "",
        allow: Allow | None = None,
        guess: bool = False,
    ) -> Outcome:
        """Note and return the outcome. ``guess``: a refusal counts towards a lock-out."""
        self.outcome = Outcome(
            result,
            reason,
            source,
            user,
            allow,
            degraded=bool(self.down) or not self.final or reason in {"shed", "timeout", "backend_down"},
            guess=guess,
            steps=tuple(self.steps),
        )
        return self.outcome


_CLASSES: Final = {
    "database": "DatabaseAuthenticator",
    "users_file": "UsersFileAuthenticator",
    "jwt": "JwtAuthenticator",
    "postgresql": "PostgresqlAuthenticator",
    "mysql": "MysqlAuthenticator",
    "redis": "RedisAuthenticator",
    "ldap": "LdapAuthenticator",
}

_OF_THE_STORE: Final = frozenset({"database", "users_file"})  # their tenants are in it
_WITHOUT_HASHES: Final = frozenset({"jwt", "ldap"})  # a signature is checked, or a bind


def make_chain(settings: AuthSettings, store: Store, hasher: Hasher, counts: Counts | None = None) -> Chain:
    """The chain that ``auth.chain`` names. Imports the backends in it and no other, since each pulls in its client
    library. Raises ConfigError when that is not installed, or for a setting that cannot work."""
    return Chain([_make(name, settings, store, hasher) for name in settings.chain], hasher, settings, counts)


def _make(name: str, settings: AuthSettings, store: Store, hasher: Hasher) -> Authenticator:
    """The authenticator of this name in ``auth.chain``. Raises ConfigError without its package."""
    try:
        module = importlib.import_module(f"auth.backends.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'auth.chain names "{name}", but the Python package {error.name} that it needs is not installed. '
            f"To install it: {how_to_install('auth')}"
        ) from error
    make = getattr(module, _CLASSES[name])
    if name in _OF_THE_STORE:
        return cast("Authenticator", make(settings, store, hasher))
    table = getattr(settings, name)
    return cast("Authenticator", make(table) if name in _WITHOUT_HASHES else make(table, hasher))
