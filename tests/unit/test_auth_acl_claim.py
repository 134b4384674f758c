"""Access rules in tokens: both of EMQX's forms, and what is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.errors import RuleFormatError
from auth.model import AccessRequest, Rule, Subject
from auth.rules.acl_claim import MAX_RULES, rules_of_claim
from auth.rules.emqx_forms import literal_of_regex
from auth.rules.rules import decide
from tests.brokers.emqx_rules import BadRuleError, Client, judge, parse_login_rules

BOTH = frozenset({"publish", "subscribe"})
ALL = (("all", ""),)


def one(**entry: Any) -> Rule:
    claim = rules_of_claim([{"permission": "allow", "action": "all", "topic": "t", **entry}])
    assert not claim.closed
    (rule,) = claim.rules
    return rule


def test_the_list_as_emqx_documents_it() -> None:
    claim = rules_of_claim(
        [
            {"permission": "allow", "action": "pub", "topic": "${username}/#", "qos": [0, 1], "retain": True},
            {"permission": "allow", "action": "subscribe", "topic": "eq ${username}/#", "qos": 0},
            {"permission": "deny", "action": "all", "topics": ["#", "$SYS/#"]},
        ],
        source="acl",
    )
    publish, subscribe = frozenset({"publish"}), frozenset({"subscribe"})
    assert claim == (
        (
            Rule("allow", "${username}/#", ALL, publish, False, frozenset({0, 1}), True, "acl[0]"),
            Rule("allow", "${$}{username}/#", ALL, subscribe, True, frozenset({0}), None, "acl[1]"),
            Rule("deny", "#", ALL, BOTH, False, frozenset(), None, "acl[2]"),
            Rule("deny", "$SYS/#", ALL, BOTH, False, frozenset(), None, "acl[2]"),
        ),
        False,
    )


def test_the_lists_of_the_older_form_are_a_white_list() -> None:
    claim = rules_of_claim({"pub": ["a/#", "b"], "sub": ["eq c/#"], "all": [], "exp": 5}, source="acl")
    assert claim.closed
    assert claim.rules == (
        Rule("allow", "a/#", ALL, frozenset({"publish"}), source="acl.pub[0]"),
        Rule("allow", "b", ALL, frozenset({"publish"}), source="acl.pub[1]"),
        Rule("allow", "c/#", ALL, frozenset({"subscribe"}), eq=True, source="acl.sub[0]"),
    )
    assert rules_of_claim({"all": []}) == ((), True)
    assert rules_of_claim([]) == ((), False)


@pytest.mark.parametrize(("qos", "expected"), [
    (0, {0}), ("1", {1}), ("0,2", {0, 2}), ([1, "2"], {1, 2}), (None, set()), ([0, 1, 2], set()), ("2,1,0", set()),
    ([1, 1], {1}),
])  # fmt: skip
def test_qos(qos: Any, expected: set[int]) -> None:
    assert one(qos=qos).qos == expected


@pytest.mark.parametrize(("retain", "expected"), [
    *((value, True) for value in (True, "true", 1, "1")),
    *((value, False) for value in (False, 0, "0", "false")),
    *((value, None) for value in ("all", None)),
])  # fmt: skip
def test_retain(retain: Any, expected: bool | None) -> None:
    assert one(retain=retain).retain is expected
    assert one(retain=retain, action="sub").retain is None


def test_whom_a_rule_concerns() -> None:
    rule = one(username_re="^ada$", clientid_re=r"^dev\-1\.x$", ipaddr="10.0.0.0/8", clientid="dev-1.x")
    who = (("username", "ada"), ("clientid", "dev-1.x"), ("clientid", "dev-1.x"), ("address", "10.0.0.0/8"))
    assert rule.who == who


@pytest.mark.parametrize(("pattern", "literal"), [
    ("^dashboard$", "dashboard"), (r"^a\.b\+c\\d$", r"a.b+c\d"), ("^a b/c$", "a b/c"), ("^é$", "é"), ("^$", None),
    ("dashboard", None), ("^dash", None), ("^a.b$", None), ("^(a+)+$", None), ("^a|b$", None), (r"^\d$", None),
    (r"^\Qa$", None), ("^a{2}$", None), ("^[ab]$", None), ("^a$b$", None), ("^a\\$", None),
])  # fmt: skip
def test_a_regular_expression_that_spells_out_one_text_is_that_text(pattern: str, literal: str | None) -> None:
    assert literal_of_regex(pattern) == literal


@pytest.mark.parametrize(("entry", "fault"), [
    ({"permission": "maybe"}, "allow or deny, not 'maybe'"), ({"permission": None}, "allow or deny"),
    ({"permission": {"a": 1}}, "a JSON object"), ({"action": ["pub"]}, "a JSON array"),
    ({"action": "write"}, "publish, subscribe or all, not 'write'"),
    ({"topic": 5}, "a topic, which is a text"), ({"topic": None}, "a topic, which is a text"),
    ({"topic": "x" * 65_536}, "65536 characters"),
    ({"topic": None, "topics": "t"}, "a list of texts"), ({"topic": None, "topics": ["t", 5]}, "is a text, not 5"),
    ({"topic": None, "topics": [["t"]]}, "a JSON array"), ({"qos": {"0": 1}}, "a JSON object"),
    *(({"qos": qos}, "0, 1, 2") for qos in (3, True, [], "0, 1")),
    *(({"qos": qos}, "a JSON array") for qos in ([0] * 1000, [[0]])),
    *(({"retain": retain}, "true, false or all") for retain in ("yes", 2, [])),
    ({"username_re": "^a+$"}, "spells out a single name"), ({"clientid_re": 5}, "clientid_re is a text"),
    ({"clientid": ""}, "cannot be empty"), ({"ipaddr": "10.0.0.0/33"}, "neither an address nor a network"),
    ({"ipaddr": ["10.0.0.0/8"]}, "ipaddr is a text"),
    *(({name: "z"}, "nothing that rules here can ask about") for name in ("zone", "listener_re")),
])  # fmt: skip
def test_an_entry_that_is_no_rule_refuses_the_whole(entry: dict[str, Any], fault: str) -> None:
    good = {"permission": "allow", "action": "all", "topic": "t"}
    with pytest.raises(RuleFormatError, match=r"^token acl\[1\]: ") as caught:
        rules_of_claim([good, {**good, **entry}])
    assert fault in str(caught.value)
    assert len(str(caught.value)) < 400


NO_CLAIMS: list[Any] = ["all", 5, None, True, 1e300, {}, {"publish": []}, {"pub": "a"}, {"sub": [5]}, {"all": {"a": 1}}]


@pytest.mark.parametrize("claim", [*NO_CLAIMS, [5], [[]], [None], ["allow"], {"pub": [["a"]]}])
def test_what_is_no_claim_is_refused(claim: Any) -> None:
    with pytest.raises(RuleFormatError):
        rules_of_claim(claim)


def test_a_claim_has_a_bounded_number_of_topics() -> None:
    entry = {"permission": "allow", "action": "all", "topics": ["t"] * 100}
    assert len(rules_of_claim([entry] * (MAX_RULES // 100)).rules) == MAX_RULES
    with pytest.raises(RuleFormatError, match="more than 1000 topics"):
        rules_of_claim([entry] * (MAX_RULES // 100 + 1))
    with pytest.raises(RuleFormatError, match="more than 1000 topics"):
        rules_of_claim({"pub": ["t"] * (MAX_RULES + 1)})


KEYS = st.sampled_from(
    ["permission", "action", "topic", "topics", "qos", "retain", "pub", "sub", "all", "ipaddr", "zone"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(claim=JSON)
def test_no_claim_raises_anything_else(claim: Any) -> None:
    try:
        rules_of_claim(claim)
    except RuleFormatError:
        return
    assert isinstance(claim, (list, dict))


ENTRIES = st.fixed_dictionaries(
    {
        "permission": st.sampled_from(["allow", "deny"]),
        "action": st.sampled_from(["pub", "publish", "sub", "subscribe", "all"]),
    },
    optional={
        "topic": st.sampled_from(["a", "a/#", "a/+", "${clientid}/x", "eq a/#", "eq ${clientid}/x", "#"]),
        "topics": st.lists(st.sampled_from(["a", "b", "a/b", "eq b"]), max_size=2),
        "qos": st.sampled_from([0, "1", "0,1", [1, 2], None]),
        "retain": st.sampled_from([True, False, "true", "0", 1, "all", None]),
        "note": st.text(),
    },
)
REQUESTS = st.builds(
    AccessRequest, subject=st.just(Subject(clientid="dev")), action=st.just("publish"),
    topic=st.sampled_from(["a", "b", "a/b", "dev/x", "c", "a/b/c"]), qos=st.integers(0, 2), retain=st.booleans(),
)  # fmt: skip


@given(entries=st.lists(ENTRIES, max_size=4), request=REQUESTS)
def test_publishing_is_decided_as_emqx_decides_it(entries: list[Any], request: AccessRequest) -> None:
    """For subscriptions EMQX compares otherwise; publishing is the same there."""
    entries = json.loads(json.dumps(entries))
    try:
        rules = parse_login_rules(entries).rules
    except BadRuleError:
        with pytest.raises(RuleFormatError):
            rules_of_claim(entries)
        return
    answer = judge(rules, Client(clientid="dev"), "publish", request.topic, request.qos, retain=request.retain)
    decision = decide(rules_of_claim(entries).rules, request)
    assert answer == ("nomatch" if decision.rule is None else decision.rule.permission)
