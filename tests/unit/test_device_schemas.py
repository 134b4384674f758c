"""Schema folders: what is read from them, and what is refused with which words."""

import json
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest

from config.errors import ConfigError
from streaming.decoding.device_schemas import DEFAULT_FOLDER, RESERVED, load_device_schemas
from streaming.decoding.units import UnitError, conversion
from streaming.silver.schema import FIXED
from tests.scripts import loaded_after

ROOT = Path(__file__).resolve().parents[2]
TIMES = {"device": {"type": "string"}, "ts": {"type": "integer"}}


def folder(where: Path, index: str, **files: dict[str, Any]) -> Path:
    """A schema folder; each schema gets device and ts."""
    (where / "schemas.toml").write_text(index)
    for name, properties in files.items():
        schema = {"type": "object", "required": ["device", "ts"], "properties": {**TIMES, **properties}}
        (where / f"{name}.json").write_text(json.dumps(schema))
    return where


def test_the_default_folder_has_the_readings_and_the_demos_devices() -> None:
    schemas = load_device_schemas(None)
    assert set(schemas.types) == {"reading", "thermostat", "meter", "pump"}
    assert schemas.other.name == "reading"
    assert {name: signal.unit for name, signal in schemas.signals.items() if "reading" in signal.types} == {
        "temperature": "°C", "humidity": "%", "voltage": "V", "rssi": "dBm",
    }  # fmt: skip
    assert [(field.name, field.dataType.simpleString()) for field in schemas.columns][:4] == [
        ("temperature", "double"), ("humidity", "double"), ("voltage", "double"), ("rssi", "bigint"),
    ]  # fmt: skip


def test_no_signal_can_take_a_column_of_silver() -> None:
    assert set(FIXED.names) <= RESERVED


@pytest.mark.parametrize(("unit", "canonical", "number", "becomes"), [
    ("°F", "°C", 212.0, 100.0), ("degF", "degC", -40.0, -40.0), ("K", "°C", 273.15, 0.0), ("mV", "V", 3300.0, 3.3),
    ("hPa", "Pa", 1013.25, 101325.0), ("kPa", "Pa", 101.325, 101325.0), ("psi", "Pa", 1.0, 6894.757293168361),
    ("km/h", "m/s", 36.0, 10.0), ("%", "", 50.0, 0.5),
])  # fmt: skip
def test_units_are_converted(unit: str, canonical: str, number: float, becomes: float) -> None:
    assert conversion(unit, canonical)(number) == pytest.approx(becomes, rel=1e-15, abs=1e-12)


def test_the_same_unit_needs_no_conversion() -> None:
    assert conversion("no unit at all", "no unit at all") is None


@pytest.mark.parametrize(("unit", "canonical", "says"), [
    ("psii", "Pa", "'psii' is no unit"), ("V", "Pa", "measure different things"),
    ("dBm", "mW", "by a factor and an offset"), ("1 +", "Pa", "is no unit"),
])  # fmt: skip
def test_units_that_do_not_fit_are_refused(unit: str, canonical: str, says: str) -> None:
    with pytest.raises(UnitError, match=says):
        conversion(unit, canonical)


REFUSED = [
    ("[types.a]\ntiem = 't'", {"a": {}}, "types.a.tiem is unknown; is time meant?"),
    ("[types.a]\n[types.a.signals.x]\nunits = 'V'", {"a": {"x": {"type": "number"}}}, "is unit meant?"),
    ("[types.a]", {}, "neither a.json, a.avsc nor a.desc"),
    ("[types.a]\ntime = 'time'", {"a": {"tome": {"type": "integer"}}}, "no field of a.json. Is tome meant?"),
    ("[types.a]\ntime_format = 'iso8601'", {"a": {}}, "ts, a long in a.json; it has to be a string"),
    ("[types.a]", {"a": {"x": {"type": "array"}}}, "a signal is one number, string, enum or boolean"),
    ("[types.a]", {"a": {"x": {"type": {"number": 1}}}}, "a signal is one number, string, enum or boolean"),
    ("[types.a]", {"a": {"x": {"type": "string", "pattern": "x"}}}, 'x has "pattern", which is not checked'),
    ("[types.a]", {"a": {"x": {"type": "number", "multipleOf": 2}}}, 'x has "multipleOf", which is not checked'),
    ("[types.a]", {"a": {"x": {"type": "string", "format": "uri"}}}, '"format" has to be "date-time"'),
    ("[types.a]", {"a": {"x": {"type": "number", "enum": ["a"]}}}, '"a" is allowed by its list, but it is no double'),
    ("[types.a]", {"a": {"x": {"type": "number", "minimum": "0"}}}, '"minimum" has to be a number'),
    ("[types.a]", {"a": {"site": {"type": "string"}}}, "would be the column site, which silver has already"),
    ("[types.a]", {"a": {"x": {"type": "number"}, "X": {"type": "number"}}}, "x and X differ in case only"),
    ("[types.a]", {"a": {"x?": {"type": "number"}}}, 'the name "x?" cannot be looked up'),
    ("[types.a]", {"a": {"'\"": {"type": "number"}}}, "cannot be looked up"),
    ("type_field = 'kind?'\n[types.a]", {"a": {"x": {"type": "number"}}}, "type_field"),
    ("[types.a]", {"a": {"a b": {"type": "number"}, "a_b": {"type": "number"}}}, "would both be the signal a_b"),
    ("[units]\nx = 'Pa'\n[types.a.signals.x]\nunit = 'psii'", {"a": {"x": {"type": "number"}}}, "'psii' is no unit"),
    ("[types.a.signals.x]\nunit = 'V'", {"a": {"x": {"type": "string"}}}, "x is a string. Remove the unit"),
    ("[types.a.signals.y]\nfield = 'z'", {"a": {"x": {"type": "number"}}}, "a.json has no field z for a signal"),
    ("[types.a.signals.x]\nunit = 'V'\n[types.b.signals.x]\nunit = 'mV'",
        {"a": {"x": {"type": "number"}}, "b": {"x": {"type": "number"}}},
        "x is kept in V for type a and in mV for type b"),
    ("[types.a]\n[types.b]", {"a": {"x": {"type": "number"}}, "b": {"x": {"type": "string"}}},
        "x is a double for type a and a string for type b"),
    ("[types.a]\nkafka_topics = ['t']\n[types.b]\nkafka_topics = ['t']", {"a": {}, "b": {}},
        "the topic t is type a's and type b's"),
    ("[types.a]\nmqtt_topics = ['a/#/b']", {"a": {}}, 'types.a.mqtt_topics.0: "#" stands alone in the last level'),
    ("other_types = 'b'\n[types.a]", {"a": {}}, "other_types is 'b', which is none of the types: a"),
]  # fmt: skip


@pytest.mark.parametrize(("index", "files", "says"), REFUSED, ids=[says[:40] for _, _, says in REFUSED])
def test_a_folder_with_something_wrong_is_refused(
    tmp_path: Path, index: str, files: dict[str, dict[str, Any]], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_device_schemas(folder(tmp_path, index, **files))
    assert says in str(caught.value)
    assert str(tmp_path) in str(caught.value), "it does not say where"


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    wrong = folder(tmp_path, "[types.a]\n[types.b]", a={"x": {"type": "array"}}, b={"y": {"type": "array"}})
    with pytest.raises(ConfigError) as caught:
        load_device_schemas(wrong)
    assert len(caught.value.problems) == 2


def test_what_is_required_is_named(tmp_path: Path) -> None:
    (tmp_path / "schemas.toml").write_text("[types.a]")
    (tmp_path / "a.json").write_text(json.dumps({"type": "object", "properties": {}, "required": [["x"]]}))
    with pytest.raises(ConfigError, match="is required but not among the properties"):
        load_device_schemas(tmp_path)


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"schemas\.toml is not there"):
        load_device_schemas(tmp_path)


def test_a_type_that_changes_is_another_one_and_remarks_change_nothing(tmp_path: Path) -> None:
    before = load_device_schemas(folder(tmp_path, "[types.a]", a={"x": {"type": "integer"}}))
    again = load_device_schemas(folder(tmp_path, "# a remark\n[types.a]", a={"x": {"type": "integer", "title": "t"}}))
    after = load_device_schemas(folder(tmp_path, "[types.a]", a={"x": {"type": "number"}}))
    assert before == again
    assert before != after
    assert (before.signals["x"].kind, after.signals["x"].kind) == ("long", "double")


def test_types_share_a_signal_as_the_wider_kind(tmp_path: Path) -> None:
    index = "[types.a]\n[types.b]"
    schemas = load_device_schemas(folder(tmp_path, index, a={"x": {"type": "integer"}}, b={"x": {"type": "number"}}))
    assert schemas.signals["x"].kind == "double"
    assert schemas.signals["x"].types == ("a", "b")


def test_reading_the_schemas_needs_no_spark_and_the_defaults_no_units() -> None:
    code = "from streaming.decoding.device_schemas import load_device_schemas; load_device_schemas(None)"
    assert not {"pyspark", "pint", "fastavro", "google.protobuf"} & loaded_after(code)


def test_the_pages_example_is_a_folder_that_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "streaming.md").read_text()
    for name in ("schemas.toml", "boiler.json"):
        block = page.split(f"    schemas/{name}\n", 1)[1].split("\n\n    schemas/", 1)[0].split("\n\nIts ", 1)[0]
        (tmp_path / name).write_text(textwrap.dedent(block))
    schemas = load_device_schemas(tmp_path)
    units = {name: signal.unit for name, signal in schemas.signals.items() if "boiler" in signal.types}
    assert units == {"temperature": "°C", "pressure": "Pa", "state": ""}
    convert = next(source.convert for source in schemas.types["boiler"].sources if source.signal == "temperature")
    assert convert(212.0) == 100.0, "the page says so"


def test_the_tutorials_folder_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    (index,) = re.findall(r"```toml\n(\[types.*?)```", page, re.DOTALL)
    (schema,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (tmp_path / "schemas.toml").write_text(index)
    (tmp_path / "boiler.json").write_text(schema)
    schemas = load_device_schemas(tmp_path)
    assert {name for name, signal in schemas.signals.items() if "boiler" in signal.types} == {"temperature", "state"}


def test_the_wheel_takes_the_default_folder() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert DEFAULT_FOLDER.relative_to(ROOT).parts[0] in built["packages"]
    assert "exclude" not in built
    assert "only-include" not in built
