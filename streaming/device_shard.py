"""A share of the devices with the clocks of all gateways: takes what came in order of time, and judges as it goes.

Plain Python over a :class:`Store`. Everything a shard does depends on its store and its input alone, and it goes
through the input in order of time, gateways' clocks included: the same input in other batches, or with a restart
between, is meant to give the same devices and the same events. It does not always: random logs find cases, such as a
birth or another gateway's first reading in the next batch, in which ``since``, or a moment offline, is another. Only
what concerns silence of everything needs processing time, and that counts only while the job ran (:meth:`Shard.run`).
"""

from __future__ import annotations

__all__ = ["Clock", "Input", "Meta", "Output", "Shard", "Store"]

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from streaming.device_gateways import Beat, Gateway
from streaming.device_state import Device, Event, Presence, Reading, moment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streaming.device_state import Rules

_COARSE_MS: Final = 3_600_000
"""Far dues are kept by the hour: a month of them is 720 slots."""


class Clock(NamedTuple):
    """The readings of a gateway have come to ``ms``, a step of ``Rules.grid_ms``."""

    gateway: str
    ms: int


Input = Clock | Beat | Presence | Reading


@dataclass(slots=True)
class Meta:
    """What a shard keeps beside devices and gateways."""

    ran_ms: int | None = None  # processing time of the last call
    watched_ms: int = 0  # processing time since when there were no breaks
    due_ms: int | None = None  # the earliest slot
    timer_ms: int = 0  # when the caller's timer is set to


class Store(Protocol):
    """Where a shard keeps things."""

    meta: Meta
    gateways: dict[str, Gateway]

    def load(self, name: str) -> Device | None: ...
    def save(self, device: Device) -> None: ...
    def remove(self, name: str) -> None: ...
    def names(self) -> list[str]: ...
    def slots(self) -> list[int]: ...
    def take_slot(self, slot: int) -> list[str]:
        """The devices that are due then, which are no more kept."""
        ...

    def add_to_slot(self, slot: int, name: str) -> None: ...


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

    def run(self, inputs: Iterable[Input], wall_ms: int) -> Output:
        """Takes a batch's input, which may be none, at the processing time of the batch.

        Between two calls the job may have been down. Then processing time counts from this call on.
        """
        meta = self._store.meta
        if meta.ran_ms is None or wall_ms - meta.ran_ms > 3 * self._rules.tick_ms:
            meta.watched_ms = wall_ms
        meta.ran_ms = max(wall_ms, meta.ran_ms or 0)
        self._output = Output()
        for one in sorted(inputs, key=_order):
            match one:
                case Clock():
                    self._clock(one, wall_ms)
                case Beat():
                    self._beat(one, wall_ms)
                case Presence():
                    device = self._device(one.device)
                    self._put(device, device.hear(one, self._rules))
                case Reading():
                    device = self._device(one.device)
                    self._put(device, device.read(one, self._rules))
        for gateway in list(self._store.gateways.values()):
            self._gateway(gateway, gateway.tick(wall_ms, meta.watched_ms, self._rules))
        return self._output

    def _clock(self, clock: Clock, wall_ms: int) -> None:
        gateway = self._store.gateways.get(clock.gateway)
        if gateway is None:
            gateway = self._store.gateways[clock.gateway] = Gateway(clock.gateway, clock.ms, heard_wall_ms=wall_ms)
        self._gateway(gateway, gateway.read_to(clock.ms, wall_ms, self._rules))
        self._advance()

    def _beat(self, beat: Beat, wall_ms: int) -> None:
        if beat.gateway not in self._store.gateways:
            self._store.gateways[beat.gateway] = Gateway(beat.gateway, beat.to_ms, heard_wall_ms=wall_ms)
        # Readings that do not say whose they are may be anybody's: while one gateway is alive, so is "".
        for name in {beat.gateway, ""}:
            if (gateway := self._store.gateways.get(name)) is not None:
                self._gateway(gateway, gateway.beat(beat, wall_ms, self._rules))
        self._advance()

    def _gateway(self, gateway: Gateway, events: list[Event]) -> None:
        """Passes on what happened to a gateway, and looks at its devices if it went away."""
        named = gateway.name or gateway.beat_ms is None
        if self._first and named:
            self._output.events += events
        if events and gateway.is_away:
            for name in self._store.names():
                device = self._store.load(name)
                if device is not None and device.gateway == gateway.name:
                    self._put(device, device.judge(gateway, self._rules))

    def _advance(self) -> None:
        """Judges what has become due by the stream's progress."""
        gateways = self._store.gateways
        # Like is compared with like: the ledger is read to its end at once, silver may be days behind it.
        read = max((gateway.data_ms or 0 for gateway in gateways.values()), default=0)
        beats = max((gateway.beat_ms or 0 for gateway in gateways.values()), default=0)
        for gateway in list(gateways.values()):
            newest = read if gateway.beat_ms is None else beats
            self._gateway(gateway, gateway.compare(newest, self._rules))
            if newest - gateway.alive_ms > self._rules.forget_after_ms:
                del gateways[gateway.name]
        now = max((gateway.progress(self._rules) for gateway in gateways.values()), default=0)
        meta = self._store.meta
        while meta.due_ms is not None and meta.due_ms <= now:
            slots = self._store.slots()
            for slot in sorted(slot for slot in slots if slot <= now):
                for name in self._store.take_slot(slot):
                    self._judge(name, slot, now)
            meta.due_ms = min(self._store.slots(), default=None)

    def _judge(self, name: str, slot: int, now: int) -> None:
        device = self._store.load(name)
        if device is None or device.due_ms != slot:
            return  # it has another slot by now
        device.due_ms = None
        if now - device.contact_ms >= self._rules.forget_after_ms:
            detail = f"nothing was heard of it since {moment(device.contact_ms)}"
            self._output.events.append(Event(now, "forgotten", name, device.gateway or None, detail))
            self._output.changed[name] = None
            self._store.remove(name)
            return
        gateway = self._gateway_of(device)
        before = (device.state, device.flapping)
        events = device.judge(gateway, self._rules)
        self._plan(device, gateway, after_ms=now)
        self._output.events += events
        self._store.save(device)
        if events or (device.state, device.flapping) != before:
            self._output.changed[name] = device

    def _put(self, device: Device, events: list[Event]) -> None:
        self._output.events += events
        self._output.changed[device.name] = device
        self._plan(device, self._gateway_of(device), after_ms=0)
        self._store.save(device)

    def _plan(self, device: Device, gateway: Gateway, *, after_ms: int) -> None:
        """Sees to it that the device is looked at when it is due. A slot that is too early stays: it costs one look,
        and moving it with each reading would cost one write a reading."""
        due = max(device.next_due(gateway, self._rules), after_ms + 1)
        step = _COARSE_MS if due - gateway.progress(self._rules) > 2 * _COARSE_MS else self._rules.grid_ms
        slot = -(-due // step) * step
        if device.due_ms is None or slot < device.due_ms:
            device.due_ms = slot
            self._store.add_to_slot(slot, device.name)
            meta = self._store.meta
            meta.due_ms = slot if meta.due_ms is None else min(meta.due_ms, slot)

    def _device(self, name: str) -> Device:
        return self._store.load(name) or Device(name)

    def _gateway_of(self, device: Device) -> Gateway:
        return self._store.gateways.get(device.gateway) or Gateway(device.gateway, 0)


def _order(one: Input) -> tuple[int, int, int, str]:
    """By time; of one moment clocks first, so that time has come to it when it is looked at. Names last: Spark gives a
    batch's rows in any order."""
    match one:
        case Clock():
            return one.ms, 0, 0, one.gateway
        case Beat():
            return one.to_ms, 1, 0, one.gateway
        case Presence():
            return one.received_ms, 2, 0, one.device
        case Reading():
            return one.received_ms, 3, one.seq or 0, one.device
