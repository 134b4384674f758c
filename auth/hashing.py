"""Checks and makes password hashes without holding up the event loop.

Fast kinds are computed at once. Slow ones take tens of milliseconds of a core by design, so they run in a few threads
of a lower priority: an answer out of the cache goes before them. Waiters stand in a bounded queue; who is cancelled
(the answer's deadline has passed) leaves it at once, so that nobody's hash is computed for a caller that has gone.

The queue takes no more than will be answered in time: how long a hash takes is measured, and a login whose hash could
not be done before its deadline is shed at once. Else, in a storm, every hash is begun just before its login is given
up, and the threads work for nobody.

Every check that fails costs an argon2id hash with today's settings, whatever kind the stored password is of: a wrong
device secret takes as long as an unknown user. A hash of bcrypt or PBKDF2, or of argon2id with other settings, costs
its own time besides or instead; that tells such a user from an unknown one until its hash is renewed at its next login.
"""

from __future__ import annotations

__all__ = ["DEADLINE_S", "Hasher"]

import asyncio
import contextlib
import os
import secrets
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, TypeVar

from auth import passwords
from auth.errors import OverloadedError
from auth.passwords import Argon2Cost, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from config.auth import AuthHashingSettings

T = TypeVar("T")
_NICENESS: Final = 10  # about a ninth of the event loop's weight when both want the same core
_SHARE_OF_NEW: Final = 0.125  # of the latest hash in the measured time of one

DEADLINE_S: Final[ContextVar[float]] = ContextVar("deadline_s", default=float("inf"))
"""Until when a login needs its hash, by the event loop's clock. Set by whoever bounds its time."""

_NOBODYS: Final = "nobody has this password"


class Hasher:
    """Implements ``auth.ports.PasswordHasher``. Belongs to one event loop; ``close`` lets go of the threads.

    Making one raises ConfigError when a library is not installed.
    """

    def __init__(self, settings: AuthHashingSettings, keys: Mapping[str, bytes] | None = None) -> None:
        passwords.load_libraries()
        self.cost: Final = Argon2Cost(settings.memory >> 10, settings.passes)
        self._keys = dict(keys or {})
        key = secrets.token_bytes(passwords.DEVICE_KEY_BYTES)
        self._no_key = {passwords.device_key_id(key): key}
        self._no_secret = passwords.hash_device_secret(passwords.generate_secret(), key)
        self._renew = settings.renew
        self._threads = settings.threads
        self._queue = settings.queue
        self._busy = 0  # threads that compute, or are promised to a waiter
        self.observe: Callable[[int], None] | None = None  # is told how many ns a slow hash took, its wait included
        self._hash_s = 0.0  # how long one takes a thread, as measured; written by the threads
        self._waiting: dict[
            asyncio.Future[None], float
        ] = {}  # with their deadlines, in the order they came; a dict, to leave in the middle
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="hash", initializer=_lower_priority)

    @property
    def waiting(self) -> int:
        """Hashes that wait for a thread."""
        return len(self._waiting)

    @property
    def busy(self) -> int:
        """Hashes that are computed now."""
        return self._busy

    def learn(self, keys: Mapping[str, bytes]) -> None:
        """Know these keys of device secrets, by id, from now on."""
        self._keys.update(keys)

    async def verify(
        self,
        stored: str,
        password: str,
        *,
        salt: str = "",
        algorithm: str = "auto",
        salt_position: str = "prefix",
        iterations: int = 0,
    ) -> bool:
        """Whether ``password`` is the one that ``stored`` was made of. When it is not, an argon2id hash has been
        computed, whatever kind ``stored`` is of. Raises OverloadedError, and ValueError for a text of no known kind."""
        read = passwords.parse(
            stored, salt=salt, algorithm=algorithm, salt_position=salt_position, iterations=iterations
        )
        if not read.kind.slow and passwords.matches(read, password, self._keys):
            return True

        def judge() -> bool:
            # In one go: a second turn in a full queue would come too late, and the first hash be computed for nobody.
            good = read.kind.slow and passwords.matches(read, password, self._keys)
            if not good and read.kind is not Kind.ARGON2:
                passwords.hash_argon2id(_NOBODYS, self.cost)
            return good

        return await self._run(judge)

    def verify_at_once(self, stored: str, password: str) -> bool | None:
        """The same for a fast kind, without waiting; None when a thread is needed, be it to burn a failure."""
        device = passwords.device_secret_matches(stored, password, self._keys)
        if device is not None:
            return device or None
        read = passwords.parse(stored)
        return True if not read.kind.slow and passwords.matches(read, password, self._keys) else None

    def generated_matches(self, stored: str, password: str) -> bool:
        """Whether ``stored`` is a generated device secret and ``password`` is it. Does the same work for every other
        text, so that a lock-out does not tell which users have such a secret. Raises ValueError when its key is not
        here."""
        good = passwords.device_secret_matches(stored, password, self._keys)
        if good is None:
            passwords.device_secret_matches(self._no_secret, password, self._no_key)
        return good is True

    async def burn(self) -> None:
        """Takes as long as verifying a wrong argon2id password. Raises OverloadedError."""
        await self._run(lambda: passwords.hash_argon2id(_NOBODYS, self.cost))

    async def hash(self, password: str) -> str:
        """A new argon2id hash. Raises OverloadedError, and ValueError for what MQTT cannot carry."""
        return await self._run(lambda: passwords.hash_argon2id(password, self.cost))

    def outdated(self, stored: str) -> bool:
        """Whether a verified password should be hashed anew: neither argon2id with today's settings or more, nor a
        device secret. Never, if ``auth.hashing.renew`` says so."""
        if not self._renew:
            return False
        read = passwords.parse(stored)
        if read.kind is Kind.DEVICE:
            return False
        if read.kind is not Kind.ARGON2 or read.digest != "argon2id" or read.cost is None:
            return True
        return read.cost.memory_kib < self.cost.memory_kib or read.cost.passes < self.cost.passes

    def close(self) -> None:
        """Let go of the threads, without waiting for what they compute."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        began_ns = time.monotonic_ns()
        await self._take_a_thread()
        loop = asyncio.get_running_loop()

        def give_back(_future: Future[T]) -> None:
            # The thread is free when its work is done, not when the caller stops waiting: else ever more work would
            # be handed over while the old still runs. After the loop's end nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._give_thread_back)

        def measured() -> T:
            begun_s = time.monotonic()
            try:
                return work()
            finally:
                took_s = time.monotonic() - begun_s
                before_s = self._hash_s
                self._hash_s = took_s if not before_s else before_s + _SHARE_OF_NEW * (took_s - before_s)

        try:
            future = self._pool.submit(measured)
        except RuntimeError:
            self._give_thread_back()
            raise OverloadedError("hashing", "The service is stopping: no password is checked any more.") from None
        future.add_done_callback(give_back)
        done = await asyncio.wrap_future(future)
        if self.observe is not None:
            self.observe(time.monotonic_ns() - began_ns)
        return done

    async def _take_a_thread(self) -> None:
        if self._busy < self._threads:
            self._busy += 1
            return
        if len(self._waiting) >= self._queue:
            raise OverloadedError(
                "hashing",
                f"{len(self._waiting)} password hashes wait already, as many as auth.hashing.queue allows: more "
                "logins with passwords come in than auth.hashing.threads can check.",
            )
        loop, deadline_s = asyncio.get_running_loop(), DEADLINE_S.get()
        needed_s = self._hash_s * ((len(self._waiting) + 1) / self._threads + 1)
        if loop.time() + needed_s > deadline_s:
            raise self._late(needed_s)
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting[turn] = deadline_s
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None and not turn.cancelled() and turn.exception() is None:
                self._give_thread_back()  # it had been promised to us
            raise

    def _late(self, needed_s: float) -> OverloadedError:
        return OverloadedError(
            "hashing",
            f"A password hash takes {self._hash_s * 1e3:.0f} ms now, and {len(self._waiting)} wait: this one "
            f"would take {needed_s:.1f} s, longer than auth.answer_timeout leaves it.",
        )

    def _give_thread_back(self) -> None:
        now_s = asyncio.get_running_loop().time() if self._waiting else 0.0
        while self._waiting:
            turn, deadline_s = next(iter(self._waiting.items()))
            del self._waiting[turn]
            if not turn.done() and now_s + self._hash_s > deadline_s:
                turn.set_exception(self._late(self._hash_s))  # hashes have become slower since it came
            elif not turn.done():
                turn.set_result(None)  # the thread passes on; it stays counted as busy
                return
        self._busy -= 1


def _lower_priority() -> None:
    """Called by each thread at its start. On Linux a thread has a priority of its own; elsewhere it is the process's,
    which must stay as it is."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
