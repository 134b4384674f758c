"""Authenticators in their order: the first that knows the client decides.

What each can say, and what follows:

- *allow*, *deny*: the chain ends with it;
- *ignore* (it does not know the client): the next is asked;
- nothing, since it is down: with ``auth.backend_down = "deny"`` the chain ends and refuses: whoever is next might let
  in what this one would have kept out. With ``"ignore"`` the rest is asked; an allow or a deny of the rest stands, but
  at the end of the chain the answer is *ignore* and not *deny*, because nobody can say that the client is unknown: the
  setting leaves that to EMQX's next authenticator. For the same reason such a client is not anonymous. What was decided
  while one was down is marked ``degraded``: the caller remembers none of it, or a verdict that the missing one would
  have overruled would outlive its absence;
- nothing, since there is no room (``OverloadedError``): the chain ends at once with what ``auth.backend_down`` says.
  Asking on would be more work where there is too much.

At the end of the chain: deny, unless ``auth.anonymous`` lets in a client that showed nothing at all.

**What a refusal costs.** Every refused login that has not computed an argon2id hash burns one: an unknown user, a wrong
device secret and a wrong token take as long as a wrong password. There are two exceptions, where nothing could be told
apart: nobody in the chain has looked at the client (the only ones asked were down), and the service has no room. A
backend that is down *behind* one that was asked makes no exception, or the pause would tell who the first one knows.
"""

from __future__ import annotations

__all__ = ["Chain", "Outcome", "Step", "make_chain"]

import asyncio
import importlib
import itertools
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

import structlog

from auth.errors import BackendDownError, OverloadedError
from auth.hashing import DEADLINE_S
from auth.logins.counts import BackendCounts, Counts
from auth.logins.reasons import login_reason
from auth.model import Allow, Deny, Ignore
from auth.ports import AnsweringAtOnce, KnowingSecrets, Stamping
from config.errors import ConfigError
from config.extras import how_to_install

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from auth.hashing import Hasher
    from auth.logins.reasons import LoginReason
    from auth.model import LoginRequest, Result, Verdict
    from auth.ports import Authenticator, PasswordHasher
    from auth.store.store import Store
    from config.auth import AuthSettings

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger("auth")

Said = Literal["allow", "deny", "ignore", "down", "shed", "timeout"]

# The server stops waiting at auth.answer_timeout itself; ending a little earlier lets the one that knows why say so.
_SHARE_OF_TIMEOUT: Final = 0.9


@dataclass(frozen=True, slots=True)
class Step:
    """What one authenticator said."""

    name: str
    said: Said
    why: str = ""


@dataclass(slots=True)
class Outcome:
    """What the chain says of a login. ``allow`` is there when the result is allow."""

    result: Result
    reason: LoginReason
    source: str = ""  # who decided; of a refusal for want of an answer: who gave none
    user: str = ""
    allow: Allow | None = None
    degraded: bool = False  # somebody who might have decided otherwise could not be asked: not to be remembered
    guess: bool = False  # a wrong password or token, or an unknown user: counts towards a lock-out
    steps: tuple[Step, ...] = ()
    stamp: tuple[int, ...] = ()  # ``Chain.stamp`` as of the verdict; of ``Chain.at_once`` alone


class Chain:
    """The authenticators of ``auth.chain``. Belongs to the service's event loop.

    Args:
        authenticators: in their order.
        hasher: computes what a refusal has to cost, where no authenticator has.
        settings: ``anonymous``, ``backend_down`` and ``answer_timeout`` are read.
        counts: what is counted of each; its ``backends`` are completed.
    """

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        hasher: PasswordHasher,
        settings: AuthSettings,
        counts: Counts | None = None,
    ) -> None:
        self.authenticators = tuple(authenticators)
        self.counts = counts if counts is not None else Counts()
        for one in self.authenticators:
            self.counts.backends.setdefault(one.name, BackendCounts())
        self.degraded = False  # somebody is down, as of the last look
        self._stamps = tuple(one.stamp for one in self.authenticators if isinstance(one, Stamping))
        self._stamping = tuple(one.name for one in self.authenticators if isinstance(one, Stamping))
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
        self.observe: Callable[[str, int], None] | None = None  # is told whose question took how many ns

    async def start(self) -> None:
        """Open the backends. One that is down does not keep the service from starting; ConfigError does."""
        for one in self.authenticators:
            await one.start()

    async def close(self) -> None:
        """Let go of the backends, the last first."""
        for one in reversed(self.authenticators):
            await one.close()

    def down(self) -> list[str]:
        """Names of those that cannot be asked now."""
        return [one.name for one in self.authenticators if not one.up]

    def watch(self) -> None:
        """Notice who went down or came back, also without a login: some backends look for themselves."""
        for one in self.authenticators:
            counts = self.counts.backends[one.name]
            if one.up == counts.up:
                continue
            counts.up = one.up
            if one.up:
                _log.info("auth_backend_up", backend=one.name)
            else:
                problem = getattr(one, "problem", "")  # those that ask a server have words for it
                _log.warning("auth_backend_down", backend=one.name, problem=problem, answer=self._down_result)
        self.degraded = not all(counts.up for counts in self.counts.backends.values())

    def stamp(self, request: LoginRequest) -> tuple[int, ...]:
        """Something that changes when a verdict on this request may change, as far as the authenticators can tell
        cheaply. Raises BackendDownError."""
        return tuple(stamp(request) for stamp in self._stamps)

    def at_once(self, request: LoginRequest) -> Outcome | None:
        """The outcome of a login that is let in and needs nobody's answer and no slow hash: a device with a secret of
        its own. None for all others: ``ask``. Does not wait for anybody."""
        for name, ask in self._at_once:
            try:
                verdict = ask(request)
            except BackendDownError:
                return None
            if isinstance(verdict, Allow):
                if self._stamping != (name,):
                    return None  # its stamp would have to be taken before
                self.counts.verified += 1
                self.counts.backends[name].allowed += 1
                # A second look at the database would tell the same, for another fifteen microseconds; or, when the
                # database has changed in between, what belongs to another verdict.
                return Outcome(
                    "allow", "verified", verdict.source or name, verdict.user, verdict, stamp=(verdict.version,)
                )
            if verdict is None or isinstance(verdict, Deny):
                return None
        return None

    def past_lock_out(self, request: LoginRequest) -> Outcome | None:
        """The outcome of a login with a secret that was generated for its user: 190 random bits are not guessed, so
        that a lock-out would only keep the owner out. None for all others. An authenticator that has to ask another
        machine ends the walk: whoever is behind it has no say before it. Does not wait for anybody. Raises
        BackendDownError."""
        stamp = self.stamp(request)  # before anything is looked at
        refused = False
        for name, ask in self._knowing_secrets:
            verdict = ask(request)
            if verdict is None:
                refused = True  # the others are asked all the same: a known user takes as long as an unknown one
            elif isinstance(verdict, Allow) and not refused:
                self.counts.verified += 1
                self.counts.backends[name].allowed += 1
                return Outcome("allow", "verified", verdict.source or name, verdict.user, verdict, stamp=stamp)
        return None

    async def ask(self, request: LoginRequest) -> Outcome:
        """What the chain says of this login, within ``auth.answer_timeout``. Never raises but for cancellation."""
        walk = _Walk(request)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                DEADLINE_S.set(limit.when() or math.inf)
                outcome = await self._walk(walk)
                if outcome.allow is None and walk.heard and not walk.hashed:
                    outcome = await self._burn(outcome)
        except TimeoutError:
            outcome = self._timed_out(walk)
        self.counts.verified += 1
        return outcome

    async def _walk(self, walk: _Walk) -> Outcome:
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
        """Its verdict, or why there is none."""
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
        self.at = ""  # who is asked now
        self.down = ""  # the first that could not be asked
        self.final = True  # nobody may know the client in a moment
        self.heard = False  # somebody has looked at the client
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

_WITHOUT_HASHES: Final = frozenset({"jwt", "ldap"})  # a signature is checked, or a bind


def make_chain(settings: AuthSettings, store: Store, hasher: Hasher, counts: Counts | None = None) -> Chain:
    """The chain that ``auth.chain`` names. Imports the backends in it and no other, since each pulls in its client
    library. Raises ConfigError when that is not installed, or for a setting that cannot work."""
    return Chain([_make(name, settings, store, hasher) for name in settings.chain], hasher, settings, counts)


def _make(name: str, settings: AuthSettings, store: Store, hasher: Hasher) -> Authenticator:
    try:
        module = importlib.import_module(f"auth.backends.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'auth.chain names "{name}", but the Python package {error.name} that it needs is not installed. '
            f"To install it: {how_to_install('auth')}"
        ) from error
    make = getattr(module, _CLASSES[name])
    if name == "database":
        return cast("Authenticator", make(settings, store, hasher))
    table = getattr(settings, name)
    if table is None:
        raise ConfigError(f'auth.chain names "{name}", but there is no table [auth.{name}] that says where to look.')
    return cast("Authenticator", make(table) if name in _WITHOUT_HASHES else make(table, hasher))
