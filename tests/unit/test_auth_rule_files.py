"""Files of rules: our own JSON, what EMQX's REST API gives out, and acl.conf as it is written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.errors import ImportFormatError, RuleFormatError
from auth.model import Rule, Subject
from auth.rules.acl_claim import rules_of_claim
from auth.rules.acl_conf import read_acl_conf
from auth.rules.acl_conf_writing import write_acl_conf
from auth.rules.files import condition_of, condition_text, read_rules, write_rules
from auth.rules.rules import rule_problem
from auth.rules.topics import parse_topic
from tests.unit.access_parts import any_rule

PUBLISH = frozenset({"publish"})
SUBSCRIBE = frozenset({"subscribe"})


def texts(rules: list[Rule]) -> list[tuple[Any, ...]]:
    return [(rule.permission, rule.topic, rule.who) for rule in rules]


def test_what_emqx_gives_out_for_a_client() -> None:
    text = json.dumps(
        {
            "clientid": "dev-1",
            "rules": [
                {"topic": "a/+", "permission": "allow", "action": "publish", "qos": [0, 1], "retain": "all"},
                {"topic": "eq #", "permission": "deny", "action": "subscribe", "qos": [0, 1, 2], "retain": True},
            ],
        }
    )
    assert read_rules(text) == [
        Rule("allow", "a/+", (("clientid", "dev-1"),), PUBLISH, qos=frozenset({0, 1}), source="rules[0]"),
        Rule("deny", "#", (("clientid", "dev-1"),), SUBSCRIBE, eq=True, source="rules[1]"),
    ]


@pytest.mark.parametrize("page", [True, False])
def test_a_list_is_put_in_the_order_in_which_emqx_asks(page: bool) -> None:
    rule = {"permission": "allow", "action": "all"}
    groups = [
        {"rules": [{**rule, "topic": "all/1"}, {**rule, "topic": "all/2"}]},
        {"username": "u", "rules": [{**rule, "topic": "user"}]},
        {"clientid": "b", "rules": [{**rule, "topic": "client/b"}]},
        {"clientid": "a", "rules": [{**rule, "topic": "client/a"}]},
    ]
    text = json.dumps({"data": groups, "meta": {"count": 4}} if page else groups)
    assert texts(read_rules(text)) == [
        ("allow", "client/b", (("clientid", "b"),)),
        ("allow", "client/a", (("clientid", "a"),)),
        ("allow", "user", (("username", "u"),)),
        ("allow", "all/1", (("all", ""),)),
        ("allow", "all/2", (("all", ""),)),
    ]


@pytest.mark.parametrize(("content", "fault"), [
    ("{", "this is no JSON"),
    ("[" * 100_000, "nested too deep"),
    ('{"rules": [{"permission": "deny", "topic": "a", "topic": "b"}]}', "it holds a member twice"),
    ("5", "a file of rules is"),
    ("{}", "a file of rules is"),
    ("[[]]", "a file of rules is"),
    ('{"data": 5}', "a file of rules is"),
    ('{"data": [], "meta": {"count": 200, "hasnext": true}}', "this is one page of several"),
    ('{"rules": {}}', "rules: it is a list, not a JSON object"),
    ('{"username": "", "rules": []}', "username: it is a text with at least one character"),
    ('{"rules": [5]}', "rules[0]: a rule is a JSON object, not 5"),
    ('[{"rules": []}, {"rules": [{"action": "all"}]}]', "[1].rules[0]: the permission"),
    ('{"rules": [{"permission": "allow", "action": "all", "topic": "a/#/b"}]}', "rules[0]: the filter 'a/#/b'"),
    ('{"rules": [{"permission": "allow", "action": "all", "topic": "${x}"}]}', "rules[0]: ${x} is no placeholder"),
    ('{"rules": [{"permission": "allow", "action": "all", "topic": "a", "who": [5]}]}', "a list of conditions"),
    ('{"rules": [{"permission": "allow", "action": "all", "topic": "a", "who": ["x"]}]}', "nothing that rules"),
    ('{"rules": [{"permission": "allow", "action": "all", "topic": "a", "who": []}]}', "who is empty"),
    ('{"rules": [{"permission": "allow", "action": "all", "topic": "a", "who": ["group="]}]}', "cannot be empty"),
    ('{"rules": [{"permission": "allow", "action": "all", "topic": "a", "eq": 1}]}', "eq is true or false"),
    ('{"rules": [{"permission": "allow", "action": "all", "topics": ["a"], "eq": true}]}', "'topics' is no part"),
    ('{"rules": [{"permission": "allow", "action": "all", "topic": "a", "whom": ["x"]}]}', "'whom' is no part"),
    ('[{"client_id": "c", "rules": []}]', "'client_id' is no part of the object with rules"),
    ('[{"rules": []}, {"client_id": "c", "rules": []}]', "'client_id' is no part of [1].rules"),
    ('{"rules": [{"permission": "allow", "action": "all", "eq": true}]}', "the topic of a rule is a text"),
    ('{"rules": [{"permission": "allow", "action": "sub", "topic": "a", "eq": true, "retain": true}]}', "alone"),
])  # fmt: skip
def test_a_file_that_is_wrong_names_the_place(content: str, fault: str) -> None:
    with pytest.raises(ImportFormatError) as caught:
        read_rules(content)
    assert fault in str(caught.value)


@pytest.mark.parametrize(("text", "condition"), [
    ("all", ("all", "")),
    ("group=sensors", ("group", "sensors")),
    ("attribute=site=a=b", ("attribute", "site=a=b")),
    ("address=10.0.0.0/8", ("address", "10.0.0.0/8")),
])  # fmt: skip
def test_conditions_are_written_as_they_are_read(text: str, condition: Any) -> None:
    assert condition_of(text) == condition
    assert condition_text(*condition) == text


def test_short_names_of_conditions() -> None:
    assert [condition_of(text)[0] for text in ("user=a", "client=a", "cn=a", "ip=::1")] == [
        "username", "clientid", "common_name", "address",
    ]  # fmt: skip
    with pytest.raises(RuleFormatError, match="nothing that rules can ask about"):
        condition_of("sensors")


NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
CONDITIONS = st.one_of(
    st.tuples(st.sampled_from(["username", "clientid", "group", "tenant", "common_name"]), NAMES),
    st.tuples(st.just("attribute"), st.tuples(st.sampled_from(["site", "x"]), NAMES).map("=".join)),
    st.tuples(st.just("address"), st.sampled_from(["10.0.0.0/8", "::1", "127.0.0.1"])),
)
TOPIC = st.lists(
    st.sampled_from(["a", "${clientid}", "${tenant}", "x${client_attrs.y}", "${$}{clientid}", "", "+", 'q"\\', "eq b"]),
    min_size=1,
    max_size=4,
).map("/".join)
RULES = any_rule(
    topic=TOPIC | TOPIC.map("{}/#".format),
    who=st.just((("all", ""),)) | st.lists(CONDITIONS, min_size=1, max_size=3).map(tuple),
).filter(lambda rule: not rule_problem(rule))


def plain(rules: Any) -> list[tuple[Any, ...]]:
    return [(*texts([rule]), rule.actions, rule.eq, rule.qos, rule.retain) for rule in rules]


@given(rules=st.lists(RULES, max_size=5))
def test_our_own_file_is_read_as_it_was_written(rules: list[Rule]) -> None:
    assert plain(read_rules(write_rules(rules))) == plain(rules)


def test_an_acl_conf_as_it_is_written() -> None:
    written = write_acl_conf(
        [
            Rule("allow", "d/${clientid}/#", actions=PUBLISH, qos=frozenset({1, 0}), retain=False),
            Rule("deny", "#", eq=True, actions=SUBSCRIBE),
            Rule("allow", "${tenant}/#", (("tenant", "acme"), ("group", "a.b"))),
            Rule("allow", "x", (("common_name", "cn"),), source="rule 4"),
            Rule("allow", "x/${clientid}", eq=True, source="rule 5"),
            Rule("allow", "a/${$}{b}"),
            Rule("allow", "a/${$}{b}/#", source="rule 7"),
        ]
    )
    tenant, group = '{client_attr, "tenant", "acme"}', r'{client_attr, "groups", {re, "(^|,)a\\.b(,|$)"}}'
    topics = '["${client_attrs.tenant}/#"]'
    head, _, body = written.text.partition("a/+.\n")
    assert head.startswith("%%")
    assert body.splitlines() == [
        '{allow, all, {publish, [{qos, [0, 1]}, {retain, false}]}, ["d/${clientid}/#"]}.',
        '{deny, all, subscribe, [{eq, "#"}]}.',
        f"{{allow, {{'and', [{tenant}, {group}]}}, all, {topics}}}.",
        "%% Left out: rule 4. EMQX's rules cannot ask about the common_name of a client",
        "%% Left out: rule 5. EMQX fills in no placeholder in a topic that is compared as text",
        '{allow, all, all, [{eq, "a/${b}"}]}.',
        "%% Left out: rule 7. EMQX would take its topic for something else, with a placeholder or eq in it",
        "{deny, all}.",
    ]
    assert [rule.source for rule, _reason in written.left_out] == ["rule 4", "rule 5", "rule 7"]


def test_what_is_left_out_cannot_become_a_rule() -> None:
    hostile = Rule("allow", "x", (("common_name", "cn"),), source="rule\n{allow, all}.\r\n%%")
    text = write_acl_conf([hostile]).text
    assert [line for line in text.splitlines() if not line.startswith("%%")] == ["{deny, all}."]


@given(rules=st.lists(RULES, max_size=5))
def test_an_acl_conf_that_was_written_is_read_as_the_same_rules(rules: list[Rule]) -> None:
    """But for conditions that become others on the way: tenants and groups are attributes there."""
    rules = [rule for rule in rules if not {"tenant", "group"} & {kind for kind, _ in rule.who}]
    written = write_acl_conf(rules)
    left_out = [rule for rule, _reason in written.left_out]
    found = read_acl_conf(written.text)
    assert found.untranslated == ()
    kept = [rule for rule in rules if rule not in left_out]
    assert len(found.rules) == len(kept)
    for ours, theirs in zip(kept, found.rules, strict=True):
        assert (theirs.permission, theirs.actions, theirs.qos) == (ours.permission, ours.actions, ours.qos)
        assert theirs.retain == (ours.retain if "publish" in ours.actions else None)
        assert set(theirs.who) == set(ours.who)
        assert theirs.eq == ours.eq or "${$}" in ours.topic or ours.topic.startswith("eq ")
        assert theirs.topic == ours.topic.replace("${tenant}", "${client_attrs.tenant}")


def test_a_placeholder_that_emqx_does_not_have_is_not_taken_from_its_rules() -> None:
    """``${tenant}`` is text to EMQX. Taken over as it stood, it allowed each tenant its own topics."""
    for topic in ("${tenant}/#", "a/${.tenant}/b"):
        entry = {"permission": "allow", "action": "all", "topic": topic}
        with pytest.raises(ImportFormatError, match="text to EMQX"):
            read_rules(json.dumps({"rules": [entry]}))
        for claim in ([entry], {"sub": [topic]}):
            with pytest.raises(RuleFormatError, match="text to EMQX"):
                rules_of_claim(claim)
        found = read_acl_conf(f'{{allow, all, all, ["{topic}", "kept/#"]}}.')
        assert [rule.topic for rule in found.rules] in ([], ["kept/#"])
        assert "text to EMQX" in str(found.untranslated)
    text = {"permission": "deny", "action": "all", "topic": "${$}{tenant}/#"}
    (rule,) = read_rules(json.dumps({"rules": [text]}))
    assert parse_topic(rule.topic).resolve(Subject(tenant="acme")) == "${tenant}/#"
