"""Keeps a token: one task renews it in time, and readers get the present one."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from auth.errors import CredentialError
from auth.outward.renewal import Plan
from bridge.ports import Credential
from bridge.waiting import end_tasks, until_due, until_set
from config.errors import GatewayError, forget_frames
from config.values.grammar import format_duration

log = structlog.get_logger("credentials")

_PATIENCE_S = 30.0  # limit of a wait for an attempt; an attempt ends by itself, usually sooner


@dataclass(frozen=True, slots=True)
class Found:
    """A token, and its expiry by the monotonic clock, None if unknown."""

    token: str = field(repr=False)
    expires_at_ns: int | None


class Keeper:
    """A ``bridge.ports.CredentialSource``. ``find`` gets a token or raises GatewayError, ``plan`` gives the times,
    ``setting`` is its name in messages ("mqtt.token.file"). Belongs to the event loop's thread."""

    def __init__(
        self,
        find: Callable[[], Awaitable[Found]],
        plan: Plan,
        setting: str,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._find = find
        self._plan = plan
        self._setting = setting
        self._monotonic_ns = monotonic_ns
        self.failures = 0
        self._credential: Credential | None = None
        self._refused = 0  # number of the credential that a broker did not take
        self._failure: str | None = None
        self._watchers: list[Callable[[Credential], None]] = []
        self._looking = False
        self._looked = asyncio.Event()  # set after the present attempt, or the next one; then replaced
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to get tokens. Does not wait for one."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End the attempts, and the waits for one."""
        if self._task is not None:
            await end_tasks(self._task)
            self._task = None
            self._failure = f"{self._setting}: the gateway is stopping."
            self._end_attempt()

    @property
    def failing(self) -> bool:
        return self._failure is not None

    async def current(self) -> Credential:
        """The token to show now. Waits for an attempt without a valid token, or with one that was refused."""
        held = self._good()
        if held is None:
            self._ask()
        if held is None or held.number == self._refused:
            await self._attempt()
            held = self._good()
        if held is None:
            raise CredentialError(self._failure or f"{self._setting}: no token has come yet; the answer takes long.")
        return held

    def watch(self, told: Callable[[Credential], None]) -> Callable[[], None]:
        """``told`` gets each further credential until the returned function is called."""
        self._watchers.append(told)

        def end() -> None:
            with contextlib.suppress(ValueError):
                self._watchers.remove(told)

        return end

    def refused(self, credential: Credential) -> None:
        """A broker did not take this credential: ask for another, unless there is a newer one."""
        if self._credential is None or credential.number != self._credential.number:
            return
        if self._refused != credential.number:
            self._refused = credential.number
            log.warning("token_refused", setting=self._setting, number=credential.number)
        self._ask()

    def _ask(self) -> None:
        self._plan.ask(self._monotonic_ns())
        self._asked.set()

    def _good(self) -> Credential | None:
        held = self._credential
        if held is None or (held.expires_at_ns is not None and held.expires_at_ns <= self._monotonic_ns()):
            return None
        return held

    async def _attempt(self) -> None:
        """Wait for an attempt that is under way or due now. Does not wait for a later one."""
        if self._task is None or not (self._looking or self._plan.due_ns() <= self._monotonic_ns()):
            return
        looked = self._looked
        await until_set(looked, _PATIENCE_S)

    async def _run(self) -> None:
        while True:
            await self._renew()
            await until_due(self._plan.due_ns, self._monotonic_ns, self._asked)

    async def _renew(self) -> None:
        """One attempt to get a token. Raises nothing but a cancellation."""
        self._plan.began(self._monotonic_ns())
        self._looking = True
        try:
            found = await self._find()
        except GatewayError as error:
            forget_frames(error)
            self._failed(str(error))
        except Exception:  # a defect must not end the task
            log.exception("token_defect", setting=self._setting)
            self._failed(
                f"{self._setting}: the gateway failed to get a token because of a defect; see token_defect in the log."
            )
        else:
            self._took(found)
        finally:
            self._looking = False
            self._end_attempt()

    def _end_attempt(self) -> None:
        ended, self._looked = self._looked, asyncio.Event()
        ended.set()

    def _failed(self, sentence: str) -> None:
        """Keep the old token; log the first failure of several."""
        now_ns = self._monotonic_ns()
        self.failures += 1
        self._plan.failed(now_ns)
        if self._failure is None:
            held = self._credential
            left = "until it is refused"
            if held is None:
                left = "none"
            elif held.expires_at_ns is not None:
                left = _seconds(held.expires_at_ns - now_ns)
            log.warning("token_failed", setting=self._setting, reason=sentence, old_one_good_for=left)
        self._failure = sentence

    def _took(self, found: Found) -> None:
        """Use the token and tell the watchers, unless it is the old one."""
        now_ns = self._monotonic_ns()
        self._plan.succeeded(now_ns, found.expires_at_ns)
        before, failing, self._failure = self._credential, self._failure is not None, None
        if before is not None and before.token == found.token:
            if failing:
                log.info("token_kept", setting=self._setting)
            return
        number = 1 if before is None else before.number + 1
        self._credential = Credential(found.token, found.expires_at_ns, number)
        if before is None or failing:
            left = None if found.expires_at_ns is None else _seconds(found.expires_at_ns - now_ns)
            log.info("token_taken", setting=self._setting, good_for=left)
        if before is None:
            return
        for told in list(self._watchers):
            try:
                told(self._credential)
            except Exception:  # a failing listener must not keep the token from the others
                log.exception("token_watcher_defect", setting=self._setting)


def _seconds(length_ns: int) -> str:
    return format_duration(timedelta(seconds=max(0, length_ns // 1_000_000_000)))
