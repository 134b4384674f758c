"""A shard of devices over a store in memory, and what goes into it."""

import copy
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from streaming.devices.gateways import Beat, Gateway
from streaming.devices.records import Event, Presence, Reading, Rules
from streaming.devices.shard import Clock, Input, Meta, Output, Shard, Slot, order
from streaming.devices.state import Device

RULES = Rules(offline_after_ms=600_000, gateway_after_ms=180_000, gap_after_ms=60_000, forget_after_ms=86_400_000)
SHORT = replace(RULES, forget_after_ms=1_200_000, flap_transitions=2, flap_window_ms=900_000)
T0 = 1_700_000_000_000 // RULES.grid_ms * RULES.grid_ms
MINUTE = 60_000


@dataclass
class MemoryStore:
    """A shard's store, which gives copies away, as a real one does."""

    meta: Meta = field(default_factory=Meta)
    gateways: dict[str, Gateway] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    due: dict[Slot, list[str]] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list, compare=False)

    def load(self, name: str) -> Device | None:
        self.loaded.append(name)
        return copy.deepcopy(self.devices.get(name))

    def save(self, device: Device) -> None:
        self.devices[device.name] = copy.deepcopy(device)

    def remove(self, name: str) -> None:
        del self.devices[name]

    def slots(self, gateway: str | None) -> list[int]:
        return [slot.ms for slot in self.due if slot.gateway == gateway]

    def slot(self, slot: Slot) -> list[str]:
        return list(self.due.get(slot, ()))

    def take_slot(self, slot: Slot) -> list[str]:
        return self.due.pop(slot, [])

    def add_to_slot(self, slot: Slot, name: str) -> None:
        self.due.setdefault(slot, []).append(name)


class Rig:
    """One shard; each call is a batch. Readings bring their gateway's clock along, as the job adds it."""

    def __init__(self, rules: Rules = RULES, partitions: int = 1) -> None:
        self.rules, self.partitions = rules, partitions
        self.store = MemoryStore()
        self.events: list[Event] = []
        self.wall = T0 + 10**9  # far from the stream's times, which must not matter

    def __call__(self, *inputs: Input, later: int = 5_000) -> Output:
        self.wall += later
        readings = [one for one in inputs if isinstance(one, Reading)]
        clocks = [clock for part in range(self.partitions) for clock in clocks_of(readings[part :: self.partitions])]
        output = Shard(self.store, self.rules, first=True).run([*inputs, *clocks], self.wall)
        self.events += output.events
        return output

    def wait(self, length: int) -> None:
        for _ in range(-(-length // RULES.tick_ms)):
            self(later=RULES.tick_ms)

    def told(self, *, without: tuple[str, ...] = ("first_seen",)) -> list[tuple[str, str | None]]:
        return [(event.event, event.device or event.gateway) for event in self.events if event.event not in without]

    def state(self, device: str) -> str:
        return self.store.devices[device].state


def clocks_of(readings: list[Reading]) -> list[Clock]:
    """As the job makes them of each of its partitions: with the first reading of each step."""
    first: dict[tuple[str, int], int] = {}
    for one in readings:
        key = one.gateway, one.received_ms // RULES.grid_ms
        first[key] = min(one.received_ms, first.get(key, one.received_ms))
    return [Clock(gateway, ms) for (gateway, _), ms in first.items()]


def reading(device: str, at: int, *, gateway: str = "edge", seq: int | None = None, **values: float) -> Reading:
    ms = T0 + at
    return Reading(device, "pump", None, gateway, seq, ms, ms, ms, values)


def beat(minute: int, acknowledged: int, *, gateway: str = "edge", life: str = "a", state: str = "running") -> Beat:
    return Beat(gateway, 0, life, acknowledged, T0 + (minute - 1) * MINUTE, T0 + minute * MINUTE, state)


def birth(device: str, at: int, *, online: bool = True, session: int | None = None) -> Presence:
    return Presence(device, "edge", online, session, T0 + at, "tcp_closed")


LOG = st.lists(
    st.tuples(
        st.integers(0, 90 * 60).map(lambda second: second * 1000) | st.integers(0, 90 * 60_000),
        st.sampled_from(["reading", "reading", "reading", "birth", "death", "beat"]),
        st.sampled_from("abc"),
        st.sampled_from(["edge", "other", ""]),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=40,
)
Log = list[tuple[int, str, str, str, int]]


def inputs_of(log: Log) -> list[Beat | Presence | Reading]:
    """In the order in which a shard takes them; any number of them at one moment."""
    made: list[Beat | Presence | Reading] = []
    for at, kind, device, gateway, number in log:
        if kind == "reading":
            made.append(reading(device, at, gateway=gateway, seq=number, t=float(number)))
        elif kind == "beat":
            state = "running" if number % 7 else "stopped"
            made.append(Beat(gateway or "edge", number % 2, "a", number // 4, T0 + at - MINUTE, T0 + at, state))
        else:
            made.append(Presence(device, gateway, kind == "birth", None, T0 + at, ""))
    return sorted(made, key=order)
