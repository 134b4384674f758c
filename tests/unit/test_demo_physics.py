"""The demo's physical model: the same for the same seed, plausible, and what the packaged schemas ask for."""

import json
import math
import statistics
from pathlib import Path

import jsonschema
import pytest

from gateway.devices.physics import DAY_S, SITES, START_S, UNITS, Weather, build_fleet

HOUR = 3_600.0
SCHEMAS = Path(__file__).parents[2] / "streaming" / "decoding" / "schemas_default"


def day_of_readings(seed: int = 7, devices: int = 24, step_s: float = 360.0) -> dict[str, list[dict[str, float]]]:
    fleet = build_fleet(devices, seed)
    readings: dict[str, list[dict[str, float]]] = {model.device: [] for model in fleet}
    for step in range(int(DAY_S / step_s)):
        for model in fleet:
            readings[model.device].append(model.read(START_S + step * step_s))
    return readings


def test_the_same_seed_gives_the_same_readings_and_another_seed_others() -> None:
    assert day_of_readings(seed=1) == day_of_readings(seed=1)
    assert day_of_readings(seed=1) != day_of_readings(seed=2)


def test_a_device_reads_the_same_whatever_the_others_do() -> None:
    few, many = build_fleet(3, seed=5), build_fleet(30, seed=5)
    times = [START_S + 100.0 * step for step in range(50)]
    alone = [few[2].read(t) for t in times]
    in_company = []
    for t in times:
        for model in reversed(many):
            values = model.read(t)
            if model.device == many[2].device:
                in_company.append(values)
    assert alone == in_company


def test_names_are_distinct_and_all_types_and_sites_occur() -> None:
    fleet = build_fleet(200, seed=1)
    assert len({model.device for model in fleet}) == 200
    assert {model.type for model in fleet} == {"thermostat", "meter", "pump"}
    assert {model.device.split("-")[0] for model in fleet} == {site.name for site in SITES}


def test_readings_fit_the_packaged_schemas() -> None:
    types = {model.device: model.type for model in build_fleet(24, seed=7)}
    schemas = {kind: json.loads((SCHEMAS / f"{kind}.json").read_text()) for kind in set(types.values())}
    for device, readings in day_of_readings().items():
        properties = schemas[types[device]]["properties"]
        envelope = {"device": device, "type": types[device], "seq": 0, "ts": 0}
        for values in readings:
            assert envelope.keys().isdisjoint(values)
            assert set(values) <= set(UNITS) & set(properties), device
            for name, value in values.items():
                assert math.isfinite(value), (device, name)
                assert properties[name]["type"] == "number" or isinstance(value, int), (device, name, value)
        jsonschema.validate({**envelope, **readings[0]}, schemas[types[device]])


def test_the_weather_is_warmest_in_the_afternoon_and_coldest_before_dawn() -> None:
    for site in SITES:
        weather = Weather(seed=3, site=site)
        by_hour = [
            statistics.mean(weather.at(day * DAY_S + hour * HOUR).temperature_c for day in range(30))
            for hour in range(24)
        ]
        assert 12 <= by_hour.index(max(by_hour)) <= 18, site.name
        assert by_hour.index(min(by_hour)) <= 6, site.name


def test_the_weather_is_a_pure_function_of_time() -> None:
    there, back = Weather(1, SITES[0]), Weather(1, SITES[0])
    times = [hour * HOUR / 3 for hour in range(300)]
    assert [there.at(t) for t in times] == [back.at(t) for t in reversed(times)][::-1]


def test_rooms_are_heated_to_their_set_point_in_the_day() -> None:
    for device, readings in day_of_readings(devices=24).items():
        if "thermostat" in device:
            afternoon = readings[80:120]  # 14:00 to 18:00, eight hours after the heating began
            for values in afternoon:
                assert values["temperature"] > values["setpoint"] - 2.0, device
                assert values["temperature"] < 32.0, device


def test_a_meter_never_counts_backwards() -> None:
    for device, readings in day_of_readings().items():
        if "meter" in device:
            energy = [values["energy"] for values in readings]
            assert energy == sorted(energy), device
            assert energy[-1] > energy[0], device


def test_a_tank_stays_in_bounds_and_a_resting_pump_moves_nothing() -> None:
    for device, readings in day_of_readings(devices=48).items():
        if "pump" in device:
            assert all(0.0 <= values["level"] <= 100.0 for values in readings), device
            assert {values["flow"] > 50.0 for values in readings} == {True, False}, f"{device} never switched"


def test_a_cold_battery_sags() -> None:
    readings = day_of_readings(devices=48)
    cold = [values for device, all_values in readings.items() if "oslo-pump" in device for values in all_values]
    assert all(2.0 < values["voltage"] < 3.1 for values in cold)
    by_device = [values["voltage"] for values in readings["oslo-pump-0004"]]
    assert max(by_device) - min(by_device) > 0.003


@pytest.mark.parametrize("gap_s", [0.0, 1.0, 6 * HOUR, 3 * DAY_S])
def test_any_gap_between_readings_gives_sane_values(gap_s: float) -> None:
    for model in build_fleet(12, seed=9):
        model.read(START_S)
        values = model.read(START_S + gap_s)
        assert all(math.isfinite(value) for value in values.values())
        assert -60.0 < values["temperature"] < 110.0, model.device
