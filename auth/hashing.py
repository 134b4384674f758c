"""Checks and makes password hashes without blocking the event loop.

Fast kinds are computed at once. Slow kinds take tens of milliseconds of a core by design, so they run in a few threads
of a lower priority. Waiters are in a bounded queue. A cancelled waiter leaves it, and its hash is not computed.

The time of a hash is measured. A login whose hash would miss its deadline is shed at once. Otherwise, in a storm, each
hash would begin just before its login expires.

Every failed check costs an argon2id hash with today's settings, whatever kind is stored: a wrong device secret takes
as long as an unknown user. A hash of bcrypt or PBKDF2, or of argon2id with other settings, costs its own time too. That
distinguishes such a user from an unknown one until its hash is renewed at its next login.
"""

import asyncio
import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Final, TypeVar

from auth import passwords
from auth.errors import OverloadedError
from auth.passwords import Argon2Cost, Kind
from config.tables.auth import AuthHashingSettings

T = TypeVar("T")
_NICENESS: Final = 10  # about a ninth of the event loop's share of a common core
_SHARE_OF_NEW: Final = 0.125  # of the latest hash in the measured time of one

DEADLINE_S: Final[ContextVar[float]] = ContextVar("deadline_s", default=float("inf"))
"""The deadline of a login's hash, by the event loop's clock. Set by the caller."""

_NOBODYS: Final = "nobody has this password"


class Hasher:
    """Implements ``auth.ports.PasswordHasher``. Belongs to one event loop; ``close`` ends the threads.

    Making one raises ConfigError when a library is not installed.
    """

    def __init__(self, settings: AuthHashingSettings, keys: Mapping[str, bytes] | None = None) -> None:
        passwords.load_libraries()
        self.cost: Final = Argon2Cost(settings.memory >> 10, settings.passes)
        self._keys = dict(keys or {})
        key = secrets.token_bytes(passwords.DEVICE_KEY_BYTES)
        self._decoy_key = {passwords.device_key_id(key): key}
        self._decoy_secret = passwords.hash_device_secret(passwords.generate_secret(), key)
        self._renew = settings.renew
        self._threads = settings.threads
        self._queue = settings.queue
        self.busy = 0  # threads that compute, or are reserved for a waiter
        self.observe: Callable[[int], None] | None = None  # receives the ns of a slow hash, its wait included
        self._hash_s = 0.0  # measured time of a hash in a thread; written by the threads
        self._waiting: dict[
            asyncio.Future[None], float
        ] = {}  # with their deadlines, in the order they came; a dict, to leave in the middle
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="hash", initializer=_lower_priority)

    @property
    def waiting(self) -> int:
        """Number of hashes that wait for a thread."""
        return len(self._waiting)

    def learn(self, keys: Mapping[str, bytes]) -> None:
        """Use these keys of device secrets, by id, from now on."""
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
        """Whether ``password`` matches ``stored``. A False costs an argon2id hash, whatever the kind of ``stored``.
        Raises OverloadedError, and ValueError for a text of no known kind."""
        read = passwords.parse(
            stored, salt=salt, algorithm=algorithm, salt_position=salt_position, iterations=iterations
        )
        if not read.kind.slow and passwords.matches(read, password, self._keys):
            return True

        def judge() -> bool:
            """Whether the password is right. If not, an argon2id hash was computed in any case."""
            # Both hashes in one job: a second wait in a full queue would miss the deadline.
            good = read.kind.slow and passwords.matches(read, password, self._keys)
            if not good and read.kind is not Kind.ARGON2:
                passwords.hash_argon2id(_NOBODYS, self.cost)
            return good

        return await self._run_in_thread(judge)

    def verify_at_once(self, stored: str, password: str) -> bool | None:
        """True if ``password`` matches, without waiting. Else None: ``verify`` decides, and makes a wrong password cost
        an argon2id hash. Raises ValueError as ``verify`` does."""
        device = passwords.device_secret_matches(stored, password, self._keys)
        if device is not None:
            return device or None
        read = passwords.parse(stored)
        return True if not read.kind.slow and passwords.matches(read, password, self._keys) else None

    def generated_matches(self, stored: str, password: str) -> bool:
        """Whether ``stored`` is a generated device secret and ``password`` matches it.

        A matching secret passes a lock-out. Other kinds of hashes cost the same work on a decoy, so the time of an
        answer does not tell who has such a secret. Raises ValueError when the key of ``stored`` is not loaded."""
        good = passwords.device_secret_matches(stored, password, self._keys)
        if good is None:
            passwords.device_secret_matches(self._decoy_secret, password, self._decoy_key)
        return good is True

    async def burn(self) -> None:
        """Takes as long as verifying a wrong argon2id password. Raises OverloadedError."""
        await self._run_in_thread(lambda: passwords.hash_argon2id(_NOBODYS, self.cost))

    async def hash(self, password: str) -> str:
        """A new argon2id hash. Raises OverloadedError, and ValueError for what MQTT cannot carry."""
        return await self._run_in_thread(lambda: passwords.hash_argon2id(password, self.cost))

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
        """End the threads, without waiting for their present work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        """The result of ``work`` in a free thread. Raises OverloadedError."""
        began_ns = time.monotonic_ns()
        await self._take_a_thread()
        loop = asyncio.get_running_loop()

        def give_back(_future: Future[T]) -> None:
            # The thread is free when its work is done, not when the caller stops waiting. Otherwise more work would
            # be submitted while the old work still runs. RuntimeError: the loop has ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._give_thread_back)

        def measured() -> T:
            """``work``, whose time becomes a part of the mean in ``_hash_s``."""
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
        """Wait for a free thread, and reserve it. Raises OverloadedError when too many wait, or it would be too
        late."""
        if self.busy < self._threads:
            self.busy += 1
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
                self._give_thread_back()  # this thread was reserved for the caller
            raise

    def _late(self, needed_s: float) -> OverloadedError:
        """The error for a hash that would not be done in time."""
        return OverloadedError(
            "hashing",
            f"A password hash takes {self._hash_s * 1e3:.0f} ms now, and {len(self._waiting)} wait: this one "
            f"would take {needed_s:.1f} s, longer than auth.answer_timeout leaves it.",
        )

    def _give_thread_back(self) -> None:
        """Give the thread to the first waiter that still has time; without one it is free."""
        now_s = asyncio.get_running_loop().time() if self._waiting else 0.0
        while self._waiting:
            turn, deadline_s = next(iter(self._waiting.items()))
            del self._waiting[turn]
            if not turn.done() and now_s + self._hash_s > deadline_s:
                turn.set_exception(self._late(self._hash_s))  # hashes have become slower meanwhile
            elif not turn.done():
                turn.set_result(None)  # the waiter gets the thread, which stays busy
                return
        self.busy -= 1


def _lower_priority() -> None:
    """Called by each thread at its start. On Linux a thread has a priority of its own; elsewhere it is the process's,
    which must stay as it is."""
    if sys.platform == "linux":
        os.nice(_NICENESS)
