"""What a login's answer tells EMQX of a client's rules: EMQX, with that list and the service behind it, decides as the
service alone does."""

import contextlib
import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from auth.model import AccessRequest, Permission, Rule, Subject
from auth.rules.hand_over import closed_list, hand_over, open_list, whole_list
from auth.rules.rules import decide
from tests.brokers.emqx_rules import Client, FilterRefusedError, judge, parse_login_rules, real_topic
from tests.unit.access_parts import any_rule

SUBJECT = Subject(username="ada", clientid="dev-1", tenant="acme", groups=frozenset({"sensors"}))
PUBLISH = frozenset({"publish"})
SUBSCRIBE = frozenset({"subscribe"})
DENY_ALL = {"permission": "deny", "action": "all", "topic": "#"}
CLIENT = Client(clientid="dev-1", username="ada", client_attrs={"x": "dev-1"})


def told(*rules: Rule, limit: int = 100) -> list[dict[str, object]] | None:
    return hand_over(rules, SUBJECT, limit=limit)


def test_a_devices_usual_rules_are_told_whole_and_closed() -> None:
    acl = told(
        Rule("allow", "d/${clientid}/#", actions=PUBLISH),
        Rule("allow", "cmd/${clientid}/#", actions=SUBSCRIBE, qos=frozenset({0, 1})),
        Rule("deny", "state/${clientid}", retain=True),
        Rule("allow", "state/${clientid}"),
        Rule("allow", "${tenant}/news/#", eq=True, actions=SUBSCRIBE),
        Rule("allow", "other/#", who=(("group", "guests"),)),
        Rule("allow", "zone/${client_attrs.zone}/#"),
    )
    assert acl == [
        {"permission": "allow", "action": "publish", "topic": "d/dev-1/#"},
        {"permission": "allow", "action": "subscribe", "topic": "cmd/dev-1/#", "qos": [0, 1]},
        {"permission": "deny", "action": "all", "topic": "state/dev-1", "retain": True},
        {"permission": "allow", "action": "publish", "topic": "state/dev-1", "retain": False},
        {"permission": "allow", "action": "subscribe", "topic": "eq acme/news/#"},
        DENY_ALL,
    ]


CLOSED = ("deny", "all", "#")
TOLD: dict[str, tuple[list[Rule], list[tuple[str, str, str]]]] = {
    "a last level of one name comes with the denial of its neighbour": (
        [Rule("allow", "a/+", actions=SUBSCRIBE)],
        [("deny", "subscribe", "eq a/#"), ("allow", "subscribe", "a/+"), CLOSED],
    ),
    "which is not told where the neighbour is allowed anyway": (
        [Rule("allow", "a/+", actions=SUBSCRIBE), Rule("allow", "a/#", actions=SUBSCRIBE)],
        [("allow", "subscribe", "a/+"), ("allow", "subscribe", "a/#"), CLOSED],
    ),
    "a denial of a part leaves subscriptions to the service": (
        [Rule("deny", "a/secret"), Rule("allow", "a/#"), Rule("allow", "b/#", actions=SUBSCRIBE)],
        [("deny", "all", "a/secret"), ("allow", "publish", "a/#"), ("allow", "subscribe", "b/#"),
            ("deny", "publish", "#")],
    ),
    "a rule that an earlier denial makes vain is not told": (
        [Rule("deny", "a/#"), Rule("allow", "a/b")], [("deny", "all", "a/#"), CLOSED]),
    "a denial of one text leaves the rest to EMQX": (
        [Rule("deny", "a/#", eq=True), Rule("deny", "a/b", eq=True), Rule("allow", "a/#")],
        [("deny", "subscribe", "eq a/#"), ("deny", "all", "eq a/b"), ("allow", "all", "a/#"), CLOSED],
    ),
    "everything is told as everything": ([Rule("allow", "#")], [("allow", "all", "#"), CLOSED]),
    "one level is told with the denial of everything": (
        [Rule("allow", "+")], [("deny", "subscribe", "eq #"), ("allow", "all", "+"), CLOSED]),
    "a topic that looks like a placeholder is told as text": (
        [Rule("allow", "a/${$}{clientid}")], [("allow", "all", "eq a/${clientid}"), CLOSED]),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "acl"), TOLD.values(), ids=TOLD)
def test_what_is_told_of_rules(rules: list[Rule], acl: list[tuple[str, str, str]]) -> None:
    assert told(*rules) == [dict(zip(("permission", "action", "topic"), one, strict=True)) for one in acl]


def test_a_list_of_a_token_tells_its_denials_whatever_was_left_out_before() -> None:
    left_out = Rule("allow", "+/+", actions=SUBSCRIBE)
    rules = [left_out, Rule("deny", "x/#"), Rule("allow", "x/y/#"), Rule("allow", "z")]
    acl, whole = closed_list(rules, SUBJECT, limit=10)
    assert whole
    assert acl == [
        {"permission": "deny", "action": "all", "topic": "x/#"},
        {"permission": "allow", "action": "all", "topic": "z"},
        DENY_ALL,
    ]


def test_a_list_of_a_token_leaves_nothing_to_ask_about_topics_that_begin_with_a_dollar() -> None:
    behind = [Rule("allow", "$SYS/#"), Rule("allow", "$x"), Rule("deny", "$y"), Rule("allow", "${clientid}/#")]
    acl, whole = closed_list([Rule("allow", "$SYS/a")], SUBJECT, limit=10, behind=behind)
    assert whole
    assert acl == [
        {"permission": "allow", "action": "all", "topic": "$SYS/a"},
        {"permission": "deny", "action": "all", "topic": "$SYS/#"},
        {"permission": "deny", "action": "all", "topic": "$x/#"},
        DENY_ALL,
    ]
    assert not closed_list([], SUBJECT, limit=10, behind=[Rule("allow", "${$}{clientid}/#")]).whole


@pytest.mark.parametrize("topic", ["+/+", "a/${$}{clientid}/#", "eq a/#", "a/#/b", "$share/g/a", "a/+/b/+"])
def test_what_emqx_would_take_otherwise_is_left_to_the_service(topic: str) -> None:
    rule = Rule("allow", topic, actions=SUBSCRIBE)
    assert told(rule) == [{"permission": "deny", "action": "publish", "topic": "#"}]
    assert whole_list([rule], SUBJECT, limit=10) is None
    expressible = topic in ("+/+", "a/+/b/+")
    assert closed_list([rule, Rule("deny", topic)], SUBJECT, limit=10).whole is expressible


def test_a_client_id_that_is_hostile_is_told_of_nobody_elses_topics() -> None:
    for clientid in ("#", "+", "", "a/b", "a\0"):
        rules = [Rule("allow", "d/${clientid}/#")]
        assert hand_over(rules, Subject(clientid=clientid), limit=10) == [DENY_ALL]
    assert hand_over([Rule("allow", "d/${clientid}/#")], Subject(clientid="${username}"), limit=10) is None


def test_the_limit_counts_all_that_is_told() -> None:
    rules = [Rule("allow", f"t/{number}") for number in range(20)]
    assert len(told(*rules, limit=5) or []) == 5
    assert told(*rules, limit=0) is None
    assert told(limit=5) == [DENY_ALL]
    assert whole_list(rules, SUBJECT, limit=20) is None
    assert len(whole_list(rules, SUBJECT, limit=21) or []) == 21
    acl, whole = closed_list(rules, SUBJECT, limit=5)
    assert ([one["topic"] for one in acl], whole) == (["t/0", "t/1", "t/2", "t/3", "t/4", "#"], False)
    assert closed_list(rules, SUBJECT, limit=20).whole
    assert closed_list([], SUBJECT, limit=0) == ([DENY_ALL], True)


LEVELS = ["a", "b", "", "+", "$x", "dev-1", "${clientid}", "${tenant}", "${client_attrs.x}", "${$}{clientid}"]
TOPIC_TEXT = st.one_of(
    st.tuples(st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4), st.booleans()).map(
        lambda it: "/".join([*it[0], "#"] if it[1] else it[0])
    ),
    st.sampled_from(["#", "a/#", "a/+", "+", "+/#", "$x/#", "eq a", "eq a/#", "eq eq a", "$share/g/a", "$share/+/a"]),
    st.sampled_from(["$delayed/5/a", "$exclusive/a", "$queue/#", "a#", "a/#/b", "a+/b", "", "a\0", "${zone}", "${}/a"]),
)
RULES = st.lists(
    any_rule(
        topic=TOPIC_TEXT,
        who=st.sampled_from([(("all", ""),), (("group", "sensors"),), (("group", "guests"),), ()]),
        actions=st.sampled_from([PUBLISH, SUBSCRIBE, PUBLISH | SUBSCRIBE, frozenset()]),
        qos=st.sampled_from([frozenset(), frozenset({0}), frozenset({0, 1}), frozenset({2}), frozenset({7, -1})]),
    ),
    max_size=7,
)
REQUEST_LEVELS = ["a", "b", "", "$x", "dev-1", "acme", "${clientid}", "c"]
FILTERS = st.tuples(
    st.sampled_from(["", "", "", "$share/g/", "$queue/", "$exclusive/", "$delayed/5/", "$share/g/$delayed/5/"]),
    st.lists(st.sampled_from([*REQUEST_LEVELS, "+", "+"]), max_size=4),
    st.booleans(),
).map(lambda it: it[0] + "/".join([*it[1], "#"] if it[2] or not it[1] else it[1]))
TOPICS = st.tuples(
    st.sampled_from(["", "", "", "$delayed/5/", "$share/g/", "$exclusive/", "$delayed/1/$delayed/2/"]),
    st.lists(st.sampled_from(REQUEST_LEVELS), min_size=1, max_size=4),
).map(lambda it: it[0] + "/".join(it[1]))
# EMQX takes the empty topic behind $delayed/5/ or $queue/ for one that # matches; nothing is ever delivered by it.
NOWHERE = re.compile(r"\$(delayed/\d|queue|exclusive|share/g)/$")
REQUESTS = st.lists(
    st.one_of(
        st.builds(AccessRequest, st.just(SUBJECT), st.just("subscribe"), FILTERS, st.integers(0, 2)),
        st.builds(AccessRequest, st.just(SUBJECT), st.just("publish"), TOPICS, st.integers(0, 2), st.booleans()),
    ).filter(lambda request: not NOWHERE.search(request.topic)),
    min_size=1,
    max_size=30,
)


def judged(acl: list[dict[str, object]] | None, request: AccessRequest) -> Permission | None:
    rules, topic = parse_login_rules(acl or []).rules, real_topic(request.action, request.topic)
    if topic is None:
        return "deny"
    verdict = judge(rules, CLIENT, request.action, topic, request.qos, retain=request.retain)
    return None if verdict == "nomatch" else verdict


def judged_all(
    acl: list[dict[str, object]] | None, requests: list[AccessRequest]
) -> Iterator[tuple[AccessRequest, Permission | None]]:
    """But for those with a filter that EMQX refuses."""
    for request in requests:
        with contextlib.suppress(FilterRefusedError):
            yield request, judged(acl, request)


@settings(max_examples=400)
@given(rules=RULES, requests=REQUESTS, limit=st.integers(0, 12))
@example([Rule("deny", "a/b"), Rule("allow", "a/#")], [AccessRequest(SUBJECT, "subscribe", "a/+")], 10)
@example([Rule("allow", "a/+")], [AccessRequest(SUBJECT, "subscribe", "a/#")], 10)
@example([Rule("allow", "a/+/#")], [AccessRequest(SUBJECT, "subscribe", "a/#")], 10)
@example([Rule("allow", "a/+/+")], [AccessRequest(SUBJECT, "subscribe", "a/b/#")], 10)
@example([Rule("deny", "a/#", eq=True), Rule("allow", "a/#")], [AccessRequest(SUBJECT, "subscribe", "a/#")], 10)
@example([Rule("allow", "#")], [AccessRequest(SUBJECT, "publish", "$x/a")], 10)
@example([Rule("allow", "+")], [AccessRequest(SUBJECT, "subscribe", "#")], 10)
@example([Rule("allow", "+/+"), Rule("deny", "a/b")], [AccessRequest(SUBJECT, "subscribe", "a/b")], 10)
@example([Rule("allow", "a/+/+"), Rule("deny", "a/#")], [AccessRequest(SUBJECT, "subscribe", "a/b/c")], 10)
def test_emqx_with_the_list_and_the_service_decides_as_the_service(
    rules: list[Rule], requests: list[AccessRequest], limit: int
) -> None:
    acl = hand_over(rules, SUBJECT, limit=limit)
    assert acl is None or 0 < len(acl) <= limit
    for request in requests:
        expected = decide(rules, request)
        try:
            answer = judged(acl, request)
        except FilterRefusedError:
            assert not expected.allowed, request
            continue
        verdict = "allow" if expected.allowed else "deny"
        assert answer in (None, verdict), (acl, request, expected)


@settings(max_examples=400)
@given(rules=RULES, behind=RULES, requests=REQUESTS, limit=st.integers(0, 12))
@example([Rule("deny", "${$}{clientid}/#"), Rule("allow", "${$}{clientid}/a")], [], [], 10)
@example([Rule("allow", "+/+"), Rule("deny", "a/b"), Rule("allow", "a/#")], [], [], 10)
@example([Rule("deny", "$x/a")], [Rule("allow", "$x/#")], [AccessRequest(SUBJECT, "subscribe", "$x/+")], 10)
def test_a_closed_list_allows_nothing_more_and_leaves_nothing_to_ask_that_would_be_allowed(
    rules: list[Rule], behind: list[Rule], requests: list[AccessRequest], limit: int
) -> None:
    acl, whole = closed_list(rules, SUBJECT, limit=limit, behind=behind)
    assert acl[-1] == DENY_ALL
    for request, answer in judged_all(acl, requests):
        assert answer != "allow" or decide(rules, request).allowed, (acl, request)
        if answer is None and whole:
            assert "$" in request.topic
            assert not decide(behind, request).allowed, (acl, request)


@settings(max_examples=400)
@given(rules=RULES, behind=RULES, requests=REQUESTS)
def test_a_whole_list_decides_as_the_rules_whoever_is_asked_about_the_rest(
    rules: list[Rule], behind: list[Rule], requests: list[AccessRequest]
) -> None:
    """``behind`` are what a question would be decided by; rules of a token are not known then."""
    acl = whole_list([*rules, *behind], SUBJECT, limit=50)
    if acl is None:
        return
    for request, answer in judged_all(acl, requests):
        asked = "allow" if decide(behind, request).allowed else "deny"
        assert (answer or asked) == ("allow" if decide([*rules, *behind], request).allowed else "deny")


@settings(max_examples=400)
@given(rules=RULES, behind=RULES, requests=REQUESTS)
@example([Rule("allow", "$x")], [Rule("allow", "$x/#")], [AccessRequest(SUBJECT, "subscribe", "$x/a")])
@example([Rule("allow", "a/+")], [Rule("allow", "a/#")], [AccessRequest(SUBJECT, "subscribe", "a/#")])
def test_an_open_list_denies_nothing_that_the_rules_behind_it_allow(
    rules: list[Rule], behind: list[Rule], requests: list[AccessRequest]
) -> None:
    rules = [rule for rule in rules if rule.permission == "allow"]
    acl = open_list(rules, SUBJECT, limit=50, behind=behind)
    for request, answer in judged_all(acl, requests):
        verdict = "allow" if decide([*rules, *behind], request).allowed else "deny"
        assert answer in (None, verdict), (acl, request)


@given(
    rules=st.lists(
        st.builds(
            Rule,
            permission=st.just("allow"),
            topic=st.sampled_from(["d/${clientid}/#", "d/${clientid}", "cmd/${clientid}/+", "all/news", "all/x/#"]),
            actions=st.sampled_from([PUBLISH, SUBSCRIBE, PUBLISH | SUBSCRIBE]),
            qos=st.sampled_from([frozenset(), frozenset({0, 1})]),
        ),
        max_size=6,
    ),
    requests=REQUESTS,
)
def test_with_usual_rules_emqx_has_nothing_left_to_ask(rules: list[Rule], requests: list[AccessRequest]) -> None:
    acl = hand_over(rules, SUBJECT, limit=100)
    for request in requests:
        if request.topic.startswith("$") or not request.topic:
            continue
        assert judged(acl, request) == ("allow" if decide(rules, request).allowed else "deny")
