"""The built-in database: what is stored is found again, by whom, in which order, and how soon a change is seen."""

import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.errors import BackendDownError, StoreError
from auth.model import Ban, Rule, Subject, Tenant
from auth.store import file as store_file
from auth.store.records import User
from auth.store.store import Store
from tests.command_line import own_environment
from tests.kinds import there
from tests.unit.access_parts import add_bans, add_users, any_rule, edited, opened_store

PLAIN = "$salted-sha256$prefix$c2FsdA$" + "A" * 43


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "auth" / "auth.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with opened_store(path) as one:
        yield one


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A directory that an unprivileged user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path
        for one in (path, *path.rglob("*")):
            one.chmod(0o700)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's rights, which know no closed directory."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def found_user(store: Store, name: str, kind: Any = "username") -> User:
    return there(store.find_user(kind, name))


def add_rules(store: Store, *rules: Rule) -> list[int]:
    with store.edit("test") as edit:
        ids = edit.rules.extend(rules)
    store.refresh()
    return ids


def topics(store: Store, subject: Subject) -> list[str]:
    return [rule.topic for rule in store.rules_for(subject)]


class TestFile:
    def test_a_new_file_belongs_to_its_user_alone(self, store: Store, path: Path) -> None:
        add_users(store, User("username", "a"))
        modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()}
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.name in modes
        assert set(modes.values()) == {0o600}, modes

    def test_a_careless_copy_is_closed_to_others(self, store: Store, path: Path) -> None:
        store.close()
        path.chmod(0o644)
        with opened_store(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o640

    def test_a_newer_format_is_refused_with_a_sentence(self, store: Store, path: Path) -> None:
        store.close()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {store_file.FORMAT + 1}")
        with pytest.raises(StoreError, match=f"has format {store_file.FORMAT + 1}.*newer version"):
            Store(path).open()

    def test_another_programs_database_is_left_alone(self, path: Path) -> None:
        path.parent.mkdir()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE theirs (x)")
        before = path.read_bytes()
        with pytest.raises(StoreError, match="not one of this service"):
            Store(path).open()
        assert path.read_bytes() == before

    def test_a_file_that_is_no_database_is_said_to_be_damaged(self, path: Path) -> None:
        path.parent.mkdir()
        path.write_bytes(b"hello" * 1000)
        with pytest.raises(StoreError, match="damaged, or no SQLite database"):
            Store(path).open()

    def test_a_damaged_file_is_a_backend_that_is_down(self, store: Store, path: Path) -> None:
        add_users(store, *(User("username", f"u{number}") for number in range(2000)))
        store.close()
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        data = bytearray(path.read_bytes())
        data[4096:] = b"\xff" * (len(data) - 4096)
        path.write_bytes(data)
        broken = Store(path)
        with pytest.raises(BackendDownError, match="damaged"):
            broken.find_user("username", "u1")
        assert "damaged" in broken.problem

    def test_a_file_that_goes_away_is_down_until_it_is_back_and_not_tried_at_every_question(
        self, store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add_users(store, User("username", "a", tenant=""))
        away = path.with_name("away")
        path.rename(away)
        with pytest.raises(BackendDownError, match="there is no such file"):
            store.refresh()
        with monkeypatch.context() as patched:
            patched.setattr("auth.store.store._REOPEN_NS", 1 << 60)
            patched.setattr(Store, "_look", lambda _self: pytest.fail("it was tried"))
            with pytest.raises(BackendDownError, match="no such file"):
                store.find_user("username", "a")
        away.rename(path)
        monkeypatch.setattr("auth.store.store._REOPEN_NS", 0)
        assert store.find_user("username", "a") is not None
        assert not store.problem

    @pytest.mark.parametrize("step", ["_look", "_different"])
    def test_a_moment_of_being_locked_is_over_with_the_next_answer_which_finds_all_changes(
        self, store: Store, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        with store.edit("ann") as edit:
            edit.bans.add(Ban("clientid", "c"))
        with monkeypatch.context() as patched:
            patched.setattr(store, step, Mock(side_effect=error))
            with pytest.raises(BackendDownError, match="is locked"):
                store.refresh()
        assert store.problem
        assert store.refresh()
        assert not store.problem
        assert store.find_ban("c", "", "", 0) is not None

    def test_a_restored_copy_is_noticed(self, store: Store, path: Path, tmp_path: Path) -> None:
        add_users(store, User("username", "old"))
        copy = tmp_path / "copy"
        with contextlib.closing(sqlite3.connect(path)) as db, contextlib.closing(sqlite3.connect(copy)) as into:
            db.backup(into)
        edited(store, lambda edit: edit.users.remove("username", "old"))
        before = store.version
        for old in path.parent.iterdir():  # the old log would be taken for the copy's
            old.unlink()
        copy.replace(path)
        assert store.refresh()
        assert store.version > before
        assert store.find_user("username", "old") is not None

    async def test_after_a_restored_copy_the_service_writes_into_that(self, store: Store, path: Path) -> None:
        await store.ban(Ban("clientid", "before"), by="service")
        for old in path.parent.iterdir():
            old.unlink()
        with opened_store(path):
            await store.ban(Ban("clientid", "c"), by="service")
            assert store.find_ban("c", "", "", 0) is not None

    def test_versions_after_a_copy_restored_in_place_are_new_ones(self, store: Store, path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db, contextlib.closing(sqlite3.connect(":memory:")) as copy:
            db.backup(copy)
            add_users(store, User("username", "a"))
            before, epoch = store.version, store.epoch
            copy.backup(db)
        store.refresh()
        add_users(store, User("username", "b"))
        assert store.version > before
        assert store.epoch > epoch, "the revisions of users begin anew, too"

    def test_a_writer_that_waits_too_long_says_so(self, store: Store) -> None:
        with store.edit("one"), pytest.raises(StoreError, match="is locked"), store.edit("two", wait_s=0.01):
            pass

    def test_a_directory_without_rights_is_said(self, nobody: Path) -> None:
        nobody.chmod(0o555)
        with as_nobody(), pytest.raises(StoreError, match="cannot be opened: Permission denied"):
            Store(nobody / "auth" / "auth.sqlite3").open()

    def test_another_users_database_is_said(self, nobody: Path) -> None:
        path = nobody / "auth" / "auth.sqlite3"
        store_file.prepare(path)
        path.parent.chmod(0o755)
        path.chmod(0o000)
        with as_nobody(), pytest.raises(StoreError, match="belongs to the user that made it"):
            Store(path).open()

    def test_a_read_only_file_is_said(self, nobody: Path) -> None:
        path = nobody / "auth" / "auth.sqlite3"
        with opened_store(path) as store:
            add_users(store, User("username", "a"))
        path.parent.chmod(0o555)
        path.chmod(0o444)
        with as_nobody():
            reader = Store(path)
            with pytest.raises(StoreError, match=r"read-only|belongs to the user"), reader.edit("test") as edit:
                edit.users.add(User("username", "b"))
            with pytest.raises(BackendDownError, match=str(path)):
                reader.find_user("username", "a")

    def test_a_full_disk_keeps_nothing_of_an_edit(self, store: Store) -> None:
        def fill() -> None:
            with store.edit("test") as edit:
                edit.users.add(User("username", "a"))
                pages = edit.session.db.execute("PRAGMA page_count").fetchone()[0]
                edit.session.db.execute(f"PRAGMA max_page_count = {pages}")
                for number in range(5000):
                    edit.users.add(User("username", f"u{number}", attributes={"x": "y" * 1000}))

        with pytest.raises(StoreError, match="the disk is full"):
            fill()
        store.refresh()
        assert store.find_user("username", "a") is None


class TestUsers:
    def test_all_of_a_user_comes_back(self, store: Store) -> None:
        edited(store, lambda edit: edit.tenants.add(Tenant("acme")))
        user = User(
            "clientid", "d1", PLAIN, "acme", frozenset({"b", "a"}), {"site": "berlin"}, True, True, 1_900_000_000
        )
        add_users(store, user)
        found = there(store.user("clientid", "d1"))
        assert found.created_s == found.changed_s > 1_700_000_000
        assert found.revision == store.version - store.epoch
        without_dates = replace(found, created_s=0, changed_s=0)
        assert store.find_user("clientid", "d1") == without_dates
        assert replace(without_dates, revision=0) == user

    def test_a_kind_is_part_of_the_name(self, store: Store) -> None:
        add_users(store, User("username", "a"))
        assert store.find_user("clientid", "a") is None

    @pytest.mark.parametrize(
        "other", ["Device", "device ", " device", "dévice", "de\u0301vice", "devic%", "devic_", "device\0", "\ud800"]
    )
    def test_names_are_compared_byte_for_byte(self, store: Store, other: str) -> None:
        add_users(store, User("username", "device"), User("username", "d\u00e9vice2"))
        assert store.find_user("username", other) is None

    @pytest.mark.parametrize("name", ["' OR 1=1 --", '"; DROP TABLE users; --', "%", "_", "\u0001", "x" * 256])
    def test_hostile_names_are_names(self, store: Store, name: str) -> None:
        assert store.find_user("username", name) is None
        add_users(store, User("username", name))
        assert store.find_user("username", name) is not None
        assert store.count_users() == 1

    @pytest.mark.parametrize(("user", "why"), [
        (User("username", ""), "empty"),
        (User("username", "a\0b"), "null"),
        (User("username", "\ud800"), "UTF-8"),
        (User("username", "x" * 257), "256 is the most"),
        (User("username", "ada", groups=frozenset({"undefined"})), "EMQX writes for an absent value"),
        (User("username", "ada", attributes={"site": "undefined"}), "EMQX writes for an absent value"),
        (User("username", "a", tenant="acme"), "There is no tenant 'acme'"),
        (User("common_name", "10.0.0.1", PLAIN), "has no password"),
        (User("address", "10.0.0.1", PLAIN), "has no password"),
        (User("username", "a", "hunter2"), "."),
    ])  # fmt: skip
    def test_a_user_that_cannot_be_is_refused_without_its_password(self, store: Store, user: User, why: str) -> None:
        with pytest.raises(StoreError, match=why) as refused:
            add_users(store, user)
        assert "hunter2" not in str(refused.value)
        assert store.count_users() == 0

    def test_the_narrowest_network_is_found(self, store: Store) -> None:
        add_users(store, User("address", "10.0.0.0/8"), User("address", "10.1.2.3"), User("address", "fd00::/8"))
        found = {
            asked: getattr(store.find_user("address", asked), "identity", None)
            for asked in ("10.1.2.3", "10.1.2.4", "11.0.0.1", "::ffff:10.1.2.4", "fd00::1", "fe80::1", "nonsense", "")
        }
        assert found == {
            "10.1.2.3": "10.1.2.3/32", "10.1.2.4": "10.0.0.0/8", "11.0.0.1": None, "::ffff:10.1.2.4": "10.0.0.0/8",
            "fd00::1": "fd00::/8", "fe80::1": None, "nonsense": None, "": None,
        }  # fmt: skip

    def test_a_refused_edit_takes_everything_with_it(self, store: Store) -> None:
        with pytest.raises(StoreError):
            add_users(store, User("username", "new"), User("username", ""))
        store.refresh()
        assert store.find_user("username", "new") is None
        assert store.audit(10) == []

    def test_a_tenant_has_room_for_so_many(self, store: Store) -> None:
        edited(store, lambda edit: edit.tenants.add(Tenant("acme", users_max=2)))
        add_users(store, User("username", "a", tenant="acme"))
        add_users(store, User("username", "b", tenant="acme"))
        with pytest.raises(StoreError, match="as many users"):
            add_users(store, User("username", "c", tenant="acme"))
        edited(store, lambda edit: edit.users.remove("username", "a"))
        add_users(store, User("username", "c", tenant="acme"))
        add_users(store, User("username", "other"))
        with pytest.raises(StoreError, match="as many users"), store.edit("test") as edit:
            edit.users.add(User("username", "other", tenant="acme"), overwrite=True)
        edited(store, lambda edit: edit.tenants.add(Tenant("small", users_max=1)))
        with pytest.raises(StoreError, match="as many users"):
            add_users(store, User("username", "s1", tenant="small"), User("username", "s2", tenant="small"))
        with store.edit("test") as edit:
            with pytest.raises(StoreError, match="as many users"):
                edit.users.add(User("username", "d", tenant="acme"))
            edit.users.remove("username", "c")
            edit.users.add(User("username", "d", tenant="acme"))
            edit.users.change("username", "b", tenant="")
            edit.users.add(User("username", "e", tenant="acme"))

    def test_changes_are_recorded_without_secrets(self, store: Store) -> None:
        add_users(store, User("username", "a", PLAIN))
        with store.edit("ann") as edit:
            edit.users.change("username", "a", password=PLAIN.replace("A", "B"), disabled=True)
            edit.users.remove("username", "a")
        assert [(one.by, one.action, one.subject, one.detail) for one in store.audit(10)] == [
            ("ann", "user remove", "username a", ""),
            ("ann", "user change", "username a", "disabled = True, password"),
            ("test", "user add", "username a", ""),
        ]

    def test_a_rehash_counts_for_nothing_and_gives_way_to_a_change(self, store: Store) -> None:
        add_users(store, User("username", "a", PLAIN))
        seen = found_user(store, "a")
        version = store.version
        other = PLAIN.replace("AAA", "BBB")
        with store.edit("service") as edit:
            assert edit.users.rehash(seen, other)
            assert not edit.users.rehash(seen, PLAIN)
        assert not store.refresh()
        assert store.version == version
        found = found_user(store, "a")
        assert (found.password, found.revision) == (other, seen.revision)


class TestRules:
    def test_a_subject_gets_what_concerns_it_in_the_lists_order(self, store: Store) -> None:
        add_rules(
            store,
            Rule("deny", "1", (("all", ""),)),
            Rule("allow", "2", (("username", "ann"),)),
            Rule("allow", "3", (("username", "bob"),)),
            Rule("allow", "4", (("group", "ops"),)),
            Rule("allow", "5", (("address", "10.0.0.0/8"),)),
            Rule("allow", "6", (("tenant", "acme"), ("clientid", "c1"))),
            Rule("allow", "7", (("attribute", "site=berlin"),)),
            Rule("allow", "8", (("common_name", "cn"),)),
            Rule("allow", "9", (("tenant", "acme"),)),
            Rule("deny", "10", (("all", ""),)),
        )
        assert topics(store, Subject()) == ["1", "10"]
        assert topics(store, Subject(username="ann")) == ["1", "2", "10"]
        everything = Subject("ann", "c1", "10.9.9.9", "cn", "acme", frozenset({"ops", "x"}), {"site": "berlin"})
        assert topics(store, everything) == ["1", "2", "4", "5", "6", "7", "8", "9", "10"]

    @given(
        rule=any_rule(
            topic=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20),
            who=st.lists(
                st.sampled_from(
                    [
                        ("username", "ä"), ("clientid", "c,1"), ("group", "g"), ("tenant", "t"),
                        ("address", "10.0.0.0/8"), ("attribute", "a=b=c"), ("all", ""),
                    ]
                ),
                min_size=1,
                max_size=4,
            ).map(tuple),
        )
    )  # fmt: skip
    def test_a_rule_comes_back_as_it_was(self, tmp_path_factory: pytest.TempPathFactory, rule: Rule) -> None:
        with opened_store(tmp_path_factory.getbasetemp() / "rules" / "auth.sqlite3") as store:
            with store.edit("test") as edit:
                edit.rules.clear()
                number = edit.rules.append(rule)
            (stored,) = list(store.rules())
        assert stored.rule == replace(rule, source=f"database rule {number}")

    def test_a_rule_can_be_put_anywhere_again_and_again(self, store: Store) -> None:
        (last,) = add_rules(store, Rule("deny", "last"))
        with store.edit("test") as edit:
            for number in range(60):
                edit.rules.insert(Rule("allow", str(number)), before=last)
            edit.rules.insert(Rule("allow", "first"))
        assert [one.rule.topic for one in store.rules()] == ["first", *map(str, range(60)), "last"]

    def test_a_rule_is_filed_under_the_narrowest_of_its_conditions(self, store: Store) -> None:
        """Else each question about a tenant would read the rules of all of its users."""
        add_rules(store, Rule("allow", "t", (("all", ""), ("tenant", "acme"), ("username", "ann"))))
        assert [one.rule.topic for one in store.rules(kind="username", value="ann")] == ["t"]
        assert [one.rule.topic for one in store.rules(kind="tenant", value="acme")] == ["t"]
        assert list(store.rules(kind="tenant", value="acm")) == []
        assert topics(store, Subject("bob", tenant="acme")) == []

    def test_a_changed_list_is_seen(self, store: Store) -> None:
        one, two = add_rules(store, Rule("allow", "1"), Rule("allow", "2", (("username", "a"),)))
        assert topics(store, Subject("a")) == ["1", "2"]
        assert edited(store, lambda edit: edit.rules.remove([one]))
        assert topics(store, Subject("a")) == ["2"]
        assert edited(store, lambda edit: edit.rules.remove([two]))
        assert topics(store, Subject("a")) == []

    def test_ids_are_not_used_again(self, store: Store) -> None:
        (one,) = add_rules(store, Rule("allow", "1"))
        edited(store, lambda edit: edit.rules.remove([one]))
        assert add_rules(store, Rule("allow", "2")) == [one + 1]

    @pytest.mark.parametrize("who", [
        (), (("username", ""),), (("address", "10.0.0.300"),), (("attribute", "x"),), (("attribute", "x="),),
        (("tenant", "a/b"),), (("all", "x"),), (("planet", "mars"),),
    ], ids=str)  # fmt: skip
    def test_conditions_that_cannot_hold_are_refused(self, store: Store, who: tuple[tuple[str, str], ...]) -> None:
        with pytest.raises(StoreError):
            add_rules(store, Rule("allow", "t", who))  # type: ignore[arg-type]

    def test_memory_for_shared_rules_is_bounded(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("auth.store.store._KEPT_RULES", 10)
        add_rules(store, *(Rule("allow", str(number), (("group", f"g{number}"),)) for number in range(40)))
        for number in range(40):
            assert topics(store, Subject(groups=frozenset({f"g{number}"}))) == [str(number)]
        assert len(store._rules) <= 5
        kept = len(store._rules)
        for number in range(3):
            store.rules_for(Subject(groups=frozenset({str(number) * 60_000})))
            store.tenant(str(number) * 60_000)
        assert len(store._rules) == kept
        assert max(len(value) for _kind, value in store._rules) < 100
        assert not store._tenants

    def test_memory_for_tenants_is_bounded(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("auth.store.store._KEPT_TENANTS", 5)
        for number in range(20):
            assert store.tenant(f"t{number}") is None
        assert len(store._tenants) == 5


class TestBans:
    def test_a_ban_holds_until_its_end(self, store: Store) -> None:
        now = float(1 << 40)
        add_bans(store, Ban("clientid", "c", until_s=(1 << 40) + 100), Ban("username", "u", reason="guessing"))
        add_bans(store, Ban("address", "10.0.0.0/8"))
        assert store.find_ban("c", "", "", now + 99) is not None
        assert store.find_ban("c", "", "", now + 100) is None
        by_name = there(store.find_ban("x", "u", "1.2.3.4", now))
        assert (by_name.reason, by_name.by) == ("guessing", "test")
        assert store.find_ban("", "", "10.255.0.1", now) is not None
        assert store.find_ban("u", "c", "11.0.0.1", now) is None

    def test_bans_do_not_count_as_changes_of_users(self, store: Store) -> None:
        version, bans = store.version, store.ban_version
        assert edited(store, lambda edit: edit.bans.add(Ban("clientid", "c")))
        assert store.version == version
        assert store.ban_version > bans

    def test_a_lifted_ban_is_gone(self, store: Store) -> None:
        add_bans(store, Ban("address", "10.0.0.1"))
        assert store.find_ban("", "", "10.0.0.1", 0) is not None
        edited(store, lambda edit: edit.bans.remove("address", "10.0.0.1"))
        assert store.find_ban("", "", "10.0.0.1", 0) is None
        with pytest.raises(StoreError, match="There is no ban"), store.edit("test") as edit:
            edit.bans.remove("address", "10.0.0.1")

    async def test_the_service_bans_through_its_writer(self, store: Store) -> None:
        await store.ban(Ban("clientid", "c", reason="flapping"), by="flapping detection")
        found = there(store.find_ban("c", "", "", 0))
        assert (found.reason, found.by) == ("flapping", "flapping detection")
        with pytest.raises(StoreError, match="empty"):
            await store.ban(Ban("clientid", ""), by="x")

    async def test_a_ban_by_the_service_shortens_none(self, store: Store) -> None:
        for operators, services, holds in ((None, 1 << 40, None), (1 << 41, 1 << 40, 1 << 41), (1, 1 << 40, 1 << 40)):
            add_bans(store, Ban("clientid", "C", until_s=operators))
            await store.ban(Ban("clientid", "c", until_s=services), by="flapping detection")
            assert [ban.until_s for ban in store.bans(now_s=2)] == [holds]


class TestTenants:
    @pytest.mark.parametrize("name", ["", "a/b", "a+", "#", "a,b", "x" * 257, "undefined"])
    def test_names_that_would_be_wildcards_or_lists_or_none_are_refused(self, store: Store, name: str) -> None:
        with pytest.raises(StoreError), store.edit("test") as edit:
            edit.tenants.add(Tenant(name))


EDIT = """
import sys
from pathlib import Path
from auth.store.edit import edit
from auth.store.records import User
from auth.model import Rule
path, who = Path(sys.argv[1]), sys.argv[2]
for number in range(25):
    with edit(path, who, wait_s=60) as one:
        one.users.add(User("username", f"{who}-{number}"))
        one.rules.append(Rule("allow", f"{who}/{number}", (("username", f"{who}-{number}"),)))
"""


def test_processes_that_edit_at_the_same_time_lose_nothing(store: Store, path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", EDIT, path, f"p{number}"], env=own_environment()) for number in range(3)
    ]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    store.refresh()
    assert store.count_users() == 75
    assert len({one.position for one in store.rules()}) == 75
    assert store.version - store.epoch == 76
    for number in range(3):
        own = [one.rule.topic for one in store.rules() if one.rule.topic.startswith(f"p{number}/")]
        assert own == [f"p{number}/{count}" for count in range(25)]


KILLED = """
import sys, time
from pathlib import Path
from auth.store.edit import edit
from auth.store.records import User
with edit(Path(sys.argv[1]), "killed") as one:
    for number in range(3000):
        one.users.add(User("username", f"u{number}", attributes={"x": "y" * 500}), audited=False)
    print("half", flush=True)
    time.sleep(60)
"""


def test_a_process_killed_in_the_middle_of_an_edit_leaves_nothing_of_it(store: Store, path: Path) -> None:
    add_users(store, User("username", "before"))
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, path], env=own_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "half\n"
        assert store.find_user("username", "before") is not None
        process.kill()
    assert not store.refresh()
    assert [user.identity for user in store.users()] == ["before"]
    add_users(store, User("username", "after"))
    assert store.count_users() == 2
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.mark.parametrize(
    "spelling", ["DEV1", "dev1 ", "\N{FULLWIDTH LATIN SMALL LETTER D}ev1", "d\N{COMBINING ACUTE ACCENT}ev1"]
)
def test_a_ban_holds_for_every_spelling_that_a_directory_takes_for_the_name(store: Store, spelling: str) -> None:
    """``ban add username dev1`` kept out dev1; a directory let the same user in as DEV1."""
    add_bans(store, Ban("username", "dev1"), Ban("clientid", "Press"))
    assert there(store.find_ban("", spelling, "", 0)).value == "dev1"
    assert store.find_ban("press", "", "", 0) is not None
    assert store.find_ban("dev1", "dev2", "", 0) is None
    add_bans(store, Ban("username", spelling, reason="again"))
    assert [ban.value for ban in store.bans(now_s=0) if ban.kind == "username"] == [spelling], "one user has two bans"
    edited(store, lambda edit: edit.bans.remove("username", "dev1"))
    assert store.find_ban("", spelling, "", 0) is None
