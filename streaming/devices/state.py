"""What is known of one device, and how a reading, a birth, a death or the time changes it. Plain Python."""

from dataclasses import dataclass, field
from typing import Final, Literal

from streaming.devices.gateways import Gateway
from streaming.devices.records import Event, Presence, Reading, Rules, moment
from streaming.devices.sequence import Sequence

State = Literal["online", "offline", "unknown"]  # unknown: its gateway is away, so nothing can be said of it
_AFTER_DEATH_MS: Final = 10_000
"""A reading that was received so shortly after the device's death was on its way when the device went: it does not
bring the device back. A birth always does."""


@dataclass(slots=True)
class Device:
    """One device. What a method returns are the events that it makes."""

    name: str
    type: str | None = None
    site: str | None = None
    gateway: str = ""
    state: State = "online"
    reason: str = "reading"
    since_ms: int = 0
    seen_ms: int | None = None
    event_ms: int | None = None
    values: dict[str, tuple[float, int]] = field(default_factory=dict)
    session_ms: int | None = None
    birth_ms: int | None = None
    death_ms: int | None = None
    transitions: int = 0
    flips: list[int] = field(default_factory=list)
    flapping: bool = False
    due_ms: int | None = None  # the slot in which it is looked at by everybody's progress
    dues: dict[str, int] = field(default_factory=dict)  # the slot by a gateway's progress, of each that it came through
    sequence: Sequence = field(default_factory=Sequence)

    @property
    def is_new(self) -> bool:
        return self.seen_ms is None and self.birth_ms is None and self.death_ms is None

    @property
    def contact_ms(self) -> int:
        """When anything was last heard of it."""
        return max(self.seen_ms or 0, self.birth_ms or 0, self.death_ms or 0)

    def read(self, reading: Reading, rules: Rules) -> list[Event]:
        """Notes a reading, which may be late."""
        events = []
        if self.is_new:
            self.since_ms = reading.received_ms
            events.append(self._event(reading.received_ms, "first_seen", "by a reading", reading.gateway))
        for name, value in reading.values.items():
            known = self.values.get(name)
            if known is None or reading.event_ms >= known[1]:
                self.values[name] = (value, reading.event_ms)
        self.event_ms = max(reading.event_ms, self.event_ms or 0)
        events += self._count_sequence(reading)
        # Of one moment the gateway decides, as in a batch: which of two is read first is chance.
        if self.seen_ms is None or (reading.received_ms, reading.gateway) >= (self.seen_ms, self.gateway):
            self.seen_ms = reading.received_ms
            self.type, self.site, self.gateway = reading.type, reading.site, reading.gateway
            late = self.reason == "death" and reading.received_ms <= (self.death_ms or 0) + _AFTER_DEATH_MS
            if self.state == "unknown" or (self.state == "offline" and not late):
                events += self._change_state("online", reading.received_ms, "reading", "readings come again", rules)
        return events

    def hear(self, presence: Presence, rules: Rules) -> list[Event]:
        """Notes a birth or a death. An older one than is known changes nothing: two nodes of a broker may tell of the
        end of a connection after the begin of the next."""
        at, kind, events = presence.received_ms, "birth" if presence.online else "death", []
        state: State = "online" if presence.online else "offline"
        if self.is_new:
            self.since_ms, self.state, self.reason = at, state, kind
            events.append(self._event(at, "first_seen", f"by a {kind}", presence.gateway))
        elif self._is_outdated(presence):
            return []
        if presence.session_ms is not None:
            self.session_ms = presence.session_ms
        if self.seen_ms is None and presence.gateway:
            self.gateway = presence.gateway
        if presence.online:
            self.birth_ms = at
            is_told = self.reason != "death" and self.seen_ms is not None and self.seen_ms >= at  # by its readings
        else:
            self.death_ms = at
            is_told = self.seen_ms is not None and self.seen_ms > at + _AFTER_DEATH_MS  # it has sent since
        return events if is_told else events + self._change_state(state, at, kind, presence.detail, rules)

    def judge(self, gateway: Gateway, rules: Rules) -> list[Event]:
        """What the progress of its gateway's stream brings: silence, gaps old enough to be told, an end of flapping."""
        now = gateway.progress(rules)
        events = []
        for gap in self.sequence.tell(now, rules.gap_after_ms):
            count = gap.high - gap.low + 1
            detail = f"{gap.low} is missing" if count == 1 else f"{gap.low} to {gap.high} are missing ({count})"
            events.append(self._event(gap.opened_ms + rules.gap_after_ms, "gap", detail, self.gateway))
        if self.state != "offline" and self.seen_ms is not None:
            heard = max(self.seen_ms, self.birth_ms or 0)
            deadline = gateway.deadline(heard, rules.offline_after_ms)
            if now >= deadline:
                events += self._change_state("offline", deadline, "silence", f"no reading since {moment(heard)}", rules)
            elif gateway.is_away and self.state == "online":
                events += self._change_state("unknown", max(gateway.away_ms, self.since_ms), "gateway", "", rules)
        return events + self.calm(now, rules)

    def calm(self, now: int, rules: Rules) -> list[Event]:
        """Ends the flapping once the oldest change that is kept is a whole ``flap_window_ms`` ago."""
        if not self.flapping or now < (ends := self.flips[0] + rules.flap_window_ms):
            return []
        self.flapping = False
        return [self._event(ends, "flapping_ended", "", self.gateway)]

    def next_due(self, gateway: Gateway, rules: Rules) -> int | None:
        """The progress of its gateway at which it is to be judged again; None if it changes nothing."""
        due = []
        if self.state == "online" and self.seen_ms is not None:
            due.append(gateway.deadline(max(self.seen_ms, self.birth_ms or 0), rules.offline_after_ms))
        elif self.state == "unknown":
            due.append(gateway.progress(rules) + rules.offline_after_ms)
        if (gap := self.sequence.due(rules.gap_after_ms)) is not None:
            due.append(gap)
        if self.flapping:
            due.append(self.flips[0] + rules.flap_window_ms)
        return min(due, default=None)

    def _count_sequence(self, reading: Reading) -> list[Event]:  # reset, gap_closed or none
        if reading.seq is None:
            return []
        resets, last = self.sequence.resets, self.sequence.last
        closed = self.sequence.take(reading.seq, reading.device_ms, reading.received_ms)
        if self.sequence.resets > resets:
            return [self._event(reading.received_ms, "reset", f"{reading.seq} after {last}", reading.gateway)]
        if closed:
            missing = f"{self.sequence.missing_count} still missing"
            return [self._event(reading.received_ms, "gap_closed", missing, reading.gateway)]
        return []

    def _is_outdated(self, presence: Presence) -> bool:  # whether one that counts more is known
        if presence.session_ms is not None and self.session_ms is not None and presence.session_ms != self.session_ms:
            return presence.session_ms < self.session_ms
        newest = max(self.birth_ms or 0, self.death_ms or 0)
        if presence.received_ms != newest:
            return presence.received_ms < newest
        other_ms = self.death_ms if presence.online else self.birth_ms
        return other_ms == newest and not presence.is_second

    def _change_state(self, state: State, at_ms: int, reason: str, detail: str, rules: Rules) -> list[Event]:
        was = self.state
        if was == state:
            return []
        self.state, self.since_ms, self.reason = state, at_ms, reason
        if state == "unknown" or (was == "unknown" and state == "online"):
            return []  # its gateway went and came: the gateway's event says it
        self.transitions += 1
        events = [self._event(at_ms, state, f"{reason}: {detail}" if detail else reason, self.gateway)]
        self.flips = sorted([*self.flips, at_ms])[-(rules.flap_transitions + 1) :]
        many = len(self.flips) > rules.flap_transitions
        if many and not self.flapping and self.flips[-1] - self.flips[0] < rules.flap_window_ms:
            self.flapping = True
            changes = f"{len(self.flips)} changes since {moment(self.flips[0])}"
            events.append(self._event(at_ms, "flapping", changes, self.gateway))
        return events

    def _event(self, at_ms: int, event: str, detail: str, gateway: str) -> Event:
        return Event(at_ms, event, self.name, gateway or None, detail)
