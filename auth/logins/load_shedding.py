"""Limits of parallel logins and logins per second. Others are shed at once, at no cost.

When a fleet of 100,000 reconnects, EMQX waits 5 s for each answer and takes a time-out for *ignore*. A service that
verified all of them would answer none in time. So it admits as many as it can answer; shed devices try again.

Cached logins need no admission. A device with its generated secret is verified in microseconds, and counts only against
the limits per second. A login that waits for a slow hash or another machine takes one of ``in_flight`` places.
"""

from collections import OrderedDict
from typing import Final

_SECOND_NS: Final = 1_000_000_000
_TENANTS_MAX: Final = 10_000


class TokenBucket:
    """A number per second, at most a second's worth at once. Integer nanoseconds; the caller gives the time."""

    __slots__ = ("_cost_ns", "_full_at_ns", "per_second")

    def __init__(self, per_second: int) -> None:
        """``per_second`` at least 1."""
        self.per_second = per_second
        self._cost_ns = max(_SECOND_NS // per_second, 1)
        self._full_at_ns = 0  # when the bucket is full again without further takes

    def take(self, now_ns: int) -> bool:
        """Take a token; False if the bucket has none now."""
        if not self.has_one(now_ns):
            return False
        self._full_at_ns = max(self._full_at_ns, now_ns) + self._cost_ns
        return True

    def has_one(self, now_ns: int) -> bool:
        """Whether ``take`` would take one."""
        return max(self._full_at_ns, now_ns) + self._cost_ns - now_ns <= _SECOND_NS


class LoadShedder:
    """Decides whether one more login may be verified.

    Args:
        in_flight_max: verifications at a time.
        logins_per_second: of all tenants together; 0 is no limit.
        tenant_logins_per_second: of each tenant that has no limit of its own; 0 is no limit.
    """

    def __init__(self, in_flight_max: int, logins_per_second: int, tenant_logins_per_second: int) -> None:
        self._in_flight_max = in_flight_max
        self._all = TokenBucket(logins_per_second) if logins_per_second else None
        self._tenant_default = tenant_logins_per_second
        self._tenants: OrderedDict[str, TokenBucket] = OrderedDict()
        self.in_flight = 0

    def admit_rate(self, now_ns: int) -> bool:
        """Whether the limit of all tenants together admits one more login."""
        return self._all is None or self._all.take(now_ns)

    def rate_left(self, now_ns: int) -> bool:
        """Whether ``admit_rate`` would admit one more. Takes nothing."""
        return self._all is None or self._all.has_one(now_ns)

    def enter(self) -> bool:
        """Take a place for a verification that waits for a hash or a server; ``release`` it once. False without one."""
        if self.in_flight >= self._in_flight_max:
            return False
        self.in_flight += 1
        return True

    def release(self) -> None:
        """Free the place of an answered login."""
        self.in_flight -= 1

    def admit_tenant(self, tenant: str, per_second: int | None, now_ns: int) -> bool:
        """Whether one more login of this tenant may pass. ``per_second`` is its own limit, None for the settings'."""
        rate = self._tenant_default if per_second is None else per_second
        if not rate or not tenant:
            return True
        bucket = self._tenants.get(tenant)
        if bucket is None or bucket.per_second != rate:
            bucket = self._tenants[tenant] = TokenBucket(rate)
            if len(self._tenants) > _TENANTS_MAX:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        return bucket.take(now_ns)
