"""MQTT topic filters as sets of topics: validation, matching, covering, and a minimal set of subscriptions.

A filter is its text; its levels are the parts between slashes, and empty levels count (``/a`` has two). The rules are
those of MQTT 5.0 section 4.7: ``+`` stands for one level, ``#`` for the rest including none (``a/#`` matches ``a``),
and a wildcard on the first level does not match topics that begin with ``$`` [MQTT-4.7.2-1]. The empty topic, to which
nobody can publish, counts as a topic here: it is what ``+`` and ``/#`` have in common.
"""

from __future__ import annotations

__all__ = [
    "Cover",
    "FilterError",
    "Overlap",
    "Subscription",
    "covered_by_all",
    "covers",
    "difference",
    "example_topic",
    "intersection",
    "matches",
    "minimal_cover",
    "split_disjoint",
    "split_share",
    "superset",
    "validate_filter",
]

from typing import TYPE_CHECKING, Final, NamedTuple

from bridge.routing.filter_trie import FilterTrie, split_filter
from config.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MAX_BYTES: Final = 65_535  # a topic travels behind a two-byte length


class FilterError(ConfigError):
    """A topic filter that MQTT does not allow. ``position`` is the character's index, or None for the
    whole."""

    def __init__(self, sentence: str, *, position: int | None = None) -> None:
        super().__init__(sentence)
        self.position = position


class Subscription(NamedTuple):
    """What one SUBSCRIBE asks for: a filter (with its ``$share/group/`` where shared) and the highest QoS wanted."""

    filter: str
    qos: int


class Overlap(NamedTuple):
    """Two filters of which neither covers the other: each delivers its own copy of what both match.

    ``both`` is the filter of exactly those topics, ``instead`` the narrowest single filter that would take the place
    of the two.
    """

    first: str
    second: str
    both: str
    instead: str


class Cover(NamedTuple):
    """Subscriptions that together deliver every topic of the filters they were made from, and where they still
    deliver one twice."""

    subscriptions: tuple[Subscription, ...]
    overlaps: tuple[Overlap, ...]


def validate_filter(text: str) -> None:
    """Raise FilterError, with place and rule, unless ``text`` is a topic filter, perhaps behind ``$share/GROUP/``."""
    group, rest = split_share(text)
    position = len(text) - len(rest)
    if group is not None and not rest:
        raise FilterError(f"{_shown(text)} names a share group, but no filter after it", position=position)
    _validate_text(text)
    levels = rest.split("/")
    for number, level in enumerate(levels):
        if "#" in level and (level != "#" or number != len(levels) - 1):
            position += level.index("#")
            raise FilterError(
                f"the filter {_shown(text)} has a '#' at position {position} that is not the whole last level; "
                "'#' stands for the whole rest of a topic: end with it, or name the levels",
                position=position,
            )
        if "+" in level and level != "+":
            position += level.index("+")
            raise FilterError(
                f"the filter {_shown(text)} has a '+' at position {position} beside other characters; "
                "'+' stands for one whole level: MQTT has no wildcard for a part of one",
                position=position,
            )
        position += len(level) + 1


def _validate_text(text: str) -> None:
    if not text:
        raise FilterError("the filter is empty; MQTT wants at least one character")
    if "\0" in text:
        position = text.index("\0")
        raise FilterError(
            f"the filter {_shown(text)} has a NUL character at position {position}, which MQTT forbids",
            position=position,
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FilterError(
            f"the filter {_shown(text)} is not valid Unicode at position {error.start}", position=error.start
        ) from None
    if size > MAX_BYTES:
        raise FilterError(
            f"the filter {_shown(text)} is {size} bytes long; MQTT allows {MAX_BYTES}, the share group included"
        )


def _shown(text: str) -> str:
    """Text for an error's sentence: quoted, escaped, and not 65,535 characters of it."""
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}…"


def split_share(text: str) -> tuple[str | None, str]:
    """The share group and the filter of ``$share/GROUP/FILTER``, or of EMQX's ``$queue/FILTER`` (whose group is then
    ``$queue``); None and ``text`` for any other.

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
            "with a group without '/', '+' and '#'",
            position=7,
        )
    return group, rest


def matches(filter_: str, topic: str) -> bool:
    """Whether a message published to ``topic`` is one the filter asks for. Both must be valid; no ``$share/`` in
    front."""
    wanted = filter_.split("/")
    levels = topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted.pop()
        if len(levels) < len(wanted):
            return False
        del levels[len(wanted) :]
    return len(wanted) == len(levels) and all(want in ("+", level) for want, level in zip(wanted, levels, strict=True))


def covers(wide: str, narrow: str) -> bool:
    """Whether ``wide`` matches every topic that ``narrow`` matches. Exact: no filter lists all names of a level."""
    ours, open_ended = split_filter(wide)
    theirs, their_open_ended = split_filter(narrow)
    if len(theirs) < len(ours) or ((their_open_ended or len(theirs) > len(ours)) and not open_ended):
        return False
    if ours[0] == "+" and theirs[0].startswith("$"):
        return False
    return all(our in ("+", their) for our, their in zip(ours, theirs, strict=False))


def intersection(first: str, second: str) -> str | None:
    """The filter of exactly the topics that both match, or None when they share none."""
    ours, open_ended = split_filter(first)
    theirs, their_open_ended = split_filter(second)
    if (len(ours) < len(theirs) and not open_ended) or (len(theirs) < len(ours) and not their_open_ended):
        return None
    if (ours[0] == "+" and theirs[0].startswith("$")) or (theirs[0] == "+" and ours[0].startswith("$")):
        return None
    common = []
    for our, their in zip(ours, theirs, strict=False):
        if our not in ("+", their) and their != "+":
            return None
        common.append(their if our == "+" else our)
    longer = ours if len(ours) > len(theirs) else theirs
    common += longer[len(common) :]
    return "/".join([*common, "#"] if open_ended and their_open_ended else common)


def covered_by_all(text: str, wides: Sequence[str]) -> bool:
    """Whether every topic that ``text`` matches is matched by one of ``wides``, whichever that is for each. Exact.

    No filter lists all names of a level, so filters share a task in one way alone: 'a/#' is 'a' and 'a/+/#'.
    """
    if any(covers(wide, text) for wide in wides):
        return True
    levels, open_ended = split_filter(text)
    if not open_ended or len(levels) > max((wide.count("/") + 1 for wide in wides), default=0):
        return False
    return covered_by_all("/".join(levels), wides) and covered_by_all("/".join([*levels, "+", "#"]), wides)


def example_topic(filter_: str, levels: int | None = None) -> str | None:
    """A topic that the filter matches, for people to look at; None when it matches the empty one alone. ``levels``
    is how many it shall have, where the filter leaves that open."""
    fixed, open_ended = split_filter(filter_)
    words = ["example" if level == "+" else level for level in fixed]
    if open_ended:
        words += ["example"] * (1 if levels is None else levels - len(fixed))
    topic = "/".join(words)
    return topic or None


def difference(filter_: str, topic: str) -> str | None:
    """Why a filter does not match a topic, in a few words about the first level that differs; None when it does."""
    if matches(filter_, topic):
        return None
    wanted, levels = filter_.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return f"a topic that begins with '$' is not matched by a wildcard on the first level ({wanted[0]!r})"
    for number, want in enumerate(wanted):
        if want == "#":
            break  # what comes before it did not differ
        if number == len(levels):
            return (
                f"the topic has {len(levels)} level{'s' * (len(levels) > 1)}, the filter asks for {want!r} after them"
            )
        if want not in ("+", levels[number]):
            return f"level {number} is {levels[number]!r}, not {want!r}"
    return f"the topic has {len(levels)} levels, the filter ends after {len(wanted)}"


def superset(first: str, second: str) -> str | None:
    """The narrowest filter that covers both, or None: no filter matches ``$``-topics of different first levels."""
    ours, open_ended = split_filter(first)
    theirs, their_open_ended = split_filter(second)
    if ours[0] != theirs[0] and (ours[0].startswith("$") or theirs[0].startswith("$")):
        return None
    levels = [our if our == their else "+" for our, their in zip(ours, theirs, strict=False)]
    if open_ended or their_open_ended or len(ours) != len(theirs):
        levels.append("#")
    return "#" if levels == ["+", "#"] else "/".join(levels)


def minimal_cover(filters: Iterable[tuple[str, int]]) -> Cover:
    """The fewest of the given (filter, QoS) that still deliver every topic, in the order given, each with the highest
    QoS it stands for.

    A filter that another covers is left out; its QoS is kept by the one that stays, so that no route is delivered at
    less than it asks for (and the others of that subscription at more). Filters that overlap without covering each
    other both stay, and are reported: a broker delivers a copy for each. MQTT cannot subtract, so the only cure is
    one wider filter, which would fetch topics that no route wants and that the broker's access rules may forbid: that
    is the operator's choice, and ``Overlap.instead`` names it.
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
        # Of filters that cover each other ('#' and '+/#') the first stays.
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
    """Pairs of filters that share topics, none of which covers another. In the order given."""
    trie: FilterTrie[int] = FilterTrie()
    for number, text in enumerate(filters):
        trie.add(text, number)
    for number, first in enumerate(filters):
        if "+" not in first and "#" not in first:
            continue  # it would be covered by whatever it shares its one topic with
        for other in trie.meeting(first):
            both = intersection(first, filters[other]) if other > number else None
            if both is not None:
                instead = superset(first, filters[other])
                assert instead is not None  # only filters without a common topic have none
                yield Overlap(first, filters[other], both, instead)


def split_disjoint(
    cover: Cover, sessions: int, present: Sequence[Collection[str]] = ()
) -> tuple[tuple[Subscription, ...], ...]:
    """One set of subscriptions per session so that no topic is subscribed by two sessions: filters that overlap stay
    together.

    Groups are dealt out in the order of their first filter, so a filter added at the end moves no other, unless they
    overlap. Some sessions get nothing when there are fewer groups than sessions: a filter cannot be cut in two without
    knowing its topics. ``present`` are the filters that sessions have by now: a group with one of them stays where that
    is, so that its topics keep their order, and the others go where there is least.
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
