"""One device type, put together from its entry in the index and its schema file."""

from __future__ import annotations

__all__ = ["device_type"]

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from config.errors import ConfigError
from config.extras import how_to_install
from streaming.device_fields import Binary, DeviceType, PayloadField, Place, Source
from streaming.json_schemas import json_fields
from streaming.schema_index import INDEX, HeaderTable, LevelTable, ReceivedTable, SignalTable
from streaming.units import UnitError, conversion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from streaming.device_fields import Format
    from streaming.schema_index import TypeTable

_SUFFIXES: dict[str, Format] = {".json": "json", ".avsc": "avro", ".desc": "protobuf"}


def device_type(folder: Path, name: str, table: TypeTable, units: Mapping[str, str], type_field: str) -> DeviceType:
    """The type ``name`` of a folder. Raises ConfigError with what is wrong in its entry or its file."""
    index, file = folder / INDEX, _file(folder, name, table)
    form = _SUFFIXES[file.suffix]
    fields, binary = _read(file, form, table)
    by_name = {field.name: field for field in fields}
    entry = f"{index}: types.{name}"
    for unused in set(table.ignore) - _ignorable(fields, table, form):
        raise ConfigError(f"{entry}.ignore names {unused}, which {file.name} does not have.")
    sequence = table.sequence or ("seq" if "seq" in by_name else None)
    device = _place(f"{entry}.device", table.device, by_name, file, ("string",))
    places = {
        "device": device,
        "sequence": None if sequence is None else _place(f"{entry}.sequence", sequence, by_name, file, ("long",)),
        "time": _time(entry, table, by_name, file),
    }
    used = {place.field.name for place in places.values() if place is not None and place.field is not None}
    measured = [field for field in fields if field.name not in {*used, type_field, *table.ignore}]
    time = places["time"]
    assert time is not None
    return DeviceType(
        name,
        form,
        file.name,
        fields,
        tuple(_sources(entry, file, measured, table.signals, units)),
        device,
        places["sequence"],
        time,
        table.time_format,
        table.kafka_topics,
        tuple(_filter(f"{entry}.mqtt_topics", topic) for topic in table.mqtt_topics),
        binary,
    )


def _file(folder: Path, name: str, table: TypeTable) -> Path:
    if table.file is not None:
        file = folder / table.file
        if file.suffix not in _SUFFIXES:
            raise ConfigError(
                f"{folder / INDEX}: types.{name}.file is {table.file}, but what it holds is told by its ending:"
                " .json (JSON Schema), .avsc (Avro) or .desc (Protobuf)."
            )
        if not file.is_file():
            raise ConfigError(f"{folder / INDEX}: types.{name}.file names {file}, which is not there.")
        return file
    found = [file for suffix in _SUFFIXES if (file := folder / f"{name}{suffix}").is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(file.name for file in found)
        raise ConfigError(f"{folder}: type {name} has {names}. Say in {INDEX} which counts: [types.{name}] file = …")
    hint = ""
    if (folder / f"{name}.proto").is_file():
        hint = (
            f" {name}.proto has to be compiled: protoc --include_imports --descriptor_set_out={name}.desc {name}.proto"
        )
    raise ConfigError(f"{folder}: type {name} has no schema: neither {name}.json, {name}.avsc nor {name}.desc.{hint}")


def _read(file: Path, form: Format, table: TypeTable) -> tuple[tuple[PayloadField, ...], Binary | None]:
    if form == "json":
        return json_fields(file, table.ignore), None
    try:
        if form == "avro":
            from streaming.avro_schemas import avro_fields as binary_fields
        else:
            from streaming.protobuf_schemas import protobuf_fields as binary_fields
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{file}: reading {form} needs the package {error.name}. To install it: {how_to_install('streaming')}"
        ) from error
    return binary_fields(file, table)


def _ignorable(fields: Sequence[PayloadField], table: TypeTable, form: Format) -> set[str]:
    """What may be ignored: for JSON anything, since what is ignored is not even looked at."""
    return set(table.ignore) if form == "json" else {field.name for field in fields} | set(table.ignore)


def _place(
    at: str,
    told: object,
    fields: Mapping[str, PayloadField],
    file: Path,
    kinds: tuple[str, ...],
) -> Place:
    if isinstance(told, HeaderTable):
        return Place("header", header=told.header)
    if isinstance(told, LevelTable):
        return Place("mqtt_topic", level=told.mqtt_topic)
    if not isinstance(told, str):
        return Place("received" if isinstance(told, ReceivedTable) else "key")
    field = fields.get(told)
    if field is None:
        near = get_close_matches(told, fields, 1)
        meant = f" Is {near[0]} meant?" if near else ""
        raise ConfigError(f"{at} is {told}, which is no field of {file.name}.{meant}")
    if field.kind not in kinds:
        raise ConfigError(f"{at} is {told}, a {field.kind} in {file.name}; it has to be a {' or '.join(kinds)}.")
    return Place("field", field)


def _time(entry: str, table: TypeTable, fields: Mapping[str, PayloadField], file: Path) -> Place:
    kinds: tuple[str, ...] = ("long",)
    if table.time_format == "iso8601":
        kinds = ("string",)
    elif table.time_format == "s":
        kinds = ("long", "double")
    return _place(f"{entry}.time", table.time, fields, file, kinds)


def _sources(
    entry: str,
    file: Path,
    fields: Sequence[PayloadField],
    signals: Mapping[str, SignalTable],
    units: Mapping[str, str],
) -> list[Source]:
    by_name = {field.name: field for field in fields}
    renamed: dict[str, str] = {}
    for signal, told in signals.items():
        wanted = told.field or signal
        if wanted not in by_name:
            near = get_close_matches(wanted, by_name, 1)
            meant = f" Is {near[0]} meant?" if near else ""
            raise ConfigError(f"{entry}.signals.{signal}: {file.name} has no field {wanted} for a signal.{meant}")
        if wanted in renamed:
            raise ConfigError(f"{entry}.signals: {wanted} is given to {renamed[wanted]} and to {signal}.")
        renamed[wanted] = signal
    sources: dict[str, Source] = {}
    for field in fields:
        signal = renamed.get(field.name) or _snake_case(field.path[-1])
        source = _source(f"{entry}.signals.{signal}", field, signal, signals.get(signal, SignalTable()), units)
        if signal in sources:
            raise ConfigError(
                f"{file}: {sources[signal].field.name} and {field.name} would both be the signal {signal}. Name one of"
                f' them in {INDEX}: [{entry.rpartition(": ")[2]}.signals.NAME] field = "{field.name}".'
            )
        sources[signal] = source
    return list(sources.values())


def _source(at: str, field: PayloadField, signal: str, told: SignalTable, units: Mapping[str, str]) -> Source:
    if field.kind not in ("double", "long"):
        if told.unit or told.canonical:
            raise ConfigError(f"{at} has a unit, but {field.name} is a {field.kind}. Remove the unit.")
        return Source(signal, field, field.kind, "", "", None)
    canonical = told.canonical if told.canonical is not None else units.get(signal, told.unit or "")
    unit = told.unit if told.unit is not None else canonical
    try:
        convert = conversion(unit, canonical)
    except UnitError as error:
        raise ConfigError(f"{at}: {error}.") from error
    return Source(signal, field, field.kind if convert is None else "double", unit, canonical, convert)


def _filter(at: str, text: str) -> str:
    levels = text.split("/")
    if any("#" in level and (level != "#" or at_ < len(levels) - 1) for at_, level in enumerate(levels)) or any(
        "+" in level and level != "+" for level in levels
    ):
        raise ConfigError(f"{at}: {text} is no MQTT topic filter: + stands for a whole level, # for all last ones.")
    return text


def _snake_case(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    made = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return f"_{made}" if not made or made[0].isdigit() else made
