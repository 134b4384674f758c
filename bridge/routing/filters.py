"""Sets of MQTT topic filters: shared subscriptions, and a minimal set of subscriptions.

``config.values.topic_filters`` has what concerns one filter or two.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from bridge.routing.filter_trie import FilterTrie
from config.errors import ConfigError
from config.values.topic_filters import check_filter, covers, intersection, split_filter


class FilterError(ConfigError):
    """A topic filter that MQTT does not allow."""


class Subscription(NamedTuple):
    """A filter (with ``$share/GROUP/`` if shared) and the highest QoS wanted."""

    filter: str
    qos: int


class Overlap(NamedTuple):
    """Two filters that share topics, while neither covers the other. The broker delivers a shared topic twice.

    ``both`` is the filter of the shared topics, ``instead`` the narrowest filter that covers the two.
    """

    first: str
    second: str
    both: str
    instead: str


class Cover(NamedTuple):
    """Subscriptions for every topic of some filters, and the pairs that deliver a topic twice."""

    subscriptions: tuple[Subscription, ...]
    overlaps: tuple[Overlap, ...]


def validate_filter(text: str) -> None:
    """Raise FilterError with the rule, unless ``text`` is a topic filter, perhaps behind ``$share/GROUP/``."""
    group, rest = split_share(text)
    if group is not None and not rest:
        raise FilterError(f"{_shown(text)} names a share group, but no filter after it")
    try:
        check_filter(text)
    except ValueError as error:
        raise FilterError(f"the filter {_shown(text)} is not valid: {error}") from None


def _shown(text: str) -> str:
    """At most 100 characters for a sentence, quoted and escaped."""
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}…"


def split_share(text: str) -> tuple[str | None, str]:
    """The group and the filter of ``$share/GROUP/FILTER``. The group of EMQX's ``$queue/FILTER`` is ``$queue``; any
    other text has the group None.

    Raises FilterError for a ``$share/`` without group or filter, or with a wildcard in the group [MQTT-4.8.2-1, -2].
    """
    if text.startswith("$queue/"):
        return "$queue", text[7:]
    if not text.startswith("$share/"):
        return None, text
    group, slash, rest = text[7:].partition("/")
    if not slash or not group or "+" in group or "#" in group:
        raise FilterError(
            f"the shared subscription {_shown(text)} is not of the form $share/GROUP/FILTER, "
            "with a group without '/', '+' and '#'"
        )
    return group, rest


def matches(filter_: str, topic: str) -> bool:
    """Whether the filter matches the topic. Both must be valid, without ``$share/``."""
    return covers(filter_, topic)


def covered_by_all(text: str, wides: Sequence[str]) -> bool:
    """Whether each topic that ``text`` matches is matched by one of ``wides``. Exact.

    No filter lists all names of a level, so a filter splits in one way only: 'a/#' is 'a' and 'a/+/#'.
    """
    if any(covers(wide, text) for wide in wides):
        return True
    levels, open_ended = split_filter(text)
    if not open_ended or len(levels) > max((wide.count("/") + 1 for wide in wides), default=0):
        return False
    return covered_by_all("/".join(levels), wides) and covered_by_all("/".join([*levels, "+", "#"]), wides)


def example_topic(filter_: str, levels: int | None = None) -> str | None:
    """A topic that the filter matches, for sentences; None if it matches only the empty topic. ``levels`` is the
    number of levels behind a '#'."""
    fixed, open_ended = split_filter(filter_)
    words = ["example" if level == "+" else level for level in fixed]
    if open_ended:
        words += ["example"] * (1 if levels is None else levels - len(fixed))
    topic = "/".join(words)
    return topic or None


def difference(filter_: str, topic: str) -> str | None:
    """Why a filter does not match a topic: a few words about the first level that differs. None if it matches."""
    if matches(filter_, topic):
        return None
    wanted, levels = filter_.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return f"a topic that begins with '$' is not matched by a wildcard on the first level ({wanted[0]!r})"
    for number, want in enumerate(wanted):
        if want == "#":
            break  # the levels before it match
        if number == len(levels):
            return (
                f"the topic has {len(levels)} level{'s' * (len(levels) > 1)}, the filter asks for {want!r} after them"
            )
        if want not in ("+", levels[number]):
            return f"level {number} is {levels[number]!r}, not {want!r}"
    return f"the topic has {len(levels)} levels, the filter ends after {len(wanted)}"


def superset(first: str, second: str) -> str | None:
    """The narrowest filter that covers both; None for ``$``-topics of different first levels."""
    ours, open_ended = split_filter(first)
    theirs, their_open_ended = split_filter(second)
    if ours[0] != theirs[0] and (ours[0].startswith("$") or theirs[0].startswith("$")):
        return None
    levels = [our if our == their else "+" for our, their in zip(ours, theirs, strict=False)]
    if open_ended or their_open_ended or len(ours) != len(theirs):
        levels.append("#")
    return "#" if levels == ["+", "#"] else "/".join(levels)


def minimal_cover(filters: Iterable[tuple[str, int]]) -> Cover:
    """The fewest of the given (filter, QoS) that deliver every topic, in the order given.

    A filter that another covers is left out, and the other gets the higher QoS of the two. Filters that overlap without
    covering each other both stay and are reported, because the broker delivers a copy for each. One wider filter
    (``Overlap.instead``) avoids that, but fetches topics that no route wants: the operator decides.
    """
    wanted: dict[str, int] = {}
    for text, qos in filters:
        wanted[text] = max(qos, wanted.get(text, 0))
    trie: FilterTrie[str] = FilterTrie()
    for text in wanted:
        trie.add(text, text)
    kept: dict[str, int] = {}
    heirs: list[tuple[str, int]] = []
    for text, qos in wanted.items():
        # '#' and '+/#' cover each other: the first stays.
        heir = next((other for other in trie.covering(text) if other in kept or not covers(text, other)), None)
        if heir is None:
            kept[text] = qos
        else:
            heirs.append((heir, qos))
    for heir, qos in heirs:
        for text in trie.covering(heir):
            if text in kept:
                kept[text] = max(qos, kept[text])
                break
    subscriptions = tuple(Subscription(text, qos) for text, qos in kept.items())
    return Cover(subscriptions, tuple(_overlaps(list(kept))))


def _overlaps(filters: list[str]) -> Iterable[Overlap]:
    """Pairs of filters that share topics, in the order given. No filter covers another."""
    trie: FilterTrie[int] = FilterTrie()
    for number, text in enumerate(filters):
        trie.add(text, number)
    for number, first in enumerate(filters):
        if "+" not in first and "#" not in first:
            continue  # a filter that shares its only topic would cover it
        for other in trie.meeting(first):
            both = intersection(first, filters[other]) if other > number else None
            if both is not None:
                instead = superset(first, filters[other])
                assert instead is not None  # filters with a common topic have one
                yield Overlap(first, filters[other], both, instead)


def split_disjoint(
    cover: Cover, sessions: int, present: Sequence[Collection[str]] = ()
) -> tuple[tuple[Subscription, ...], ...]:
    """The subscriptions of each session, so that no topic is in two sessions: filters that overlap stay together.

    Groups of filters are dealt out in the order of their first filter, so a new filter at the end moves no other. With
    fewer groups than sessions, some sessions get none. ``present`` are the filters that sessions have now: their groups
    stay, so that their topics keep their order. Other groups go to the session with the fewest filters.
    """
    leader = {subscription.filter: subscription.filter for subscription in cover.subscriptions}

    def find(text: str) -> str:
        while leader[text] != text:
            text = leader[text]
        return text

    for overlap in cover.overlaps:
        leader[find(overlap.second)] = find(overlap.first)
    groups: dict[str, list[Subscription]] = {}
    for subscription in cover.subscriptions:
        groups.setdefault(find(subscription.filter), []).append(subscription)
    dealt: list[list[Subscription]] = [[] for _ in range(sessions)]
    homeless: list[list[Subscription]] = []
    for group in groups.values():
        wanted = {subscription.filter for subscription in group}
        home = next((dealt[number] for number, filters in enumerate(present) if not wanted.isdisjoint(filters)), None)
        if home is None:
            homeless.append(group)
        else:
            home += group
    for number, group in enumerate(homeless):
        (min(dealt, key=len) if present else dealt[number % sessions]).extend(group)
    return tuple(tuple(share) for share in dealt)
