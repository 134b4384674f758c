"""What the service has counted since its start, as plain integers: ``gateway.auth_service.metrics`` reads them.

Written by the service on its event loop alone. Every series is there at 0 from the start, so that a rate can be taken
of the first failure.
"""

from __future__ import annotations

__all__ = ["BackendCounts", "Counts"]

from typing import TYPE_CHECKING

from auth.logins.reasons import ACCESS_REASONS, LOGIN_REASONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from auth.logins.reasons import AccessReason, LoginReason
    from auth.model import Result


class BackendCounts:
    """One authenticator of the chain."""

    __slots__ = ("allowed", "denied", "down", "ignored", "shed", "up")

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0
        self.ignored = 0
        self.down = 0  # questions that it could not answer, time-outs and defects included
        self.shed = 0  # questions that there was no room for
        self.up = True

    @property
    def asked(self) -> int:
        """Questions with an outcome, whatever it was."""
        return self.allowed + self.denied + self.ignored + self.down + self.shed

    def __repr__(self) -> str:
        return f"<BackendCounts asked {self.asked} up {self.up}>"


class Counts:
    """Everything that is counted. Each login has one result and one reason, each access too: both always add up to the
    same number."""

    def __init__(self, backends: Iterable[str] = ()) -> None:
        self.logins: dict[Result, int] = {"allow": 0, "deny": 0, "ignore": 0}
        self.login_reasons: dict[LoginReason, int] = dict.fromkeys(LOGIN_REASONS, 0)
        self.accesses: dict[Result, int] = {"allow": 0, "deny": 0, "ignore": 0}
        self.access_reasons: dict[AccessReason, int] = dict.fromkeys(ACCESS_REASONS, 0)
        self.backends: dict[str, BackendCounts] = {name: BackendCounts() for name in backends}

        self.verified = 0  # verifications by the chain that have ended, whatever they said
        self.joined = 0  # logins that waited for the same one's verification
        self.in_flight = 0  # gauge: verifications under way

        self.cache_hits = 0  # logins answered from the cache of verified ones
        self.cache_misses = 0
        self.cache_hits_while_down = 0  # of the hits: those while a backend was down, which nobody else could answer
        self.cache_revalidated = 0  # entries that were still good after a change of the database
        self.cache_invalidated = 0  # entries that were not
        self.cache_evicted = 0  # entries that made room for others before their time
        self.cache_entries = 0  # gauge
        self.negative_hits = 0  # logins refused from the memory of refused ones
        self.decision_hits = 0  # accesses answered from the cache of decisions
        self.decision_misses = 0

        self.lockouts_user = 0  # lock-outs that began
        self.lockouts_address = 0
        self.flapping_bans = 0
        self.locked = 0  # gauge: users and addresses locked out now
        self.burns = 0  # hashes computed for refused logins that had cost none
        self.store_reads_failed = 0

    def login(self, result: Result, reason: LoginReason) -> None:
        """One login was answered."""
        self.logins[result] += 1
        self.login_reasons[reason] += 1

    def access(self, result: Result, reason: AccessReason) -> None:
        """One access was answered."""
        self.accesses[result] += 1
        self.access_reasons[reason] += 1
