"""Which routes take over messages from others, and may put their records elsewhere, when routes change while messages
flow.

A record's place in the order of its partition follows from when it is routed. Where the same MQTT topic goes to another
partition afterwards, what was routed before may still wait for Kafka; so the messages of such routes are held until it
does not.
"""

from __future__ import annotations

__all__ = ["moved"]

from typing import TYPE_CHECKING

from bridge.routing.filter_trie import FilterTrie
from bridge.routing.filters import intersection

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bridge.routing.router import Route


def moved(
    before: Sequence[Route], after: Sequence[Route], *, altered: Collection[str] = (), stopped: Collection[str] = ()
) -> frozenset[str]:
    """The routes of ``after`` that may take messages which a route of ``before`` took, and send them elsewhere.

    ``altered`` are names of routes whose interceptors change, which may choose topic and key; ``stopped`` those whose
    messages are held, so that even the same place is not the same order. May name a route too many, never one too
    few."""
    old = {route.name: route for route in before}
    trie: FilterTrie[tuple[Route, str]] = FilterTrie()
    for route in before:
        for text in route.filters:
            trie.add(text, (route, text))
    kept = {
        route.name for route in after if (same := old.get(route.name)) is not None and same.filters == route.filters
    }
    place = {route.name: number for number, route in enumerate(after)}
    found: set[str] = set()
    for route in after:
        for text in route.filters:
            for former, other in trie.meeting(text):
                if former.name != route.name and former.name in kept and route.name in kept:
                    # Both ask for what they asked for: the earlier of the two has won before and wins now.
                    same_order = (former.index < old[route.name].index) == (place[former.name] < place[route.name])
                    if same_order:
                        continue
                if _agree(former, route, altered, stopped):
                    continue
                if intersection(text, other) is not None:
                    found.add(route.name)
    return frozenset(found)


def _agree(former: Route, route: Route, altered: Collection[str], stopped: Collection[str]) -> bool:
    """Whether what passes from one to the other keeps its order by itself."""
    if former.name in altered or route.name in altered or former.destination != route.destination:
        return False
    return former.name == route.name or former.name not in stopped
