"""The service's counts since its start, for ``gateway.auth_service.metrics``.

Only the service's event loop writes them. Every series begins at 0, so that the first failure has a rate.
"""

from collections.abc import Iterable

from auth.logins.reasons import ACCESS_REASONS, LOGIN_REASONS, AccessReason, LoginReason
from auth.model import Result


class BackendCounts:
    """One authenticator of the chain."""

    __slots__ = ("allowed", "denied", "down", "ignored", "shed", "up")

    def __init__(self) -> None:
        self.allowed = 0
        self.denied = 0
        self.ignored = 0
        self.down = 0  # questions without an answer, time-outs and defects included
        self.shed = 0  # questions without room
        self.up = True

    @property
    def asked(self) -> int:
        """Questions with any outcome."""
        return self.allowed + self.denied + self.ignored + self.down + self.shed

    def __repr__(self) -> str:
        return f"<BackendCounts asked {self.asked} up {self.up}>"


class Counts:
    """All counts. Each login and each access has one result and one reason, so both add up to the same number."""

    def __init__(self, backends: Iterable[str] = ()) -> None:
        self.logins: dict[Result, int] = {"allow": 0, "deny": 0, "ignore": 0}
        self.login_reasons: dict[LoginReason, int] = dict.fromkeys(LOGIN_REASONS, 0)
        self.accesses: dict[Result, int] = {"allow": 0, "deny": 0, "ignore": 0}
        self.access_reasons: dict[AccessReason, int] = dict.fromkeys(ACCESS_REASONS, 0)
        self.backends: dict[str, BackendCounts] = {name: BackendCounts() for name in backends}

        self.joined = 0  # logins that waited for another verification of the same login
        self.in_flight = 0  # gauge: verifications under way

        self.cache_hits = 0  # logins answered from the cache of verified ones
        self.cache_misses = 0
        self.cache_hits_while_down = 0  # hits while a backend was down
        self.cache_invalidated = 0  # entries no longer valid
        self.cache_evicted = 0  # entries replaced before their expiry
        self.cache_entries = 0  # gauge
        self.negative_hits = 0  # logins refused from the cache of refused ones
        self.decision_hits = 0  # accesses answered from the cache of decisions
        self.decision_misses = 0

        self.lockouts_user = 0  # lock-outs that began
        self.lockouts_address = 0
        self.flapping_bans = 0
        self.locked = 0  # gauge: users and addresses locked out now
        self.burns = 0  # hashes computed for refused logins without a hash
        self.store_reads_failed = 0

    def login(self, result: Result, reason: LoginReason) -> None:
        self.logins[result] += 1
        self.login_reasons[reason] += 1

    def access(self, result: Result, reason: AccessReason) -> None:
        self.accesses[result] += 1
        self.access_reasons[reason] += 1
