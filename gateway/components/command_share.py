"""The part of the MQTT connection that belongs to one ``[[commands]]``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.commands.ports import Outgoing, Published
    from gateway.mqtt.publish_link import PublishLink


class LinkShare:
    """``bridge.commands.ports.CommandLink``: the connection, without the room that is kept for the other entries.

    There is no room while ``is_owner`` is false. A process that was stopped for a while goes on where it was; another
    member may have its partitions by then, and it must not send before it has found that out.
    """

    def __init__(self, link: PublishLink, entries: int, is_owner: Callable[[], bool]) -> None:
        self._link = link
        self._others = entries - 1
        self._is_owner = is_owner
        self._outstanding = 0

    def watch(self, changed: Callable[[], None]) -> None:
        self._link.watch(changed)

    @property
    def room(self) -> int:
        """How many PUBLISH packets this entry may give to it now."""
        if not self._is_owner():
            return 0
        room = self._link.room
        if self._others:
            # An entry sends the next message with each answer, so one with a backlog would never leave any room.
            window = self._link.window
            kept = self._others * max(1, window // (4 * (self._others + 1)))
            room = max(0, min(room, max(1, window - kept) - self._outstanding))
        return room

    def publish(self, message: Outgoing, published: Published) -> None:
        """Send. Only while ``room`` is above 0."""
        if not self._others:
            self._link.publish(message, published)
            return

        def answered(code: int | None) -> None:
            self._outstanding -= 1
            published(code)

        self._link.publish(message, answered)
        self._outstanding += 1
