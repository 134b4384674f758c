"""Who may publish and subscribe where: each kind of condition, topic and request that access rules know."""

import functools
import time
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.model import AccessRequest, Action, Rule, Subject
from auth.rules.rules import decide, rule_problem

SUBJECT = Subject(
    username="ada", clientid="dev-1", peerhost="10.1.2.3", cert_common_name="dev-1.example", tenant="acme",
    groups=frozenset({"sensors", "berlin"}), attributes=MappingProxyType({"site": "north", "odd": "a/b"}),
)  # fmt: skip
NOBODY = Subject()


def allowed(action: Action, topic: str, rules: list[Rule], subject: Subject = SUBJECT, **more: Any) -> bool:
    return decide(rules, AccessRequest(subject, action, topic, **more)).allowed


publishes = functools.partial(allowed, "publish")
subscribes = functools.partial(allowed, "subscribe")


def test_what_no_rule_allows_is_denied() -> None:
    decision = decide([Rule("allow", "a/#")], AccessRequest(SUBJECT, "publish", "b"))
    assert not decision.allowed
    assert decision.rule is None
    assert decision.reason == "no rule matches, and what no rule allows is denied"
    assert not publishes("a", [])


def test_the_first_rule_that_matches_decides_and_is_named() -> None:
    deny = Rule("deny", "a/secret", source="database rule 1")
    allow = Rule("allow", "a/#", source="database rule 2")
    assert decide([deny, allow], AccessRequest(SUBJECT, "publish", "a/secret")).rule is deny
    first = decide([allow, deny], AccessRequest(SUBJECT, "publish", "a/secret"))
    assert first.rule is allow
    assert first.reason == "database rule 2 allows it"


class TestTopicsOfSubscriptions:
    """Wildcards compared as sets."""

    @pytest.mark.parametrize(("rule", "requested", "allows"), [
        ("a/#", "a/#", True), ("a/#", "a", True), ("a/#", "a/+/c", True), ("a/#", "#", False), ("a/#", "+/b", False),
        ("a/#", "ab/c", False), ("a/+", "a/+", True), ("a/+", "a/b", True),
        ("a/+", "a/#", False),  # a/# is also a and a/b/c
        ("a/+/#", "a/#", False), ("a/+/c", "a/b/c", True), ("a/+/c", "a/b/+", False), ("+/#", "#", True),
        ("#", "+/#", True), ("#", "$SYS/#", False), ("+/#", "$SYS/x", False), ("$SYS/#", "$SYS/brokers", True),
        ("$SYS/#", "#", False), ("a", "a/#", False),
    ])  # fmt: skip
    def test_a_rule_allows_what_it_covers_whole(self, rule: str, requested: str, allows: bool) -> None:
        assert subscribes(requested, [Rule("allow", rule)]) is allows

    @pytest.mark.parametrize(("rule", "requested", "denies"), [
        ("a/secret", "a/#", True), ("a/secret", "#", True), ("a/secret", "+/secret", True), ("a/secret", "a/+", True),
        ("a/secret", "a/b", False), ("a/secret", "a/+/c", False), ("+/secret", "a/+", True),
        ("+/secret/#", "a/+/c", True), ("a/#", "a", True), ("a/#", "+", True),
        ("$SYS/#", "#", False),  # what # delivers begins with no $
        ("#", "$SYS/#", False),
    ])  # fmt: skip
    def test_a_rule_denies_what_it_shares_a_topic_with(self, rule: str, requested: str, denies: bool) -> None:
        anything = [Rule("allow", "#"), Rule("allow", "$SYS/#")]
        assert subscribes(requested, [Rule("deny", rule), *anything]) is not denies

    @pytest.mark.parametrize(
        "spelling", ["$share/g/{}", "$queue/{}", "$exclusive/{}", "{}", "$share/$share/{}", "$share/g/$delayed/5/{}"]
    )
    def test_a_shared_or_exclusive_subscription_is_judged_by_its_filter(self, spelling: str) -> None:
        rules = [Rule("deny", "a/secret"), Rule("allow", "a/+")]
        assert subscribes(spelling.format("a/b"), rules)
        assert not subscribes(spelling.format("a/secret"), rules)
        assert not subscribes(spelling.format("#"), rules)

    @pytest.mark.parametrize("requested", [
        *("", "a/#/b", "a#", "a+", "#/", "a\0", "\ud800", "x" * 65_536, "$delayed/5", "$delayed/"),
        *("$share/", "$share/g", "$share/g/", "$share/+/a", "$share/#/a", "$share//a", "$queue/", "$exclusive/"),
        *("$share/g/$share/h/a", "$share/g/$queue/a", "$queue/$share/g/a", "$exclusive/$share/g/a"),
        *("$share/g/$exclusive/a", "$exclusive/$exclusive/a", "$delayed/5/$share/g/a"),
    ])  # fmt: skip
    def test_a_malformed_filter_is_denied_whatever_the_rules(self, requested: str) -> None:
        rules = [Rule("allow", requested, eq=True), Rule("allow", requested), Rule("allow", "#")]
        rules += [Rule("allow", "$share/#"), Rule("allow", "$delayed/#")]
        decision = decide(rules, AccessRequest(SUBJECT, "subscribe", requested))
        assert not decision.allowed
        assert decision.reason == "this is no topic filter that MQTT allows"


class TestTopicsOfPublishing:
    @pytest.mark.parametrize(("rule", "topic", "matches"), [
        ("#", "x" * 65_535, True),  # the longest there may be
        ("#", "é" * 32_767, True), ("a#", "ab", False), ("a/#", "a", True), ("a/#", "a/b/c", True),
        ("a/#", "ab", False), ("a/+", "a/", True), ("a/+", "a", False), ("+/+", "/a", True), ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False), ("$SYS/+", "$SYS/x", True), ("a", "a/", False), ("A", "a", False),
    ])  # fmt: skip
    def test_a_rule_matches_as_a_subscription_would(self, rule: str, topic: str, matches: bool) -> None:
        assert publishes(topic, [Rule("allow", rule)]) is matches
        everything = [Rule("allow", "#"), Rule("allow", "$SYS/#")]
        assert publishes(topic, [Rule("deny", rule), *everything]) is not matches

    @pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0", "\ud800", "x" * 65_536, "é" * 32_768, "$delayed/5"])
    def test_nothing_is_published_to_what_is_no_topic(self, topic: str) -> None:
        rules = [Rule("allow", topic, eq=True), Rule("allow", topic), Rule("allow", "#")]
        decision = decide(rules, AccessRequest(SUBJECT, "publish", topic))
        assert not decision.allowed
        assert decision.reason.startswith("nothing can be published to this topic")

    @pytest.mark.parametrize("topic", ["$delayed/5/a/b", "$delayed/5/$delayed/9/a/b", "$delayed//a/b"])
    def test_a_delayed_message_is_judged_by_where_it_ends(self, topic: str) -> None:
        assert publishes(topic, [Rule("allow", "a/b")])
        assert not publishes(topic, [Rule("allow", "$delayed/#"), Rule("allow", "a/c")])

    def test_a_topic_that_is_delayed_thousands_of_times_costs_no_more_than_its_length(self) -> None:
        topic = "$delayed/1/" * 5900 + "a/b"
        started = time.process_time()
        for _ in range(20):
            assert publishes(topic, [Rule("allow", "a/b")])
        assert time.process_time() - started < 2  # 0.02 here; copying the rest each time took a hundred times that

    def test_shared_subscriptions_are_no_topics_of_publishing(self) -> None:
        assert not publishes("$share/g/a", [Rule("allow", "a")])


class TestPlaceholders:
    @pytest.mark.parametrize(("topic", "requested"), [
        ("d/${clientid}/x", "d/dev-1/x"), ("${username}", "ada"), ("t-${tenant}-${clientid}", "t-acme-dev-1"),
        ("${cert_common_name}/#", "dev-1.example/x/y"), ("s/${client_attrs.site}/+", "s/north/1"),
        ("a/${$}{clientid}", "a/${clientid}"), ("${$}SYS/x", "$SYS/x"),
    ])  # fmt: skip
    def test_they_stand_for_the_clients_own_values(self, topic: str, requested: str) -> None:
        assert publishes(requested, [Rule("allow", topic)])
        assert subscribes(requested, [Rule("allow", topic)])
        assert not publishes(requested, [Rule("deny", topic), Rule("allow", "#"), Rule("allow", "$SYS/#")])
        assert not publishes("other", [Rule("allow", topic)])

    @pytest.mark.parametrize("requested", ["#", "d/#", "d/+/secret", "+/dev-1/+"])
    def test_no_wildcard_reaches_what_is_denied_to_the_client(self, requested: str) -> None:
        rules = [Rule("deny", "d/${clientid}/secret"), Rule("allow", "#")]
        assert not subscribes(requested, rules)
        assert subscribes("d/dev-2/secret", rules)

    @pytest.mark.parametrize("value", ["", "#", "+", "a/b", "a+", "#a", "a\0", "/"])
    @pytest.mark.parametrize("permission", ["allow", "deny"])
    def test_a_value_that_is_missing_or_reaches_beyond_a_level_matches_nothing(
        self, value: str, permission: Any
    ) -> None:
        subject = Subject(clientid=value, username=value, tenant=value, attributes={"x": value})
        for placeholder in ("clientid", "username", "tenant", "cert_common_name", "client_attrs.x", "client_attrs.y"):
            rule = Rule(permission, f"d/${{{placeholder}}}/#")
            for action in ("publish", "subscribe"):
                for topic in (f"d/{value}/x", "d//x", "d/x", "d/a/b/x", "d"):
                    request = AccessRequest(subject, action, topic)  # type: ignore[arg-type]
                    assert decide([rule], request).rule is None, (placeholder, topic)

    def test_a_client_does_not_name_itself_into_the_brokers_topics(self) -> None:
        hostile = Subject(clientid="$SYS", username="ada")
        rules = [Rule("allow", "${clientid}/#")]
        assert not subscribes("$SYS/#", rules, hostile)
        assert not publishes("$SYS/x", rules, hostile)
        assert publishes("d/$SYS/x", [Rule("allow", "d/${clientid}/#")], hostile)
        assert publishes("ada/$SYS", [Rule("allow", "${username}/${clientid}")], hostile)

    def test_a_value_is_never_read_as_a_placeholder(self) -> None:
        hostile = Subject(clientid="${username}", username="ada")
        assert not publishes("d/ada", [Rule("allow", "d/${clientid}")], hostile)
        assert publishes("d/${username}", [Rule("allow", "d/${clientid}")], hostile)

    @pytest.mark.parametrize("topic", ["a/${password}", "a/${}", "a/${client_attrs.}", "a/${client_attrs.a b}"])
    def test_an_unknown_placeholder_matches_nothing_and_is_refused_at_the_edit(self, topic: str) -> None:
        assert not publishes(topic, [Rule("allow", topic)])
        assert not publishes("a/", [Rule("allow", topic)])
        assert "is no placeholder" in rule_problem(Rule("allow", topic))


class TestEq:
    def test_it_compares_text_wildcards_included(self) -> None:
        rules = [Rule("allow", "a/#", eq=True)]
        assert subscribes("a/#", rules)
        assert subscribes("$share/g/a/#", rules)
        assert not subscribes("a/b", rules)
        assert not publishes("a/b", rules)

    def test_it_denies_that_text_alone(self) -> None:
        rules = [Rule("deny", "#", eq=True), Rule("allow", "#")]
        assert not subscribes("#", rules)
        assert subscribes("+/#", rules)
        assert subscribes("a/#", rules)

    def test_placeholders_work_there_too(self) -> None:
        rules = [Rule("allow", "d/${clientid}/#", eq=True)]
        assert subscribes("d/dev-1/#", rules)
        assert not subscribes("d/dev-1/x", rules)
        assert not subscribes("d//#", rules, NOBODY)


class TestActionQosRetain:
    def test_a_rule_is_about_its_actions(self) -> None:
        rules = [Rule("allow", "a", actions=frozenset({"publish"}))]
        assert publishes("a", rules)
        assert not subscribes("a", rules)

    def test_a_rule_is_about_its_qos(self) -> None:
        rules = [Rule("allow", "a", qos=frozenset({0, 1}))]
        assert [publishes("a", rules, qos=qos) for qos in (0, 1, 2)] == [True, True, False]
        assert [subscribes("a", rules, qos=qos) for qos in (0, 1, 2)] == [True, True, False]

    def test_retain_is_asked_of_publishing_alone(self) -> None:
        rules = [Rule("deny", "a", retain=True), Rule("allow", "a", retain=False)]
        assert not publishes("a", rules, retain=True)
        assert publishes("a", rules, retain=False)
        assert not subscribes("a", [rules[0], Rule("allow", "a")]), "the first rule is about all subscriptions to it"


class TestWho:
    @pytest.mark.parametrize(("kind", "value", "other"), [
        ("username", "ada", "bob"), ("clientid", "dev-1", "dev-"), ("group", "sensors", "sensor"),
        ("tenant", "acme", "acm"), ("common_name", "dev-1.example", "example"),
        ("attribute", "site=north", "site=south"), ("attribute", "site=north", "north"),
        ("address", "10.0.0.0/8", "11.0.0.0/8"), ("address", "10.1.2.3", "10.1.2.4"),
    ])  # fmt: skip
    def test_a_condition_holds_for_its_own(self, kind: Any, value: str, other: str) -> None:
        assert publishes("a", [Rule("allow", "a", who=((kind, value),))])
        assert not publishes("a", [Rule("allow", "a", who=((kind, other),))])
        assert not publishes("a", [Rule("allow", "a", who=((kind, value),))], NOBODY)

    @pytest.mark.parametrize(
        "kind", ["username", "clientid", "group", "tenant", "address", "common_name", "attribute", "unknown"]
    )
    def test_an_empty_value_means_nobody(self, kind: Any) -> None:
        for value in ("", "=", "x="):
            rule = Rule("allow", "a", who=((kind, value),))
            assert not publishes("a", [rule], NOBODY)
            assert not publishes("a", [rule], Subject(attributes={"": "", "x": ""}, groups=frozenset({""})))
            if kind == "attribute" or value == "":
                assert rule_problem(rule)

    def test_several_conditions_must_all_hold_and_none_at_all_is_nobody(self) -> None:
        both = Rule("allow", "a", who=(("group", "sensors"), ("tenant", "acme")))
        one = Rule("allow", "a", who=(("group", "sensors"), ("tenant", "other")))
        assert publishes("a", [both])
        assert not publishes("a", [one])
        assert not publishes("a", [Rule("allow", "a", who=())])

    @pytest.mark.parametrize(("address", "network", "inside"), [
        ("10.1.2.3", "10.0.0.0/8", True), ("10.1.2.3", "::ffff:0:0/96", True),
        ("10.1.2.3", "10.1.2.3/8", True),  # bits behind the mask do not matter
        ("::ffff:10.1.2.3", "10.0.0.0/8", True), ("10.1.2.3", "::ffff:10.0.0.0/104", True),
        ("11.1.2.3", "::ffff:10.0.0.0/104", False), ("10.1.2.3", "::/0", False), ("10.1.2.3", "0.0.0.0/0", True),
        ("2001:db8::1", "2001:db8::/32", True), ("2001:db8::1", "0.0.0.0/0", False), ("2001:db8::1", "::/0", True),
        ("fe80::1%eth0", "10.0.0.0/8", False), ("010.1.2.3", "10.0.0.0/8", False),
        ("10.1.2.3:1883", "10.0.0.0/8", False), ("", "0.0.0.0/0", False), ("10.1.2.3" * 9000, "0.0.0.0/0", False),
        ("10.1.2.3", "10.0.0.0/33", False), ("10.1.2.3", "nonsense", False),
    ])  # fmt: skip
    def test_addresses(self, address: str, network: str, inside: bool) -> None:
        rule = Rule("allow", "a", who=(("address", network),))
        assert publishes("a", [rule], Subject(peerhost=address)) is inside


class TestEdits:
    @pytest.mark.parametrize(("rule", "fault"), [
        (Rule("allow", ""), "a filter is not empty"),
        (Rule("allow", "a/#/b"), '"#" stands alone'),
        (Rule("allow", "${clientid}+"), '"+" stands alone'),
        (Rule("allow", "", eq=True), "a filter is not empty"),
        (Rule("allow", "a\0", eq=True), "no NUL character"),
        (Rule("allow", "$share/g/a"), "name the topic that follows"),
        (Rule("allow", "$queue/a"), "$queue/, which is taken off"),
        (Rule("allow", "$exclusive/a"), "$exclusive/, which is taken off"),
        (Rule("deny", "$delayed/+/a"), "$delayed/, which is taken off"),
        (Rule("allow", "\ud800", eq=True), "a filter is valid Unicode"),
        (Rule("allow", "a", who=()), "concerns nobody"),
        (Rule("allow", "a", who=(("address", "10.0.0.0/33"),)), "neither an address nor a network"),
        (Rule("allow", "a", who=(("attribute", "site"),)), "NAME=VALUE"),
        (Rule("allow", "a", who=(("all", "x"),)), "takes no value"),
        (Rule("allow", "a", who=(("nobody", "x"),)), "nothing that rules can ask about"),  # type: ignore[arg-type]
        (Rule("allow", "a", actions=frozenset()), "publishing, subscribing, or both"),
        (Rule("allow", "a", qos=frozenset({1, 3})), "not 1, 3"),
        (Rule("allow", "a", actions=frozenset({"subscribe"}), retain=True), "subscriptions alone"),
        (Rule("allow", "a", actions=frozenset({"publish", "x"})), "publishing, subscribing"),  # type: ignore[arg-type]
    ])  # fmt: skip
    def test_a_rule_that_could_never_be_meant_is_refused(self, rule: Rule, fault: str) -> None:
        assert fault in rule_problem(rule)

    @pytest.mark.parametrize("topic", ["a", "#", "+/#", "d/${clientid}/#", "x${tenant}y", "a/${$}{b}", "/", "$SYS/#"])
    def test_a_usual_rule_is_taken(self, topic: str) -> None:
        assert rule_problem(Rule("allow", topic, actions=frozenset({"subscribe"}))) == ""
        assert rule_problem(Rule("deny", topic, eq=True, qos=frozenset({0}), retain=True)) == ""


HOSTILE = st.one_of(
    st.text(),
    st.text(alphabet="/+#$a{}\0\ud800é", max_size=40),
    st.sampled_from(["$share/", "$queue/", "$exclusive/", "$delayed/", "${clientid}", "../", "' OR 1=1 --", "\x7f"]),
    st.lists(st.sampled_from(["$share", "$queue", "$delayed", "g", "#", "+", "", "5", "${username}"])).map("/".join),
)


@given(
    topic=HOSTILE,
    rule=HOSTILE,
    values=st.tuples(HOSTILE, HOSTILE, HOSTILE, HOSTILE),
    eq=st.booleans(),
    permission=st.sampled_from(["allow", "deny"]),
    action=st.sampled_from(["publish", "subscribe"]),
    kind=st.sampled_from(["username", "clientid", "group", "tenant", "address", "common_name", "attribute", "all"]),
)
def test_no_text_raises(
    topic: str, rule: str, values: tuple[str, str, str, str], eq: bool, permission: Any, action: Any, kind: Any
) -> None:
    username, clientid, other, wanted = values
    subject = Subject(username, clientid, other, other, other, frozenset({other}), {other: wanted})
    rules = [Rule(permission, rule, who=((kind, wanted),), eq=eq), Rule("allow", rule, eq=not eq)]
    assert decide(rules, AccessRequest(subject, action, topic)).rule in (None, *rules)
    for each in rules:
        assert isinstance(rule_problem(each), str)


LEVELS = st.lists(st.sampled_from(["a", "b", "", "+", "$x"]), min_size=1, max_size=4)
FILTERS = st.tuples(LEVELS, st.booleans()).map(lambda it: "/".join([*it[0], "#"] if it[1] else it[0]))
TOPICS = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=5).map("/".join)


@given(
    rules=st.lists(st.tuples(st.sampled_from(["allow", "deny"]), FILTERS), max_size=6), filter_=FILTERS, topic=TOPICS
)
def test_an_allowed_subscription_delivers_nothing_that_a_rule_denies_before_it_is_allowed(
    rules: list[tuple[Any, str]], filter_: str, topic: str
) -> None:
    """What a device may subscribe to delivers only topics that it could have subscribed to one by one."""
    all_of = [Rule(permission, text) for permission, text in rules]
    if not filter_ or not topic or not subscribes(filter_, all_of):
        return
    if subscribes(topic, [Rule("allow", filter_)]):
        assert subscribes(topic, all_of)
