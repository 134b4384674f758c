"""A share of the devices with the clocks of all gateways: takes what came in order of time, and judges as it goes.

Plain Python over a :class:`Store`. Everything a shard does depends on its store and its input alone, and it takes the
input one by one in the order of :func:`order`, gateways' clocks included. So the same input in other batches, or with a
restart between, gives the same devices and events wherever it is cut, as long as each batch ends at one
moment for all sources. Only what concerns silence of everything needs processing time, and that counts only while the
job ran (:meth:`Shard.run`).

Sources that are not at the same moment, the ledger or births and deaths ahead of silver or behind it, change nothing
of what readings say: values, times, sequence numbers, the gateway. They do make a difference for ``state``, ``since``,
``reason``, ``transitions``, flapping and the events: a birth or a death that is read ahead hides the silence before it,
and one that is read behind comes after the verdict, or counts for nothing if a reading was received since; an outage
is a hole between the signs of life in the order in which they are read; and progress follows the ledger, by which
silences and gaps are told, as far as it has been read.

A device is looked at by the progress of its own gateway, in slots that are kept for each gateway, and once in
``Rules.forget_after_ms`` by everybody's: so it is forgotten even if nothing is heard of its gateway any more.

A key per device with Spark's own timers costs more: 91 µs of CPU a reading in a prototype, where this took 42.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple, Protocol

from streaming.devices.gateways import Beat, Gateway
from streaming.devices.records import Event, Presence, Reading, Rules, moment
from streaming.devices.state import Device

_COARSE_MS: Final = 3_600_000
"""Far dues are kept by the hour: a month of them is 720 slots."""


class Clock(NamedTuple):
    """The readings of a gateway have come to the step of ``Rules.grid_ms`` that ``ms`` is in.

    ``ms`` is when the first reading in it was received. So a clock moves where that reading comes, and a batch that
    brings the rest of the step finds it moved.
    """

    gateway: str
    ms: int


class Slot(NamedTuple):
    """A step in which devices are looked at, by the progress of a gateway's readings, or of everybody's (None)."""

    gateway: str | None
    ms: int


Input = Clock | Beat | Presence | Reading


@dataclass(slots=True)
class Meta:
    """What a shard keeps beside devices and gateways."""

    ran_ms: int | None = None  # processing time of the last call
    watched_ms: int = 0  # processing time since when there were no breaks
    due_ms: int | None = None  # the earliest slot by everybody's progress
    timer_ms: int = 0  # when the caller's timer is set to


class Store(Protocol):
    """Where a shard keeps things."""

    meta: Meta
    gateways: dict[str, Gateway]

    def load(self, name: str) -> Device | None: ...
    def save(self, device: Device) -> None: ...
    def remove(self, name: str) -> None: ...
    def slots(self, gateway: str | None) -> list[int]:
        """Those by this gateway's progress."""
        ...

    def slot(self, slot: Slot) -> list[str]:
        """The devices that are due then, and some that were."""
        ...

    def take_slot(self, slot: Slot) -> list[str]:
        """The devices that are due then, which are no more kept."""
        ...

    def add_to_slot(self, slot: Slot, name: str) -> None: ...


@dataclass(slots=True)
class Output:
    """What a call changed."""

    events: list[Event] = field(default_factory=list)
    changed: dict[str, Device | None] = field(default_factory=dict)
    """By name; None for one that was forgotten."""


class Shard:
    """One share. ``first``: whether it is the one that reports what happens to gateways; they all see it."""

    def __init__(self, store: Store, rules: Rules, *, first: bool) -> None:
        self._store, self._rules, self._first = store, rules, first
        self._output = Output()
        self._compared: tuple[int, int] | None = None  # what was newest when all gateways were compared with it

    def run(self, inputs: Iterable[Input], wall_ms: int) -> Output:
        """Takes a batch's input, which may be none, at the processing time of the batch.

        Between two calls the job may have been down. Then processing time counts from this call on.
        """
        meta = self._store.meta
        if meta.ran_ms is None or wall_ms - meta.ran_ms > 3 * self._rules.tick_ms:
            meta.watched_ms = wall_ms
        meta.ran_ms = max(wall_ms, meta.ran_ms or 0)
        self._output = Output()
        for one in sorted(inputs, key=order):
            match one:
                case Clock():
                    self._take_clock(one, wall_ms)
                case Beat():
                    self._take_beat(one, wall_ms)
                case Presence():
                    device = self._device(one.device)
                    self._put(device, device.hear(one, self._rules))
                case Reading():
                    device = self._device(one.device)
                    self._put(device, device.read(one, self._rules))
        for gateway in self._sorted_gateways():
            self._note_gateway(gateway, gateway.tick(wall_ms, meta.watched_ms, self._rules))
        return self._output

    def _take_clock(self, clock: Clock, wall_ms: int) -> None:  # how far a gateway's readings are
        ms = clock.ms // self._rules.grid_ms * self._rules.grid_ms
        gateway = self._store.gateways.get(clock.gateway)
        if gateway is None:
            newest = max((one.data_ms or 0 for one in self._store.gateways.values()), default=0)
            gateway = self._add_gateway(clock.gateway, ms, newest, wall_ms)
        if gateway is None or (gateway.data_ms is not None and ms <= gateway.data_ms):
            return  # each part of a step brings a clock
        self._note_gateway(gateway, gateway.read_to(ms, wall_ms, self._rules))
        self._judge_due([gateway])

    def _take_beat(self, beat: Beat, wall_ms: int) -> None:  # a record of a gateway's ledger
        if beat.gateway not in self._store.gateways:
            newest = max((one.beat_ms or 0 for one in self._store.gateways.values()), default=0)
            self._add_gateway(beat.gateway, beat.to_ms, newest, wall_ms)
        # Readings that do not say whose they are may be anybody's: while one gateway is alive, so is "".
        names = [name for name in dict.fromkeys((beat.gateway, "")) if name in self._store.gateways]
        heard = [self._store.gateways[name] for name in names]  # the gateway, and "" if there is one
        for gateway in heard:
            self._note_gateway(gateway, gateway.beat(beat, wall_ms, self._rules))
        self._judge_due(heard)

    def _add_gateway(self, name: str, ms: int, newest_ms: int, wall_ms: int) -> Gateway | None:
        """A new gateway, kept from now on; None if ``ms`` is so far before ``newest_ms`` that it would be forgotten."""
        if newest_ms - ms > self._rules.forget_after_ms:
            return None
        gateway = self._store.gateways[name] = Gateway(name, ms, heard_wall_ms=wall_ms)
        return gateway

    def _note_gateway(self, gateway: Gateway, events: list[Event]) -> None:
        """Passes on what happened to a gateway, and looks at its devices if it went away."""
        # "" hears every gateway's ledger (``_take_beat``): once it has one, its events repeat theirs.
        is_reported = gateway.name or gateway.beat_ms is None
        if self._first and is_reported:
            self._output.events += events
        if events and gateway.is_away:
            planned = {
                name for ms in self._store.slots(gateway.name) for name in self._store.slot(Slot(gateway.name, ms))
            }
            for name in sorted(planned):  # a device that is online is due by its gateway's progress
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
        newest_read = max((gateway.data_ms or 0 for gateway in gateways.values()), default=0)
        newest_beat = max((gateway.beat_ms or 0 for gateway in gateways.values()), default=0)
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
        due = self._store.meta.due_ms  # the earliest slot by everybody's progress
        # Nobody's progress is further than what was read.
        if due is not None and due <= max(newest_read, newest_beat) and due <= (now := self._furthest_progress()):
            self._judge_due_by_all(now)

    def _judge_due_of(self, gateway: Gateway) -> None:
        """Judges those devices of the gateway that are due by its own progress."""
        now = gateway.progress(self._rules)
        if gateway.due_ms is None or gateway.due_ms > now:
            return
        for ms, device in self._take_slots(gateway.name, now):
            if device.dues.get(gateway.name) != ms:
                continue  # it has another slot by now
            del device.dues[gateway.name]
            before = (device.state, device.flapping)
            events = device.judge(gateway, self._rules) if device.gateway == gateway.name else []
            self._put(device, events, changed=bool(events) or (device.state, device.flapping) != before)
        gateway.due_ms = min(self._store.slots(gateway.name), default=None)

    def _judge_due_by_all(self, now: int) -> None:
        """Forgets devices, and ends the flapping of those without a gateway. ``now``: the furthest progress."""
        for ms, device in self._take_slots(None, now):
            if device.due_ms != ms:
                continue  # it has another slot by now
            device.due_ms = None
            if now - device.contact_ms >= self._rules.forget_after_ms:
                self._forget(device, now)
            else:
                events = [] if self._gateway_of(device) else device.calm(now, self._rules)
                self._put(device, events, changed=bool(events))
        self._store.meta.due_ms = min(self._store.slots(None), default=None)

    def _take_slots(self, gateway: str | None, until: float) -> Iterator[tuple[int, Device]]:
        """Each slot up to a moment with each of its devices, in order; removes the slots. Gateway None: everybody's."""
        for ms in sorted(self._store.slots(gateway)):
            for name in self._store.take_slot(Slot(gateway, ms)) if ms <= until else ():
                if (device := self._store.load(name)) is not None:
                    yield ms, device

    def _forget(self, device: Device, now: int) -> None:
        detail = f"nothing was heard of it since {moment(device.contact_ms)}"
        self._output.events.append(Event(now, "forgotten", device.name, device.gateway or None, detail))
        self._output.changed[device.name] = None
        self._store.remove(device.name)

    def _forget_gateway(self, name: str) -> None:
        """Its devices go by everybody's progress, until it returns or they come through another."""
        del self._store.gateways[name]
        for _, device in self._take_slots(name, inf):
            device.dues.pop(name, None)
            self._put(device, [], changed=False)

    def _put(self, device: Device, events: list[Event], *, changed: bool = True) -> None:
        """Keeps a device with the slots in which it is due; puts out the events, and the device if it ``changed``."""
        self._output.events += events
        if changed:
            self._output.changed[device.name] = device
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
        ms = self._slot_of(due, self._furthest_progress() if gateway is None else gateway.progress(self._rules))
        if kept is not None and kept <= ms:
            return kept
        clock = gateway or self._store.meta
        clock.due_ms = ms if clock.due_ms is None else min(clock.due_ms, ms)
        self._store.add_to_slot(Slot(None if gateway is None else gateway.name, ms), device.name)
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

    def _slot_of(self, due: int, now: int) -> int:
        """The step by which it is due, and which is not over; if that is far, the hour before, to look at it anew."""
        if due - now > 2 * _COARSE_MS:
            return due // _COARSE_MS * _COARSE_MS
        step = self._rules.grid_ms
        return -(-max(due, now + 1) // step) * step

    def _device(self, name: str) -> Device:
        return self._store.load(name) or Device(name)

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
