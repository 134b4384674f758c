"""How far the stream of each gateway is, and whether the gateway is away. Plain Python, as ``state``."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streaming.devices.records import Event, Rules, moment

_MOST_OUTAGES: Final = 8  # that put off the deadlines of a gateway's devices: silver is at most a few behind


class Beat(NamedTuple):
    """A worker's record in the gateway's ledger, one a minute whether there is traffic or not."""

    gateway: str
    worker: int
    life: str
    acknowledged: int  # records that Kafka acknowledged in this life so far
    from_ms: int
    to_ms: int
    state: str  # "stopped" in the last of a life


class Worker(NamedTuple):
    """What is kept of a worker's newest record."""

    life: str
    acknowledged: int
    quiet_ms: int  # since when it has acknowledged nothing
    to_ms: int


@dataclass(slots=True)
class Gateway:
    """A gateway as its records show it. What a method returns are the events that it makes.

    It has two clocks. *Alive* is the newest sign of life, a reading or an entry in the ledger. *Progress* is how far
    its readings are known: a device is judged by it alone, so a silver job that is behind makes nobody offline. Where
    the ledger says that nothing was acknowledged since the newest reading, progress follows the ledger.
    """

    name: str
    alive_ms: int
    data_ms: int | None = None
    beat_ms: int | None = None
    workers: dict[str, Worker] = field(default_factory=dict)
    outages: list[tuple[int, int]] = field(default_factory=list)
    lost: bool = False
    stalled: bool = False
    stopped: bool = False
    heard_wall_ms: int = 0  # processing time at which the newest sign of life was read
    data_wall_ms: int = 0  # the same of the newest reading
    due_ms: int | None = None  # the earliest slot of its devices

    @property
    def is_away(self) -> bool:
        return self.lost or self.stalled

    @property
    def away_ms(self) -> int:
        """Since when, if it is away."""
        return self.alive_ms if self.lost else self.data_ms or self.alive_ms

    def patience_ms(self, rules: Rules) -> int:
        """How long nothing may be heard: a gateway with a ledger speaks every minute, another when devices do."""
        return rules.offline_after_ms if self.beat_ms is None else rules.gateway_after_ms

    def read_to(self, ms: int, wall_ms: int, rules: Rules) -> list[Event]:
        """Notes that its readings are known up to ``ms``, further than before."""
        self.data_ms, self.data_wall_ms = ms, wall_ms
        events = [self._event(ms, "gateway_back", "its readings come again")] if self.stalled else []
        self.stalled = False
        return events + self._hear(ms, wall_ms, rules)

    def beat(self, beat: Beat, wall_ms: int, rules: Rules) -> list[Event]:
        """Notes a worker's record in its ledger, if newer than the last one."""
        key = f"{beat.gateway}/{beat.worker}"
        known = self.workers.get(key)
        if known is not None and beat.to_ms <= known.to_ms:
            return []
        quiet = beat.to_ms if beat.acknowledged else beat.from_ms
        if known is not None and (known.life, known.acknowledged) == (beat.life, beat.acknowledged):
            quiet = known.quiet_ms
        self.workers[key] = Worker(beat.life, beat.acknowledged, quiet, beat.to_ms)
        self.stopped = beat.state == "stopped"
        events = self._hear(beat.to_ms, wall_ms, rules)
        self.beat_ms = max(beat.to_ms, self.beat_ms or 0)
        oldest = self.beat_ms - rules.gateway_after_ms
        self.workers = {key: worker for key, worker in self.workers.items() if worker.to_ms >= oldest}
        return events

    def progress(self, rules: Rules) -> int:
        """Up to when its readings are known; 0 if it never had any."""
        if self.data_ms is None:
            return 0
        if self.workers:
            quiet = max(worker.quiet_ms for worker in self.workers.values())
            told = min(worker.to_ms for worker in self.workers.values())
            # Readings take a moment to silver, so the newest may be from a little before all was quiet.
            if told > quiet and self.data_ms >= quiet - 2 * rules.beat_ms:
                return max(self.data_ms, told)
        return self.data_ms

    def deadline(self, heard_ms: int, after_ms: int) -> int:
        """When a device that was heard then has been silent for too long. Outages do not count."""
        deadline = heard_ms + after_ms
        for begin, end in self.outages:
            if begin < deadline and end > heard_ms:
                deadline = max(deadline, end + after_ms)
        return deadline

    def compare(self, newest_ms: int, rules: Rules) -> list[Event]:
        """The others are at ``newest_ms``: it is away if that is too far ahead."""
        return self._mark_lost(rules) if newest_ms - self.alive_ms > self.patience_ms(rules) else []

    def tick(self, wall_ms: int, watched_ms: int, rules: Rules) -> list[Event]:
        """Marks it lost or stalled, by processing time. ``watched_ms``: since when the job runs without a break."""
        if wall_ms - max(self.heard_wall_ms, watched_ms) > self.patience_ms(rules):
            return self._mark_lost(rules)
        data_ms = self.data_ms
        if data_ms is None or self.is_away:
            return []
        delivers = any(worker.quiet_ms >= data_ms for worker in self.workers.values())
        is_unread = wall_ms - max(self.data_wall_ms, watched_ms) > rules.offline_after_ms
        is_behind = self.progress(rules) == data_ms < self.alive_ms
        if not (delivers and is_unread and is_behind):
            return []
        self.stalled = True
        detail = (
            f"its ledger goes on and counts records, but no reading from after {moment(data_ms)} is in silver:"
            " is the job silver running, and does it take these records?"
        )
        return [self._event(data_ms + rules.offline_after_ms, "gateway_stalled", detail)]

    def _hear(self, ms: int, wall_ms: int, rules: Rules) -> list[Event]:
        """Notes a sign of life; the events of an outage that it ends."""
        if ms <= self.alive_ms:
            return []
        events = []
        silence = ms - self.alive_ms
        if silence > self.patience_ms(rules):
            events += self._mark_lost(rules)
            self.outages = [*self.outages, (self.alive_ms, ms)][-_MOST_OUTAGES:]
        if self.lost:
            self.lost = False
            events.append(self._event(ms, "gateway_back", f"nothing was heard for {silence / 1000:.0f} s"))
        self.alive_ms, self.heard_wall_ms = ms, wall_ms
        return events

    def _mark_lost(self, rules: Rules) -> list[Event]:  # the event; none if it was lost already
        if self.lost:
            return []
        self.lost, self.stalled = True, False
        if self.stopped:
            why = "it was stopped in good order and has not come back"
        elif self.beat_ms is None:
            why = "no reading came through it, and it has no ledger that would tell whether it runs"
        else:
            why = "neither a reading nor an entry in its ledger"
        at_ms = self.alive_ms + self.patience_ms(rules)
        return [self._event(at_ms, "gateway_lost", f"{why} since {moment(self.alive_ms)}")]

    def _event(self, at_ms: int, event: str, detail: str) -> Event:
        return Event(at_ms, event, None, self.name or None, detail)
