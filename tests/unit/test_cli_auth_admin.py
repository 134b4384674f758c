"""``gateway auth user``, ``tenant``, ``ban`` and ``forget``: what they change, print and never print."""

import contextlib
import errno
import io
import json
import os
import sqlite3
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from auth import passwords
from auth.model import Ban, Rule, Tenant, Who
from auth.store.records import User
from auth.store.store import Store
from config.errors import ExitStatus
from gateway.cli.access.common import operator
from tests.command_line import Cli, Said
from tests.kinds import there
from tests.unit.access_parts import add_bans, add_users, edited, opened_store

WORD = "correct horse battery"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GATEWAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GATEWAY_AUTH__HASHING__MEMORY", "8192")
    monkeypatch.setenv("GATEWAY_AUTH__HASHING__PASSES", "1")
    (tmp_path / "password").write_text(WORD + "\n")
    return tmp_path


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with opened_store(folder / "data" / "auth" / "auth.sqlite3") as one:
        yield one


class Result(Said):
    """What a command said."""

    @property
    def data(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(folder: Path, cli: Cli) -> Any:
    def run(*arguments: str, wanted: int = ExitStatus.OK) -> Result:
        said = Result(*cli("auth", *arguments, status=wanted))
        assert WORD not in said.out + said.err
        return said

    return run


def user_of(store: Store, name: str, kind: Any = "username") -> User:
    return there(store.user(kind, name))


def matches(store: Store, user: User, password: str) -> bool:
    return passwords.matches(passwords.parse(user.password), password, store.device_keys())


class TestUser:
    def test_a_person_with_a_password_from_a_file(self, run: Any, store: Store) -> None:
        edited(store, lambda edit: edit.tenants.add(Tenant("acme")))
        options = "--password-file password --tenant acme --group ops --group admins --attribute site=ber=lin"
        run("user", "add", "ann", *options.split(), "--superuser", "--disabled", "--expires", "2027-01-31")
        user = user_of(store, "ann")
        assert user.password.startswith("$argon2id$v=19$m=8,t=1,p=1$")
        assert matches(store, user, WORD)
        assert (user.tenant, user.groups, dict(user.attributes)) == ("acme", {"ops", "admins"}, {"site": "ber=lin"})
        assert (user.is_superuser, user.disabled, user.expires_at_s) == (True, True, 1_801_353_600)

    def test_a_generated_secret_is_printed_once_and_works(self, run: Any, store: Store) -> None:
        said = run("user", "add", "d1", "--kind", "clientid", "--generate")
        secret = said.out.splitlines()[-1]
        user = user_of(store, "d1", "clientid")
        assert user.password.startswith("$device$")
        assert matches(store, user, secret)
        for command in (("list",), ("show", "d1", "--kind", "clientid"), ("list", "--json"), ("export", "-")):
            assert secret not in run("user", *command).out
        assert secret.encode() not in store.path.read_bytes()

    @pytest.mark.parametrize(("name", "value"), [
        ("GATEWAY_AUTH__CHAIN", '["jwt", "database"]'), ("GATEWAY_AUTH__CHAIN", '["ldap"]'),
        ("GATEWAY_AUTH__DATABASE__IDENTITIES", '["clientid"]'),
    ])  # fmt: skip
    def test_a_user_that_no_login_finds_is_added_with_a_warning(
        self, run: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str
    ) -> None:
        monkeypatch.setenv(
            "GATEWAY_AUTH__JWT__KEYS", '[{"name": "a", "algorithms": ["HS256"], "secret": "%s"}]' % ("x" * 32)
        )
        monkeypatch.setenv(name, value)
        assert ("no login finds this user" in run("user", "add", "d1", "--generate").err) is ("jwt" not in value)

    def test_json_of_a_generated_secret(self, run: Any) -> None:
        data = run("user", "add", "d1", "--generate", "--json").data
        assert len(data.pop("secret")) == 32
        assert data == {"added": True, "name": "d1", "kind": "username"}

    @pytest.mark.parametrize("arguments", [("--password-stdin",), ("--password-file", "-")], ids=["option", "dash"])
    @pytest.mark.parametrize("end", [b"\n", b"\r\n"])
    def test_passwords_come_from_the_input(
        self, run: Any, store: Store, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], end: bytes
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(WORD.encode() + end)))
        run("user", "add", "ann", *arguments)
        assert matches(store, user_of(store, "ann"), WORD)

    def test_passwords_come_from_a_prompt(self, run: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = iter([WORD, WORD, WORD, "other"])
        monkeypatch.setattr("getpass.getpass", lambda _prompt: next(answers))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        run("user", "add", "ann")
        assert matches(store, user_of(store, "ann"), WORD)
        assert "The two passwords differ" in run("user", "add", "bob", wanted=ExitStatus.USAGE).err
        assert store.user("username", "bob") is None

    @pytest.mark.parametrize(
        ("typed", "complaint"),
        [(EOFError(), "No password was typed"), (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "is not UTF-8")],
    )
    def test_a_prompt_without_an_answer(
        self, run: Any, monkeypatch: pytest.MonkeyPatch, typed: Exception, complaint: str
    ) -> None:
        monkeypatch.setattr("getpass.getpass", Mock(side_effect=typed))
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        assert complaint in run("user", "add", "ann", wanted=ExitStatus.USAGE).err

    def test_without_a_terminal_nothing_is_guessed(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(WORD))
        assert "--password-stdin" in run("user", "add", "ann", wanted=ExitStatus.USAGE).err

    def test_a_password_is_no_argument(self, run: Any) -> None:
        run("user", "add", "ann", "--password", "x", wanted=ExitStatus.USAGE)

    @pytest.mark.parametrize("content", [b"", b"\n", b"\xff\n", b"x" * 65_536 + b"\n"])
    def test_a_file_without_a_password(self, run: Any, folder: Path, content: bytes) -> None:
        (folder / "bad").write_bytes(content)
        run("user", "add", "ann", "--password-file", "bad", wanted=ExitStatus.USAGE)
        run("user", "add", "ann", "--password-file", "none", wanted=ExitStatus.USAGE)

    def test_show_speaks_no_python(self, run: Any) -> None:
        run("user", "add", "ann", "--generate", "--attribute", "site=berlin")
        lines = {line.split()[0]: line.split()[1:] for line in run("user", "show", "ann").out.splitlines()}
        assert lines["attributes"] == ["site=berlin"]
        assert lines["is_superuser"] == ["no"]
        assert lines["banned_until"] == lines["groups"] == ["-"]
        assert "--kind" in run("user", "show", "bob", wanted=ExitStatus.NOT_FOUND).err

    def test_passwd_replaces_it(self, run: Any, store: Store) -> None:
        run("user", "add", "ann", "--generate")
        run("user", "passwd", "ann", "--password-file", "password")
        assert matches(store, user_of(store, "ann"), WORD)
        run("user", "passwd", "ann", "--no-password")
        assert not user_of(store, "ann").password
        assert "There is no username" in run("user", "passwd", "bob", "--generate", wanted=ExitStatus.NOT_FOUND).err

    def test_certificates_and_addresses_need_none(self, run: Any, store: Store) -> None:
        run("user", "add", "cn", "--kind", "common_name")
        run("user", "add", "10.1.2.3/8", "--kind", "address")
        assert store.user("address", "10.0.0.0/8") is not None
        run("user", "add", "x", "--kind", "common_name", "--generate", wanted=ExitStatus.USAGE)

    def test_disable_enable_remove(self, run: Any, store: Store) -> None:
        run("user", "add", "ann", "--generate")
        run("user", "add", "bob", "--generate")
        run("user", "disable", "ann", "bob")
        assert [user.disabled for user in store.users()] == [True, True]
        run("user", "enable", "ann")
        assert [user.disabled for user in store.users()] == [False, True]
        with store.edit("test") as edit:
            (rule,) = edit.rules.extend([Rule("allow", "t", (("username", "ann"),))])
        run("user", "remove", "ann", "carl", wanted=ExitStatus.NOT_FOUND)
        assert store.count_users() == 2
        assert f"still name ann: {rule}" in run("user", "remove", "ann").out
        assert [user.identity for user in store.users()] == ["bob"]

    def test_a_rule_with_several_conditions_still_names_each_of_them(self, run: Any, store: Store) -> None:
        who: Who = (("clientid", "c"), ("username", "ann"), ("address", "10.0.0.0/8"), ("tenant", "acme"))
        run("tenant", "add", "acme")
        run("user", "add", "ann", "--generate")
        run("user", "add", "10.1.2.3/8", "--kind", "address")
        with store.edit("test") as edit:
            rule = edit.rules.append(Rule("allow", "t", who))
        assert run("user", "show", "ann", "--json").data["rules"] == [rule]
        assert f"still name ann: {rule}" in run("user", "remove", "ann").out
        run("user", "add", "fd00::/8", "--kind", "address")
        left = run("user", "remove", "10.9.9.9/8", "fd00::/8", "--kind", "address", "--json").data["rules_left"]
        assert left == {"10.9.9.9/8": [rule], "fd00::/8": []}
        assert f"still name it: {rule}" in run("tenant", "remove", "acme").out

    def test_show_tells_the_ban_of_a_whole_network(self, run: Any, store: Store) -> None:
        run("user", "add", "10.1.0.0/16", "--kind", "address")
        add_bans(store, Ban("address", "10.1.0.0/24"), Ban("address", "fd00::/8"))
        assert "banned_until   -" in run("user", "show", "10.1.2.3/16", "--kind", "address").out
        add_bans(store, Ban("address", "10.0.0.0/8"))
        assert "banned_until   never" in run("user", "show", "10.1.2.3/16", "--kind", "address").out

    def test_list_and_show(self, run: Any, store: Store) -> None:
        run("user", "add", "ann\x1b[31m", "--generate", "--group", "ops")
        run("user", "add", "bob", "--password-file", "password")
        add_bans(store, Ban("username", "bob"))
        said = run("user", "list").out
        assert "\x1b" not in said
        assert "ann\\x1b[31m" in said
        assert "generated" in said
        assert "argon2id" in said
        assert "$" not in said
        assert [user["name"] for user in run("user", "list", "--json").data] == ["ann\x1b[31m", "bob"]
        assert run("user", "list", "--json", "--kind", "clientid").data == []
        shown = run("user", "show", "bob", "--json").data
        assert (shown["password"], shown["banned_until"], shown["rules"]) == ("argon2id", "never", [])
        assert "$" not in run("user", "show", "bob").out
        run("user", "show", "carl", wanted=ExitStatus.NOT_FOUND)

    def test_without_a_database_nothing_is_made_by_looking(self, run: Any, folder: Path) -> None:
        assert "there is no database" in run("user", "list", wanted=ExitStatus.FAILED).err
        assert not (folder / "data").exists()

    def test_who_did_it_is_recorded(self, run: Any, store: Store) -> None:
        run("user", "add", "ann", "--password-file", "password")
        (entry,) = store.audit(5)
        assert (entry.by, entry.action, entry.subject) == (operator(), "user add", "username ann")


@pytest.mark.parametrize("arguments", [
    ("user", "add", "ann", "--generate", "--tenant", "\udcff"), ("user", "list", "--tenant", "\udcff"),
    ("tenant", "set", "\udcff", "--disable"), ("acl", "remove", "9" * 20), ("audit", "--limit", "9" * 20),
])  # fmt: skip
def test_what_cannot_be_in_the_database_is_a_sentence(run: Any, store: Store, arguments: tuple[str, ...]) -> None:
    assert "beyond all bounds" in run(*arguments, wanted=ExitStatus.FAILED).err


class TestFiles:
    def test_an_export_comes_back_into_another_database(
        self, run: Any, folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run("tenant", "add", "acme", "--users-max", "5")
        made = run("user", "add", "d1", "--kind", "clientid", "--generate", "--tenant", "acme", "--json").data
        run("user", "add", "ann", "--password-file", "password")
        assert "2 users" in run("user", "export", "users.jsonl").out
        assert stat.S_IMODE((folder / "users.jsonl").stat().st_mode) == 0o600
        assert "is there already" in run("user", "export", "users.jsonl", wanted=ExitStatus.USAGE).err
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
            assert "No space" in run("user", "export", "half.jsonl", wanted=ExitStatus.USAGE).err
        assert not (folder / "half.jsonl").exists(), "half of the users could be imported with --replace"
        monkeypatch.setenv("GATEWAY_DATA_DIR", "other")
        said = run("user", "import", "users.jsonl", "--json").data
        assert (said["added"], said["tenants"]) == (2, 1)
        with opened_store(folder / "other" / "auth" / "auth.sqlite3") as other, other.edit("test") as edit:
            d1, ann = user_of(other, "d1", "clientid"), user_of(other, "ann")
            assert matches(other, d1, made["secret"])
            assert matches(other, ann, WORD)
            assert [tenant.users_max for tenant in other.tenants()] == [5]
            # A secret made from now on is of the database's own key, not of the one that came along.
            assert passwords.device_key_id(edit.current_device_key()) != passwords.parse(d1.password).key_id

    def test_an_export_is_of_one_moment(self, run: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the users of a tenant that it does not have, it could not be imported."""

        def tenants(_store: Store) -> Iterator[Tenant]:
            yield Tenant("old")
            with store.edit("somebody else") as edit:
                edit.tenants.add(Tenant("new"))
                edit.users.add(User("username", "ann", tenant="new"))

        monkeypatch.setattr(Store, "tenants", tenants)
        assert "ann" not in run("user", "export", "-").out
        assert user_of(store, "ann").tenant == "new"

    def test_readable_passwords_are_hashed(self, run: Any, folder: Path, store: Store) -> None:
        (folder / "users.csv").write_text(f"user_id,password,is_superuser\nann,{WORD},true\nbob,{WORD},\n")
        run("user", "import", "users.csv")
        users = list(store.users())
        assert all(user.password.startswith("$argon2id$") and matches(store, user, WORD) for user in users)
        assert [user.is_superuser for user in users] == [True, False]
        assert WORD.encode() not in store.path.read_bytes()

    def test_a_file_that_is_refused_is_refused_before_its_passwords_are_hashed(
        self, run: Any, folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """2,000 passwords take minutes."""
        add_users(store, User("username", "bob"))
        (folder / "users.csv").write_text(f"user_id,password\nann,{WORD}\nbob,{WORD}\n")
        monkeypatch.setattr("auth.store.user_hashing.hash_argon2id", None)
        assert "line 3" in run("user", "import", "users.csv", wanted=ExitStatus.CONFIG).err
        assert store.count_users() == 1

    def test_a_bad_line_imports_nothing(self, run: Any, folder: Path, store: Store) -> None:
        (folder / "users.csv").write_text(f"user_id,password\nann,{WORD}\nbob,{WORD},x\n")
        assert "users.csv, line 3" in run("user", "import", "users.csv", wanted=ExitStatus.CONFIG).err
        (folder / "users.csv").write_text(f"user_id,password,tenant\nann,{WORD},\nbob,{WORD},nowhere\n")
        said = run("user", "import", "users.csv", wanted=ExitStatus.CONFIG).err
        assert "users.csv, line 3: There is no tenant" in said
        assert store.count_users() == 0

    def test_what_is_there_is_refused_kept_or_overwritten(self, run: Any, folder: Path, store: Store) -> None:
        (folder / "users.csv").write_text("user_id,password,is_superuser\nann,x,true\nbob,y,\n")
        add_users(store, User("username", "ann"))
        assert "line 2" in run("user", "import", "users.csv", wanted=ExitStatus.CONFIG).err
        assert store.count_users() == 1
        dry = run("user", "import", "users.csv", "--existing", "keep", "--dry-run", "--json").data
        assert (dry["added"], dry["kept"], dry["dry_run"]) == (1, 1, True)
        assert store.count_users() == 1
        run("user", "import", "users.csv", "--existing", "keep")
        assert not user_of(store, "ann").is_superuser
        (folder / "ann.csv").write_text("user_id,password\nann,x\n")
        dry = run("user", "import", "ann.csv", "--existing", "overwrite", "--dry-run", "--json").data
        assert (dry["replaced"], dry["kept"]) == (1, 0), "its password is another, although not hashed yet"
        said = run("user", "import", "users.csv", "--existing", "overwrite", "--json").data
        assert (said["added"], said["replaced"]) == (0, 2)
        assert user_of(store, "ann").is_superuser

    def test_replace_removes_who_is_not_in_the_file(self, run: Any, folder: Path, store: Store) -> None:
        with store.edit("test") as edit:
            edit.tenants.add(Tenant("acme", users_max=2))
            for name in ("ann", "bob"):
                edit.users.add(User("username", name, tenant="acme"))
            edit.users.add(User("clientid", "ann"))
        (folder / "users.csv").write_text("user_id,password,tenant\nann,x,acme\ncarl,y,acme\n")
        said = run("user", "import", "users.csv", "--replace", "--json").data
        assert (said["added"], said["replaced"], said["removed"]) == (1, 1, 2)
        assert [(user.kind, user.identity) for user in store.users()] == [("username", "ann"), ("username", "carl")]
        (folder / "users.csv").write_text("user_id,password\n")
        assert "remove everybody" in run("user", "import", "users.csv", "--replace", wanted=ExitStatus.USAGE).err
        assert store.count_users() == 2

    def test_who_is_in_the_file_as_in_the_database_is_not_changed(self, run: Any, store: Store) -> None:
        """A change ends a lock-out. Instances that were kept alike every minute had none."""
        run("tenant", "add", "acme", "--users-max", "5")
        run("user", "add", "ann", "--generate", "--tenant", "acme", "--group", "ops", "--attribute", "a=b")
        run("user", "export", "users.jsonl")
        run("user", "add", "bob", "--generate")
        before = user_of(store, "ann"), store.tenant("acme")
        said = run("user", "import", "users.jsonl", "--replace", "--json").data
        assert (said["replaced"], said["kept"], said["removed"], said["tenants"]) == (0, 1, 1, 0)
        store.refresh()
        assert (user_of(store, "ann"), store.tenant("acme")) == before

    def test_hashes_of_emqx_need_their_algorithm(self, run: Any, folder: Path, store: Store) -> None:
        import hashlib

        made = hashlib.sha256(f"salt{WORD}".encode()).hexdigest()
        (folder / "users.csv").write_text(f"user_id,password_hash,salt,is_superuser\nann,{made},salt,false\n")
        said = run("user", "import", "users.csv", wanted=ExitStatus.CONFIG)
        assert "check the algorithm" in said.err
        assert made not in said.err
        run("user", "import", "users.csv", "--algorithm", "sha256")
        assert matches(store, user_of(store, "ann"), WORD)


class TestTenant:
    def test_add_set_list_remove(self, run: Any, store: Store) -> None:
        run("tenant", "add", "acme", "--logins-per-second", "5", "--users-max", "1", "--attribute", "plan=small")
        run("user", "add", "ann", "--generate", "--tenant", "acme")
        assert "as many users" in run("user", "add", "bob", "--generate", "--tenant", "acme", wanted=1).err
        run("tenant", "set", "acme", "--users-max", "none", "--attribute", "x=y", "--no-attribute", "plan", "--disable")
        (acme,) = run("tenant", "list", "--json").data
        limits = {"logins_per_second": 5, "users_max": None}
        assert acme == {"name": "acme", "enabled": False, "attributes": {"x": "y"}, "users": 1, **limits}
        assert "disabled" in run("tenant", "list").out
        run("tenant", "set", "acme", "--enable", "--logins-per-second", "default")
        found = there(store.tenant("acme"))
        assert (found.enabled, found.logins_per_second) == (True, None)
        assert "has 1 users" in run("tenant", "remove", "acme", wanted=1).err
        run("user", "remove", "ann")
        assert run("tenant", "remove", "acme").out == "Removed the tenant acme.\n"
        run("tenant", "remove", "acme", wanted=ExitStatus.NOT_FOUND)

    def test_whom_the_removal_of_a_disabled_tenant_lets_in(self, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GATEWAY_AUTH__CHAIN", '["database", "ldap"]')
        run("tenant", "add", "acme")
        run("tenant", "set", "acme", "--disable")
        assert "its users in other backends of auth.chain get in now" in run("tenant", "remove", "acme").out

    def test_what_is_wrong_is_said(self, run: Any) -> None:
        run("tenant", "add", "acme", "--users-max", "many", wanted=ExitStatus.USAGE)
        run("tenant", "add", "a/b", wanted=1)
        run("tenant", "add", "acme")
        assert "already" in run("tenant", "add", "acme", wanted=1).err
        run("tenant", "set", "acme", wanted=ExitStatus.USAGE)
        run("tenant", "set", "acme", "--attribute", "x", wanted=ExitStatus.USAGE)


class TestBan:
    def test_add_list_remove(self, run: Any, store: Store) -> None:
        run("ban", "add", "address", "10.1.2.3/8", "--until", "1h", "--reason", "guessing")
        run("ban", "add", "clientid", "d1")
        store.refresh()
        assert store.find_ban("", "", "10.9.9.9", 0) is not None
        rows = run("ban", "list", "--json").data
        assert [(row["kind"], row["value"], row["reason"]) for row in rows] == [
            ("address", "10.0.0.0/8", "guessing"),
            ("clientid", "d1", ""),
        ]
        assert "guessing" in run("ban", "list").out
        run("ban", "remove", "clientid", "d1")
        run("ban", "remove", "clientid", "d1", wanted=ExitStatus.NOT_FOUND)
        assert [one.kind for one in store.bans(now_s=0)] == ["address"]

    def test_what_is_wrong_is_said(self, run: Any) -> None:
        assert "a moment is" in run("ban", "add", "clientid", "x", "--until", "soon", wanted=ExitStatus.USAGE).err
        assert "in the past" in run("ban", "add", "clientid", "x", "--until", "2020-01-01", wanted=ExitStatus.USAGE).err
        assert "no address" in run("ban", "add", "address", "mars", wanted=1).err
        run("ban", "add", "planet", "mars", wanted=ExitStatus.USAGE)


class TestAudit:
    def test_changes_are_listed_the_newest_last_and_without_secrets(self, run: Any) -> None:
        secret = run("user", "add", "ann\x1b", "--generate", "--json").data["secret"]
        run("ban", "add", "clientid", "d1", "--reason", "guessing")
        said = run("audit").out
        assert [line.split()[2:4] for line in said.splitlines()[1:]] == [["user", "add"], ["ban", "add"]]
        assert "\x1b" not in said
        assert secret not in said
        assert [entry["action"] for entry in run("audit", "--json", "--limit", "1").data] == ["ban add"]
        run("audit", "--limit", "0", wanted=ExitStatus.USAGE)


class TestForget:
    @pytest.fixture
    def device(self, store: Store) -> str:
        name = "meter-4711"
        with store.edit("ann") as edit:
            edit.users.add(User("clientid", name, attributes={"owner": "Mrs Secret"}))
            edit.users.change("clientid", name, attributes={"owner": "Mrs Secret"})
            edit.users.add(User("username", name))
            edit.users.add(User("username", f"{name}0"))
            edit.rules.append(Rule("allow", "mine", (("clientid", name),)))
            edit.rules.append(Rule("allow", "both", (("tenant", "acme"), ("username", name), ("clientid", "x"))))
            edit.rules.append(Rule("allow", "other", (("username", f"{name}0"),)))
            edit.bans.add(Ban("clientid", name))
        return name

    def test_nothing_is_left_of_it_in_the_database_or_its_files(self, run: Any, store: Store, device: str) -> None:
        data = run("forget", device, "--json").data
        assert {(user["kind"], user["name"]) for user in data["users"]} == {("clientid", device), ("username", device)}
        assert (len(data["rules"]), data["bans"], data["wiped"]) == (2, 1, True)
        assert [user.identity for user in store.users()] == [f"{device}0"]
        assert [one.rule.topic for one in store.rules()] == ["other"]
        assert {entry.subject for entry in store.audit(20) if "erased" in entry.subject} == {data["pseudonym"]}
        with store.edit("ann") as edit:
            edit.users.remove("username", f"{device}0")
            edit.rules.clear()
            edit.session.db.execute("DELETE FROM audit WHERE subject = ?", (f"username {device}0",))
        store.close()
        with contextlib.closing(sqlite3.connect(store.path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for file in store.path.parent.iterdir():
            assert device.encode() not in file.read_bytes(), file
            assert b"Mrs Secret" not in file.read_bytes(), file
        run("forget", device, wanted=ExitStatus.NOT_FOUND)

    def test_the_log_is_emptied_while_the_service_has_the_file_open(self, run: Any, store: Store, device: str) -> None:
        assert store.find_user("clientid", device) is not None
        run("forget", device)
        wal = store.path.with_name(store.path.name + "-wal")
        assert not wal.exists() or device.encode() not in wal.read_bytes()
        assert b"Mrs Secret" not in store.path.read_bytes()

    def test_rules_for_others_are_named_and_left(self, run: Any, store: Store, device: str) -> None:
        with store.edit("ann") as edit:
            (left,) = edit.rules.extend([Rule("allow", f"devices/{device}/#", (("username", "boss"),))])
        said = run("forget", device, wanted=ExitStatus.INCOMPLETE).out
        assert f"acl remove {left}" in said

    def test_a_ban_of_another_spelling_is_named_and_left(self, run: Any, store: Store, device: str) -> None:
        """It bans the device too, but is perhaps meant for another one."""
        add_bans(store, Ban("username", "Meter-4711 "))
        said = run("forget", device, wanted=ExitStatus.INCOMPLETE).out
        assert "`gateway auth forget 'Meter-4711 '`" in said
        assert run("forget", "Meter-4711 ", "--json").data["banned_spellings"] == []
        assert not list(store.bans(now_s=0))

    def test_a_group_of_the_same_name_is_another_thing(self, run: Any, store: Store, device: str) -> None:
        edited(store, lambda edit: edit.rules.append(Rule("allow", "stays", (("group", device), ("username", "boss")))))
        run("forget", device)
        assert [one.rule.topic for one in store.rules()] == ["other", "stays"]

    def test_a_dry_run_changes_nothing(self, run: Any, store: Store, device: str) -> None:
        store.refresh()
        before = (store.count_users(), store.count_rules(), len(store.audit(99)), store.version)
        said = run("forget", device, "--dry-run").out
        assert "Would be removed" in said
        store.refresh()
        assert (store.count_users(), store.count_rules(), len(store.audit(99)), store.version) == before

    def test_an_unknown_name_is_not_found(self, run: Any, store: Store, device: str) -> None:
        said = run("forget", "METER-4711", wanted=ExitStatus.NOT_FOUND).out
        assert "Nothing is stored" in said
        assert f"a ban of {device}" in said
        run("forget", "'; DELETE FROM users; --", wanted=ExitStatus.NOT_FOUND)
        assert store.count_users() == 3


def test_the_environment_does_not_say_who_changed_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """``LOGNAME=ann gateway auth ban add …`` stood in the audit as ann's."""
    honest = operator()
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "somebody-else")
    assert operator() == honest
    assert honest.startswith(f"uid={os.getuid()}")
    monkeypatch.setenv("SUDO_USER", "ann")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert operator() == "uid=4000000", "who is not root has set SUDO_USER himself"
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert operator() == "uid=0(root) for ann"
