"""Filters and order of imported routes. Here the first matching route takes a message; in other bridges all do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.routing.filters import FilterError, validate_filter
from config.values.topic_filters import covers

if TYPE_CHECKING:
    from gateway.tools.migration.findings import Imported


def usable(imported: Imported, what: str, text: str) -> bool:
    """Whether the text is a topic filter. If not, adds a finding about ``what``."""
    try:
        validate_filter(text)
    except FilterError as error:
        imported.note("lost", what, str(error))
        return False
    return True


def arranged(imported: Imported, routes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The routes with narrow ones before wide ones, which would take their messages. A route whose messages another one
    takes completely is left out."""
    arranged: list[dict[str, Any]] = []
    for route in routes:
        same = next((one for one in arranged if _covers(one, route) and _covers(route, one)), None)
        if same is not None:
            imported.note(
                "lost",
                f"route {route['name']}",
                f"It has the messages of {same['name']}, which takes them all: it was left out.",
                "Feed its topic by a gateway of its own (another mqtt.share_group), or from the first topic.",
            )
            continue
        at = next((number for number, one in enumerate(arranged) if _covers(one, route)), len(arranged))
        arranged.insert(at, route)
    return arranged


def _covers(wide: dict[str, Any], narrow: dict[str, Any]) -> bool:
    return all(any(covers(one, other) for one in wide["filters"]) for other in narrow["filters"])
