"""A cache of decisions about topics."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from auth.model import AccessAnswer, AccessRequest

_ENTRIES: Final = 50_000  # some 30 MiB; EMQX has a cache for each connection, so repeated questions come soon
_LONGEST: Final = 256  # characters of a topic or of all names; longer ones are not cached
_MOST_GROUPS: Final = 16


class DecisionCache:
    """Answers by all their inputs. A change of the data clears the cache. New entries replace the oldest."""

    def __init__(self, entries_max: int) -> None:
        self._entries: OrderedDict[Hashable, AccessAnswer] = OrderedDict()
        self._entries_max = min(entries_max, _ENTRIES)
        self._version = (0, 0)

    def __len__(self) -> int:
        return len(self._entries)

    @staticmethod
    def key(request: AccessRequest) -> Hashable | None:
        """The key of a request; None for one that is not cached."""
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
        """The answer by data of this version (of the database, and of its bans); None without one."""
        if version != self._version:
            self._entries.clear()
            self._version = version
            return None
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: Hashable, version: tuple[int, int], answer: AccessAnswer) -> None:
        """Store an answer by data of this version (of the database, and of its bans)."""
        if version != self._version or not self._entries_max:
            return
        self._entries[key] = answer
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
