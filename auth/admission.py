"""How many logins are verified at a time and in a second; the others are shed at once, before they have cost anything.

When a fleet of 100,000 comes back at once, EMQX waits five seconds for each answer and takes silence for *ignore*. A
service that tries to verify all of them answers none in time. So only as many are let in as will be answered; a device
that is refused comes again, and finds itself sooner or later among those that are. What the cache knows never asks for
admission.
"""

from __future__ import annotations

__all__ = ["Admission", "TokenBucket"]

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from auth.reasons import LoginReason

_SECOND_NS: Final = 1_000_000_000
_TENANTS_MAX: Final = 10_000
# A login that has to wait for a slow hash holds its place a thousand times longer than a device secret does. With three
# quarters of the places it cannot keep the devices out.
_SLOW_SHARE: Final = 0.75


class TokenBucket:
    """So many a second, and no more than a second's worth at once. Integer nanoseconds; the caller gives the time."""

    __slots__ = ("_cost_ns", "_full_at_ns", "per_second")

    def __init__(self, per_second: int) -> None:
        """``per_second`` at least 1."""
        self.per_second = per_second
        self._cost_ns = max(_SECOND_NS // per_second, 1)
        self._full_at_ns = 0  # when the bucket would be full again, if nobody took any more

    def take(self, now_ns: int) -> bool:
        """Take one, if there is one."""
        full_at_ns = max(self._full_at_ns, now_ns) + self._cost_ns
        if full_at_ns - now_ns > _SECOND_NS:
            return False
        self._full_at_ns = full_at_ns
        return True


class Admission:
    """Decides whether one more login may be verified. Each that was admitted is released once.

    Args:
        in_flight_max: verifications at a time.
        logins_per_second: of all tenants together; 0 is no limit.
        tenant_logins_per_second: of each tenant that has no limit of its own; 0 is no limit.
    """

    def __init__(self, in_flight_max: int, logins_per_second: int, tenant_logins_per_second: int) -> None:
        self._in_flight_max = in_flight_max
        self._slow_max = max(int(in_flight_max * _SLOW_SHARE), 1)
        self._all = TokenBucket(logins_per_second) if logins_per_second else None
        self._tenant_default = tenant_logins_per_second
        self._tenants: OrderedDict[str, TokenBucket] = OrderedDict()
        self.in_flight = 0

    def admit(self, now_ns: int, *, slow: bool) -> LoginReason | None:
        """None: admitted, release it once. Else why not. ``slow``: it may have to wait for a slow hash, or for another
        machine."""
        if self.in_flight >= (self._slow_max if slow else self._in_flight_max):
            return "shed"
        if self._all is not None and not self._all.take(now_ns):
            return "rate_limited"
        self.in_flight += 1
        return None

    def full(self, *, slow: bool) -> bool:
        """Whether ``admit`` would shed."""
        return self.in_flight >= (self._slow_max if slow else self._in_flight_max)

    def release(self) -> None:
        """An admitted login has its answer."""
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
