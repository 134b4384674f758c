"""What Spark keeps of a shard between two batches: its devices, when each is due, the gateways, and its own clocks."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from operator import attrgetter
from typing import Any, Final
from zlib import crc32

from pydantic_core import from_json, to_json

from streaming.devices.gateways import Gateway, Worker
from streaming.devices.sequence import Missing, Sequence
from streaming.devices.state import Device

STATE_VERSION: Final = 5
"""Raised with each change of the state's columns or of what they mean: a checkpoint of another version is refused."""

_BUCKETS: Final = 8_192
"""In how many values a shard's devices are: of 50,000 each has six. To read one and write it takes some 30 µs of CPU
between Python and the JVM, once for all its devices that a batch brings; those that it does not are written as well."""

_GATEWAY: Final = (
    "alive_ms bigint, data_ms bigint, beat_ms bigint,"
    " workers map<string, struct<life: string, acknowledged: bigint, quiet_ms: bigint, to_ms: bigint>>,"
    " outages array<struct<begin_ms: bigint, end_ms: bigint>>,"
    " lost boolean, stalled boolean, stopped boolean, heard_wall_ms bigint, data_wall_ms bigint, due_ms bigint"
)
# The columns are the class's fields in their order, but for the name. So are the values in a device's JSON, those of
# its sequence at the end: Spark would turn over each of 35 columns, in Python and in the JVM.
_OWN, _NUMBERS = [it.name for it in fields(Device)][1:-1], [it.name for it in fields(Sequence)]
_MISSING: Final = _NUMBERS.index("missing")
_own_of, _numbers_of = attrgetter(*_OWN), attrgetter(*_NUMBERS)
_from_gateway = attrgetter(*(it.name for it in fields(Gateway)[1:]))


@dataclass(slots=True)
class Meta:
    """What a shard keeps beside devices and gateways."""

    ran_ms: int | None = None  # processing time of the last call
    watched_ms: int = 0  # processing time since when there were no breaks
    due_ms: int | None = None  # the earliest slot by everybody's progress
    timer_ms: int = 0  # when the caller's timer is set to


def variables(handle: Any) -> tuple[Any, Any, Any, Any]:
    """The state variables of Spark's handle that a :class:`Store` is made of."""
    return (
        handle.getMapState("devices", "bucket int", "lines string"),
        handle.getMapState("due", "gateway string, at_ms bigint", "devices array<string>"),
        handle.getMapState("gateways", "gateway string", _GATEWAY),
        handle.getValueState("meta", "version int, ran_ms bigint, watched_ms bigint, due_ms bigint, timer_ms bigint"),
    )


class Store:
    """For one call of a shard: what is read is kept here, and all of it is written by :meth:`flush`.

    Devices are due in slots: at a moment ``ms`` of the progress of a gateway, or of everybody's (None).
    """

    def __init__(self, devices: Any, due: Any, gateways: Any, meta: Any) -> None:
        self._devices, self._due, self._gateways, self._meta = devices, due, gateways, meta
        found = meta.get()
        self.meta = Meta(*found[1:]) if found else Meta()
        self._kept = {key[0]: value for key, value in gateways.iterator()}  # as Spark has them
        self.gateways = {name: _to_gateway(name, value) for name, value in self._kept.items()}
        self._buckets: dict[int, dict[str, str]] = {}  # those looked into, as Spark has them: JSON by the name in JSON
        self._loaded: dict[str, Device | None] = {}  # None: there is none, or none any more
        self._slots: dict[tuple[str | None, int], list[str]] = {}  # those looked into; empty: there is none any more
        self._moments: defaultdict[str | None, set[int]] = defaultdict(set)  # by gateway, of the slots that are known
        self._knows_all_slots = False

    def load(self, name: str) -> Device | None:
        if name not in self._loaded:
            found = self._bucket_of(name).get(_json(name))
            self._loaded[name] = None if found is None else _to_device(name, found)
        return self._loaded[name]

    def save(self, device: Device) -> None:
        self._loaded[device.name] = device

    def remove(self, name: str) -> None:
        self._loaded[name] = None

    def plan(self, gateway: str | None, ms: int, name: str) -> None:
        """Puts a device into a slot."""
        self._slot(gateway, ms).append(name)
        self._moments[gateway].add(ms)

    def planned(self, gateway: str | None) -> set[str]:
        """The devices in all slots of a gateway, and some that were."""
        return {name for ms in self._slots_of(gateway) for name in self._slot(gateway, ms)}

    def next_slot(self, gateway: str | None) -> int | None:
        return min(self._slots_of(gateway), default=None)

    def take_due(self, gateway: str | None, until: float) -> Iterator[tuple[int, Device]]:
        """Each slot up to a moment with each of its devices, in order; removes the slots."""
        for ms in sorted(it for it in self._slots_of(gateway) if it <= until):
            names, self._slots[gateway, ms] = self._slot(gateway, ms), []
            for name in names:
                if (device := self.load(name)) is not None:
                    yield ms, device

    def _bucket_of(self, name: str) -> dict[str, str]:
        if (number := bucket(name)) not in self._buckets:
            found = self._devices.getValue((number,))
            # JSON has neither tab nor end of line.
            self._buckets[number] = dict(line.split("\t") for line in found[0].split("\n")) if found else {}
        return self._buckets[number]

    def _slot(self, gateway: str | None, ms: int) -> list[str]:
        if (gateway, ms) not in self._slots:
            found = self._due.getValue((gateway, ms))
            self._slots[gateway, ms] = list(found[0]) if found else []
        return self._slots[gateway, ms]

    def _slots_of(self, gateway: str | None) -> list[int]:
        if not self._knows_all_slots:  # they are read when one is due, which none is in many batches
            self._knows_all_slots = True
            for of, ms in self._due.keys():  # noqa: SIM118 (no dict)
                self._moments[of].add(ms)
        return [ms for ms in self._moments[gateway] if self._slots.get((gateway, ms)) != []]

    def flush(self) -> None:
        """Writes all into Spark's state. The store is not used after that."""
        for name, device in self._loaded.items():
            if device is None:
                self._bucket_of(name).pop(_json(name), None)
            else:
                self._bucket_of(name)[_json(name)] = _from_device(device)
        for number, devices in self._buckets.items():
            lines = "\n".join(map("\t".join, devices.items()))
            _put(self._devices, (number,), (lines,) if lines else None)
        for slot, names in self._slots.items():
            _put(self._due, slot, (names,) if names else None)
        for name, gateway in self.gateways.items():
            if (changed := _from_gateway(gateway)) != self._kept.get(name):
                self._gateways.updateValue((name,), changed)
        for name in self._kept.keys() - self.gateways.keys():
            self._gateways.removeKey((name,))
        self._meta.update((STATE_VERSION, *astuple(self.meta)))


def bucket(device: str) -> int:
    """Which of a shard's values in Spark's state a device is in."""
    return crc32(device.encode()) % _BUCKETS


def _put(state: Any, key: tuple[Any, ...], value: tuple[Any, ...] | None) -> None:  # None: removes what is there
    if value is not None:
        state.updateValue(key, value)
    elif state.containsKey(key):
        state.removeKey(key)


def _json(value: object) -> str:
    return to_json(value, inf_nan_mode="constants").decode()


def _from_device(device: Device) -> str:
    return _json((*_own_of(device), *_numbers_of(device.sequence)))


def _to_device(name: str, kept: str) -> Device:  # kept: what _from_device made
    values = from_json(kept)
    numbers = values[len(_OWN) :]
    numbers[_MISSING] = [Missing(*gap) for gap in numbers[_MISSING]]
    device = Device(name, *values[: len(_OWN)])
    device.sequence = Sequence(*numbers)
    device.values = {signal: (value, at_ms) for signal, (value, at_ms) in device.values.items()}
    return device


def _to_gateway(name: str, kept: Any) -> Gateway:
    gateway = Gateway(name, *kept)
    gateway.workers = {key: Worker(*worker) for key, worker in gateway.workers.items()}
    gateway.outages = [(begin, end) for begin, end in gateway.outages]
    return gateway
