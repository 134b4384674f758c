"""`gateway auth explain`: it says what the service decides, for the reason that decided."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auth import passwords
from auth.hashing import Hasher
from auth.logins.chain import make_chain
from auth.logins.explain import Explanation, TrustingHasher, explain
from auth.logins.lockouts import LockedNow
from auth.model import AccessRequest, Allow, Ban, LoginRequest, Rule, Subject, Tenant
from auth.rules.reasons import mismatch
from auth.rules.rules import decide
from auth.service import AccessService
from auth.store.records import User
from auth.store.store import Store
from config.errors import ExitStatus
from config.tables.auth import AuthSettings
from gateway.cli.access.explain_text import as_json, as_text
from tests.command_line import Cli
from tests.unit.access_parts import any_rule, opened_store

NOW = 1_800_000_000
SECRET = "an unusual secret"
STORED = passwords.hash_argon2id(SECRET, passwords.Argon2Cost(8, 1))
SUBSCRIBE, PUBLISH = frozenset({"subscribe"}), frozenset({"publish"})
RULES = (
    Rule("allow", "cmd/${clientid}/#", actions=SUBSCRIBE),
    Rule("deny", "plant/secret/#"),
    Rule("allow", "plant/${client_attrs.site}/#", who=(("group", "ops"),)),
    Rule("allow", "${tenant}/#", who=(("tenant", "acme"),), qos=frozenset({1})),
    Rule("allow", "retained/#", actions=PUBLISH, retain=True),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened_store(tmp_path / "data" / "auth" / "auth.sqlite3") as one:
        with one.edit("test") as edit:
            edit.tenants.add(Tenant("acme", logins_per_second=7))
            edit.tenants.add(Tenant("closed", enabled=False))
            edit.users.add(
                User(
                    "username", "ada", STORED, tenant="acme", groups=frozenset({"ops", "floor"}),
                    attributes={"site": "berlin", "other": "x"},
                )
            )  # fmt: skip
            edit.users.add(User("username", "carl", STORED, tenant="closed"))
            edit.users.add(User("username", "root", STORED, is_superuser=True))
            edit.users.add(User("username", "gone", STORED, disabled=True))
            edit.bans.add(Ban("clientid", "bad", reason="flooded the plant"))
            edit.rules.extend(RULES)
        one.refresh()
        yield one


def ask(store: Store, request: LoginRequest, access: Any = None, **tables: Any) -> Explanation:
    given = {name: tables.pop(name) for name in ("known", "lock_outs", "more_lock_outs") if name in tables}
    settings_ = AuthSettings.model_validate({"client_attributes": ["site"], **tables})

    async def run() -> Explanation:
        hasher = Hasher(settings_.hashing, store.device_keys())
        chain = make_chain(settings_, store, hasher if request.password else TrustingHasher())  # type: ignore[arg-type]
        await chain.start()
        try:
            return await explain(settings_, store, chain, request, access=access, now_s=NOW, **given)
        finally:
            await chain.close()
            hasher.close()

    return asyncio.run(run())


def text_of(explanation: Explanation) -> str:
    return as_text(explanation, AuthSettings(), color=False)


def test_the_rule_that_decides_and_why_those_before_it_do_not(store: Store) -> None:
    found = ask(store, LoginRequest("ada", "press-7"), ("publish", "plant/berlin/x", 0, False))
    assert found.access.decision.allowed
    assert [one.why_not for one in found.access.judgements] == [
        "it is about subscribing alone",
        "plant/secret/# does not match",
        "",
    ]
    assert found.access.rest == 2
    text = text_of(found)
    assert "Allowed: database rule" in text
    assert "1  database  knows it: as ada" in text
    assert "It is let in by database, if its password or certificate is right." in text
    assert "tenant      acme  (7 new logins a second)" in text
    told = json.loads(as_json(found))["answer"]
    assert told["client_attrs"] == {"site": "berlin", "tenant": "acme", "groups": "floor,ops"}


def test_a_right_password_is_checked_when_it_is_there(store: Store) -> None:
    assert ask(store, LoginRequest("ada", "c", SECRET)).obstacle == ""
    wrong = ask(store, LoginRequest("ada", "c", "wrong"))
    assert wrong.obstacle == "The password is wrong, or the user has none."
    assert "wrong" not in repr(wrong).replace("wrong, or", "")


@pytest.mark.parametrize(("username", "clientid", "obstacle"), [
    ("ada", "bad", "The client id bad is banned: flooded the plant."),
    ("nobody", "c", "No authenticator of auth.chain knows it."),
    ("gone", "c", "The user is disabled."),
    ("carl", "c", "The user's tenant is disabled."),
    ("ada", "c", ""),
])  # fmt: skip
def test_what_stands_in_the_way(store: Store, username: str, clientid: str, obstacle: str) -> None:
    found = ask(store, LoginRequest(username, clientid))
    assert found.obstacle == obstacle
    text = text_of(found)
    if obstacle:
        assert f"It is not let in. {obstacle}" in text
        assert "nothing: it is not let in" in text
        assert json.loads(as_json(found))["answer"] is None
    else:
        assert "It is let in" in text


def test_a_lock_out_is_said_where_it_holds_and_of_whom_it_may_not(store: Store) -> None:
    locked = [LockedNow("user", "press-7", "", 20 * 10**9)]
    found = ask(store, LoginRequest("ada", "press-7"), lock_outs=locked)
    assert found.obstacle == "Its user is locked out for 20 s more, unless it logged in from its address lately."
    assert not ask(
        store, LoginRequest("ada", "press-7"), lock_outs=locked, database={"identities": ["username"]}
    ).lock_out


@pytest.mark.parametrize(("address", "obstacle", "none"), [
    ("", True, "ban         none of its names; give its --address"),
    ("192.0.2.1", True, "ban         none\n"),
    ("192.0.2.2", False, "lock-out    none\n"),
])  # fmt: skip
def test_without_an_address_it_is_said_that_only_names_were_looked_up(
    store: Store, address: str, obstacle: bool, none: str
) -> None:
    locked = [LockedNow("user", "ada", "192.0.2.1", 20 * 10**9)]
    found = ask(store, LoginRequest("ada", "press-7", peerhost=address), lock_outs=locked)
    assert bool(found.obstacle) is obstacle
    assert none in text_of(found)


@pytest.mark.parametrize("more", [False, True])
def test_a_lock_out_may_be_one_that_the_service_does_not_tell(store: Store, more: bool) -> None:
    """In a storm it tells the newest thousand of users, and none of addresses."""
    locked = [LockedNow("user", "bob", "", 20 * 10**9)]
    found = ask(store, LoginRequest("ada", "press-7"), lock_outs=locked, more_lock_outs=more)
    assert json.loads(as_json(found))["lock_outs_known"] is not more
    assert ("lock-out    not known" in text_of(found)) is more
    assert ask(store, LoginRequest("bob"), lock_outs=locked, more_lock_outs=more).lock_outs_known


def test_it_comes_to_the_same_as_the_service_and_has_what_emqx_is_told(store: Store) -> None:
    """Each user, client id and topic, asked of both."""
    settings_ = AuthSettings.model_validate({"client_attributes": ["site"]})
    topics = ("cmd/p/x", "plant/secret/x", "plant/berlin/x", "plant/+/x", "acme/1", "retained/1", "#", "$SYS/x", "")

    async def both() -> None:
        hasher = Hasher(settings_.hashing, store.device_keys())
        chain = make_chain(settings_, store, hasher)
        trusting = make_chain(settings_, store, TrustingHasher())  # type: ignore[arg-type]
        service = AccessService(settings_, store, chain)
        for username, clientid in itertools.product(("ada", "carl", "gone", "nobody", ""), ("p", "bad", "a/b")):
            request = LoginRequest(username, clientid)
            answer = await service.login(replace(request, password=SECRET))
            for action, topic, qos in itertools.product(("publish", "subscribe"), topics, (0, 1)):
                found = await explain(
                    settings_, store, trusting, request, access=(action, topic, qos, False),
                    now_s=NOW,  # type: ignore[arg-type]
                )  # fmt: skip
                assert (found.obstacle == "") == (answer.result == "allow"), f"{request}: {found.obstacle!r}"
                if not found.obstacle:
                    assert json.loads(found.told.body(found.expire_at_s)) == json.loads(answer.body)
                access = service.authorise(AccessRequest(found.subject, action, topic, qos, retain=False))  # type: ignore[arg-type]
                if access.reason in {"rule", "no_rule"}:
                    assert found.access.decision.allowed == (access.result == "allow"), f"{request} {action} {topic}"
                else:
                    assert found.obstacle, f"{access.reason} is not told"
        await service.close()
        hasher.close()

    asyncio.run(both())


def test_a_superuser_is_said_to_be_one(store: Store) -> None:
    found = ask(store, LoginRequest("root", "c"), ("publish", "plant/secret/x", 0, False))
    text = text_of(found)
    assert "EMQX asks nothing about it and allows everything" in text
    assert "Allowed: it is a superuser" in text
    assert json.loads(as_json(found))["access"]["allowed"] is True


def test_who_is_in_no_source_can_be_tried_with_what_is_known_of_it(store: Store) -> None:
    known = Allow(source="", groups=frozenset({"ops"}), attributes={"site": "berlin"})
    found = ask(store, LoginRequest("new", "c"), ("publish", "plant/berlin/x", 0, False), known=known)
    assert found.access.decision.allowed
    assert found.obstacle


def test_later_sources_are_not_asked_and_tokens_need_the_token(store: Store) -> None:
    key = {"name": "k", "algorithms": ["HS256"], "secret": "0" * 32}
    found = ask(store, LoginRequest("ada", "c"), chain=["jwt", "database", "postgresql"], jwt={"keys": [key]})
    text = text_of(found)
    assert "jwt         does not know it: it checks the password itself, and none was given" in text
    assert "postgresql  is not asked: the chain has ended before it" in text


def test_hostile_names_do_not_reach_the_terminal(store: Store) -> None:
    name = "x\x1b[2J\x9b1m\nAllowed: everything" + "y" * 70_000
    found = ask(store, LoginRequest(name, name), ("publish", name, 0, False))
    text = text_of(found)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert len(text) < 10_000
    assert not [line for line in text.splitlines() if line.startswith("Allowed: everything")]
    assert "\x9b" not in as_json(found)


@pytest.mark.parametrize(("rule", "action", "why"), [
    (Rule("allow", "#", qos=frozenset({1, 2})), "publish", "it is about QoS 1 and 2 alone"),
    (Rule("allow", "#", retain=True), "publish", "it is about retained messages alone"),
    (Rule("allow", "#", who=(("group", "x"),)), "publish", "not in the group x"),
    (Rule("allow", "#", who=(("address", "10.0.0.0/8"),)), "publish", "the address is not in 10.0.0.0/8"),
    (Rule("allow", "#", who=(("all", ""), ("clientid", "d"))), "publish", "the client id is not d"),
    (Rule("allow", "#", who=()), "publish", "it concerns nobody"),
    (Rule("allow", "a/+", eq=True), "subscribe", "it is about the topic a/+ literally"),
    (Rule("allow", "a/b"), "subscribe", "a/b does not cover all of a/#"),
    (Rule("deny", "b/#"), "subscribe", "b/# has no topic in common with it"),
    (Rule("allow", "a/${username}"), "publish",
        "${username} has no value, or one with +, # or / in it, and then matches nothing"),
])  # fmt: skip
def test_why_a_rule_does_not_match(rule: Rule, action: Any, why: str) -> None:
    topic = "a/#" if action == "subscribe" else "a/c"
    request = AccessRequest(Subject(username="", clientid="c", peerhost="192.0.2.1"), action, topic)
    assert mismatch(rule, request) == why
    assert decide((rule,), request).rule is None


TOPICS = st.sampled_from(
    ["a", "a/b", "a/#", "+/b", "#", "a/${clientid}", "${username}/b", "$SYS/a", "$share/g/a/b", "", "a/+/c", "${x}"]
)
RULE = any_rule(
    topic=TOPICS,
    who=st.sampled_from([(("all", ""),), (("clientid", "a"),), (("group", "g"),), (("address", "10.0.0.0/8"),), ()]),
)
REQUEST = st.builds(
    AccessRequest,
    subject=st.builds(
        Subject, username=st.sampled_from(["", "a", "a/b"]), clientid=st.sampled_from(["", "a", "b", "+"]),
        peerhost=st.sampled_from(["", "10.0.0.1"]), groups=st.sampled_from([frozenset(), frozenset({"g"})]),
    ),
    action=st.sampled_from(["publish", "subscribe"]),
    topic=TOPICS,
    qos=st.integers(0, 2),
    retain=st.booleans(),
)  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(RULE, REQUEST)
def test_a_reason_is_given_exactly_when_the_rule_does_not_decide(rule: Rule, request: AccessRequest) -> None:
    decided = decide((rule,), request).rule is rule
    why = mismatch(rule, request)
    assert decided == (why == ""), f"{rule} {request}: {why!r}"


class TestCommand:
    @pytest.fixture
    def config(self, store: Store, tmp_path: Path) -> str:
        file = tmp_path / "gateway.toml"
        file.write_text(f'data_dir = "{tmp_path / "data"}"\n[auth]\nclient_attributes = ["site"]\n')
        return str(file)

    def test_it_prints_a_page(self, config: str, cli: Cli) -> None:
        arguments = ["--username", "ada", "--clientid", "p", "--topic", "cmd/p/x", "--action", "subscribe"]
        out, err = cli("auth", "explain", "--config", config, *arguments)
        assert "Subscribe to cmd/p/x (QoS 0)" in out
        assert "decides" in out
        assert "\x1b" not in out
        assert not err

    def test_it_makes_no_database(self, tmp_path: Path, cli: Cli) -> None:
        file = tmp_path / "gateway.toml"
        file.write_text(f'data_dir = "{tmp_path / "elsewhere"}"\n')
        said = cli("auth", "explain", "--config", file, "--username", "ada", status=ExitStatus.FAILED)
        assert "there is no database" in said.err
        assert not (tmp_path / "elsewhere").exists()

    def test_it_prints_json_and_nothing_else(self, config: str, cli: Cli) -> None:
        document = json.loads(cli("auth", "explain", "--config", config, "--clientid", "x", "--json").out)
        assert document["login"]["reason"] == "unknown"
        assert "access" not in document

    def test_a_password_comes_from_a_file_and_goes_nowhere(self, config: str, tmp_path: Path, cli: Cli) -> None:
        file = tmp_path / "password"
        file.write_text(f"{SECRET}\n")
        arguments = ["--username", "ada", "--password-file", str(file)]
        for more in ([], ["--json"]):
            out, err = cli("auth", "explain", "--config", config, *arguments, *more)
            assert SECRET not in out + err
        assert json.loads(out)["login"]["password_checked"] is True
        assert json.loads(out)["login"]["allowed"] is True

    @pytest.mark.parametrize(("arguments", "says"), [
        ([], "say which client"),
        (["--username", "ada", "--topic", "a"], "go together"),
        (["--username", "ada", "--password-file", "none"], "none cannot be read"),
        (["--username", "ada", "--attribute", "site"], "NAME=VALUE"),
    ])  # fmt: skip
    def test_arguments_that_make_no_question(self, config: str, arguments: list[str], says: str, cli: Cli) -> None:
        assert says in cli("auth", "explain", "--config", config, *arguments, status=ExitStatus.USAGE).err
