"""One device type, put together from its entry in the index and its schema file."""

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from config.errors import ConfigError
from config.extras import how_to_install
from config.values.topic_filters import check_filter
from streaming.decoding.fields import Binary, DeviceType, Format, Kind, PayloadField, Place, Source
from streaming.decoding.json_schemas import json_fields
from streaming.decoding.schema_index import INDEX, SignalTable, TimeFormat, TypeTable
from streaming.decoding.units import UnitError, conversion

_SUFFIXES: dict[str, Format] = {".json": "json", ".avsc": "avro", ".desc": "protobuf"}
_KINDS_OF_TIMES: dict[TimeFormat, tuple[Kind, ...]] = {"iso8601": ("string",), "s": ("long", "double")}


def device_type(folder: Path, name: str, table: TypeTable, units: Mapping[str, str], type_field: str) -> DeviceType:
    """The type ``name`` of a folder. Raises ConfigError with what is wrong in its entry or its file."""
    index, file = folder / INDEX, _file(folder, name, table)
    form = _SUFFIXES[file.suffix]
    fields, binary = _read(file, form, table)
    by_name = {field.name: field for field in fields}
    entry = f"{index}: types.{name}"
    told = table.sequence or ("seq" if "seq" in by_name else None)
    device = _place(f"{entry}.device", table.device, by_name, file, ("string",))
    sequence = None if told is None else _place(f"{entry}.sequence", told, by_name, file, ("long",))
    time = _place(f"{entry}.time", table.time, by_name, file, _KINDS_OF_TIMES.get(table.time_format, ("long",)))
    used = {place.name for place in (device, sequence, time) if isinstance(place, PayloadField)}
    measured = [field for field in fields if field.name not in {*used, type_field, *table.ignore}]
    return DeviceType(
        name,
        form,
        file.name,
        fields,
        tuple(_sources(entry, file, measured, table.signals, units)),
        device,
        sequence,
        time,
        table.time_format,
        table.kafka_topics,
        tuple(_filter(f"{entry}.mqtt_topics", topic) for topic in table.mqtt_topics),
        binary,
    )


def _file(folder: Path, name: str, table: TypeTable) -> Path:  # the type's schema file
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


def _read(file: Path, form: Format, table: TypeTable) -> tuple[tuple[PayloadField, ...], Binary | None]:  # None: JSON
    if form == "json":
        return _told_apart(file, json_fields(file, table.ignore)), None
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


def _told_apart(file: Path, fields: tuple[PayloadField, ...]) -> tuple[PayloadField, ...]:
    """The fields, if Spark tells their names and those of their objects apart, whose case it does not look at."""
    spelled: dict[str, str] = {}
    for field in fields:
        for depth in range(1, len(field.path) + 1):
            name = ".".join(field.path[:depth])
            if (other := spelled.setdefault(name.lower(), name)) != name:
                raise ConfigError(
                    f'{file}: {other} and {name} differ in case only. Name one in "ignore" of its type in schemas.toml.'
                )
    return fields


def _place(at: str, told: str | Place, fields: Mapping[str, PayloadField], file: Path, kinds: Sequence[str]) -> Place:
    if not isinstance(told, str):
        return told  # a header, a level of the topic, the key or the receipt: no field
    field = fields.get(told)
    if field is None:
        raise ConfigError(f"{at} is {told}, which is no field of {file.name}.{_meant(told, fields)}")
    if field.kind not in kinds:
        raise ConfigError(f"{at} is {told}, a {field.kind} in {file.name}; it has to be a {' or '.join(kinds)}.")
    return field


def _sources(
    entry: str,
    file: Path,
    fields: Sequence[PayloadField],
    signals: Mapping[str, SignalTable],
    units: Mapping[str, str],
) -> list[Source]:  # the signals that the fields give
    by_name = {field.name: field for field in fields}
    renamed: dict[str, str] = {}
    for signal, told in signals.items():
        wanted = told.field or signal
        if wanted not in by_name:
            raise ConfigError(
                f"{entry}.signals.{signal}: {file.name} has no field {wanted} for a signal.{_meant(wanted, by_name)}"
            )
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
        if told.unit:
            raise ConfigError(f"{at} has a unit, but {field.name} is a {field.kind}. Remove the unit.")
        return Source(signal, field, field.kind, "", None)
    canonical = units.get(signal, told.unit or "")  # the unit of the column
    unit = told.unit if told.unit is not None else canonical
    try:
        convert = conversion(unit, canonical)  # None: the number stays as it is
    except UnitError as error:
        raise ConfigError(f"{at}: {error}.") from error
    return Source(signal, field, field.kind if convert is None else "double", canonical, convert)


def _filter(at: str, text: str) -> str:
    try:
        return check_filter(text)
    except ValueError as error:
        raise ConfigError(f"{at}: {text} is no MQTT topic filter: {error}.") from error


def _meant(name: str, known: Iterable[str]) -> str:
    return "".join(f" Is {near} meant?" for near in get_close_matches(name, known, 1))


def _snake_case(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    made = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return f"_{made}" if not made or made[0].isdigit() else made
