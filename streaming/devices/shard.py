"""A share of the devices with the clocks of all gateways: takes what came in order of time, and judges as it goes.

Plain Python. Everything a shard does depends on its store and its input alone, and it takes the input one by one in
the order of :func:`order`, gateways' clocks included. So the same input gives the same devices and events wherever it
is cut into batches, as long as each batch ends at one moment for all sources. Only silence of everything needs
processing time, which counts while the job runs (:meth:`Shard.run`).

Where the ledger, or births and deaths, are read ahead of silver or behind it, what readings say stays the same. States
and events do not: a birth that is read ahead hides the silence before it.

A device is looked at by the progress of its own gateway, and once in ``Rules.forget_after_ms`` by everybody's: so it is
forgotten even if nothing is heard of its gateway any more.

A key per device with Spark's own timers costs more: 91 µs of CPU a reading in a prototype, where this took 42.
"""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final, NamedTuple

from streaming.devices.gateways import Beat, Gateway
from streaming.devices.records import Event, Presence, Reading, Rules, moment
from streaming.devices.state import Device
from streaming.devices.store import Store

_COARSE_MS: Final = 3_600_000  # far dues are kept by the hour: a month of them is 720 slots


class Clock(NamedTuple):
    """The readings of a gateway have come to the step of ``Rules.grid_ms`` that ``ms`` is in, when the first reading in
    it was received. A batch that brings the rest of the step finds the clock moved."""

    gateway: str
    ms: int


Input = Clock | Beat | Presence | Reading


class Shard:
    """One share, for one call at the processing time ``wall_ms``. ``first``: whether it is the one that reports what
    happens to gateways; they all see it.

    After :meth:`run`, ``events`` are what happened, ``changed`` the devices by name, None for one that was forgotten.
    """

    def __init__(self, store: Store, rules: Rules, wall_ms: int, *, first: bool) -> None:
        self._store, self._rules, self._wall_ms, self._first = store, rules, wall_ms, first
        self.events: list[Event] = []
        self.changed: dict[str, Device | None] = {}
        self._compared: tuple[int, int] | None = None  # what was newest when all gateways were compared with it

    def run(self, inputs: Iterable[Input]) -> None:
        """Takes a batch's input, which may be none. After a break of the job processing time counts from here on."""
        meta = self._store.meta
        if meta.ran_ms is None or self._wall_ms - meta.ran_ms > 3 * self._rules.tick_ms:
            meta.watched_ms = self._wall_ms
        meta.ran_ms = max(self._wall_ms, meta.ran_ms or 0)
        for one in sorted(inputs, key=order):
            match one:
                case Clock():
                    self._take_clock(one)
                case Beat():
                    self._take_beat(one)
                case Presence():
                    device = self._device(one.device)
                    self._put(device, device.hear(one, self._rules))
                case Reading():
                    device = self._device(one.device)
                    self._put(device, device.read(one, self._rules))
        for gateway in self._sorted_gateways():
            self._note_gateway(gateway, gateway.tick(self._wall_ms, meta.watched_ms, self._rules))

    def _take_clock(self, clock: Clock) -> None:  # how far a gateway's readings are
        ms = clock.ms // self._rules.grid_ms * self._rules.grid_ms
        gateway = self._gateway(clock.gateway, ms, self._newest_read)
        if gateway is None or (gateway.data_ms is not None and ms <= gateway.data_ms):
            return  # each part of a step brings a clock
        self._note_gateway(gateway, gateway.read_to(ms, self._wall_ms, self._rules))
        self._judge_due([gateway])

    def _take_beat(self, beat: Beat) -> None:  # a record of a gateway's ledger
        self._gateway(beat.gateway, beat.to_ms, self._newest_beat)
        # Readings that do not say whose they are may be anybody's: while one gateway is alive, so is "".
        names = [name for name in dict.fromkeys((beat.gateway, "")) if name in self._store.gateways]
        heard = [self._store.gateways[name] for name in names]  # the gateway, and "" if there is one
        for gateway in heard:
            self._note_gateway(gateway, gateway.beat(beat, self._wall_ms, self._rules))
        self._judge_due(heard)

    def _gateway(self, name: str, ms: int, newest: Callable[[], int]) -> Gateway | None:
        """The gateway, from now on known; None if it is new and so far behind the newest that it would be forgotten."""
        found = self._store.gateways.get(name)
        if found is None and newest() - ms <= self._rules.forget_after_ms:
            found = self._store.gateways[name] = Gateway(name, ms, heard_wall_ms=self._wall_ms)
        return found

    def _note_gateway(self, gateway: Gateway, events: list[Event]) -> None:
        """Passes on what happened to a gateway, and looks at its devices if it went away."""
        # "" hears every gateway's ledger (``_take_beat``): once it has one, its events repeat theirs.
        is_reported = gateway.name or gateway.beat_ms is None
        if self._first and is_reported:
            self.events += events
        if events and gateway.is_away:
            for name in sorted(self._store.planned(gateway.name)):  # one that is online is due by its progress
                device = self._store.load(name)
                if device is not None and device.gateway == gateway.name:
                    self._put(device, device.judge(gateway, self._rules))

    def _sorted_gateways(self) -> list[Gateway]:
        """By name: in which order they come out of the store depends on when it was written."""
        return [gateway for _, gateway in sorted(self._store.gateways.items())]

    def _judge_due(self, moved: list[Gateway]) -> None:
        """Judges gateways and devices that are due, now that these gateways' streams are further."""
        gateways = self._store.gateways
        # Like is compared with like: the ledger is read to its end at once, silver may be days behind it.
        newest_read, newest_beat = self._newest_read(), self._newest_beat()
        # The others are compared when the newest moves: each gateway moves in each step, and they may be thousands.
        moved.sort(key=lambda gateway: gateway.name)
        for gateway in moved if self._compared == (newest_read, newest_beat) else self._sorted_gateways():
            newest = newest_read if gateway.beat_ms is None else newest_beat
            self._note_gateway(gateway, gateway.compare(newest, self._rules))
            if newest - gateway.alive_ms > self._rules.forget_after_ms:
                self._forget_gateway(gateway.name)
        self._compared = newest_read, newest_beat
        for gateway in moved:
            if gateway.name in gateways:
                self._judge_due_of(gateway)
        due = self._store.meta.due_ms
        # Nobody's progress is further than what was read.
        if due is not None and due <= max(newest_read, newest_beat) and due <= (now := self._furthest_progress()):
            self._judge_due_by_all(now)

    def _judge_due_of(self, gateway: Gateway) -> None:
        """Judges those devices of the gateway that are due by its own progress."""
        now = gateway.progress(self._rules)
        if gateway.due_ms is None or gateway.due_ms > now:
            return
        for ms, device in self._store.take_due(gateway.name, now):
            if device.dues.get(gateway.name) != ms:
                continue  # it has another slot by now
            del device.dues[gateway.name]
            before = (device.state, device.flapping)
            events = device.judge(gateway, self._rules) if device.gateway == gateway.name else []
            self._put(device, events, changed=bool(events) or (device.state, device.flapping) != before)
        gateway.due_ms = self._store.next_slot(gateway.name)

    def _judge_due_by_all(self, now: int) -> None:
        """Forgets devices, and ends the flapping of those without a gateway. ``now``: the furthest progress."""
        for ms, device in self._store.take_due(None, now):
            if device.due_ms != ms:
                continue  # it has another slot by now
            device.due_ms = None
            if now - device.contact_ms >= self._rules.forget_after_ms:
                detail = f"nothing was heard of it since {moment(device.contact_ms)}"
                self.events.append(Event(now, "forgotten", device.name, device.gateway or None, detail))
                self.changed[device.name] = None
                self._store.remove(device.name)
            else:
                events = [] if self._gateway_of(device) else device.calm(now, self._rules)
                self._put(device, events, changed=bool(events))
        self._store.meta.due_ms = self._store.next_slot(None)

    def _forget_gateway(self, name: str) -> None:
        """Its devices go by everybody's progress, until it returns or they come through another."""
        del self._store.gateways[name]
        for _, device in self._store.take_due(name, inf):
            device.dues.pop(name, None)
            self._put(device, [], changed=False)

    def _put(self, device: Device, events: list[Event], *, changed: bool = True) -> None:
        """Keeps a device and when it is due; puts out the events, and the device if it ``changed``."""
        self.events += events
        if changed:
            self.changed[device.name] = device
        gateway = self._gateway_of(device)
        if gateway is not None and (due := device.next_due(gateway, self._rules)) is not None:
            device.dues[gateway.name] = self._slot_for(device, due, device.dues.get(gateway.name), gateway)
        device.due_ms = self._slot_for(device, self._due_by_all(device, gateway), device.due_ms, None)
        self._store.save(device)

    def _slot_for(self, device: Device, due: int, kept: int | None, gateway: Gateway | None) -> int:
        """The slot by the progress of a gateway, or of everybody's. One that is too early stays (``kept``): it costs
        one look, and moving it with each reading would cost one write a reading."""
        if kept is not None and kept <= due:
            return kept
        now = self._furthest_progress() if gateway is None else gateway.progress(self._rules)
        step = self._rules.grid_ms
        ms = -(-max(due, now + 1) // step) * step  # by which it is due, and which is not over
        if due - now > 2 * _COARSE_MS:
            ms = due // _COARSE_MS * _COARSE_MS  # the hour before, to look at it anew
        if kept is not None and kept <= ms:
            return kept
        clock = gateway or self._store.meta
        clock.due_ms = ms if clock.due_ms is None else min(clock.due_ms, ms)
        self._store.plan(None if gateway is None else gateway.name, ms, device.name)
        return ms

    def _due_by_all(self, device: Device, gateway: Gateway | None) -> int:  # when it is due by all
        due = device.contact_ms + self._rules.forget_after_ms
        if gateway is not None:
            return due
        if device.flapping:
            due = min(due, device.flips[0] + self._rules.flap_window_ms)
        if device.seen_ms is not None and device.next_due(Gateway(device.gateway, 0), self._rules) is not None:
            due = min(due, self._furthest_progress() + _COARSE_MS)  # its gateway may be back by then
        return due

    def _device(self, name: str) -> Device:
        return self._store.load(name) or Device(name)

    def _newest_read(self) -> int:
        return max((gateway.data_ms or 0 for gateway in self._store.gateways.values()), default=0)

    def _newest_beat(self) -> int:
        return max((gateway.beat_ms or 0 for gateway in self._store.gateways.values()), default=0)

    def _furthest_progress(self) -> int:
        """Everybody's: how far the furthest gateway is."""
        return max((gateway.progress(self._rules) for gateway in self._store.gateways.values()), default=0)

    def _gateway_of(self, device: Device) -> Gateway | None:
        """Whose progress the device is judged by. None: it has sent no reading, or its gateway is forgotten."""
        return None if device.seen_ms is None else self._store.gateways.get(device.gateway)


def order(one: Input) -> tuple[int, int, str, int, int, str, int]:
    """A key to sort by: time, then an order of our own, as Spark gives a batch's rows in any. A clock is right before
    the readings of its gateway, so that time has come to them when they are looked at."""
    match one:
        case Beat():
            return one.to_ms, 0, one.gateway, one.worker, one.acknowledged, one.life, one.state != "stopped"
        case Presence():
            return one.received_ms, 1, one.device, one.session_ms or 0, one.is_second, one.gateway, 0
        case Clock():
            return one.ms, 2, one.gateway, 0, 0, "", 0
        case Reading():
            return one.received_ms, 2, one.gateway, 1, one.seq or 0, one.device, one.device_ms
