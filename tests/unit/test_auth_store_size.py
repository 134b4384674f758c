"""What a question costs does not grow with what the database holds."""

import random
import sqlite3
import time
from pathlib import Path

import pytest

from auth import passwords
from auth.model import Rule, Subject
from auth.store import store as store_module
from auth.store.records import User
from tests.unit.access_parts import opened_store

QUESTIONS = 2000


class Asked:
    """A database with so many devices, each with five rules of its own, and what a look-up costs in CPU time."""

    def __init__(self, path: Path, users: int) -> None:
        self.store = store_module.Store(path)
        self.store.open()
        names = [f"device-{number:06d}" for number in range(users)]
        with self.store.edit("test") as edit:
            stored = passwords.hash_device_secret("x" * 32, edit.current_device_key())
            for name in names:
                edit.users.add(User("username", name, stored), audited=False)
            edit.rules.extend(
                Rule("allow", f"site/{name}/{topic}/#", (("username", name),)) for name in names for topic in range(5)
            )
            edit.rules.extend([Rule("allow", "devices/${username}/#"), Rule("deny", "#")])
        self._names = names
        self._random = random.Random(1)
        self.login_us: list[float] = []
        self.rules_us: list[float] = []

    def ask(self) -> None:
        """One round: a login's look-ups, then an access's, of random devices."""
        names = self._random.choices(self._names, k=QUESTIONS)
        began = time.process_time()
        for name in names:
            self.store.find_ban(name, name, "10.0.0.1", 0)
            assert self.store.find_user("username", name) is not None
        self.login_us.append((time.process_time() - began) / QUESTIONS * 1e6)
        subjects = [Subject(name, name, "10.0.0.1") for name in names]
        began = time.process_time()
        for subject in subjects:
            assert len(self.store.rules_for(subject)) > 2
        self.rules_us.append((time.process_time() - began) / QUESTIONS * 1e6)


@pytest.mark.parametrize(("statement", "values"), [
    (store_module._USER, ("username", "x")),
    (store_module._RULES, ("username", "x")),
    (store_module._BAN, ("username", "x", 0)),
    (store_module._TENANT, ("x",)),
])  # fmt: skip
def test_each_question_is_answered_by_an_index(tmp_path: Path, statement: str, values: tuple[object, ...]) -> None:
    with opened_store(tmp_path / "auth.sqlite3"), sqlite3.connect(tmp_path / "auth.sqlite3") as db:
        plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    db.close()
    assert [line.split()[0] for line in plan] == ["SEARCH"], plan


def test_twenty_times_the_users_cost_no_more(tmp_path: Path) -> None:
    """A scan would cost twenty times as much. Both are asked in turns, in CPU time, and the best round counts."""
    one, two = Asked(tmp_path / "small.sqlite3", 500), Asked(tmp_path / "large.sqlite3", 10_000)
    for _ in range(4):
        one.ask()
        two.ask()
    assert min(two.login_us) < 2 * min(one.login_us), (one.login_us, two.login_us)
    assert min(two.rules_us) < 2 * min(one.rules_us), (one.rules_us, two.rules_us)
    assert len(two.store.rules_for(Subject("device-009999"))) == 7
    one.store.close()
    two.store.close()
