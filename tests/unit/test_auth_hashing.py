"""The threads that check passwords: bounded, of low priority, and left by whoever is cancelled."""

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import bcrypt
import pytest

from auth import passwords
from auth.errors import OverloadedError
from auth.hashing import DEADLINE_S, Hasher
from config.tables.auth import AuthHashingSettings
from tests.waiting import until

CHEAP = AuthHashingSettings(memory=8 << 10, passes=1, threads=1, queue=2)
KEY = b"k" * 32
KEYS = {passwords.device_key_id(KEY): KEY}


@pytest.fixture
def hasher() -> Iterator[Hasher]:
    one = Hasher(CHEAP, KEYS)
    yield one
    one.close()


class Gate:
    """Holds the hashing threads until it is opened, and counts what they computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.done = 0
        real = passwords.hash_argon2id

        def held(password: str, cost: passwords.Argon2Cost) -> str:
            self.entered.set()
            assert self.opened.wait(30)
            self.done += 1
            return real(password, cost)

        monkeypatch.setattr(passwords, "hash_argon2id", held)


async def test_every_kind_is_verified(hasher: Hasher) -> None:
    kinds = [
        await hasher.hash("secret"),
        passwords.hash_device_secret("secret", KEY),
        bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode(),
    ]
    for stored in kinds:
        assert await hasher.verify(stored, "secret")
        assert not await hasher.verify(stored, "wrong")
    assert await hasher.verify("secret", "secret", algorithm="plain", salt_position="disable")


async def test_what_is_hashed_has_todays_settings(hasher: Hasher) -> None:
    stored = await hasher.hash("secret")
    assert "$m=8,t=1,p=1$" in stored
    assert not hasher.outdated(stored)
    stronger = Hasher(AuthHashingSettings(memory=16 << 10, passes=1))
    assert stronger.outdated(stored)
    stronger.close()


async def test_older_kinds_are_outdated_and_device_secrets_are_not(hasher: Hasher) -> None:
    assert hasher.outdated(bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode())
    assert hasher.outdated(passwords.salted_text("00" * 16, salt="", algorithm="md5", salt_position="prefix"))
    assert not hasher.outdated(passwords.hash_device_secret("secret", KEY))


async def test_nothing_is_outdated_when_nothing_is_to_be_renewed() -> None:
    keeping = Hasher(CHEAP.model_copy(update={"renew": False}))
    assert not keeping.outdated(bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode())
    keeping.close()


async def test_each_failure_costs_one_argon2id(hasher: Hasher, monkeypatch: pytest.MonkeyPatch) -> None:
    argon2id, device = await hasher.hash("secret"), passwords.hash_device_secret("secret", KEY)
    burnt: list[str] = []
    monkeypatch.setattr(passwords, "hash_argon2id", lambda password, _cost: burnt.append(password))
    assert await hasher.verify(device, "secret")
    assert await hasher.verify(argon2id, "secret")
    assert burnt == []
    assert not await hasher.verify(argon2id, "wrong")  # which is one by itself
    assert burnt == []
    assert not await hasher.verify(device, "wrong")
    assert not await hasher.verify("secret", "wrong", algorithm="plain")
    assert len(burnt) == 2
    await hasher.burn()
    assert len(burnt) == 3
    assert "wrong" not in burnt


async def test_a_right_device_secret_needs_no_thread(hasher: Hasher) -> None:
    device = passwords.hash_device_secret("secret", KEY)
    assert hasher.verify_at_once(device, "secret") is True
    assert hasher.verify_at_once(device, "wrong") is None
    assert hasher.verify_at_once(await hasher.hash("secret"), "secret") is None


async def test_beyond_the_queue_it_is_said_at_once(hasher: Hasher, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    waiting = [asyncio.create_task(hasher.burn()) for _ in range(3)]
    await until(lambda: hasher.waiting == 2)
    with pytest.raises(OverloadedError, match=r"auth\.hashing\.queue"):
        await hasher.burn()
    gate.opened.set()
    await asyncio.gather(*waiting)
    assert (hasher.busy, hasher.waiting, gate.done) == (0, 0, 3)


async def test_a_cancelled_waiter_leaves_and_is_not_computed(hasher: Hasher, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    first, second, third = (asyncio.create_task(hasher.burn()) for _ in range(3))
    await until(lambda: hasher.waiting == 2)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert hasher.waiting == 1
    gate.opened.set()
    await asyncio.gather(first, third)
    assert gate.done == 2


async def test_a_thread_that_computes_for_nobody_is_still_busy(hasher: Hasher, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    first = asyncio.create_task(hasher.burn())
    await until(gate.entered.is_set)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(hasher.burn())
    await until(lambda: hasher.waiting == 1)
    gate.opened.set()
    await second
    assert (hasher.busy, hasher.waiting, gate.done) == (0, 0, 2)


async def test_a_waiter_cancelled_as_its_turn_comes_passes_it_on(
    hasher: Hasher, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    first, second, third = (asyncio.create_task(hasher.burn()) for _ in range(3))
    await until(lambda: hasher.waiting == 2)
    give_back = hasher._give_thread_back

    def and_cancel() -> None:
        give_back()
        second.cancel()  # its turn is set, and it has not run since

    monkeypatch.setattr(hasher, "_give_thread_back", and_cancel)
    gate.opened.set()
    async with asyncio.timeout(60):
        await asyncio.gather(first, third)
    assert second.cancelled()
    assert (hasher.busy, hasher.waiting, gate.done) == (0, 0, 2)


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="the platform has no priorities")
async def test_the_threads_have_a_lower_priority(hasher: Hasher) -> None:
    def mine() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert await hasher._run_in_thread(mine) > mine()


async def test_after_the_end_nothing_is_computed(hasher: Hasher) -> None:
    hasher.close()
    with pytest.raises(OverloadedError, match="stopping"):
        await hasher.burn()
    assert hasher.busy == 0


class TestAStorm:
    """More logins with slow hashes than the threads can check. Real threads and real time: the work is a sleep."""

    HASH_S = 0.02
    DEADLINE_S = 0.4
    STORM_S = 1.5

    async def storm(self, hasher: Hasher, ask: Callable[[], Awaitable[object]]) -> tuple[int, int, float]:
        """Logins that got their hash in time, those that were given up, and how long the last of them took, less what
        the machine held up all of this."""
        good = late = 0
        longest_s = held_up_s = 0.0

        async def one() -> None:
            nonlocal good, late, longest_s
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(self.DEADLINE_S) as limit:
                    DEADLINE_S.set(limit.when() or 0)
                    await ask()
                good += 1
            except OverloadedError:
                pass
            except TimeoutError:
                late += 1
            longest_s = max(longest_s, time.monotonic() - began_s)

        async def watch() -> None:
            nonlocal held_up_s
            while True:
                before_s = time.monotonic()
                await asyncio.sleep(0.05)
                held_up_s += time.monotonic() - before_s - 0.05

        watching = asyncio.create_task(watch())
        tasks = []
        ends_s = time.monotonic() + self.STORM_S
        while time.monotonic() < ends_s:
            tasks += [asyncio.create_task(one()) for _ in range(5)]
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        watching.cancel()
        return good, late, longest_s - held_up_s

    @pytest.mark.parametrize("hashes", [1, 2], ids=["argon2id", "bcrypt"])
    async def test_goodput_stays_near_what_the_threads_can_do(
        self, hashes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of 64 that waited for two threads, each was begun just before its login was given up: 15 to 29 % of the
        capacity got through. Five hundred come in a second here, and a hundred can be checked. A wrong password of a
        bcrypt user costs two hashes; the second's turn came too late for all of them. A machine that stands still costs
        a storm its goodput, too, but not three storms."""

        slept_s: list[float] = []  # a busy machine wakes the threads late, which have a low priority

        def slow(*_ignored: object) -> str:
            began_s = time.monotonic()
            time.sleep(self.HASH_S / hashes)
            slept_s.append(time.monotonic() - began_s)
            return ""

        monkeypatch.setattr(passwords, "hash_argon2id", slow)
        monkeypatch.setattr(passwords, "matches", slow)
        hasher = Hasher(AuthHashingSettings(threads=2, queue=64))
        stored = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
        storms: list[tuple[float, int, int, float]] = []

        def is_near() -> bool:
            capacity, good, late, longest_s = storms[-1]
            return good > max(0.6 * capacity, late) and longest_s < 2 * self.DEADLINE_S

        try:
            while len(storms) < 3 and not (storms and is_near()):
                slept_s.clear()
                found = await self.storm(hasher, hasher.burn if hashes == 1 else lambda: hasher.verify(stored, "wrong"))
                storms.append((2 * self.STORM_S * len(slept_s) / hashes / sum(slept_s), *found))
        finally:
            hasher.close()
        assert is_near(), f"what could be checked, was, was admitted and given up, seconds of the longest: {storms}"

    async def test_one_that_became_late_while_it_waited_is_shed_before_it_is_computed(self) -> None:
        hasher = Hasher(AuthHashingSettings(memory=8 << 20, passes=1, threads=1, queue=10))
        try:
            await hasher.burn()
            DEADLINE_S.set(asyncio.get_running_loop().time() + 50)
            hasher.busy = 1  # the thread is taken
            waiting = asyncio.create_task(hasher.burn())
            await asyncio.sleep(0)
            assert hasher.waiting == 1
            hasher._hash_s = 60.0  # hashes have become slow
            hasher._give_thread_back()
            with pytest.raises(OverloadedError, match="60000 ms"):
                await waiting
            assert (hasher.waiting, hasher.busy) == (0, 0)
            hasher.busy = 1
            with pytest.raises(OverloadedError):
                await hasher.burn()
        finally:
            hasher.close()
