"""EMQX's acl.conf: what becomes rules, and what is listed because rules cannot say it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.errors import ImportFormatError
from auth.model import Rule
from auth.rules.acl_conf import read_acl_conf
from auth.rules.emqx_forms import literal_of_regex
from auth.rules.erlang_terms import DEEPEST, Atom, parse_terms, quoted
from auth.rules.rules import rule_problem

PUBLISH = frozenset({"publish"})
SUBSCRIBE = frozenset({"subscribe"})
BOTH = PUBLISH | SUBSCRIBE
ALL = (("all", ""),)

STOCK = """\
%%-------------- Default ACL rules -------------------------------------------------------

{allow, {username, {re, "^dashboard$"}}, subscribe, ["$SYS/#"]}.

{allow, {ipaddr, "127.0.0.1"}, all, ["$SYS/#", "#"]}.

{deny, all, subscribe, ["$SYS/#", {eq, "#"}]}.

{allow, all}.
%% NOTE! when deploy in production:
"""


def test_the_file_that_emqx_comes_with() -> None:
    found = read_acl_conf(STOCK)
    assert found.rules == (
        Rule("allow", "$SYS/#", (("username", "dashboard"),), SUBSCRIBE, source="line 3"),
        Rule("allow", "$SYS/#", (("address", "127.0.0.1"),), BOTH, source="line 5"),
        Rule("allow", "#", (("address", "127.0.0.1"),), BOTH, source="line 5"),
        Rule("deny", "$SYS/#", ALL, SUBSCRIBE, source="line 7"),
        Rule("deny", "#", ALL, SUBSCRIBE, eq=True, source="line 7"),
        Rule("allow", "#", ALL, BOTH, source="line 9"),
    )
    (listed,) = found.untranslated
    assert (listed.line, listed.left_out) == (9, False)
    assert "begin with $ too" in listed.reason


def rules(text: str) -> list[tuple[Any, ...]]:
    found = read_acl_conf(text)
    assert found.untranslated == ()
    return [(rule.permission, rule.who, rule.topic) for rule in found.rules]


def test_a_last_denial_of_everything_is_what_happens_anyway() -> None:
    found = read_acl_conf('{allow, all, publish, ["a"]}.\n{deny, all}.')
    assert [rule.topic for rule in found.rules] == ["a"]
    assert found.untranslated == ()


def test_what_stands_behind_everything_is_never_reached() -> None:
    found = read_acl_conf('{deny, all}.\n{allow, all, publish, ["a"]}.\n{allow, {zone, "z"}, all, ["b"]}.')
    assert [(rule.permission, rule.topic) for rule in found.rules] == [("deny", "#")]
    assert [(one.line, one.reason) for one in found.untranslated] == [
        (2, "it is never reached: line 1 decides everything"),
        (3, "it is never reached: line 1 decides everything"),
    ]


@pytest.mark.parametrize(("who", "expected"), [
    ("all", [ALL]),
    ('{user, "u"}', [(("username", "u"),)]),
    ('{username, <<"u">>}', [(("username", "u"),)]),
    ('{client, <<"é"/utf8>>}', [(("clientid", "é"),)]),
    ('{clientid, {re, "^a\\\\.b$"}}', [(("clientid", "a.b"),)]),
    ('{ipaddr, "10.0.0.0/8"}', [(("address", "10.0.0.0/8"),)]),
    ('{ipaddrs, ["10.0.0.1", "::1"]}', [(("address", "10.0.0.1"),), (("address", "::1"),)]),
    ('{client_attr, "site", "north"}', [(("attribute", "site=north"),)]),
    ('{client_attr, <<"site">>, {re, "^x=y$"}}', [(("attribute", "site=x=y"),)]),
    ('{\'and\', [{user, "u"}, {client, "c"}]}', [(("username", "u"), ("clientid", "c"))]),
    ("{'and', [all, {client, \"c\"}]}", [(("clientid", "c"),)]),
    ("{'and', [all, all]}", [ALL]),
    ("{'or', [{user, \"u\"}, all]}", [(("username", "u"),), ALL]),
    (
        '{\'and\', [{\'or\', [{user, "u"}, {user, "v"}]}, {ipaddrs, ["1.1.1.1", "2.2.2.2"]}]}',
        [
            (("username", "u"), ("address", "1.1.1.1")),
            (("username", "u"), ("address", "2.2.2.2")),
            (("username", "v"), ("address", "1.1.1.1")),
            (("username", "v"), ("address", "2.2.2.2")),
        ],
    ),
])  # fmt: skip
def test_whom_a_rule_concerns(who: str, expected: list[Any]) -> None:
    assert rules(f'{{allow, {who}, all, ["t"]}}.') == [("allow", one, "t") for one in expected]


@pytest.mark.parametrize(("action", "actions", "qos", "retain"), [
    ("publish", PUBLISH, set(), None),
    ("subscribe", SUBSCRIBE, set(), None),
    ("all", BOTH, set(), None),
    ("pubsub", BOTH, set(), None),
    ("{publish, []}", PUBLISH, set(), None),
    ("{publish, [{qos, 1}, {retain, true}]}", PUBLISH, {1}, True),
    ("{all, [{qos, [0, 1]}, {retain, false}]}", BOTH, {0, 1}, False),
    ("{all, [{qos, 0}, {qos, 2}, {retain, all}]}", BOTH, {0, 2}, None),
    ("{subscribe, [{qos, [0, 1, 2]}, {retain, true}]}", SUBSCRIBE, set(), None),
])  # fmt: skip
def test_actions(action: str, actions: Any, qos: set[int], retain: bool | None) -> None:
    (rule,) = read_acl_conf(f'{{deny, all, {action}, ["t"]}}.').rules
    assert (rule.actions, rule.qos, rule.retain) == (actions, qos, retain)


@pytest.mark.parametrize(("topic", "text", "eq"), [
    ('"a/#"', "a/#", False),
    ('{eq, "a/#"}', "a/#", True),
    ('"eq a/#"', "a/#", True),
    ('{eq, "a/${clientid}"}', "a/${$}{clientid}", True),
    ('"a/${clientid}/${username}"', "a/${clientid}/${username}", False),
    ('"a/${.clientid}"', "a/${clientid}", False),
    ('"${cn}/${client_attrs.site}"', "${cert_common_name}/${client_attrs.site}", False),
    ('"c/%c/u/%u/%cx"', "c/${clientid}/u/${username}/%cx", False),
    ('"${$}{x}"', "${$}{x}", False),
    ('"a" "/b"', "a/b", False),
])  # fmt: skip
def test_topics(topic: str, text: str, eq: bool) -> None:
    (rule,) = read_acl_conf(f"{{allow, all, all, [{topic}]}}.").rules
    assert (rule.topic, rule.eq) == (text, eq)


@pytest.mark.parametrize(("term", "reason"), [
    ('{allow, {zone, "z"}, all, ["t"]}', "nothing here can ask about {zone"),
    ('{allow, {security_profile, hardened}, all, ["t"]}', "nothing here can ask about"),
    ('{allow, {username, {re, "^dev"}}, all, ["t"]}', "may match several"),
    ('{allow, {username, admin}, all, ["t"]}', "is a text or"),
    ('{allow, {username, ""}, all, ["t"]}', "cannot be empty"),
    ("{allow, {'and', []}, all, [\"t\"]}", "nothing here can ask about"),
    ("{allow, {'or', [{user, 5}]}, all, [\"t\"]}", "is a text or"),
    ('{allow, everybody, all, ["t"]}', "whom a rule concerns"),
    ('{allow, "all", all, ["t"]}', "whom a rule concerns"),
    ('{allow, {ipaddr, "10.0.0.0/99"}, all, ["t"]}', "neither an address nor a network"),
    ('{allow, all, write, ["t"]}', "a rule's action"),
    ('{allow, all, {publish, [{qos, 3}]}, ["t"]}', "the qos"),
    ('{allow, all, {publish, [{qos, []}]}, ["t"]}', "the qos"),
    ('{allow, all, {publish, [{retain, "true"}]}, ["t"]}', "an option"),
    ('{allow, all, {publish, [qos]}, ["t"]}', "an option"),
    ('{allow, all, {publish, [{payload, 1}]}, ["t"]}', "an option"),
    ("{allow, all, all, all}", "a list of texts"),
    ("{allow, all, all, [t]}", "a topic is a text"),
    ('{allow, all, all, ["a/#/b"]}', '"#" stands alone in the last level'),
    ('{allow, all, all, ["t/${zone}"]}', "is no placeholder"),
    ('{allow, all, all, ["$share/g/t"]}', "is taken off"),
    ("{allow}", "a rule is"),
    ("{permit, all}", "a rule is"),
    ("allow", "a rule is"),
    ('{allow, "all"}', "a rule is"),
])  # fmt: skip
def test_what_rules_cannot_say_is_listed_with_its_line(term: str, reason: str) -> None:
    found = read_acl_conf(f'{{deny, all, all, ["before"]}}.\n\n% here\n{term}.\n{{allow, all, all, ["after"]}}.')
    assert [rule.topic for rule in found.rules] == ["before", "after"]
    (listed,) = found.untranslated
    assert listed.line == 4
    assert listed.left_out
    assert listed.permission == ("allow" if term.startswith("{allow") else None)
    assert reason in listed.reason


def test_a_term_becomes_a_bounded_number_of_rules() -> None:
    many = "{'or', [" + ", ".join(f'{{user, "{number}"}}' for number in range(40)) + "]}"
    (listed,) = read_acl_conf(f"{{allow, {{'and', [{many}, {many}]}}, all, [\"t\"]}}.").untranslated
    assert "more than 1000 rules" in listed.reason
    few = "{'or', [" + ", ".join(f'{{client, "{number}"}}' for number in range(25)) + "]}"
    assert len(read_acl_conf(f"{{allow, {{'and', [{many}, {few}]}}, all, [\"t\"]}}.").rules) == 1000
    topics = ", ".join(f'"{number}"' for number in range(40))
    (listed,) = read_acl_conf(f"{{allow, {many}, all, [{topics}]}}.").untranslated
    assert "more than 1000 rules" in listed.reason


class TestTerms:
    def test_what_erlang_writes(self) -> None:
        text = """\ufeff
        % a comment with "quotes" and {braces}.
        {a, 'B c', "t\\"x\\\\\\n\\x{e9}\\101\\x41\\s", <<"b">>, -12, [], {}, [1, [2]]}. x_1@h.
        """
        assert [(top.line, top.term) for top in parse_terms(text)] == [
            (3, ("a", "B c", 't"x\\\n\xe9AA ', "b", -12, [], (), [1, [2]])),
            (3, "x_1@h"),
        ]
        assert [isinstance(one, Atom) for one in parse_terms(text)[0].term[:4]] == [True, True, False, False]

    @pytest.mark.parametrize(("text", "fault"), [
        ("{allow, all}", "line 1: the file ends where the '.' that ends a term should be"),
        ("\n\n{allow, all", "line 3: the file ends where ',' or '}' should be"),
        ("{allow,\nall]}.", "line 2: ']' where ',' or '}' should be"),
        ("{allow,,}.", "line 1: ',' where a term should be"),
        ("{a, }.", "line 1: '}' where a term should be"),
        ('\n{a, "open}.', "line 2: '\"open}.' is not part of an Erlang term"),
        ("{a} {b}.", "line 1: '{' where the '.' that ends a term should be"),
        ("Allow.", "line 1: 'Allow.' is not part"),
        ("{a, <<1>>}.", "line 1: a binary that is not a text"),
        ('"\\x{110000}".', "is no character"),
        ('"\\x{d800}".', "is no character"),
        ("123456789012345678901.", "where a term should be"),
        ("[" * 100 + "]" * 100 + ".", f"more than {DEEPEST} levels"),
        ("fun() -> ok end.", "is not part of an Erlang term"),
    ])  # fmt: skip
    def test_what_is_no_term_is_refused_with_its_line(self, text: str, fault: str) -> None:
        with pytest.raises(ImportFormatError) as caught:
            parse_terms(text)
        assert fault in str(caught.value)

    @given(text=st.text() | st.text(alphabet="{}[]<>,.\"'\\%ax \n1/", max_size=60))
    def test_no_text_raises_anything_else(self, text: str) -> None:
        try:
            found = read_acl_conf(text)
        except ImportFormatError as error:
            sentence = str(error)
        else:
            sentence = f"line {found.untranslated}"
            assert all(rule_problem(rule) == "" for rule in found.rules)
        assert sentence.startswith("line ")

    @given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"])))
    def test_a_quoted_text_is_read_as_it_was(self, text: str) -> None:
        assert parse_terms(f"{quoted(text)}.")[0].term == text


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1))
def test_an_escaped_text_is_the_literal_of_its_expression(text: str) -> None:
    pattern = "^" + "".join(one if one.isalnum() else f"\\{one}" for one in text) + "$"
    if text.isascii():
        assert literal_of_regex(pattern) == text
