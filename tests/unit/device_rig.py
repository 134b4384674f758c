"""A shard of devices over Spark's state in memory, and what goes into it."""

import copy
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from pydantic_core import from_json

from streaming.devices.gateways import Beat, Gateway
from streaming.devices.records import Event, Presence, Reading, Rules
from streaming.devices.shard import Clock, Input, Shard, order
from streaming.devices.state import Device
from streaming.devices.store import Store, variables

RULES = Rules(offline_after_ms=600_000, gateway_after_ms=180_000, gap_after_ms=60_000, forget_after_ms=86_400_000)
SHORT = replace(RULES, forget_after_ms=1_200_000, flap_transitions=2, flap_window_ms=900_000)
T0 = 1_700_000_000_000 // RULES.grid_ms * RULES.grid_ms
MINUTE = 60_000


class FakeState:
    """A map of Spark's state, in an order of its own, or a value, which is a map of one."""

    def __init__(self, key: str, value: str) -> None:
        self._lengths = width(key), width(value)
        self.kept: dict[Any, tuple[Any, ...]] = {}
        self.read: list[tuple[Any, ...]] = []

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802 (Spark's name)
        self.read.append(key)
        return copy.deepcopy(self.kept.get(key))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802 (Spark's name)
        assert (len(key), len(value)) == self._lengths
        self.kept[key] = copy.deepcopy(value)

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802 (Spark's name)
        del self.kept[key]

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802 (Spark's name)
        return key in self.kept

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return reversed(list(self.kept))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return reversed(copy.deepcopy(list(self.kept.items())))

    def get(self) -> tuple[Any, ...] | None:
        return self.getValue(())

    def update(self, value: tuple[Any, ...]) -> None:
        self.updateValue((), value)


def width(columns: str) -> int:
    """How many columns a schema has, those within others not counted."""
    while (flat := re.sub(r"<[^<>]*>", "", columns)) != columns:
        columns = flat
    return len([name for name in columns.split(",") if name])


class Kept:
    """The state of a shard, as Spark's handle gives it, and what it holds between two calls."""

    def __init__(self) -> None:
        self.state: dict[str, FakeState] = {}
        self.variables = variables(self)

    def getMapState(self, name: str, key: str, value: str) -> FakeState:  # noqa: N802 (Spark's name)
        return self.state.setdefault(name, FakeState(key, value))

    def getValueState(self, name: str, value: str) -> FakeState:  # noqa: N802 (Spark's name)
        return self.state.setdefault(name, FakeState("", value))

    @property
    def devices(self) -> dict[str, Device]:
        store = Store(*copy.deepcopy(self.variables))  # this look is none of the shard's
        lines = [line for (lines,) in self.state["devices"].kept.values() for line in lines.split("\n")]
        names = [from_json(line.split("\t")[0]) for line in lines]
        return {name: device for name in names if (device := store.load(name)) is not None}

    @property
    def gateways(self) -> dict[str, Gateway]:
        return Store(*self.variables).gateways

    @property
    def due(self) -> dict[tuple[str | None, int], list[str]]:
        return {slot: names for slot, (names,) in self.state["due"].kept.items()}


class Rig(Kept):
    """One shard; each call is a batch. Readings bring their gateway's clock along, as the job adds it."""

    def __init__(self, rules: Rules = RULES, partitions: int = 1) -> None:
        super().__init__()
        self.rules, self.partitions = rules, partitions
        self.events: list[Event] = []
        self.wall = T0 + 10**9  # far from the stream's times, which must not matter

    def __call__(self, *inputs: Input, later: int = 5_000) -> Shard:
        self.wall += later
        readings = [one for one in inputs if isinstance(one, Reading)]
        clocks = [clock for part in range(self.partitions) for clock in clocks_of(readings[part :: self.partitions])]
        store = Store(*self.variables)
        shard = Shard(store, self.rules, self.wall, first=True)
        shard.run([*inputs, *clocks])
        store.flush()
        self.events += shard.events
        return shard

    def wait(self, length: int) -> None:
        for _ in range(-(-length // RULES.tick_ms)):
            self(later=RULES.tick_ms)

    def told(self, *, without: tuple[str, ...] = ("first_seen",)) -> list[tuple[str, str | None]]:
        return [(event.event, event.device or event.gateway) for event in self.events if event.event not in without]

    def state_of(self, device: str) -> str:
        return self.devices[device].state


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
