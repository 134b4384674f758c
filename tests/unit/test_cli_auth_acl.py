"""gateway auth acl: rules are added, listed, tried, removed, imported and exported; what is wrong changes nothing."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from auth.model import Tenant
from auth.store.records import User
from auth.store.store import Store
from config.errors import ExitStatus
from tests.command_line import Cli

DATABASE = Path("data/auth/auth.sqlite3")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with settings and no database."""
    monkeypatch.chdir(tmp_path)
    Path("gateway.toml").write_text('instance = "site-a"\n[auth]\nclient_attributes = ["site"]\n')


class Command:
    """Runs ``gateway auth acl`` and keeps what it printed."""

    def __init__(self, cli: Cli) -> None:
        self._cli = cli
        self.errors = ""

    def __call__(self, *arguments: str, status: int = 0) -> str:
        out, self.errors = self._cli("auth", "acl", *arguments, status=status)
        return out

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", status=status))


@pytest.fixture
def acl(cli: Cli) -> Command:
    return Command(cli)


def everybody(acl: Command, permission: str, topic: str, *more: str) -> int:
    number: int = acl.json("add", permission, topic, "--everybody", *more)["id"]
    return number


def test_the_list_keeps_its_order(acl: Command) -> None:
    second = everybody(acl, "allow", "b")
    third = everybody(acl, "allow", "c")
    first = everybody(acl, "deny", "a", "--first")
    between = everybody(acl, "allow", "bc", "--before", str(third))
    assert [rule["id"] for rule in acl.json("list")] == [first, second, between, third]
    assert acl("list").splitlines() == [
        "ID  PERMISSION  ACTION  TOPIC  WHO        ONLY",
        " 3  deny        all     a      everybody",
        " 1  allow       all     b      everybody",
        " 4  allow       all     bc     everybody",
        " 2  allow       all     c      everybody",
    ]


def test_all_that_a_rule_can_say(acl: Command) -> None:
    out = acl(
        *("add", "allow", "t/${clientid}/#", "--action", "publish", "--qos", "1,0", "--retain", "false", "--eq"),
        *("--group", "sensors", "--group", "north", "--tenant", "acme", "--attribute", "site=a=b"),
        *("--username", "ada", "--clientid", "dev", "--address", "10.0.0.0/8", "--common-name", "cn"),
    )
    who = (
        "username=ada and clientid=dev and group=sensors and group=north and tenant=acme and address=10.0.0.0/8 "
        "and common_name=cn and attribute=site=a=b"
    )
    assert out == f"Added rule 1: allow {who} to publish to t/${{clientid}}/#, as text, QoS 0 or 1, not retained.\n"
    (rule,) = acl.json("list")
    assert rule == {
        "id": 1, "permission": "allow", "action": "publish", "topic": "t/${clientid}/#", "eq": True, "qos": [0, 1],
        "retain": False, "who": who.split(" and "),
    }  # fmt: skip
    assert acl.json("list", "--tenant", "acme", "--group", "north") == [rule]
    assert acl.json("list", "--tenant", "acme", "--group", "south") == []
    assert acl.json("list", "--address", "10.9.9.9/8") == [rule], "a network in another spelling"


@pytest.mark.parametrize(("arguments", "fault"), [
    (["allow", "t"], "Name the clients of the rule"),
    (["allow", "t", "--everybody", "--group", "x"], "Name the clients of the rule"),
    (["allow", "t/#/x", "--everybody"], '"#" stands alone in the last level'),
    (["allow", "t", "--everybody", "--qos", "3"], "--qos 3: the qos of a rule"),
    (["allow", "t", "--attribute", "site"], "NAME=VALUE"),
    (["allow", "t", "--everybody", "--action", "subscribe", "--retain", "true"], "subscriptions alone"),
])  # fmt: skip
def test_a_rule_that_cannot_be_meant_is_refused(acl: Command, arguments: list[str], fault: str) -> None:
    acl("add", *arguments, status=ExitStatus.USAGE)
    assert fault in acl.errors
    assert not DATABASE.exists()


def test_a_rule_for_an_attribute_that_emqx_is_not_told_is_added_with_a_warning(acl: Command) -> None:
    acl("add", "allow", "${client_attrs.site}/x", "--attribute", "site=berlin")
    assert acl.errors == ""
    acl("add", "allow", "${client_attrs.line}/x", "--attribute", "hall=7")
    assert "hall, line" in acl.errors
    assert "auth.client_attributes" in acl.errors
    assert len(acl.json("list")) == 2


def test_a_rule_before_one_that_is_not_there(acl: Command) -> None:
    everybody(acl, "allow", "a")
    acl("add", "allow", "b", "--everybody", "--before", "7", status=ExitStatus.NOT_FOUND)
    assert "There is no rule 7" in acl.errors
    assert len(acl.json("list")) == 1


def test_a_rule_about_retained_messages_is_about_publishing_unless_told_otherwise(acl: Command) -> None:
    assert acl.json("add", "deny", "t", "--everybody", "--retain", "true")["action"] == "publish"
    assert acl.json("add", "deny", "t", "--everybody", "--retain", "true", "--action", "all")["action"] == "all"


def test_removing_takes_all_or_none(acl: Command) -> None:
    for topic in "abc":
        everybody(acl, "allow", topic)
    acl("remove", "1", "9", status=ExitStatus.NOT_FOUND)
    assert "There is no rule 9" in acl.errors
    assert acl("remove", "3", "1", "3").splitlines() == [
        "Removed rule 3: allow everybody to publish and subscribe to c.",
        "Removed rule 1: allow everybody to publish and subscribe to a.",
    ]
    assert [rule["topic"] for rule in acl.json("list")] == ["b"]


def test_without_a_database_there_is_nothing_to_list(acl: Command) -> None:
    acl("list", status=ExitStatus.FAILED)
    assert "there is no database" in acl.errors


class TestTest:
    @pytest.fixture(autouse=True)
    def _filled(self, acl: Command) -> None:
        everybody(acl, "deny", "d/${clientid}/locked")
        everybody(acl, "allow", "d/${clientid}/#", "--action", "publish")
        acl("add", "allow", "sites/${client_attrs.site}/+", "--group", "operators", "--tenant", "acme")
        acl("add", "allow", "lab", "--address", "10.0.0.0/8")
        with Store(DATABASE).edit("test") as editor:
            editor.tenants.add(Tenant("acme", attributes={"site": "north", "floor": "1"}))
            editor.users.add(User("username", "ada", tenant="acme", groups=frozenset({"operators"})))
            editor.users.add(User("username", "root", is_superuser=True))

    @pytest.mark.parametrize(("asked", "begins"), [
        ("publish d/dev/x --clientid dev", "Allowed: database rule 2 allows it: allow everybody to publish to d/$"),
        ("publish d/dev/locked --clientid dev", "Denied: database rule 1 denies it: deny everybody"),
        ("subscribe $share/g/d/dev/# --clientid dev", "Denied: database rule 1 denies it"),
        ("publish d/dev/x", "Denied: no rule matches, and what no rule allows is denied.\nThe client: nothing is "),
        ("publish d/dev/# --clientid dev", "Denied: nothing can be published to this topic"),
        ("publish $SYS/x --username root", "Allowed: the user is a superuser"),
    ])  # fmt: skip
    def test_the_rule_that_decides_is_named(self, acl: Command, asked: str, begins: str) -> None:
        status = ExitStatus.OK if begins.startswith("Allowed") else ExitStatus.REFUSED
        out = acl("test", *asked.split(), status=status)
        assert out.startswith(begins)
        assert "The client: client id dev.\n" in out or "--clientid" not in asked

    def test_a_user_of_the_database_brings_what_it_has(self, acl: Command) -> None:
        found = acl.json("test", "subscribe", "sites/north/1", "--username", "ada")
        assert found == {
            "allowed": True,
            "reason": "database rule 3 allows it",
            "rule": {
                "source": "database rule 3",
                "permission": "allow",
                "action": "all",
                "topic": "sites/${client_attrs.site}/+",
                "who": ["group=operators", "tenant=acme"],
            },
            "tenant": "acme",
            "groups": ["operators"],
            "attributes": {"site": "north"},  # floor is not in auth.client_attributes
        }
        other = ("test", "subscribe", "sites/south/1", "--username", "ada")
        assert not acl.json(*other, status=ExitStatus.REFUSED)["allowed"]
        assert acl.json(*other, "--attribute", "site=south")["allowed"]
        assert not acl.json(*other, "--attribute", "site=south", "--group", "x", status=77)["allowed"]
        assert not acl.json(*other, "--attribute", "site=south", "--tenant", "", status=77)["allowed"]

    def test_a_stranger_has_what_is_given(self, acl: Command) -> None:
        given = ("--tenant", "acme", "--group", "operators", "--clientid", "new")
        assert acl.json("test", "publish", "sites/north/1", *given)["allowed"]
        assert acl.json("test", "publish", "lab", "--address", "::ffff:10.1.1.1")["allowed"]

    def test_a_subscription_has_no_retain_flag(self, acl: Command) -> None:
        acl("test", "subscribe", "a", "--retain", status=ExitStatus.USAGE)
        assert "a subscription has no retain flag" in acl.errors


STOCK = """\
{allow, {username, {re, "^dashboard$"}}, subscribe, ["$SYS/#"]}.
{allow, {username, {re, "^dev"}}, subscribe, ["dev/#"]}.
{deny, {zone, "z"}, all, ["z/#"]}.
{deny, all}.
"""


class TestFiles:
    def test_an_acl_conf_with_what_has_no_counterpart_is_refused(self, acl: Command) -> None:
        Path("acl.conf").write_text(STOCK)
        acl("import", "acl.conf", status=ExitStatus.CONFIG)
        lines = acl.errors.splitlines()
        assert lines[0].startswith("acl.conf, line 2 (allow): left out: the regular expression '^dev'")
        assert lines[1].startswith("acl.conf, line 3 (deny): left out: nothing here can ask about {zone")
        assert "2 of its rules have no counterpart" in lines[2]
        assert not DATABASE.exists()

    def test_the_rest_of_it_can_be_taken_over(self, acl: Command) -> None:
        Path("acl.conf").write_text(STOCK)
        found = acl.json("import", "acl.conf", "--partial", status=ExitStatus.INCOMPLETE)
        assert (found["added"], found["removed"], found["dry_run"]) == (1, 0, False)
        assert [(one["line"], one["permission"]) for one in found["remarks"]] == [(2, "allow"), (3, "deny")]
        assert [rule["topic"] for rule in acl.json("list")] == ["$SYS/#"]

    def test_a_remark_leaves_nothing_out(self, acl: Command) -> None:
        Path("acl.conf").write_text('{allow, {user, "a"}, all, ["t"]}.\n{allow, all}.')
        assert acl("import", "acl.conf") == "2 rules added.\n"
        assert acl.errors.startswith("acl.conf, line 2 (allow): note: {allow, all} is about topics that begin with $")

    def test_json_of_emqx(self, acl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        rule = {"permission": "allow", "action": "publish", "topic": "a"}
        text = json.dumps([{"rules": [rule]}, {"username": "ada", "rules": [rule]}])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + text.encode())))
        assert acl("import", "-") == "2 rules added.\n"
        assert [one.get("who") for one in acl.json("list")] == [["username=ada"], None]

    @pytest.mark.parametrize(("name", "content", "fault"), [
        ("x.json", b"{", "this is no JSON"), ("x.json", b'{"rules": [5]}', "rules[0]: a rule is a JSON object, not 5"),
        ("x.conf", b"{allow", "line 1: the file ends"), ("x.conf", b"\xff", "is not UTF-8, at byte 0"),
        ("none.json", None, "none.json cannot be read: No such file"),
    ])  # fmt: skip
    def test_a_broken_file_changes_nothing(self, acl: Command, name: str, content: bytes | None, fault: str) -> None:
        everybody(acl, "allow", "kept")
        if content is not None:
            Path(name).write_bytes(content)
        acl("import", name, "--replace", status=ExitStatus.CONFIG)
        assert fault in acl.errors
        assert [rule["topic"] for rule in acl.json("list")] == ["kept"]

    def test_what_a_dry_run_takes_is_what_is_taken(self, acl: Command) -> None:
        everybody(acl, "allow", "kept")
        rule = {"permission": "allow", "action": "all", "topic": "a", "who": ["tenant=a/b"]}
        Path("x.json").write_text(json.dumps({"rules": [rule]}))
        for dry in ([], ["--dry-run"]):
            acl("import", "x.json", *dry, status=ExitStatus.FAILED)
            assert "has a meaning of its own there" in acl.errors

    @pytest.mark.parametrize("name", ["rules.json", "rules.conf"])
    def test_an_export_comes_back_as_it_was(self, acl: Command, name: str) -> None:
        everybody(acl, "deny", "a/${clientid}", "--action", "publish", "--qos", "2")
        acl("add", "allow", "b/#", "--username", "ada", "--address", "10.0.0.0/8")
        everybody(acl, "allow", "c/#", "--eq", "--action", "subscribe")
        before = acl.json("list")
        assert acl("export", name) == f"3 rules are in {name}.\n"
        assert Path(name).stat().st_mode & 0o777 == 0o600
        said = acl("import", name, "--replace", "--dry-run")
        assert said == "3 rules would be removed, 3 rules would be added.\n"
        assert acl.json("list") == before
        assert acl("import", name, "--replace") == "3 rules removed, 3 rules added.\n"
        after = acl.json("list")
        assert [{**rule, "id": 0} for rule in after] == [{**rule, "id": 0} for rule in before]
        assert {rule["id"] for rule in after}.isdisjoint(rule["id"] for rule in before)

    def test_what_acl_conf_has_no_words_for_is_said(self, acl: Command) -> None:
        acl("add", "allow", "a", "--common-name", "cn")
        out = acl("export", "-", "--format", "acl.conf", status=ExitStatus.INCOMPLETE)
        assert "%% Left out: database rule 1. EMQX's rules cannot ask about the common_name" in out
        assert acl.errors.startswith("database rule 1 was left out: ")

    def test_an_export_overwrites_nothing(self, acl: Command) -> None:
        everybody(acl, "allow", "a")
        Path("rules.json").write_text("mine")
        acl("export", "rules.json", status=ExitStatus.USAGE)
        assert "is there already" in acl.errors
        assert Path("rules.json").read_text() == "mine"


def test_what_a_client_chose_does_not_reach_the_terminal_as_it_is(acl: Command) -> None:
    acl("add", "allow", "t", "--clientid", "\x1b[31mred")
    assert "\x1b" not in acl("list")
    assert "clientid=\\x1b[31mred" in acl("list")
