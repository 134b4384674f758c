"""A source of tokens that a test makes itself (``bridge.ports.CredentialSource``)."""

import time
from collections.abc import Callable

from auth.errors import CredentialError
from bridge.ports import Credential


class MadeTokens:
    """Gives what ``make`` returns, a new one when the last is three quarters through ``lifetime_s`` or was refused.

    ``broken``, when set, is why there is none. ``made`` holds every token given, ``refusals`` those that were refused.
    """

    def __init__(self, make: Callable[[], str], lifetime_s: float | None = None) -> None:
        self.make = make
        self.lifetime_s = lifetime_s
        self.broken = ""
        self.made: list[str] = []
        self.refusals: list[str] = []
        self.asked = self.failures = 0
        self._watchers: list[Callable[[Credential], None]] = []
        self._now: Credential | None = None
        self._renew_at_s = 0.0

    @property
    def failing(self) -> bool:
        return bool(self.broken)

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def current(self) -> Credential:
        self.asked += 1
        if self._now is None or time.monotonic() > self._renew_at_s:
            if self.broken:
                expires_ns = self._now.expires_at_ns if self._now is not None else 0
                if self._now is None or (expires_ns is not None and time.monotonic_ns() > expires_ns):
                    raise CredentialError(self.broken)
                return self._now
            self.renew()
        assert self._now is not None
        return self._now

    def renew(self) -> Credential:
        """Another token now, told to those who watch."""
        token, before = self.make(), self._now
        self.made.append(token)
        expires_ns = None if self.lifetime_s is None else time.monotonic_ns() + round(self.lifetime_s * 1e9)
        self._now = Credential(token, expires_ns, len(self.made))
        self._renew_at_s = float("inf") if self.lifetime_s is None else time.monotonic() + 0.75 * self.lifetime_s
        if before is not None:
            for told in list(self._watchers):
                told(self._now)
        return self._now

    def watch(self, told: Callable[[Credential], None]) -> Callable[[], None]:
        self._watchers.append(told)
        return lambda: self._watchers.remove(told)

    def refused(self, credential: Credential) -> None:
        self.refusals.append(credential.token)
        if self._now is not None and self._now.number == credential.number:
            self._renew_at_s = 0.0
