"""The order of imported routes: the first that matches takes a message, where other bridges send it every way."""

from __future__ import annotations

__all__ = ["arranged"]

from typing import TYPE_CHECKING, Any

from bridge.routing.filters import covers

if TYPE_CHECKING:
    from gateway.tools.migration.findings import Imported


def arranged(imported: Imported, routes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Narrow routes before wide ones, which would take everything from them. One whose every message an equally wide
    one takes is left out."""
    arranged: list[dict[str, Any]] = []
    for route in routes:
        same = next((one for one in arranged if _covers(one, route) and _covers(route, one)), None)
        if same is not None:
            imported.find(
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
