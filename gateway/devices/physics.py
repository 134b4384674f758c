"""What the demo's devices measure: a small physical model, the same for the same seed.

Sites have weather (a pure function of time), devices have a state that follows it: rooms lose heat and are heated,
households draw power, pumps fill tanks, batteries sag in the cold. Time is in *model seconds* since a midnight; the
fleet runs the model's clock :data:`TIME_SCALE` times faster than the wall clock, so a minute's demo sees the morning.

Nothing here does I/O, reads a clock or shares a random source: a device's readings depend on the seed, its number and
the moments it is read at, whatever the other devices do.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Literal, Protocol

DAY_S = 86_400.0
HOUR_S = 3_600.0
START_S = 6 * HOUR_S
"""Model time at which a run begins: six in the morning, when heating, cooking and the sun all start to move."""
TIME_SCALE = 360.0
"""Model seconds per wall second: a minute of the demo is a quarter of a day."""
MAX_STEP_S = 300.0
"""Longest step of a switching device (heating, pump): longer ones would overshoot its switch points without limit."""

DeviceType = Literal["thermostat", "meter", "pump"]
Reading = dict[str, float]
"""Measurements by name; an int where the wire's schema has a long."""
UNITS = {
    "temperature": "°C",
    "humidity": "%",
    "voltage": "V",
    "rssi": "dBm",
    "setpoint": "°C",
    "heating": "0 or 1",
    "power": "W",
    "energy": "kWh",
    "flow": "l/min",
    "pressure": "bar",
    "vibration": "mm/s",
    "level": "%",
}
"""Every measurement a device may send; ``streaming/decoding/schemas_default`` has the schemas of the devices' types."""

FAULTY_SIGNAL = "voltage"
"""What a device measures wrong whose sensor has lost its calibration: all have it, and it changes slowly."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place with its own climate: daily mean and swing in degrees Celsius, dew point below the mean in kelvin."""

    name: str
    mean_c: float
    swing_c: float
    dew_depression_c: float


SITES = (
    Site("oslo", -2.0, 4.0, 4.0),
    Site("porto", 13.0, 5.0, 4.5),
    Site("lyon", 8.0, 6.0, 5.0),
    Site("izmir", 15.0, 6.5, 7.0),
)


@dataclass(frozen=True, slots=True)
class Air:
    """Air at one moment: degrees Celsius, and water vapour pressure in hectopascal (what heating does not change)."""

    temperature_c: float
    vapour_hpa: float


def saturation_hpa(temperature_c: float) -> float:
    """Pressure of water vapour at which air of this temperature is saturated (Magnus formula over water)."""
    return 6.112 * math.exp(17.62 * temperature_c / (243.12 + temperature_c))


def relative_humidity_pct(vapour_hpa: float, temperature_c: float) -> float:
    """Relative humidity of air holding this much vapour, kept to what a sensor can show (5 to 99 %)."""
    return min(99.0, max(5.0, 100.0 * vapour_hpa / saturation_hpa(temperature_c)))


class Weather:
    """The air outside one site, a pure function of model time: warmest at 15:00, with slow fronts from the seed."""

    def __init__(self, seed: int, site: Site) -> None:
        self.site = site
        self._seed = seed
        self._knot = lru_cache(maxsize=64)(self._draw_knot)

    def _draw_knot(self, what: str, index: int) -> float:
        return Random(f"{self._seed}/{self.site.name}/{what}/{index}").gauss(0.0, 1.0)

    def _front(self, what: str, t_s: float) -> float:
        """Smooth noise of unit size: a random value every two hours, joined by cosines."""
        index, part = divmod(t_s / (2 * HOUR_S), 1.0)
        weight = (1.0 - math.cos(math.pi * part)) / 2.0
        return self._knot(what, int(index)) * (1.0 - weight) + self._knot(what, int(index) + 1) * weight

    def at(self, t_s: float) -> Air:
        """The air at model time ``t_s``."""
        daily = math.cos(2.0 * math.pi * (t_s / DAY_S - 15.0 / 24.0))
        temperature = self.site.mean_c + self.site.swing_c * daily + 1.2 * self._front("temperature", t_s)
        dew_point = self.site.mean_c - self.site.dew_depression_c + 0.8 * self._front("dew", t_s)
        return Air(temperature, saturation_hpa(min(dew_point, temperature)))


class _Wandering:
    """An Ornstein-Uhlenbeck process: noise of spread ``sigma`` that remembers for ``tau_s``, at any step length."""

    def __init__(self, random: Random, sigma: float, tau_s: float) -> None:
        self._random = random
        self._sigma = sigma
        self._tau_s = tau_s
        self._value = random.gauss(0.0, sigma)

    def step(self, dt_s: float) -> float:
        keep = math.exp(-dt_s / self._tau_s)
        self._value = self._value * keep + self._random.gauss(0.0, self._sigma) * math.sqrt(1.0 - keep * keep)
        return self._value


class _Radio:
    """Signal strength in dBm: path loss by distance (log-distance model, exponent 2.7), slow shadowing, fast noise."""

    def __init__(self, random: Random) -> None:
        distance_m = random.uniform(3.0, 60.0)
        self._mean_dbm = -40.0 - 27.0 * math.log10(distance_m)
        self._shadow = _Wandering(random, 3.0, 1.5 * HOUR_S)
        self._random = random

    def step(self, dt_s: float) -> int:
        return round(max(-110.0, self._mean_dbm + self._shadow.step(dt_s) + self._random.gauss(0.0, 1.5)))


class _Battery:
    """Two lithium cells: voltage falls with charge and, under the radio's load, with the resistance cold cells have."""

    _LOAD_A = 0.08
    _LIFE_S = 700 * DAY_S

    def __init__(self, random: Random) -> None:
        self._charge = random.uniform(0.25, 1.0)

    def step(self, dt_s: float, temperature_c: float) -> float:
        self._charge = max(0.0, self._charge - dt_s / self._LIFE_S)
        open_v = 3.05 - 0.25 * (1.0 - self._charge) - 0.5 * math.exp(-14.0 * self._charge)
        resistance_ohm = 0.6 * math.exp(max(0.0, 25.0 - temperature_c) / 30.0) * (1.5 - 0.5 * self._charge)
        return round(open_v - self._LOAD_A * resistance_ohm, 3)


class DeviceModel(Protocol):
    device: str
    type: DeviceType

    def read(self, t_s: float) -> Reading:
        """Moves the device to model time ``t_s`` (never back) and returns its measurements by name (:data:`UNITS`)."""
        ...


class _Device(ABC):
    """What all devices share: a name, a place, a radio, and the length of the step since the last reading."""

    type: DeviceType

    def __init__(self, device: str, weather: Weather, random: Random, t_s: float) -> None:
        self.device = device
        self._weather = weather
        self._random = random
        self._radio = _Radio(random)
        self._t_s = t_s

    def read(self, t_s: float) -> Reading:
        """The values at model time ``t_s``; an earlier time than before counts as the same."""
        dt_s = max(0.0, t_s - self._t_s)
        self._t_s = max(self._t_s, t_s)
        values = self._simulate(dt_s)
        values["rssi"] = self._radio.step(dt_s)
        return values

    @abstractmethod
    def _simulate(self, dt_s: float) -> Reading:
        """Advances the model by the seconds since the last reading, and measures it."""

    def _substeps(self, dt_s: float) -> tuple[int, float]:
        """The number and the seconds of equal steps of at most MAX_STEP_S."""
        count = max(1, math.ceil(dt_s / MAX_STEP_S))
        return count, dt_s / count


class Thermostat(_Device):
    """A room that relaxes towards the weather and is heated to a set point, lower at night."""

    type: DeviceType = "thermostat"
    _HYSTERESIS_C = 0.4

    def __init__(self, device: str, weather: Weather, random: Random, t_s: float) -> None:
        super().__init__(device, weather, random, t_s)
        self._tau_s = random.uniform(3.0, 7.0) * HOUR_S  # how slowly the room follows
        self._heating_lift_c = max(28.0, 24.0 - weather.site.mean_c + 10.0)  # above the weather, if heated for ever
        self._comfort_c = random.gauss(20.8, 0.7)
        self._setback_c = random.uniform(2.0, 4.0)
        self._room_c = self._comfort_c - self._setback_c + random.gauss(0.0, 0.5)
        self._heating = False
        self._indoor_hpa = random.uniform(1.5, 4.0)  # water vapour of the people in it
        self._battery = _Battery(random)

    def _setpoint_c(self, t_s: float) -> float:
        hour = t_s / HOUR_S % 24.0
        return self._comfort_c if 6.0 <= hour < 22.0 else self._comfort_c - self._setback_c

    def _simulate(self, dt_s: float) -> Reading:
        """Advance to the present model time, by ``dt_s``; the values then."""
        count, step_s = self._substeps(dt_s)
        keep = math.exp(-step_s / self._tau_s)
        for index in range(count):
            t_s = self._t_s - dt_s + (index + 1) * step_s
            setpoint = self._setpoint_c(t_s)
            if self._room_c < setpoint - self._HYSTERESIS_C:
                self._heating = True
            elif self._room_c > setpoint + self._HYSTERESIS_C:
                self._heating = False
            rest_c = self._weather.at(t_s).temperature_c + (self._heating_lift_c if self._heating else 2.0)
            self._room_c = rest_c + (self._room_c - rest_c) * keep
        air = self._weather.at(self._t_s)
        return {
            "temperature": round(self._room_c + self._random.gauss(0.0, 0.05), 2),
            "humidity": round(relative_humidity_pct(air.vapour_hpa + self._indoor_hpa, self._room_c), 1),
            "setpoint": round(self._setpoint_c(self._t_s), 1),
            "heating": float(self._heating),
            "voltage": self._battery.step(dt_s, self._room_c),
        }


class Meter(_Device):
    """A household's electricity meter in a cabinet outside: energy only grows, the mains voltage sags with load."""

    type: DeviceType = "meter"

    def __init__(self, device: str, weather: Weather, random: Random, t_s: float) -> None:
        super().__init__(device, weather, random, t_s)
        self._size = random.uniform(0.6, 1.8)  # of the household: a factor of its habits
        self._base_w = random.uniform(80.0, 220.0)
        self._wander = _Wandering(random, 0.15, 0.5 * HOUR_S)  # noise, as a share
        self._energy_wh = random.uniform(1e6, 2e7)
        self._grid_ohm = random.uniform(0.2, 0.5)
        self._power_w = self._base_w

    @staticmethod
    def _habit_w(hour: float) -> float:
        """A household's mean draw above its base: breakfast, noon and evening."""
        peaks = ((7.3, 1.0, 900.0), (12.5, 1.2, 450.0), (19.3, 2.0, 1400.0))
        return sum(height * math.exp(-(((hour - middle) / width) ** 2)) for middle, width, height in peaks)

    def _simulate(self, dt_s: float) -> Reading:
        """Advance to the present model time, by ``dt_s``; the values then."""
        habit_w = self._habit_w(self._t_s / HOUR_S % 24.0)
        kettle_w = 2000.0 if self._random.random() < habit_w / 20_000.0 else 0.0
        power_w = (self._base_w + self._size * habit_w) * max(0.3, 1.0 + self._wander.step(dt_s)) + kettle_w
        self._energy_wh += (self._power_w + power_w) / 2.0 * dt_s / HOUR_S
        self._power_w = power_w
        evening = math.exp(-(((self._t_s / HOUR_S % 24.0 - 19.3) / 3.0) ** 2))
        volts = 233.0 - 3.0 * evening - self._grid_ohm * power_w / 230.0 + self._random.gauss(0.0, 0.4)
        return {
            "temperature": round(self._weather.at(self._t_s).temperature_c + 4.0 + 0.002 * power_w, 1),
            "power": round(power_w, 1),
            "energy": round(self._energy_wh / 1000.0, 3),
            "voltage": round(volts, 1),
        }


class Pump(_Device):
    """A pump that fills a tank the neighbourhood empties; its motor warms while it runs."""

    type: DeviceType = "pump"
    _TANK_L = 12_000.0

    def __init__(self, device: str, weather: Weather, random: Random, t_s: float) -> None:
        super().__init__(device, weather, random, t_s)
        self._level = random.uniform(0.35, 0.75)  # of the tank, 1 is full
        self._running = random.random() < 0.4
        self._flow_l_min = random.uniform(90.0, 130.0)
        self._demand_l_min = random.uniform(18.0, 40.0)
        self._wear = random.uniform(1.0, 1.8)  # of the pump, 1 is new
        self._motor_c = weather.at(t_s).temperature_c + (30.0 if self._running else 2.0)
        self._battery = _Battery(random)

    def _simulate(self, dt_s: float) -> Reading:
        """Advance to the present model time, by ``dt_s``; the values then."""
        count, step_s = self._substeps(dt_s)
        keep = math.exp(-step_s / (20 * 60.0))
        air_c = self._weather.at(self._t_s).temperature_c
        for index in range(count):
            hour = (self._t_s - dt_s + (index + 1) * step_s) / HOUR_S % 24.0
            demand = self._demand_l_min * (
                0.3 + 1.4 * math.exp(-(((hour - 8.0) / 3.0) ** 2)) + 0.9 * (17.0 <= hour < 22.0)
            )
            flow = self._flow_l_min if self._running else 0.0
            self._level = min(1.0, max(0.0, self._level + (flow - demand) * step_s / 60.0 / self._TANK_L))
            if self._level < 0.3:
                self._running = True
            elif self._level > 0.9:
                self._running = False
            rest_c = air_c + (38.0 * self._wear if self._running else 0.0)
            self._motor_c = rest_c + (self._motor_c - rest_c) * keep
        noise = self._random.gauss
        return {
            "flow": round(self._flow_l_min * (1.0 + noise(0.0, 0.02)), 1) if self._running else 0.0,
            "pressure": round((3.4 if self._running else 1.1 + 0.4 * self._level) + noise(0.0, 0.03), 2),
            "temperature": round(self._motor_c + noise(0.0, 0.2), 1),
            "vibration": round(abs(self._wear * (1.6 if self._running else 0.05) + noise(0.0, 0.04)), 2),
            "level": round(100.0 * self._level, 1),
            "voltage": self._battery.step(dt_s, air_c),
        }


_MIX: tuple[type[Thermostat | Meter | Pump], ...] = (Thermostat, Meter, Thermostat, Pump, Thermostat, Meter)
"""Every second device is a thermostat, every third a meter, every sixth a pump."""


def build_fleet(devices: int, seed: int, *, only: DeviceType | None = None) -> list[DeviceModel]:
    """``devices`` models named ``<site>-<type>-<number>``, at model time ``START_S``; the same for the same arguments.
    ``only``: all of one type instead of the mix."""
    mix = _MIX if only is None else tuple(kind for kind in (Thermostat, Meter, Pump) if kind.type == only)
    weather = [Weather(seed, site) for site in SITES]
    fleet: list[DeviceModel] = []
    for index in range(devices):
        kind, here = mix[index % len(mix)], weather[index // len(mix) % len(weather)]
        name = f"{here.site.name}-{kind.type}-{index + 1:04d}"
        fleet.append(kind(name, here, Random(f"{seed}/device/{index}"), START_S))
    return fleet
