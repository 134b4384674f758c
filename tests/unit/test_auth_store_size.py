"""What a question costs does not grow with what the database holds."""

import sqlite3
from pathlib import Path

import pytest

from auth.model import Subject
from auth.store import store as store_module
from tests.bench.auth_store import Asked, build
from tests.unit.access_parts import opened_store


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
    small, large = tmp_path / "small" / "auth.sqlite3", tmp_path / "large" / "auth.sqlite3"
    build(small, 500, 5)
    build(large, 10_000, 5)
    one, two = Asked(small, 500), Asked(large, 10_000)
    for _ in range(4):
        one.ask()
        two.ask()
    assert min(two.login_us) < 2 * min(one.login_us), (one.login_us, two.login_us)
    assert min(two.rules_us) < 2 * min(one.rules_us), (one.rules_us, two.rules_us)
    assert len(two.store.rules_for(Subject("device-009999"))) == 7
    one.store.close()
    two.store.close()
