"""What routes do that is hardly meant, and filters as sets of topics, against brute force on a small world."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.routing.change import moved
from bridge.routing.filters import covered_by_all, difference, example_topic, matches
from bridge.routing.lint import lint
from bridge.routing.router import Router
from config.errors import ConfigError
from config.settings import Settings
from config.values.topic_filters import intersection
from tests.command_line import Cli
from tests.unit.test_filters import FILTERS, TOPICS, matched

patient = settings(deadline=None)


def routes(*tables: dict[str, Any], **more: Any) -> Settings:
    return Settings(routes=[{"topic": "t", "name": f"r{n}", **table} for n, table in enumerate(tables)], **more)


def found(*tables: dict[str, Any], **more: Any) -> dict[str, str]:
    return {one.id: one.severity for one in lint(routes(*tables, **more)) if one.id != "narrower-first"}


# --- filters as sets
@patient
@given(FILTERS, FILTERS)
def test_the_example_of_an_overlap_matches_both(one: str, other: str) -> None:
    both = intersection(one, other)
    topic = None if both is None else example_topic(both)
    if topic is None:
        assert not (matched(one) & matched(other)) - {""}
    else:
        assert matches(one, topic)
        assert matches(other, topic)


@patient
@given(FILTERS, st.lists(FILTERS, max_size=5))
def test_several_filters_cover_one_if_they_match_all_of_its_topics(text: str, wides: list[str]) -> None:
    everything = frozenset().union(*(matched(wide) for wide in wides))
    assert covered_by_all(text, wides) == (matched(text) <= everything)


@patient
@given(FILTERS, st.sampled_from(TOPICS).filter(bool))
def test_a_difference_is_told_exactly_where_there_is_one(text: str, topic: str) -> None:
    why = difference(text, topic)
    assert (why is None) == matches(text, topic)
    assert why != ""


@pytest.mark.parametrize(("text", "topic", "why"), [
    ("a/+/c", "a/b/d", "level 2 is 'd', not 'c'"),
    ("a/b", "a", "the topic has 1 level, the filter asks for 'b' after them"),
    ("a", "a/b", "the topic has 2 levels, the filter ends after 1"),
    ("#", "$SYS/x", "a topic that begins with '$' is not matched by a wildcard on the first level ('#')"),
])  # fmt: skip
def test_a_difference_in_words(text: str, topic: str, why: str) -> None:
    assert difference(text, topic) == why


# --- findings
@pytest.mark.parametrize(("tables", "id_", "severity"), [
    ([{"filters": ["a/#"]}, {"filters": ["a/+/c"]}], "unreachable", "FAIL"),
    ([{"filters": ["a", "a/+/#"]}, {"filters": ["a/#"]}], "unreachable", "FAIL"),
    ([{"filters": ["gateways/+"]}], "unreachable", "FAIL"),
    ([{"filters": ["a/#"]}, {"filters": ["a/b", "c"]}], "unreachable-filter", "warn"),
    ([{"filters": ["a/+/c"]}, {"filters": ["a/b/+"]}], "shadowed", "warn"),
    ([{"filters": ["a/+/c", "a/b/+"]}], "delivered-twice", "warn"),
    ([{"filters": ["a/#"], "key": "${topic[2]}"}], "level-missing", "warn"),
    ([{"filters": ["a/#"], "key": "${topic[1]}"}], "level-missing", "ok"),
    ([{"filters": ["a/+"], "topic": "${topic[1]}"}], "any-topic", "warn"),
    ([{"filters": ["a/+"], "topic": "x-${topic[1]}", "allowed_topics": "x-.*"}], "own-topic", None),
    ([{"filters": ["a/+"], "topic": "${topic[1]}"}], "own-topic", "ok"),
    ([{"filters": ["a/+"], "key": ""}], "no-key", "warn"),
    ([{"filters": ["a/+"], "key": "${topic[0]}"}], "constant-key", "warn"),
    ([{"filters": ["a/b"], "key": "${topic[0]}"}], "constant-key", None),
    ([{"filters": ["a/+/c"], "key": "${topic[1]}"}], "constant-key", None),
    ([{"filters": ["a/+"]}, {"filters": ["b/+"], "key": "${topic[1]}"}], "keys-differ", "warn"),
    ([{"filters": ["a/+"], "key": "${payload.k}", "empty_payload": "tombstone"}], "tombstone-without-key", "warn"),
    ([{"filters": ["a/+/+"], "device": "${topic[1]}"}], "key-not-device", "ok"),
    ([{"filters": ["a/+/c"], "device": "${topic[1]}"}], "key-not-device", None),
    ([{"filters": ["a"], "key": "${topic[3]}"}], "broken", "FAIL"),
    ([{"filters": ["a"], "name": "x"}, {"filters": ["b"], "name": "x"}], "same-name", "FAIL"),
    ([{"filters": ["a"], "interceptors": [{"use": "sample", "share": 1.0}]}], "interceptor-idle", "warn"),
])  # fmt: skip
def test_findings(tables: list[dict[str, Any]], id_: str, severity: str | None) -> None:
    assert found(*tables).get(id_) == severity


def test_an_interceptor_for_all_routes_and_the_same_for_one() -> None:
    same = {"use": "headers", "remove": ["mqtt.topic"]}
    other = {"use": "headers", "remove": ["mqtt.qos"]}
    assert found({"filters": ["a"], "interceptors": [same]}, interceptors=[same])["interceptor-twice"] == "warn"
    assert "interceptor-twice" not in found({"filters": ["a"], "interceptors": [other]}, interceptors=[same])


def test_groups_that_fetch_the_same_and_routes_that_are_as_they_should_be() -> None:
    both = found({"filters": ["a/+"], "group": "fast"}, {"filters": ["a/#"]}, mqtt={"groups": [{"name": "fast"}]})
    assert both["fetched-twice"] == "ok"
    assert not found({"filters": ["a/+/alarm"]}, {"filters": ["a/+/+"]})


def test_the_command(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[[routes]]\nname = "a"\nfilters = ["a/+"]\ntopic = "a"\nkey = ""\n')
    assert "no-key" in cli("routes", "lint", "--config", str(file)).out
    strict = json.loads(cli("routes", "lint", "--strict", "--json", "--config", str(file), status=1).out)
    assert strict["findings"][0]["id"] == "no-key"
    assert "mqtt.sessions" in cli("routes", "list", "--config", str(file)).out
    with file.open("a") as out:
        out.write('[[routes]]\nname = "b"\nfilters = ["a/b"]\ntopic = "b"\n')
    assert "FAIL" in cli("routes", "lint", "--config", str(file), status=1).out


# --- which routes hold their messages when others take over
def router(*tables: dict[str, Any]) -> Router:
    return Router(routes(*tables).routes, instance="gw")


NARROW = {"name": "narrow", "filters": ["a/+/c"], "topic": "n"}
WIDE = {"name": "wide", "filters": ["a/#"], "topic": "w"}


@pytest.mark.parametrize(("before", "after", "held"), [
    ((NARROW, WIDE), (NARROW, WIDE), set()),
    ((NARROW, WIDE), (NARROW, {**WIDE, "headers": {"x": "y"}}), set()),
    ((NARROW, WIDE), (NARROW, {**WIDE, "key": "${topic[1]}"}), {"wide"}),
    ((NARROW, WIDE), (WIDE,), {"wide"}),
    ((WIDE,), (NARROW, WIDE), {"narrow"}),
    ((WIDE,), ({**WIDE, "name": "renamed"},), set()),
    ((WIDE,), ({**WIDE, "group": "other"},), {"wide"}),
    ((WIDE,), ({**WIDE, "filters": ["b/#"], "topic": "x"},), set()),
    ((NARROW, {**WIDE, "filters": ["a/b/+"]}), ({**WIDE, "filters": ["a/b/+"]}, NARROW), {"narrow", "wide"}),
])  # fmt: skip
def test_who_may_overtake(before: Any, after: Any, held: set[str]) -> None:
    assert moved(router(*before).routes, router(*after).routes) == held


def test_interceptors_and_stopped_routes_make_others_wait() -> None:
    one, other = router(WIDE), router({**WIDE, "name": "renamed"})
    assert moved(one.routes, one.routes, altered={"wide"}) == {"wide"}
    assert moved(one.routes, one.routes, intercepted={"wide"}) == set(), "they stay"
    for name in ("wide", "renamed"):
        assert moved(one.routes, other.routes, intercepted={name}) == {"renamed"}, name
    assert moved(one.routes, other.routes, stopped={"wide"}) == {"renamed"}
    assert moved(one.routes, one.routes, stopped={"wide"}) == set(), "its own hold keeps its order"


def test_routes_of_earlier_settings_still_get_messages() -> None:
    both, one = router(NARROW, WIDE).routes, router(WIDE).routes
    assert moved(one, both, both) == {"narrow"}, "what it has was the wide one's meanwhile"
    assert moved(router({**WIDE, "filters": ["b/#"]}).routes, router({**NARROW, "topic": "w"}).routes, both) == {
        "narrow"
    }
    assert moved(both, both, router({**WIDE, "topic": "x"}).routes) == set(), "they have had all since then"


@patient
@given(st.lists(st.tuples(FILTERS, st.sampled_from("xy")), min_size=1, max_size=4), st.data())
def test_no_message_goes_elsewhere_unheld(before: list[tuple[str, str]], data: st.DataObject) -> None:
    """Brute force: whatever topic changes its destination, its new route holds."""
    earlier, after = (
        data.draw(st.lists(st.tuples(FILTERS, st.sampled_from("xy")), min_size=1, max_size=4)) for _ in range(2)
    )
    order = data.draw(st.permutations(range(len(after))))

    def tables(pairs: list[tuple[str, str]], names: Any) -> list[dict[str, Any]]:
        return [
            {"name": f"n{n}", "filters": [text], "topic": topic} for n, (text, topic) in zip(names, pairs, strict=True)
        ]

    try:
        older, old = (router(*tables(one, range(len(one)))) for one in (earlier, before))
        new = router(*tables(after, order))
    except ConfigError:  # a route that is never reached
        return
    held = moved(old.routes, new.routes, older.routes)
    for topic in TOPICS:
        was, now = old.match(topic) or older.match(topic), new.match(topic)
        if topic and was is not None and now is not None and was.destination != now.destination:
            assert now.name in held, topic
