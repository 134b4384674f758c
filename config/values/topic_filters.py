"""MQTT topic filters as sets of topics: validity, covers, overlaps.

A filter is its text; its levels are the parts between slashes, and empty levels count (``/a`` has two). The rules are
those of MQTT 5.0 section 4.7: ``+`` stands for one level, ``#`` for the rest including none (``a/#`` matches ``a``),
and a wildcard on the first level does not match topics that begin with ``$`` [MQTT-4.7.2-1]. The empty topic, to which
nobody can publish, counts as a topic here: only it matches both ``+`` and ``/#``.
"""

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import AfterValidator

MAX_BYTES: Final = 65_535  # a topic has a length of two bytes before it
_OURS: Final = "the shared subscription is made from mqtt.distribution and mqtt.share_group"
_PREFIXES: Final = {
    "$share": _OURS,
    "$queue": _OURS,
    "$exclusive": "an exclusive subscription cannot be shared among sessions",
}


def check_filter(text: str) -> str:
    """``text``, if it is a valid topic filter, perhaps after ``$share/GROUP/``. Raises ValueError with a sentence."""
    if not text:
        raise ValueError("a filter is not empty")
    if "\0" in text:
        raise ValueError("a filter holds no NUL character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"a filter is valid Unicode, which this is not at position {error.start}") from None
    if size > MAX_BYTES:
        raise ValueError(f"a filter is at most {MAX_BYTES:,} bytes long, the share group included; this has {size:,}")
    if "#" in text[:-1] or (text[-1] == "#" and text[-2:] not in {"#", "/#"}):
        raise ValueError('"#" stands alone in the last level, as in "devices/#"')
    if "+" in text and any("+" in level and level != "+" for level in text.split("/")):
        raise ValueError('"+" stands alone in its level, as in "devices/+/state"')
    return text


def _check_setting(text: str) -> str:
    first = text.partition("/")[0]
    if (reason := _PREFIXES.get(first)) is not None:
        raise ValueError(f"a filter does not start with {first}/: {reason}")
    return check_filter(text)


MqttFilter = Annotated[str, AfterValidator(_check_setting)]
"""A topic filter of a route, known to be valid."""


def split_filter(filter_: str) -> tuple[list[str], bool]:
    """A filter's levels before a final '#', and whether there is one.

    A lone '#' is '+/#': a topic has at least one level, and both leave out those that begin with '$'.
    """
    levels = filter_.split("/")
    if levels[-1] != "#":
        return levels, False
    levels.pop()
    return levels or ["+"], True


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
    """The filter for exactly the topics that both match, or None."""
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


def disjoint_groups(filters: Iterable[str]) -> list[list[str]]:
    """The filters in groups without a common topic. Filters that another one covers are left out."""
    kept: list[str] = []
    for text in dict.fromkeys(filters):
        if not any(covers(other, text) for other in kept):
            kept = [other for other in kept if not covers(text, other)] + [text]
    groups: list[list[str]] = []
    for text in kept:
        meets = [group for group in groups if any(intersection(text, other) is not None for other in group)]
        groups = [group for group in groups if group not in meets] + [
            [*(one for group in meets for one in group), text]
        ]
    return groups
