"""A file of readable passwords: all are hashed, in their order, and the operator sees how far that is."""

import itertools
import time

import pytest

from auth import passwords
from auth.passwords import Argon2Cost
from auth.store.records import User
from auth.store.user_entries import Entry
from auth.store.user_hashing import hash_entries

CHEAP = Argon2Cost(8, 1)


def entries(count: int) -> list[Entry]:
    return [Entry(n, User("username", f"u{n}"), None if n % 10 == 9 else f"word-{n}") for n in range(count)]


def test_passwords_are_hashed_in_order_and_the_rest_is_left_alone() -> None:
    done = hash_entries(entries(20), CHEAP, pytest.fail)
    assert [entry.user.identity for entry in done] == [f"u{n}" for n in range(20)]
    for number, entry in enumerate(done):
        assert entry.plain is None
        if number % 10 == 9:
            assert not entry.user.password
        else:
            assert passwords.matches(passwords.parse(entry.user.password), f"word-{number}", {})


def test_what_takes_long_is_said_at_once_and_then_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    said: list[str] = []
    seconds = itertools.count()
    hash_entries(entries(20), CHEAP, said.append, clock=lambda: float(next(seconds)))
    assert said == [
        "18 readable passwords are hashed with argon2id: about 9 s.", "5 of 18 passwords are hashed",
        "9 of 18 passwords are hashed", "14 of 18 passwords are hashed", "18 of 18 passwords are hashed",
    ]  # fmt: skip


def test_an_interrupt_does_not_wait_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    monkeypatch.setattr(
        "auth.store.user_hashing.hash_argon2id", lambda word, _cost: hashed.append(word) or time.sleep(0.01)
    )

    def interrupted(_text: str) -> None:
        raise KeyboardInterrupt

    seconds = itertools.count(step=10)
    with pytest.raises(KeyboardInterrupt):
        hash_entries(entries(5_000), CHEAP, interrupted, clock=lambda: float(next(seconds)))
    assert len(hashed) < 2_000
