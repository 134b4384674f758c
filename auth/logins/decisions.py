"""Decisions about topics, remembered: what a client may was decided from the same data a moment ago."""

from __future__ import annotations

__all__ = ["DecisionCache"]

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from auth.model import AccessAnswer, AccessRequest

_ENTRIES: Final = 50_000  # some 30 MiB; EMQX keeps its own for each connection, so what comes twice comes soon
_LONGEST: Final = 256  # characters of a topic or of all names: longer ones would only take the room of others
_MOST_GROUPS: Final = 16


class DecisionCache:
    """Answers by everything that they depend on; all of them are forgotten when the data moves. What asks with ever
    new topics finds nothing here and takes the place of the oldest."""

    def __init__(self, entries_max: int) -> None:
        self._entries: OrderedDict[Hashable, AccessAnswer] = OrderedDict()
        self._entries_max = min(entries_max, _ENTRIES)
        self._version = (0, 0)

    def __len__(self) -> int:
        return len(self._entries)

    @staticmethod
    def key(request: AccessRequest) -> Hashable | None:
        """By what it is known; None for one that is not remembered."""
        subject = request.subject
        names = len(subject.username) + len(subject.clientid) + len(subject.cert_common_name) + len(subject.tenant)
        if len(request.topic) > _LONGEST or names > _LONGEST or len(subject.groups) > _MOST_GROUPS:
            return None
        return (
            request.topic,
            request.action,
            request.qos,
            request.retain,
            subject.clientid,
            subject.username,
            subject.peerhost,
            subject.cert_common_name,
            subject.tenant,
            subject.groups,
            frozenset(subject.attributes.items()) if subject.attributes else None,
        )

    def get(self, key: Hashable, version: tuple[int, int]) -> AccessAnswer | None:
        """What was answered from data of this version."""
        if version != self._version:
            self._entries.clear()
            self._version = version
            return None
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: Hashable, version: tuple[int, int], answer: AccessAnswer) -> None:
        """Remember what was decided from data of this version."""
        if version != self._version or not self._entries_max:
            return
        self._entries[key] = answer
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
