"""Lock-outs of names that failed too often, and of clients that log in too often (flapping). No I/O.

Times are nanoseconds of a monotonic clock, from the caller. Memory is bounded: new counts replace the oldest, but a
locked name stays locked. To displace it, an attacker would have to lock ``tracked`` others, at ten argon2 hashes each.

**A guesser locks out no other client.** A guesser may use a device's name. So lock-outs do not apply to logins that
succeeded from their address lately, which have their own counts (OWASP: device cookie). The same holds for addresses:
behind a NAT, known devices log in while another client guesses. Cached logins are not checked here.

**Nor does a client's own login help it to guess at others.** A client chooses its user name and client id, and only one
of them may be what is found. So what is trusted is

- a login with all that decides who is found (``Names.identity``): its next password meets the same secret again;
- a user name with any client id, if that user was found, and by no token. This covers the name alone: the client id is
  perhaps looked up too, so its own count applies.

A fleet that shares a user name and is found by client ids is trusted login by login: guesses at the shared name refuse
other logins with it, and no known device. A failure for another user than the one trusted ends the trust. A change of
the password does not: else the devices that still have the old one would lock out those that have the new one.

Unknown users are counted and locked like existing ones, so a lock-out does not tell which users exist.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from datetime import timedelta
from typing import Final, Literal, NamedTuple, cast

from config.tables.auth import AuthProtectionSettings

_NS: Final = 1_000_000_000
_V6_PREFIX: Final = 64


def _ns(length: timedelta) -> int:
    return int(length.total_seconds() * _NS)


class Locked(NamedTuple):
    """A lock-out that begins. With ``address`` that of a user holds only there."""

    kind: Literal["user", "address"]
    name: str
    address: str
    length_ns: int


class LockedNow(NamedTuple):
    """A present lock-out. ``name`` is ``auth.names.bounded``; with ``address`` it holds only there."""

    kind: Literal["user", "address"]
    name: str
    address: str
    left_ns: int


class Names(NamedTuple):
    """A login's keys. Failures are counted by ``user``, ``address`` and ``client`` (the client id, "" if users are not
    found by it). Trust is kept by ``identity``, which is all that decides who is found, exactly as the client writes
    it, and by ``user_at_address`` (None for a token)."""

    user: str
    address: str
    client: str
    identity: Hashable
    user_at_address: Hashable


class Lockouts:
    """Failures by name, and the lock-outs they lead to.

    ``failures`` within ``window_ns`` of the first lock the name for ``lockout_ns``. Each further lock-out lasts twice
    as long, up to ``lockout_max_ns``; after that time without one it starts again. Names are hashable. At most
    ``tracked`` names are counted, and as many are locked.
    """

    def __init__(self, failures: int, window_ns: int, lockout_ns: int, lockout_max_ns: int, *, tracked: int) -> None:
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
        """The end of the name's lock-out; 0 without one."""
        found = self._locked.get(name)
        return found[0] if found is not None and found[0] > now_ns else 0

    def count(self, name: Hashable, now_ns: int) -> int:
        """The failures that count towards the name's next lock-out."""
        count, first_ns = self._counting.get(name, (0, now_ns))
        return count if now_ns - first_ns < self._window_ns else 0

    def failed(self, name: Hashable, now_ns: int) -> int:
        """Count a failure. Returns the length of the lock-out that it starts, in ns, else 0."""
        if not self._failures or self.until_ns(name, now_ns):
            return 0  # verifications that began before the lock-out do not prolong it
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
        """Lock the name, for twice as long as a recent lock-out. Returns the length in ns."""
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
        """Forget one of the oldest names: one whose lock-out has ended, else the first."""
        oldest = next(iter(self._locked))
        for looked, (name, (until_ns, _length)) in enumerate(self._locked.items()):
            if until_ns <= now_ns:
                oldest = name
                break
            if looked >= 64:  # limits the scan of a full table
                break
        del self._locked[oldest]

    def forget(self, name: Hashable) -> bool:
        """Remove a name's lock-out and count; whether there was one."""
        return (self._counting.pop(name, None) is not None) | (self._locked.pop(name, None) is not None)

    def locked(self, now_ns: int) -> Iterator[tuple[Hashable, int]]:
        """The locked names with the rest of their lock-outs, the newest first."""
        for name, (until_ns, _length) in reversed(self._locked.items()):
            if until_ns > now_ns:
                yield name, until_ns - now_ns

    def sweep(self, now_ns: int) -> int:
        """Drop expired names, a bounded number per call; returns how many are locked."""
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


class ClientLockouts:
    """The lock-outs of users, addresses and client ids, by ``auth.protection``."""

    def __init__(self, settings: AuthProtectionSettings) -> None:
        def lockouts(failures: int) -> Lockouts:
            window, first, longest = settings.failure_window, settings.lockout, settings.lockout_max
            return Lockouts(failures, _ns(window), _ns(first), _ns(longest), tracked=settings.tracked)

        self.failures = settings.failures
        self.users = lockouts(settings.failures)
        self.addresses = lockouts(settings.address_failures)
        self._at_address = lockouts(settings.failures)  # of pairs of a user and an address: of trusted logins
        self._tracked = settings.tracked
        self._trusted: OrderedDict[Hashable, str] = OrderedDict()  # the name that was found, folded
        ban = settings.flapping_ban
        self._flapping = Lockouts(
            settings.flapping_logins, _ns(settings.flapping_window), _ns(ban), _ns(ban), tracked=settings.tracked
        )  # of client ids, by their logins
        self.flapping_ban_s = int(ban.total_seconds())

    def counts(self, names: Names, now_ns: int) -> Iterator[tuple[Hashable, int]]:
        """The keys that a failure of this login would count for (name, or name and address), each with its failures."""
        user, address, client, identity, user_at_address = names
        found = self._trusted.get(identity)
        if found is not None:
            pair = _pair(names, found)
            yield pair, self._at_address.count(pair, now_ns)
            return
        if user and user_at_address in self._trusted:
            yield (user, address), self._at_address.count((user, address), now_ns)
        elif user:
            yield user, self.users.count(user, now_ns)
        if client:
            yield client, self.users.count(client, now_ns)

    def locked(self, names: Names, now_ns: int) -> Literal["user", "address"] | None:
        """The kind of lock-out that refuses this login, or None. A trusted login has counts of its own."""
        user, address, client, identity, user_at_address = names
        found = self._trusted.get(identity)
        if found is not None:
            return "user" if self._at_address.until_ns(_pair(names, found), now_ns) else None
        known = user_at_address in self._trusted
        if user and (
            self._at_address.until_ns((user, address), now_ns) if known else self.users.until_ns(user, now_ns)
        ):
            return "user"
        if client and self.users.until_ns(client, now_ns):
            return "user"
        if address and not known and self.addresses.until_ns(address_group(address), now_ns):
            return "address"
        return None

    def failed(self, names: Names, now_ns: int, found: str = "") -> list[Locked]:
        """Count a wrong password or token of the user ``found`` (folded), or an unknown user. Returns the lock-outs
        that it starts."""
        user, address, client, identity, user_at_address = names
        trusted = self._trusted.get(identity)
        if trusted is not None:
            if trusted == found:
                pair = _pair(names, found)
                length_ns = self._at_address.failed(pair, now_ns)
                return [Locked("user", *pair, length_ns)] if length_ns else []
            del self._trusted[identity]
        known = user_at_address in self._trusted
        begun = []
        if user and (
            length_ns := self._at_address.failed((user, address), now_ns) if known else self.users.failed(user, now_ns)
        ):
            begun.append(Locked("user", user, address if known else "", length_ns))
        if client and (length_ns := self.users.failed(client, now_ns)):
            begun.append(Locked("user", client, "", length_ns))
        if address and not (known and found == user):
            group = address_group(address)
            if length_ns := self.addresses.failed(group, now_ns):
                begun.append(Locked("address", group, "", length_ns))
        return begun

    def succeeded(self, key: Hashable, found: str) -> None:
        """Trust logins with this ``identity`` or ``user_at_address``, which were of the user ``found`` (folded)."""
        self._trusted[key] = found
        self._trusted.move_to_end(key)
        if len(self._trusted) > 2 * self._tracked:
            self._trusted.popitem(last=False)

    def forgive(self, user: str, address: str) -> None:
        """End a user's lock-out, that at this address if one is given, after an operator changed the user."""
        self._at_address.forget((user, address))
        if not address:
            self.users.forget(user)

    def locked_now(self, now_ns: int) -> Iterator[LockedNow]:
        """All present lock-outs, the newest of each kind first."""
        for name, left_ns in self.users.locked(now_ns):
            yield LockedNow("user", str(name), "", left_ns)
        for pair, left_ns in self._at_address.locked(now_ns):
            user, address = cast("tuple[str, str]", pair)
            yield LockedNow("user", user, address, left_ns)
        for name, left_ns in self.addresses.locked(now_ns):
            yield LockedNow("address", str(name), "", left_ns)

    def flaps(self, clientid: str, now_ns: int) -> bool:
        """Count a login; whether the client id is to be banned for it now. The ban is kept here until the caller calls
        ``flapping_ban_written``: the database has it then, and an operator can lift it."""
        return bool(clientid) and self._flapping.failed(clientid, now_ns) > 0

    def flapping_ban_written(self, clientid: str) -> None:
        """The ban can be read from the database now."""
        self._flapping.forget(clientid)

    def flapped(self, clientid: str, now_ns: int) -> bool:
        """Whether the client id was banned for flapping and still is."""
        return self._flapping.until_ns(clientid, now_ns) > 0

    def sweep(self, now_ns: int) -> int:
        """Drop expired entries. Returns the number of locked users and addresses."""
        self._flapping.sweep(now_ns)
        return sum(one.sweep(now_ns) for one in (self.users, self._at_address, self.addresses))


def _pair(names: Names, found: str) -> tuple[str, str]:
    """The key for counting a trusted login: the user that was found if the login names it, and the address."""
    return found if found and found in (names.user, names.client) else names.user, names.address


def address_group(address: str) -> str:
    """The key for counting an address: itself, or its /64 network for IPv6, from which one customer can choose any
    address."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed) >> _V6_PREFIX << _V6_PREFIX, _V6_PREFIX)))
