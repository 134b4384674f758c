"""Finds routes that take over messages from others when routes change while messages flow.

Records of a partition keep the order of their routing. When an MQTT topic moves to another partition, earlier records
may still wait for Kafka. So messages of such routes are held until those records are stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from bridge.routing.filter_trie import FilterTrie
from config.values.topic_filters import intersection

if TYPE_CHECKING:
    from bridge.routing.router import Route


def moved(
    before: Sequence[Route],
    after: Sequence[Route],
    earlier: Iterable[Route] = (),
    *,
    altered: Collection[str] = (),
    intercepted: Collection[str] = (),
    stopped: Collection[str] = (),
) -> frozenset[str]:
    """The routes of ``after`` that may take messages of a route of ``before`` and write them to another place.

    ``earlier`` are routes of settings before those, which get what the broker had queued for them.
    ``intercepted`` are routes with interceptors, which may choose topic and key; those of ``altered`` ones have
    changed. ``stopped`` are routes with held messages, whose order the same place does not keep. The result may have a
    route too many, never one too few."""
    old = {route.name: route for route in before}
    trie: FilterTrie[tuple[Route, str]] = FilterTrie()
    for route in (*before, *earlier):
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
                if route.name in kept and old.get(former.name) is not former:
                    continue  # settings before the last got nothing that this filter matches
                if former.name != route.name and former.name in kept and route.name in kept:
                    # Both have their old filters, so the earlier of the two still wins.
                    same_order = (former.index < old[route.name].index) == (place[former.name] < place[route.name])
                    if same_order:
                        continue
                if _agree(former, route, altered, intercepted, stopped):
                    continue
                if intersection(text, other) is not None:
                    found.add(route.name)
    return frozenset(found)


def _agree(
    former: Route, route: Route, altered: Collection[str], intercepted: Collection[str], stopped: Collection[str]
) -> bool:
    """Whether messages that change from one route to the other keep their order without a hold."""
    if former.name in altered or route.name in altered or former.destination != route.destination:
        return False
    if former.name == route.name:
        return True
    return former.name not in stopped and former.name not in intercepted and route.name not in intercepted
