"""Lock-outs and flapping: who has failed too often, and who comes back too often. Decides only, no I/O.

The caller gives the time, a monotonic clock's in nanoseconds. Everything is bounded: what is counted makes room for
newer counts, oldest first, but whoever is locked out stays so. To push a locked user out, an attacker would have to get
as many others locked as there is room for, at ten argon2 hashes each.

**Guessers lock nobody else out.** Whoever knows a device's name can fail in its name. So a lock-out of a user does not
concern the pairs of user and address that have shown the right password lately: each of those has a count of its own
(OWASP calls it a device cookie). The same holds for an address: behind a NAT the devices that have been in stay in
while a newcomer guesses. A login in the cache never gets here at all.

Unknown users are counted and locked like existing ones, or the lock-out would tell them apart.
"""

from __future__ import annotations

__all__ = ["Flapping", "Locked", "LockedNow", "Lockouts", "Protection", "address_group"]

import ipaddress
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from config.auth import AuthProtectionSettings

_NS: Final = 1_000_000_000
_V6_PREFIX: Final = 64


class Locked(NamedTuple):
    """A lock-out that has begun."""

    kind: Literal["user", "address"]
    name: str
    length_ns: int


class LockedNow(NamedTuple):
    """A lock-out that lasts. ``name`` as ``auth.wording.bounded`` has it; ``address``: it holds there alone."""

    kind: Literal["user", "address"]
    name: str
    address: str
    left_ns: int


class Lockouts:
    """Failures by name, and the lock-outs they lead to.

    ``failures`` within ``window_ns`` of the first of them lock the name for ``lockout_ns``; each lock-out after that
    lasts twice as long as the one before, up to ``lockout_max_ns``, unless there was none for that time. Names: any
    hashable, ``tracked`` of those that are counted and as many of those that are locked.
    """

    def __init__(self, *, failures: int, window_ns: int, lockout_ns: int, lockout_max_ns: int, tracked: int) -> None:
        self._failures = failures
        self._window_ns = window_ns
        self._lockout_ns = lockout_ns
        self._lockout_max_ns = max(lockout_max_ns, lockout_ns)
        self._tracked = tracked
        self._counting: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()  # failures, when the first was
        self._locked: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()  # until when, how long it was

    def __repr__(self) -> str:
        return f"<Lockouts {len(self._counting)} counting, {len(self._locked)} locked or lately so>"

    def __len__(self) -> int:
        """Names remembered, locked or counting."""
        return len(self._counting) + len(self._locked)

    def until_ns(self, name: Hashable, now_ns: int) -> int:
        """When the name's lock-out ends; 0 when there is none."""
        until_ns, _length = self._locked.get(name, (0, 0))
        return until_ns if until_ns > now_ns else 0

    def failed(self, name: Hashable, now_ns: int) -> int:
        """Count a failure. The length of the lock-out in ns if this one has brought it on, else 0."""
        if not self._failures or self.until_ns(name, now_ns):
            return 0  # those that were under way when it began prolong nothing
        count, first_ns = self._counting.pop(name, (0, now_ns))
        if now_ns - first_ns >= self._window_ns:
            count, first_ns = 0, now_ns
        count += 1
        if count < self._failures:
            self._counting[name] = (count, first_ns)
            if len(self._counting) > self._tracked:
                self._counting.popitem(last=False)
            return 0
        return self._lock(name, now_ns)

    def _lock(self, name: Hashable, now_ns: int) -> int:
        until_ns, length_ns = self._locked.pop(name, (0, 0))
        if length_ns and now_ns - until_ns < self._lockout_max_ns:
            length_ns = min(2 * length_ns, self._lockout_max_ns)
        else:
            length_ns = self._lockout_ns
        self._locked[name] = (now_ns + length_ns, length_ns)
        if len(self._locked) > self._tracked:
            self._make_room(now_ns)
        return length_ns

    def _make_room(self, now_ns: int) -> None:
        """Forget one: of the longest there, one whose lock-out is over and that is only remembered, else the first."""
        oldest = next(iter(self._locked))
        for looked, (name, (until_ns, _length)) in enumerate(self._locked.items()):
            if until_ns <= now_ns:
                oldest = name
                break
            if looked >= 64:  # a table full of attackers must not cost a walk through it for each of them
                break
        del self._locked[oldest]

    def forget(self, name: Hashable) -> bool:
        """Let a name off, lock-out, count and all; whether there was anything."""
        return (self._counting.pop(name, None) is not None) | (self._locked.pop(name, None) is not None)

    def locked(self, now_ns: int) -> Iterator[tuple[Hashable, int]]:
        """The names that are locked out now and how long they still are, the newest first."""
        for name, (until_ns, _length) in reversed(self._locked.items()):
            if until_ns > now_ns:
                yield name, until_ns - now_ns

    def sweep(self, now_ns: int) -> int:
        """Let go of what means nothing any more, a bounded number at a time; returns how many are locked."""
        for _ in range(min(10_000, len(self._counting))):
            name, (_count, first_ns) = next(iter(self._counting.items()))
            if now_ns - first_ns < self._window_ns:
                break
            del self._counting[name]
        for _ in range(min(10_000, len(self._locked))):
            name, (until_ns, _length) = next(iter(self._locked.items()))
            if now_ns - until_ns < self._lockout_max_ns:
                break
            del self._locked[name]
        return sum(until_ns > now_ns for until_ns, _length in self._locked.values())


class Flapping:
    """Logins by client id: more than ``logins`` within ``window_ns`` is flapping. ``logins`` 0: never."""

    def __init__(self, *, logins: int, window_ns: int, tracked: int) -> None:
        self.logins = logins
        self._window_ns = window_ns
        self._tracked = tracked
        self._counting: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counting)

    def logged_in(self, clientid: str, now_ns: int) -> bool:
        """Count a login; whether it is the one that makes the client id flap. The count then begins anew."""
        if not self.logins:
            return False
        count, first_ns = self._counting.pop(clientid, (0, now_ns))
        if now_ns - first_ns >= self._window_ns:
            count, first_ns = 0, now_ns
        count += 1
        if count >= self.logins:
            return True
        self._counting[clientid] = (count, first_ns)
        if len(self._counting) > self._tracked:
            self._counting.popitem(last=False)
        return False


class Protection:
    """What ``auth.protection`` says of a client, from its failures and logins so far."""

    def __init__(self, settings: AuthProtectionSettings) -> None:
        def lockouts(failures: int) -> Lockouts:
            return Lockouts(
                failures=failures,
                window_ns=int(settings.failure_window.total_seconds() * _NS),
                lockout_ns=int(settings.lockout.total_seconds() * _NS),
                lockout_max_ns=int(settings.lockout_max.total_seconds() * _NS),
                tracked=settings.tracked,
            )

        self.failures = settings.failures
        self.users = lockouts(settings.failures)
        self.addresses = lockouts(settings.address_failures)
        self._pairs = lockouts(settings.failures)
        self._tracked = settings.tracked
        self._trusted: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.flapping = Flapping(
            logins=settings.flapping_logins,
            window_ns=int(settings.flapping_window.total_seconds() * _NS),
            tracked=settings.tracked,
        )
        self.flapping_ban_s = int(settings.flapping_ban.total_seconds())
        self._flapped: OrderedDict[str, int] = OrderedDict()  # client id, until when

    def trusts(self, user: str, address: str) -> bool:
        """Whether somebody has shown this user's right password from there lately."""
        return (user, address) in self._trusted

    def locked(self, user: str, address: str, now_ns: int, also: str = "") -> Literal["user", "address"] | None:
        """What keeps a login from being verified; an empty user or address is never locked. ``also`` is a second name
        that the user may be found by. Who is trusted by the first is not asked about the second; but trust in the
        second is none in the first, or the owner of one device could guess at all users."""
        pair = (user, address)
        if pair in self._trusted:
            return "user" if self._pairs.until_ns(pair, now_ns) else None
        if user and self.users.until_ns(user, now_ns):
            return "user"
        if also:
            pair = (also, address)
            if pair in self._trusted:
                return "user" if self._pairs.until_ns(pair, now_ns) else None
            if self.users.until_ns(also, now_ns):
                return "user"
        if address and self.addresses.until_ns(address_group(address), now_ns):
            return "address"
        return None

    def failed(self, user: str, address: str, now_ns: int, also: str = "") -> list[Locked]:
        """Count a wrong password or token, or an unknown user; the lock-outs that it has brought on."""
        begun = []
        for name in (user, also) if also else (user,):
            pair = (name, address)
            trusted = pair in self._trusted
            if name and (length_ns := self._pairs.failed(pair, now_ns) if trusted else self.users.failed(name, now_ns)):
                begun.append(Locked("user", name, length_ns))
            if trusted:
                return begun
        if address and (length_ns := self.addresses.failed(group := address_group(address), now_ns)):
            begun.append(Locked("address", group, length_ns))
        return begun

    def succeeded(self, user: str, address: str) -> None:
        """Somebody has shown the right password from there."""
        pair = (user, address)
        self._trusted[pair] = None
        self._trusted.move_to_end(pair)
        if len(self._trusted) > self._tracked:
            self._trusted.popitem(last=False)

    def forgive(self, user: str, address: str) -> None:
        """Let a user off: whoever looks after it has changed its password, or something else about it."""
        self.users.forget(user)
        self._pairs.forget((user, address))

    def locked_now(self, now_ns: int) -> Iterator[LockedNow]:
        """All lock-outs that last, the newest of each kind first."""
        for name, left_ns in self.users.locked(now_ns):
            yield LockedNow("user", str(name), "", left_ns)
        for pair, left_ns in self._pairs.locked(now_ns):
            user, address = cast("tuple[str, str]", pair)
            yield LockedNow("user", user, address, left_ns)
        for name, left_ns in self.addresses.locked(now_ns):
            yield LockedNow("address", str(name), "", left_ns)

    def flaps(self, clientid: str, now_ns: int) -> bool:
        """Count a login; whether the client id is to be banned for it now. It is held here from now on, and the caller
        says with ``flapping_ban_written`` when the database holds the ban, where an operator can lift it."""
        if not clientid or not self.flapping.logged_in(clientid, now_ns):
            return False
        self._flapped[clientid] = now_ns + self.flapping_ban_s * _NS
        self._flapped.move_to_end(clientid)
        if len(self._flapped) > self._tracked:
            self._flapped.popitem(last=False)
        return True

    def flapping_ban_written(self, clientid: str) -> None:
        """The ban can be read from the database now."""
        self._flapped.pop(clientid, None)

    def flapped(self, clientid: str, now_ns: int) -> bool:
        """Whether the client id was banned for flapping and still is."""
        if not self._flapped:
            return False
        until_ns = self._flapped.get(clientid, 0)
        if until_ns > now_ns:
            return True
        if until_ns:
            del self._flapped[clientid]
        return False

    def sweep(self, now_ns: int) -> int:
        """Let go of what is over; returns how many users and addresses are locked out now."""
        return sum(one.sweep(now_ns) for one in (self.users, self._pairs, self.addresses))


def address_group(address: str) -> str:
    """By what an address is counted: itself, but of IPv6 the network of 64 bits, which is what one customer has to
    choose addresses from."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> _V6_PREFIX << _V6_PREFIX, _V6_PREFIX)))
