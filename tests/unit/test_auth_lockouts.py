"""Lock-outs, flapping, limits: who is kept out, who cannot be, and in how much memory."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auth.backends.local_users import asked_identities
from auth.backends.templates import usable
from auth.logins.load_shedding import LoadShedder, TokenBucket
from auth.logins.lockouts import ClientLockouts, Lockouts, Names, address_group
from auth.model import LoginRequest
from auth.names import NAME_MAX, lock_name
from config.tables.auth import AuthProtectionSettings

SECOND = 1_000_000_000
MINUTE = 60 * SECOND


def lockouts(**changed: int) -> Lockouts:
    given_ = {
        "failures": 3, "window_ns": MINUTE, "lockout_ns": 30 * SECOND, "lockout_max_ns": 10 * MINUTE, "tracked": 1000,
    }  # fmt: skip
    return Lockouts(**{**given_, **changed})


def lock(one: Lockouts, name: str, now_ns: int, failures: int = 3) -> int:
    """Fail until it locks; how long that is."""
    lengths = [one.failed(name, now_ns) for _ in range(failures)]
    assert lengths[:-1] == [0] * (failures - 1)
    return lengths[-1]


class TestLockouts:
    def test_failures_of_long_ago_do_not_count(self) -> None:
        one = lockouts()
        for number in range(20):
            assert one.failed("ada", number * MINUTE) == 0
        assert not any(one.failed("eve", at * SECOND) for at in (0, 59, 60)), "the window begins with the first"

    def test_each_lock_out_lasts_twice_as_long_up_to_the_longest(self) -> None:
        one, now, lengths = lockouts(), 0, []
        for _ in range(7):
            length = lock(one, "ada", now)
            lengths.append(length // SECOND)
            now += length + SECOND
        assert lengths == [30, 60, 120, 240, 480, 600, 600]

    def test_after_a_long_peace_it_begins_anew(self) -> None:
        one = lockouts()
        lock(one, "ada", 0)
        assert lock(one, "ada", 11 * MINUTE) == 30 * SECOND

    def test_failures_that_were_under_way_prolong_nothing(self) -> None:
        one = lockouts()
        lock(one, "ada", 0)
        until = one.until_ns("ada", 0)
        for _ in range(10):
            assert one.failed("ada", SECOND) == 0
        assert one.until_ns("ada", SECOND) == until

    def test_none_means_never(self) -> None:
        one = lockouts(failures=0)
        assert not any(one.failed("ada", 0) for _ in range(100))
        assert len(one) == 0

    def test_one_that_is_locked_stays_so_whatever_names_come(self) -> None:
        one = lockouts(tracked=100)
        lock(one, "victim", 0)
        for number in range(10_000):
            one.failed(f"stranger {number}", 1)
        assert one.until_ns("victim", 1), "an attacker has made the service forget a lock-out, at one failure a name"
        assert len(one) <= 200

    def test_it_is_bounded_even_when_all_are_locked(self) -> None:
        one = lockouts(tracked=100, failures=1)
        for number in range(1000):
            one.failed(number, number)
        assert len(one) <= 101

    def test_one_whose_lock_out_is_over_makes_room_first(self) -> None:
        one = lockouts(tracked=2, failures=1)
        one.failed("long", 0)
        one.failed("long", 31 * SECOND)  # its second, of a minute
        one.failed("over", 40 * SECOND)
        one.failed("new", 75 * SECOND)
        assert one.until_ns("long", 75 * SECOND)
        assert one.until_ns("new", 75 * SECOND)

    def test_letting_off(self) -> None:
        one = lockouts()
        lock(one, "ada", 0)
        assert one.forget("ada")
        assert not one.until_ns("ada", 1)
        assert not one.forget("ada")

    def test_sweeping_forgets_what_means_nothing_and_counts_what_is_locked(self) -> None:
        one = lockouts()
        one.failed("counting", 0)
        lock(one, "locked", 0)
        assert one.sweep(SECOND) == 1
        assert len(one) == 2
        assert one.sweep(30 * SECOND) == 0
        assert one.sweep(20 * MINUTE) == 0
        assert len(one) == 0

    @settings(deadline=None, max_examples=200)
    @given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 40 * SECOND)), max_size=200))
    def test_nobody_is_locked_without_enough_failures_and_memory_is_bounded(self, steps: list[Any]) -> None:
        one, now = lockouts(tracked=3), 0
        failures: dict[str, list[int]] = {}
        for name, pause in steps:
            now += pause
            failures.setdefault(name, []).append(now)
            if one.failed(name, now):
                recent = [at for at in failures[name] if now - at < MINUTE]
                assert len(recent) >= 3, f"{name} was locked for {len(recent)} failures"
            assert len(one) <= 7


def protection(**changed: Any) -> ClientLockouts:
    return ClientLockouts(AuthProtectionSettings.model_validate({"failures": 3, "address_failures": 5, **changed}))


def names(user: str, address: str = "10.0.0.1", client: str = "") -> Names:
    """Of a login whose user name and client id are these."""
    return Names(user, address, client, (user, client, address), (user, address))


def known(one: ClientLockouts, user: str, address: str = "10.0.0.1") -> None:
    """Somebody was in with that user name, and found by it."""
    one.succeeded(names(user, address).user_at_address, user)


class TestProtection:
    def fail(self, one: ClientLockouts, user: str, address: str, times: int, now_ns: int = 0) -> list[Any]:
        return [locked for _ in range(times) for locked in one.failed(names(user, address), now_ns, user)]

    def test_an_address_is_locked_for_all_users(self) -> None:
        one = protection()
        begun = [locked for number in range(5) for locked in one.failed(names(f"user {number}"), 0)]
        assert [(locked.kind, locked.name) for locked in begun] == [("address", "10.0.0.1")]
        assert one.locked(names("somebody else"), 1) == "address"

    def test_a_guesser_behind_the_same_nat_does_not_lock_out_who_was_in_from_there(self) -> None:
        one = protection()
        known(one, "ada")
        for number in range(5):
            one.failed(names(f"guess {number}"), 0)
        assert one.locked(names("ada"), 1) is None
        assert one.locked(names("bob"), 1) == "address"

    def test_who_was_in_has_a_count_of_its_own(self) -> None:
        one = protection()
        known(one, "ada")
        assert [locked.kind for locked in self.fail(one, "ada", "10.0.0.1", 3)] == ["user"]
        assert one.locked(names("ada"), 1) == "user"
        assert one.locked(names("ada", "10.0.0.2"), 1) is None

    def test_what_was_in_is_remembered_in_bounds(self) -> None:
        one = protection(tracked=100)
        for number in range(1000):
            known(one, str(number))
        known(one, "800")
        known(one, "one more")
        for name in ("800", "801"):
            self.fail(one, name, "192.0.2.9", 3)
        assert one.locked(names("801"), 1) == "user", "the oldest makes room"
        assert one.locked(names("800"), 1) is None, "but not who was in again"

    def test_a_login_is_trusted_for_the_user_that_was_found_alone(self) -> None:
        one = protection(address_failures=3)
        fleet, other = names("fleet", client="dev-1"), names("fleet", client="dev-2")
        for login in (fleet, other):
            one.succeeded(login.identity, login.client)
        for _ in range(3):
            one.failed(names("fleet", "192.0.2.9", client="stranger"), 0)
        assert one.locked(fleet, 1) is None
        assert one.locked(names("fleet", client="dev-3"), 1) == "user"
        begun = [locked for _ in range(3) for locked in one.failed(fleet, 0, "dev-1")]
        assert [locked.name for locked in begun] == ["dev-1"]
        assert one.locked(fleet, 1) == "user"
        assert one.locked(other, 1) is None
        assert one.locked(names("eve"), 1) is None, "who was in does not count against the address"
        one.forgive("dev-1", "10.0.0.1")
        assert one.locked(fleet, 1) is None
        one.failed(other, 0, "fleet")
        assert one.locked(other, 1) == "user", "dev-2 is gone, and its password was compared with another user's"

    def test_without_name_or_address_nobody_is_locked(self) -> None:
        one = protection()
        self.fail(one, "", "", 100)
        assert one.locked(names("", ""), 1) is None

    def test_flapping_holds_until_its_time_is_over_or_the_database_has_it(self) -> None:
        one = protection(flapping_logins=2, flapping_ban="10s")
        assert [one.flaps("c", 0), one.flaps("c", 0)] == [False, True]
        assert one.flapped("c", 9 * SECOND)
        assert not one.flapped("c", 10 * SECOND)
        assert [one.flaps("c", 20 * SECOND), one.flaps("c", 20 * SECOND)] == [False, True]
        one.flapping_ban_written("c")
        assert not one.flapped("c", 21 * SECOND)

    def test_slow_logins_do_not_flap_and_never_means_never(self) -> None:
        slow, never = protection(flapping_logins=2), protection(flapping_logins=0)
        assert not any(slow.flaps("c", number * MINUTE) for number in range(10))
        assert not any(never.flaps("c", 0) for _ in range(100))

    def test_a_device_without_client_id_does_not_flap_for_all_of_them(self) -> None:
        assert not protection(flapping_logins=1).flaps("", 0)


@pytest.mark.parametrize(("address", "group"), [
    ("10.0.0.1", "10.0.0.1"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
    ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"), ("fe80::1%eth0", "fe80::/64"), ("::ffff:10.0.0.1", "10.0.0.1"),
    ("no: address", "no: address"), ("", ""),
])  # fmt: skip
def test_what_an_address_is_counted_by(address: str, group: str) -> None:
    assert address_group(address) == group


class TestTokenBucket:
    @given(st.integers(1, 1000), st.lists(st.integers(0, SECOND), max_size=300))
    def test_never_more_than_its_rate(self, rate: int, pauses: list[int]) -> None:
        bucket, now, taken = TokenBucket(rate), 0, []
        for pause in pauses:
            now += pause
            if bucket.take(now):
                taken.append(now)
        for start in taken[:50]:
            assert sum(start <= at < start + SECOND for at in taken) <= 2 * rate


class TestAdmission:
    def test_a_limit_that_is_changed_holds_at_once(self) -> None:
        one = LoadShedder(10, 0, 0)
        assert sum(one.admit_tenant("t", 5, 0) for _ in range(9)) == 5
        assert sum(one.admit_tenant("t", 7, 0) for _ in range(9)) == 7


def test_a_storm_is_admitted_as_fast_as_it_is_worked_off() -> None:
    """A seeded storm: 5,000 devices at once, 20 places, each verification 50 ms, refused ones come again after a
    second. All get in, in the time that the places need and a little, and never more than 20 are under way."""
    rng = random.Random(20_26)
    one = LoadShedder(20, 0, 0)
    waiting = [(rng.randrange(SECOND), device) for device in range(5000)]
    under_way: list[int] = []
    let_in: set[int] = set()
    now = 0
    while waiting:
        waiting.sort(reverse=True)
        at, device = waiting.pop()
        now = max(now, at)
        for ends in [ends for ends in under_way if ends <= now]:
            under_way.remove(ends)
            one.release()
        if one.enter():
            under_way.append(now + SECOND // 20)
            let_in.add(device)
        else:
            waiting.append((now + SECOND + rng.randrange(SECOND // 10), device))
        assert one.in_flight == len(under_way) <= 20
    assert len(let_in) == 5000
    ideal = 5000 / 20 / 20
    assert now / SECOND < 2.5 * ideal, f"{now / SECOND:.1f} s for what {ideal:.1f} s of work would be enough"


@pytest.mark.parametrize("length", [256, 257, 65_535])
def test_names_that_a_password_may_be_looked_up_by_are_all_folded(length: int) -> None:
    """Sixty guesses with 257 to 316 spaces behind the name were all verified: longer names were counted unfolded, and
    looked up all the same."""
    padded = "Lamp".ljust(length)
    assert usable((padded,)) == (length <= NAME_MAX)
    assert not usable((padded,)) or lock_name(padded, "") == "lamp"
    request = LoginRequest(username=padded, clientid=padded, cert_common_name="c" * length)
    asked = {kind for kind, _ in asked_identities(request, ("username", "clientid", "common_name"))}
    assert asked == ({"username", "clientid", "common_name"} if length <= NAME_MAX else {"common_name"})


@pytest.mark.parametrize(
    "spelling", ["LINA ", "\uff4cin\u00e1", "l\u0131na", "li\ufffcna", "li\u1806na", "l\U0001d6a4na"]
)
def test_what_a_directory_or_database_takes_for_one_name_has_one_count(spelling: str) -> None:
    """To some the dotless i is an i; directories leave U+1806 and U+FFFC out (RFC 4518 section 2.2)."""
    assert lock_name(spelling, "") == lock_name("lina", "") == "lina"
