"""One device type, put together from its entry in the index and its schema file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from config.errors import ConfigError
from config.extras import how_to_install
from streaming.decoding.fields import Binary, DeviceType, Format, Kind, PayloadField, Place, Source
from streaming.decoding.json_schemas import json_fields
from streaming.decoding.schema_index import INDEX, SignalTable, TimeFormat, TypeTable
from streaming.decoding.units import UnitError, conversion

_SUFFIXES: dict[str, Format] = {".json": "json", ".avsc": "avro", ".desc": "protobuf"}
_KINDS_OF_TIMES: dict[TimeFormat, tuple[Kind, ...]] = {"iso8601": ("string",), "s": ("long", "double")}


def device_type(folder: Path, name: str, table: TypeTable, units: Mapping[str, str], type_field: str) -> DeviceType:
    """The type ``name`` of a folder. Raises ConfigError with what is wrong in its entry or its file."""
    file, entry = _file(folder, name, table), f"{folder / INDEX}: types.{name}"
    form = _SUFFIXES[file.suffix]
    fields, binary = _read(file, form, table)
    by_name = {field.name: field for field in fields}

    def place(of: str, told: str | Place, kinds: Sequence[Kind]) -> Place:
        if not isinstance(told, str):
            return told  # a header, a level of the topic, the key or the receipt: no field
        if (field := by_name.get(told)) is None:
            raise ConfigError(f"{entry}.{of} is {told}, which is no field of {file.name}.{_meant(told, by_name)}")
        if field.kind not in kinds:
            wanted = " or ".join(kinds)
            raise ConfigError(f"{entry}.{of} is {told}, a {field.kind} in {file.name}; it has to be a {wanted}.")
        return field

    told = table.sequence or ("seq" if "seq" in by_name else None)
    device = place("device", table.device, ("string",))
    sequence = None if told is None else place("sequence", told, ("long",))
    time = place("time", table.time, _KINDS_OF_TIMES.get(table.time_format, ("long",)))
    if isinstance(time, PayloadField) and time.moment not in (None, table.time_format):
        raise ConfigError(
            f"{entry}.time_format is {table.time_format}, but {file.name} has {time.name} in {time.moment}: say"
            f' time_format = "{time.moment}".'
        )
    used = {place.name for place in (device, sequence, time) if isinstance(place, PayloadField)}
    measured = {name: it for name, it in by_name.items() if name not in {*used, type_field, *table.ignore}}
    sources = tuple(_sources(entry, file, measured, table.signals, units))
    by_topic = table.kafka_topics, table.mqtt_topics
    return DeviceType(
        name, form, file.name, fields, sources, device, sequence, time, table.time_format, *by_topic, binary
    )


def _file(folder: Path, name: str, table: TypeTable) -> Path:  # the type's schema file
    if table.file is not None:
        file = folder / table.file
        if file.suffix in _SUFFIXES and file.is_file():
            return file
        raise ConfigError(
            f"{folder / INDEX}: types.{name}.file is {table.file}: it has to be a file of that folder, its ending tells"
            " what it holds, .json (JSON Schema), .avsc (Avro) or .desc (Protobuf)."
        )
    found = [file for suffix in _SUFFIXES if (file := folder / f"{name}{suffix}").is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(file.name for file in found)
        raise ConfigError(f"{folder}: type {name} has {names}. Say in {INDEX} which counts: [types.{name}] file = …")
    hint = f" protoc makes {name}.desc of {name}.proto." if (folder / f"{name}.proto").is_file() else ""
    raise ConfigError(f"{folder}: type {name} has no schema: neither {name}.json, {name}.avsc nor {name}.desc.{hint}")


def _read(file: Path, form: Format, table: TypeTable) -> tuple[tuple[PayloadField, ...], Binary | None]:  # None: JSON
    if form == "json":
        return json_fields(file, table.ignore), None
    try:
        if form == "avro":
            from streaming.decoding.avro_schemas import avro_fields as binary_fields
        else:
            from streaming.decoding.protobuf_schemas import protobuf_fields as binary_fields
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{file}: reading {form} needs the package {error.name}. To install it: {how_to_install('streaming')}"
        ) from error
    return binary_fields(file, table)


def _sources(
    entry: str,
    file: Path,
    fields: Mapping[str, PayloadField],
    signals: Mapping[str, SignalTable],
    units: Mapping[str, str],
) -> Iterable[Source]:  # the signals that the fields give
    renamed: dict[str, str] = {}
    for signal, told in signals.items():
        at, wanted = f"{entry}.signals.{signal}", told.field or signal
        if wanted not in fields:
            raise ConfigError(f"{at}: {file.name} has no field {wanted} for a signal.{_meant(wanted, fields)}")
        if (other := renamed.setdefault(wanted, signal)) != signal:
            raise ConfigError(f"{at}: {wanted} is the signal {other} already.")
    sources: dict[str, Source] = {}
    for name, field in fields.items():
        signal = renamed.get(name) or _snake_case(field.path[-1])
        source = _source(f"{entry}.signals.{signal}", field, signal, signals.get(signal, SignalTable()), units)
        if (known := sources.setdefault(signal, source)) is not source:
            raise ConfigError(
                f"{file}: {known.field.name} and {name} would both be the signal {signal}. Name one of them in"
                f' {INDEX}: [{entry.rpartition(": ")[2]}.signals.NAME] field = "{name}".'
            )
    return sources.values()


def _source(at: str, field: PayloadField, signal: str, told: SignalTable, units: Mapping[str, str]) -> Source:
    if field.kind not in ("double", "long"):
        if told.unit:
            raise ConfigError(f"{at} has a unit, but {field.name} is a {field.kind}. Remove the unit.")
        return Source(signal, field, field.kind, "", None)
    canonical = units.get(signal, told.unit or "")  # the unit of the column
    try:
        convert = conversion(canonical if told.unit is None else told.unit, canonical)
    except UnitError as error:
        raise ConfigError(f"{at}: {error}.") from error
    return Source(signal, field, field.kind if convert is None else "double", canonical, convert)


def _meant(name: str, known: Iterable[str]) -> str:
    return "".join(f" Is {near} meant?" for near in get_close_matches(name, known, 1))


def _snake_case(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    made = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return f"_{made}" if not made or made[0].isdigit() else made
