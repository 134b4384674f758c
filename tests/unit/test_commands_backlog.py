"""Many commands of few devices: when each expires, and which statuses are written."""

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from bridge.commands.dispatcher import Dispatcher
from bridge.commands.model import StatusRecord
from bridge.commands.plan import CommandPlan
from bridge.commands.ports import CommandLink, Committed, Graveyard, Outgoing, Published, StatusSink
from bridge.dead_letters.reading import LoggedRecord, Place
from config.tables.commands import CommandSettings

S = 1_000_000_000


class Site:
    """A dispatcher with a clock, a broker and a status topic that the test moves."""

    def __init__(self, **settings: Any) -> None:
        self.ns = 0
        self.room = 1_000
        self.open: deque[Published] = deque()
        self.queue: deque[tuple[StatusRecord, Callable[[int], None]]] = deque()
        self.written: list[tuple[int, str]] = []
        plan = CommandPlan.from_settings(CommandSettings(name="c", topics=("t",), status_topic="s", **settings))
        self.dispatcher = Dispatcher(
            plan, cast("CommandLink", self), cast("StatusSink", self), cast("Graveyard", None), self
        )
        self.dispatcher.is_open = True
        self.dispatcher.assign(("t", 0), Committed(0, ""), [])

    def now_ns(self) -> int:
        return self.ns

    def now_ms(self) -> int:
        return self.ns // 1_000_000

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def publish(self, _message: Outgoing, published: Published) -> None:
        self.open.append(published)

    def write(self, _partition: int, record: StatusRecord, stored: Callable[[int], None]) -> None:
        self.queue.append((record, stored))

    def take(self, first: int, *expiries_s: int) -> None:
        self.dispatcher.take(
            [
                LoggedRecord(Place("t", 0, first + n), self.now_ms(), b"d", b"on", [("expires-at", b"%d" % (s * 1000))])
                for n, s in enumerate(expiries_s)
            ]
        )

    def store(self) -> None:
        while self.queue:
            record, stored = self.queue.popleft()
            self.written.append((record.place.offset, record.status))
            stored(len(self.written))

    def tick(self, at_s: float) -> list[int]:
        """The offsets that expire by then."""
        self.ns = round(at_s * S)
        self.dispatcher.tick()
        expired = [record.place.offset for record, _ in self.queue if record.status == "expired"]
        self.store()
        return expired


def test_each_of_a_queue_expires_in_its_time_whatever_is_before_it() -> None:
    site = Site()
    site.take(0, 100, 30, 5, 6, 40, 7)  # the first is under way, and the broker says nothing
    assert [site.tick(at_s) for at_s in (4.9, 5, 5.9, 6, 7, 29, 30, 39, 40)] == [
        [], [2], [], [3], [5], [], [1], [], [4],
    ]  # fmt: skip
    assert site.dispatcher.account.imbalance == 0


def test_what_becomes_the_first_of_its_queue_expires_too() -> None:
    site = Site()
    site.take(0, 100, 50, 60)
    site.open.popleft()(0)
    site.store()  # finished: the second is sent, and the third is the first of the queue now
    assert site.tick(59) == []
    assert site.tick(60) == [2]


def test_a_backlog_that_leaves_is_not_shown_as_accepted() -> None:
    site = Site(waiting_per_device=100_000)
    site.take(0, *[1_000] * 5_000)
    assert site.waiting == 1_000, "statuses wait for Kafka, and no more are made"
    while site.open:
        site.open.popleft()(0)
        site.store()
    statuses = [status for _, status in site.written]
    assert statuses.count("sent") == 5_000
    assert 1_000 <= statuses.count("accepted") < 5_000
    assert all(site.written.index((n, "sent")) >= 0 for n in (0, 4_999))
    first: dict[int, str] = {}
    for offset, status in site.written:
        first.setdefault(offset, status)
        assert status == "sent" or first[offset] == "accepted", "accepted never comes after sent"
