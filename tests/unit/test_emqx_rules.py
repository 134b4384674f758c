"""The model of EMQX's rules, against examples of what EMQX 5.8.9 says and does."""

from typing import Any

import pytest

from tests.brokers.emqx_rules import (
    BadRuleError,
    Client,
    judge,
    parse_acl_conf,
    parse_login_rules,
    parse_token_rules,
    topic_matches,
)

CLIENT = Client(username="u1", clientid="c1", peerhost="10.1.2.3", client_attrs={"site": "berlin"})


@pytest.mark.parametrize(("topic", "topic_filter", "matches"), [
    ("a/b", "a/b", True), ("a/b", "a/+", True), ("a", "a/#", True), ("a/b/c", "a/#", True), ("a/b/c", "a/+", False),
    ("a/", "a/+", True), ("/a", "+/a", True), ("$SYS/x", "#", False), ("$SYS/x", "+/x", False),
    ("$SYS/x", "$SYS/#", True), ("a/$x", "a/+", True),
    # A filter that somebody subscribes to, word by word: EMQX's looseness, and why a service must be careful with
    # what it hands over.
    ("a/#", "a/+", True), ("a/+", "a/b", False), ("#", "+", True), ("a/+/c", "a/#", True), ("a/#/c", "a/b/c", False),
])  # fmt: skip
def test_words_are_compared_as_emqx_does(topic: str, topic_filter: str, *, matches: bool) -> None:
    assert topic_matches(topic, topic_filter) is matches


ALLOW = {"permission": "allow", "action": "all"}


@pytest.mark.parametrize(("rule", "asked", "verdict"), [
    ({**ALLOW, "action": "publish", "topic": "d/${username}/#"}, ("publish", "d/u1/x", 0, False), "allow"),
    ({**ALLOW, "action": "pub", "topic": "d/${username}/#"}, ("publish", "d/u2/x", 0, False), "nomatch"),
    ({**ALLOW, "action": "sub", "topics": ["x", "y"]}, ("subscribe", "y", 0, False), "allow"),
    ({**ALLOW, "action": "sub", "topics": ["x", "y"]}, ("publish", "y", 0, False), "nomatch"),
    ({**ALLOW, "permission": "deny", "topic": "eq a/#"}, ("subscribe", "a/#", 0, False), "deny"),
    ({**ALLOW, "permission": "deny", "topic": "eq a/#"}, ("subscribe", "a/b", 0, False), "nomatch"),
    ({**ALLOW, "topic": "a", "qos": "0,1"}, ("publish", "a", 2, False), "nomatch"),
    ({**ALLOW, "topic": "a", "qos": [1]}, ("subscribe", "a", 1, False), "allow"),
    ({**ALLOW, "topic": "a", "retain": False}, ("publish", "a", 1, True), "nomatch"),
    ({**ALLOW, "topic": "a", "retain": 1}, ("publish", "a", 1, True), "allow"),
    ({**ALLOW, "topic": "s/${client_attrs.site}"}, ("publish", "s/berlin", 1, True), "allow"),
    ({**ALLOW, "topic": "s/${client_attrs.none}/#"}, ("publish", "s//a", 1, True), "nomatch"),
    ({**ALLOW, "topic": "s/${other}"}, ("publish", "s/${other}", 1, True), "allow"),
    ({**ALLOW, "topic": "s/${$}{username}"}, ("publish", "s/${$}{username}", 1, True), "allow"),
    ({**ALLOW, "topic": "${clientid}/${$}{username}"}, ("publish", "c1/${username}", 1, True), "allow"),
])  # fmt: skip
def test_a_rule_of_a_login(rule: dict[str, object], asked: tuple[Any, str, int, bool], verdict: str) -> None:
    action, topic, qos, retain = asked
    assert parse_login_rules([rule]).judge(CLIENT, action, topic, qos, retain=retain, now_s=0) == verdict


def test_an_undefined_user_name_is_rendered_as_the_word() -> None:
    rules = parse_login_rules([{"permission": "allow", "action": "all", "topic": "d/${username}"}])
    assert rules.judge(Client(), "publish", "d/undefined", 0, retain=False, now_s=0) == "allow"


@pytest.mark.parametrize("rule", [
    {},
    [],
    {"permission": "permit", "action": "all", "topic": "a"},
    {"permission": "allow", "action": "pubsub", "topic": "a"},
    {"permission": "allow", "action": "all"},
    {"permission": "allow", "action": "all", "topic": 1},
    {"permission": "allow", "action": "all", "topic": "a", "qos": 3},
    {"permission": "allow", "action": "all", "topic": "a", "qos": "1;2"},
    {"permission": "allow", "action": "all", "topic": "a", "retain": "yes"},
])  # fmt: skip
def test_a_bad_rule_is_refused(rule: object) -> None:
    with pytest.raises(BadRuleError):
        parse_login_rules([rule])


def test_rules_of_a_login_expire_closed() -> None:
    rules = parse_login_rules([{"permission": "allow", "action": "all", "topic": "#"}], expires_at_s=100)
    assert rules.judge(CLIENT, "publish", "a", 0, retain=False, now_s=100.9) == "allow"
    assert rules.judge(CLIENT, "publish", "a", 0, retain=False, now_s=101) == "deny"


def test_the_older_form_of_a_tokens_rules_is_a_white_list() -> None:
    rules = parse_token_rules({"pub": ["p/${clientid}"], "sub": ["s/#"], "all": ["x"]})
    cases = {("publish", "p/c1"): "allow", ("subscribe", "p/c1"): "deny", ("subscribe", "s/1"): "allow"}
    for (action, topic), verdict in cases.items():
        assert rules.judge(CLIENT, action, topic, 0, retain=False, now_s=0) == verdict  # type: ignore[arg-type]


def test_acl_conf_is_read_as_erlang() -> None:
    rules = parse_acl_conf(
        """%% a comment
        {allow, {username, {re, "^u[0-9]$"}}, publish, ["d/#", {eq, "e/#"}]}.
        {allow, {'and', [{client, <<"c1">>}, {ipaddr, "10.0.0.0/8"}]}, {subscribe, [{qos, [0, 1]}]}, ["$SYS/#"]}.
        {deny, {client_attr, "site", "berlin"}, {publish, [{retain, true}]}, ["r"]}.
        {deny, all}.
        """
    )
    assert judge(rules, CLIENT, "publish", "d/x", 0, retain=False) == "allow"
    assert judge(rules, CLIENT, "subscribe", "$SYS/x", 1, retain=False) == "allow"
    assert judge(rules, CLIENT, "subscribe", "$SYS/x", 2, retain=False) == "deny"
    assert judge(rules, CLIENT, "publish", "$any/x", 0, retain=False) == "deny"
    assert rules[-1].topics is None
    with pytest.raises(BadRuleError):
        parse_acl_conf("{deny, all}")
