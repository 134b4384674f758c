"""A list of rules that was made once, with values put in, is the list that would be made for each client afresh."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from auth.model import Rule, Subject
from auth.rules import acl_text
from auth.rules.acl_text import AclText
from auth.rules.hand_over import hand_over
from tests.unit.access_parts import any_rule

FLEET = (
    Rule("deny", "devices/${username}/secret"),
    Rule("allow", "devices/${username}/#"),
    Rule("allow", "commands/${clientid}/+", actions=frozenset({"subscribe"})),
    Rule("allow", "sites/${client_attrs.site}/#", who=(("group", "pumps"),), qos=frozenset({0, 1})),
)

_LEVELS = st.sampled_from([
    "a", "b", "+", "", "$SYS", "%s%", "${username}", "${clientid}", "${tenant}", "${client_attrs.site}",
    "x${username}", "${$}{a}",
])  # fmt: skip
_TOPICS = st.builds(
    lambda levels, rest: "/".join([*levels, "#"]) if rest else "/".join(levels),
    st.lists(_LEVELS, min_size=1, max_size=4),
    st.booleans(),
)
_WHO = st.sampled_from([(("all", ""),), (("group", "g"),), (("username", "a"),), (("tenant", "t"),), ()])
_RULES = any_rule(topic=_TOPICS | st.sampled_from(["${nonsense}/a", "$share/g/a", "eq a"]), who=_WHO)
_VALUES = st.sampled_from(
    ["", "a", "b", "dev-1", "dev-2", "+", "#", "a/b", "$SYS", "${clientid}", 'q"\\', "é", "x" * 300]
)
_SUBJECTS = st.builds(
    Subject, username=_VALUES, clientid=_VALUES, tenant=st.sampled_from(["", "t", "a", "dev-1"]),
    groups=st.sampled_from([frozenset(), frozenset({"g"})]),
    attributes=st.builds(lambda site: {"site": site} if site else {}, _VALUES),
)  # fmt: skip


def afresh(rules: tuple[Rule, ...], subject: Subject, limit: int) -> str:
    acl = hand_over(rules, subject, limit=limit)
    return "" if acl is None else json.dumps(acl, separators=(",", ":"))


@given(st.lists(_RULES, max_size=5), st.lists(_SUBJECTS, min_size=1, max_size=6), st.sampled_from([1, 3, 100]))
@example(list(FLEET), [Subject("dev-1", "dev-1"), Subject("dev-2", "dev-1"), Subject("secret", "dev-2")], 100)
@example([Rule("deny", "x${username}"), Rule("allow", "xa/#")], [Subject("c", "c"), Subject("a", "c")], 100)
def test_it_says_what_hand_over_says(rules: list[Rule], subjects: list[Subject], limit: int) -> None:
    writer = AclText(limit)
    for subject in (*subjects, *subjects):  # the second time from what was kept
        assert writer.write(tuple(rules), subject) == afresh(tuple(rules), subject, limit), subject


def count(monkeypatch: pytest.MonkeyPatch) -> list[Subject]:
    """For whom the list was made."""
    made: list[Subject] = []

    def counted(rules: tuple[Rule, ...], subject: Subject, *, limit: int) -> object:
        made.append(subject)
        return hand_over(rules, subject, limit=limit)

    monkeypatch.setattr(acl_text, "hand_over", counted)
    return made


def test_a_fleets_list_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count(monkeypatch)
    writer = AclText(100)
    for number in range(50):
        name = f"dev-{number}"
        subject = Subject(name, name, groups=frozenset({"pumps"}), attributes={"site": "berlin"})
        text = writer.write(FLEET, subject)
        assert f'"devices/{name}/#"' in text
        assert '"sites/berlin/#"' in text
    assert len(made) == 1
    assert not any(one.username.startswith("dev-") for one in made)


@pytest.mark.parametrize("name", ["devices", "secret", "$SYS", "a b", "x" * 257, "ö", "", "a+"])
def test_what_is_not_ordinary_is_made_afresh(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = count(monkeypatch)
    writer = AclText(100)
    writer.write(FLEET, Subject(name, "c"))
    writer.write(FLEET, Subject(name, "c"))
    assert [one.username for one in made] == [name, name]


def test_a_clients_own_rules_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read from the database for each login, so nothing would ever be found again."""
    made = count(monkeypatch)
    writer = AclText(100)
    for _ in range(3):
        writer.write((Rule("allow", "a/#", who=(("username", "u"),)),), Subject("u", "c"))
    assert len(made) == 3


def test_what_is_kept_is_bounded() -> None:
    writer = AclText(100)
    rules = [Rule("allow", f"a/{number}/#") for number in range(3 * acl_text._KEPT)]
    for rule in rules:
        writer.write((rule,), Subject("u", "c"))
    assert len(writer._shapes) <= acl_text._KEPT
