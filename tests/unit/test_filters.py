"""Topic filters: matching, covering and the minimal cover, each against brute force on a small world."""

import re
import sys
import time
from collections.abc import Iterable
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from bridge.routing.filter_trie import FilterTrie
from bridge.routing.filters import (
    FilterError,
    Subscription,
    matches,
    minimal_cover,
    split_disjoint,
    split_share,
    superset,
    validate_filter,
)
from config.values.topic_filters import covers, intersection

patient = settings(deadline=None)  # a shared machine may pause in the middle of an example

# A world with every kind of level: empty, ordinary, '$'-special, and one ("z") that no filter names. Four levels deep,
# one more than any filter, so that "everything" means everything.
LEVELS = ("", "a", "b", "$s", "z")
TOPICS = tuple("/".join(levels) for depth in (1, 2, 3, 4) for levels in product(LEVELS, repeat=depth))
_LEVEL = st.sampled_from(("", "a", "b", "$s", "+", "+"))


@st.composite
def _filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(_LEVEL, min_size=0, max_size=3))
    if not levels or levels == [""] or (len(levels) < 3 and draw(st.booleans())):
        levels.append("#")
    return "/".join(levels)


FILTERS = _filters()
FILTERS_WITH_QOS = st.lists(st.tuples(FILTERS, st.integers(0, 2)), min_size=1, max_size=7)


@cache
def matched(filter_: str) -> frozenset[str]:
    return frozenset(topic for topic in TOPICS if matches(filter_, topic))


# --- matching -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("filter_", "topic", "expected"), [
    ("sport/tennis/player1/#", "sport/tennis/player1", True),  # the specification's own examples, 4.7.1 and 4.7.2
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True), ("sport/#", "sport", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False), ("sport/+", "sport", False),
    ("sport/+", "sport/", True), ("+/+", "/finance", True), ("/+", "/finance", True), ("+", "/finance", False),
    ("#", "$SYS/broker", False), ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("$SYS/#", "$SYS/monitor/Clients", True), ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("$SYS/#", "$SYS", True),
    ("a/$x/#", "a/$x/b", True),  # '$' is special on the first level alone
    ("a/+", "a/$x", True), ("a//b", "a//b", True), ("a//b", "a/b", False), ("a/+/b", "a//b", True),
    ("a/#", "a/", True), ("a", "a/", False), ("/", "/", True), ("/", "//", False), ("größe/+/°", "größe/温度/°", True),
    ("a", "A", False),
])  # fmt: skip
def test_matching_follows_the_specification(filter_: str, topic: str, expected: bool) -> None:
    assert matches(filter_, topic) is expected


@patient
@given(FILTERS, st.sampled_from(TOPICS).filter(bool))
def test_matching_agrees_with_paho(filter_: str, topic: str) -> None:
    assert matches(filter_, topic) is topic_matches_sub(filter_, topic), f"{filter_!r} on {topic!r}"


# --- validation ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", [
    "#", "+", "/", "a", "a/#", "+/+/#", "a//b/", "$share/g/a/+", "$share/g//", "$queue/a/#", "$SYS/#",
    "ä/ /\U0001f321", "x" * 65_535, "$share", "a/$share/b",
])  # fmt: skip
def test_valid_filters_pass(text: str) -> None:
    validate_filter(text)


@pytest.mark.parametrize(("text", "says"), [
    ("", "empty"), ("a#", '"#"'), ("a/#/b", '"#"'), ("##", '"#"'), ("a/b+", '"+"'), ("++", '"+"'),
    ("$share/g/a/b#", '"#"'), ("a\0b", "NUL"), ("a/\ud800", "Unicode"), ("ä" * 32_768, "65,536"),
    ("$share/g", "$share/GROUP/FILTER"), ("$share//a", "$share/GROUP/FILTER"), ("$share/+/a", "$share/GROUP/FILTER"),
    ("$share/g/", "no filter"), ("$queue/", "no filter"),
])  # fmt: skip
def test_invalid_filters_are_refused_with_the_rule(text: str, says: str) -> None:
    with pytest.raises(FilterError, match=re.escape(says)) as caught:
        validate_filter(text)
    assert len(str(caught.value)) < 400


def test_a_shared_subscription_is_taken_apart() -> None:
    assert split_share("$share/g/a/#") == ("g", "a/#")
    assert split_share("$share/g//") == ("g", "/")
    assert split_share("$queue/a") == ("$queue", "a")
    assert split_share("$shared/g/a") == (None, "$shared/g/a")
    assert split_share("a/$share/g") == (None, "a/$share/g")


# --- sets ---------------------------------------------------------------------------------------------------------
def _every_filter() -> list[str]:
    """Every filter of up to three levels over a literal, an empty, a '$'-special and a wildcard level."""
    texts = ["#"]
    for depth in (1, 2, 3):
        for levels in product(("", "a", "$s", "+"), repeat=depth):
            text = "/".join(levels)
            texts += [text, f"{text}/#"] if text else [f"{text}/#"]
    return texts


@cache
def _bits(filter_: str) -> int:
    return sum(1 << number for number, topic in enumerate(TOPICS) if matches(filter_, topic))


def test_covers_intersection_and_superset_are_exact_for_all_pairs_of_a_small_world() -> None:
    world = {text: _bits(text) for text in _every_filter()}
    for (first, ours), (second, theirs) in product(world.items(), repeat=2):
        assert covers(first, second) is (ours & theirs == theirs), f"{first!r} over {second!r}"
        both = intersection(first, second)
        assert (_bits(both) if both is not None else 0) == ours & theirs, f"{first!r} and {second!r}: {both!r}"
        wide = superset(first, second)
        if wide is None:
            assert not ours & theirs, f"{first!r} and {second!r} have common topics"
        else:
            assert covers(wide, first), f"{wide!r} over {first!r}"
            assert covers(wide, second), f"{wide!r} over {second!r}"


def test_no_narrower_filter_covers_two_than_their_superset() -> None:
    world = _every_filter()
    short = [text for text in world if text.count("/") < 2]
    for first, second in product(short, repeat=2):
        wide = superset(first, second)
        for other in world:
            if covers(other, first) and covers(other, second):
                assert wide is not None, f"{other!r} covers {first!r} and {second!r}"
                assert covers(other, wide), f"{other!r} covers {first!r} and {second!r}, but not {wide!r}"


# --- minimal cover ------------------------------------------------------------------------------------------------
@patient
@given(FILTERS_WITH_QOS)
def test_minimal_cover_delivers_every_topic_at_no_less_qos(filters: list[tuple[str, int]]) -> None:
    kept = minimal_cover(filters).subscriptions
    for text, qos in filters:
        assert any(covers(sub.filter, text) and sub.qos >= qos for sub in kept), (
            f"{text!r}, QoS {qos}, is in none of {kept}"
        )
    for topic in TOPICS:
        wanted = any(matches(text, topic) for text, _ in filters)
        assert wanted is any(matches(sub.filter, topic) for sub in kept), topic


@patient
@given(FILTERS_WITH_QOS)
def test_minimal_cover_keeps_nothing_twice_and_raises_no_qos_without_need(filters: list[tuple[str, int]]) -> None:
    kept = minimal_cover(filters).subscriptions
    for one, other in product(kept, kept):
        assert one is other or not covers(one.filter, other.filter), f"{other} is covered by {one}"
    for sub in kept:
        assert sub.filter in {text for text, _ in filters}
        assert sub.qos in {qos for text, qos in filters if covers(sub.filter, text)}


@patient
@given(FILTERS_WITH_QOS)
def test_every_overlap_that_is_left_is_reported_with_its_topics(filters: list[tuple[str, int]]) -> None:
    cover = minimal_cover(filters)
    reported = {(overlap.first, overlap.second): overlap for overlap in cover.overlaps}
    for number, one in enumerate(cover.subscriptions):
        for other in cover.subscriptions[number + 1 :]:
            common = matched(one.filter) & matched(other.filter)
            overlap = reported.pop((one.filter, other.filter), None)
            assert (overlap is not None) is bool(common)
            if overlap is not None:
                assert matched(overlap.both) == common
                assert covers(overlap.instead, one.filter)
                assert covers(overlap.instead, other.filter)
    assert not reported


@patient
@given(FILTERS_WITH_QOS, st.integers(1, 5))
def test_partitioned_sessions_share_no_topic_and_lose_none(filters: list[tuple[str, int]], sessions: int) -> None:
    cover = minimal_cover(filters)
    dealt = split_disjoint(cover, sessions)
    assert len(dealt) == sessions
    assert sorted(sub for share in dealt for sub in share) == sorted(cover.subscriptions)
    topics = [frozenset().union(*(matched(sub.filter) for sub in share)) for share in dealt]
    for number, ours in enumerate(topics):
        for theirs in topics[number + 1 :]:
            assert not ours & theirs


def test_partitioned_deals_evenly_and_a_filter_added_last_moves_no_other() -> None:
    filters = [(f"site{n}/#", 1) for n in range(8)]
    before = split_disjoint(minimal_cover(filters), 4)
    assert [len(share) for share in before] == [2, 2, 2, 2]
    after = split_disjoint(minimal_cover([*filters, ("site8/#", 1)]), 4)
    for share, grown in zip(before, after, strict=True):
        assert grown[: len(share)] == share


def trie_of(filters: Iterable[str]) -> FilterTrie[str]:
    trie: FilterTrie[str] = FilterTrie()
    for text in filters:
        trie.add(text, text)
    return trie


# --- trie ---------------------------------------------------------------------------------------------------------
@patient
@given(st.lists(FILTERS, min_size=1, max_size=9), st.sampled_from(TOPICS))
def test_the_trie_finds_the_first_match_in_order(filters: list[str], topic: str) -> None:
    expected = next((text for text in filters if matches(text, topic)), None)
    assert trie_of(filters).first(topic) == expected, f"{filters} on {topic!r}"


@patient
@given(st.lists(FILTERS, min_size=1, max_size=9), FILTERS)
def test_the_trie_finds_all_covering_filters_in_order(filters: list[str], narrow: str) -> None:
    filters = list(dict.fromkeys(filters))
    assert trie_of(filters).covering(narrow) == [text for text in filters if covers(text, narrow)]


@patient
@given(st.lists(st.text(max_size=4).map(lambda level: level.replace("/", "")), min_size=1, max_size=5))
def test_any_text_is_found_by_itself_and_by_wildcards(levels: list[str]) -> None:
    levels = [level.replace("+", "").replace("#", "").replace("\0", "") for level in levels]
    topic = "/".join(levels) or "x"
    for text in (topic, "/".join(["+"] * (topic.count("/") + 1)), topic + "/#"):
        assert (trie_of([text]).first(topic) is not None) is matches(text, topic)


def test_a_hostile_topic_costs_no_more_than_the_filters_are_deep() -> None:
    trie = trie_of(["+/+/+/#", "a/b/c", "+/b/+"])
    deep = "/" * 65_535
    trie.first(deep)
    started = time.process_time()
    for _ in range(1000):
        assert trie.first(deep) == "+/+/+/#"
    # Copying the 64 KiB rest takes some microseconds; splitting it all into 65,536 levels takes milliseconds.
    assert time.process_time() - started < 1.0


@patient
@given(st.lists(FILTERS, min_size=1, max_size=9), FILTERS)
def test_the_trie_misses_no_filter_that_meets_another(filters: list[str], one: str) -> None:
    found = trie_of(filters).meeting(one)
    assert {text for text in filters if intersection(text, one) is not None} <= set(found)
    assert set(found) <= set(filters)


def test_a_thousand_filters_are_reduced_without_comparing_all_pairs() -> None:
    filters = [(f"site{n % 50}/line{n}/+/state", 1) for n in range(1000)] + [("site7/#", 0)]
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        cover = minimal_cover(filters)
    finally:
        sys.setprofile(None)
    assert calls < 200_000, "all pairs are half a million comparisons, more than a second of a gateway's start"
    assert len(cover.subscriptions) == 981
    assert cover.subscriptions[-1] == Subscription("site7/#", 1)
