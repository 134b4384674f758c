"""What devices send back to one ``[[commands]]``: answers, acknowledgements that EMQX reports, presence."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from bridge.commands.reading import read_answer, read_delivery, read_presence
from bridge.kafka.feed import TopicFeed

if TYPE_CHECKING:
    from bridge.commands.dispatcher import Dispatcher
    from bridge.commands.ports import Partition
    from bridge.dead_letters.reading import LoggedRecord
    from bridge.kafka.login import KafkaLogin
    from config.settings import Settings
    from config.tables.commands import CommandSettings


class Uplink:
    """Reads the topics of the routes that bring something back, and gives the dispatcher their records.

    ``begun`` gets the partitions that are not read, for want of a leader; ``look`` is called after each reading.
    """

    def __init__(
        self,
        settings: Settings,
        commands: CommandSettings,
        client_id: str,
        login: KafkaLogin,
        dispatcher: Dispatcher,
        begun: Callable[[Collection[Partition]], None],
        look: Callable[[], None],
    ) -> None:
        self._settings, self._client_id, self._login = settings, client_id, login
        self._dispatcher, self._begun, self._look = dispatcher, begun, look
        self._ways = _ways_back(settings, commands)
        self._feed: TopicFeed | None = None
        self._rewind_ms: int | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anything is to be read."""
        return bool(self._ways)

    @property
    def is_read(self) -> bool:
        return self._feed is not None

    async def read(self) -> None:
        """Read until the feed fails or could read more; then call it again. Raises as ``TopicFeed``."""
        feed = TopicFeed(self._settings.kafka, self._client_id, sorted(self._ways), self._login)
        await feed.start()
        try:
            self._feed = feed
            self._dispatcher.begin_answers(feed.positions)
            self._begun(feed.leaderless)
            self._look()
            while not feed.can_read_more():
                if (moment_ms := self._rewind_ms) is not None:
                    await feed.rewind(moment_ms)
                    if self._rewind_ms == moment_ms:  # no earlier one was asked for meanwhile
                        self._rewind_ms = None
                for record in await feed.read():
                    self._take(record)
                self._look()
        finally:
            self._feed = None
            self.rewind(self._dispatcher.oldest_ms())  # the next feed reads again from there
            await feed.stop()

    def rewind(self, moment_ms: int | None) -> None:
        """Have answers from that moment on read again."""
        if moment_ms is not None:
            self._rewind_ms = moment_ms if self._rewind_ms is None else min(moment_ms, self._rewind_ms)

    def _take(self, record: LoggedRecord) -> None:
        """Give the dispatcher a record from a device, as each kind that its topic brings."""
        dispatcher = self._dispatcher
        for kind in self._ways[record.place.topic]:
            if kind == "answers" and (answer := read_answer(record)) is not None:
                dispatcher.answered(answer)
            elif kind == "delivered_by" and (delivery := read_delivery(record)) is not None:
                dispatcher.delivered(delivery)
            elif kind == "presence" and (presence := read_presence(record)) is not None:
                dispatcher.heard(presence)


def _ways_back(settings: Settings, commands: CommandSettings) -> dict[str, list[str]]:
    """Kafka topics that bring something back, each with the settings that name its route."""
    topics = {route.name: route.topic for route in settings.routes}
    found: dict[str, list[str]] = {}
    for kind in ("answers", "delivered_by", "presence"):
        if (name := getattr(commands, kind)) is not None:
            found.setdefault(topics[name], []).append(kind)
    return found
