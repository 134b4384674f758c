"""The schema folder: what each type of devices sends, and in which units silver keeps it. It has an index,
``schemas.toml``, and for each type a JSON Schema (``.json``), an Avro schema (``.avsc``) or a Protobuf descriptor set
(``.desc``). No pyspark until columns are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from config.errors import ConfigError
from config.extras import how_to_install
from streaming.decoding.fields import Binary, DeviceType, Format, Kind, PayloadField, Place, Signal, Source
from streaming.decoding.json_schemas import json_fields
from streaming.decoding.schema_index import INDEX, SignalTable, TimeFormat, TypeTable, read_index
from streaming.decoding.units import UnitError, conversion

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DEFAULT_FOLDER: Final = Path(__file__).with_name("schemas_default")
_NO_TYPE: Final = "quarantine"
READERS: Final = frozenset({"silver", "gold", "backfill", "replay", "report"})
"""The jobs and tools that read the folder."""
RESERVED: Final = frozenset({
    "device", "gateway", "type", "site", "seq", "device_time", "event_time", "clock_ahead", "received_at",
    "message_id", "record_id", "mqtt_topic", "kafka_topic", "kafka_partition", "kafka_offset", "event_date",
    "ingested_at", "ts_ms", "reason", "detail", "key", "value", "topic", "partition", "offset", "timestamp",
    "timestamptype", "headers",
})  # fmt: skip
"""What no signal may be called: silver's own columns, Kafka's, and those of ``streaming.decoding.decode``."""
_SUFFIXES: dict[str, Format] = {".json": "json", ".avsc": "avro", ".desc": "protobuf"}
_KINDS_OF_TIMES: dict[TimeFormat, tuple[Kind, ...]] = {"iso8601": ("string",), "s": ("long", "double")}


@dataclass(frozen=True, slots=True)
class DeviceSchemas:
    """A schema folder, read and checked. ``types`` and ``signals`` (silver's columns) are by name. ``other``: the type
    that a JSON record is taken for which names none of them; None if such go to quarantine."""

    types: Mapping[str, DeviceType]
    other: DeviceType | None
    type_field: str
    type_header: str | None
    signals: Mapping[str, Signal]

    @property
    def columns(self) -> StructType:
        from streaming.lake.columns import columns

        return columns(", ".join(f"{signal.name} {signal.kind}" for signal in self.signals.values()))


def load_device_schemas(folder: Path | None) -> DeviceSchemas:
    """The schemas of a folder; those that come with the gateway if it is None. Reads files, blocks. A folder that does
    not say what other types are gets the gateway's own ``reading`` for them. Raises ConfigError with a sentence for
    each thing to correct: file, type, field, what is wrong."""
    folder = folder or DEFAULT_FOLDER
    at, index = folder / INDEX, read_index(folder)
    types: dict[str, DeviceType] = {}
    problems: list[str] = []
    for name, table in index.types.items():
        try:
            types[name] = _device_type(folder, name, table, index.units, index.type_field)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    other = types.get(index.other_types)
    if other is None and index.other_types == "reading":
        other = load_device_schemas(None).other
    elif index.other_types == _NO_TYPE:
        other = None
    elif other is None:
        raise ConfigError(
            f"{at}: other_types is {index.other_types!r}, which is none of the types: {', '.join(types)}."
        )
    if other is not None and other.format != "json":
        raise ConfigError(f"{at}: other_types is {other.name!r}, which is {other.format}. It has to be a type of JSON.")
    _refuse_unclear_topics(at, types.values(), index.type_header)
    every = types.values() if other is None else (types | {other.name: other}).values()
    return DeviceSchemas(types, other, index.type_field, index.type_header, _signals(at, every))


def _signals(index: Path, types: Iterable[DeviceType]) -> dict[str, Signal]:  # by name; ConfigError if two differ
    signals: dict[str, Signal] = {}
    for kind in types:
        for source in kind.sources:
            name = source.signal
            if name in RESERVED:
                raise ConfigError(
                    f"{index}: {source.field.name} of type {kind.name} would be the column {name}, which silver has"
                    f' already. Rename it: [types.{kind.name}.signals.{name}_value] field = "{source.field.name}".'
                )
            known = signals.setdefault(name, Signal(name, source.kind, source.canonical, ()))
            if known.unit != source.canonical:
                raise ConfigError(
                    f"{index}: {name} is kept in {known.unit or 'no unit'} for type {known.types[0]} and in"
                    f" {source.canonical or 'no unit'} for type {kind.name}. Name the unit in [units], or rename one."
                )
            if {known.kind, source.kind} not in ({known.kind}, {"double", "long"}):
                raise ConfigError(
                    f"{index}: {name} is a {known.kind} for type {known.types[0]} and a {source.kind} for type"
                    f' {kind.name} ({kind.file}). Rename one of them: [types.{kind.name}.signals.…] field = "…".'
                )
            wider = known.kind if known.kind == source.kind else "double"
            signals[name] = known._replace(kind=wider, types=(*known.types, kind.name))
    return signals


def _refuse_unclear_topics(index: Path, types: Iterable[DeviceType], header: str | None) -> None:
    owners: dict[str, str] = {}
    for kind in types:
        for topic in (*kind.kafka_topics, *(f"MQTT {filter_}" for filter_ in kind.mqtt_topics)):
            if (owner := owners.setdefault(topic, kind.name)) != kind.name:
                told = f"{index}: the topic {topic} is type {owner}'s and type {kind.name}'s"
                raise ConfigError(f"{told}. Leave it to one of them, or let a header (type_header) tell.")
        if kind.format != "json" and not (kind.kafka_topics or kind.mqtt_topics or header):
            raise ConfigError(
                f"{index}: nothing tells that a record is of type {kind.name}, which is {kind.format}. Name its"
                " kafka_topics or mqtt_topics, or a type_header for all types."
            )


def _device_type(folder: Path, name: str, table: TypeTable, units: Mapping[str, str], type_field: str) -> DeviceType:
    """The type ``name``, put together from its entry in the index and its schema file."""
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
    sources = tuple(_sources(entry, file, measured, table, units))
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
    hint = ""
    if (folder / f"{name}.proto").is_file():
        hint = f" Compile it: protoc --include_imports --descriptor_set_out={name}.desc {name}.proto"
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
        hint = f"To install it: {how_to_install('streaming')}"
        raise ConfigError(f"{file}: reading {form} needs the package {error.name}. {hint}") from error
    return binary_fields(file, table)


def _sources(
    entry: str, file: Path, fields: Mapping[str, PayloadField], table: TypeTable, units: Mapping[str, str]
) -> Iterable[Source]:  # the signals that the fields give
    renamed: dict[str, str] = {}
    for signal, told in table.signals.items():
        at, wanted = f"{entry}.signals.{signal}", told.field or signal
        if wanted not in fields:
            raise ConfigError(f"{at}: {file.name} has no field {wanted} for a signal.{_meant(wanted, fields)}")
        if (other := renamed.setdefault(wanted, signal)) != signal:
            raise ConfigError(f"{at}: {wanted} is the signal {other} already.")
    sources: dict[str, Source] = {}
    for name, field in fields.items():
        signal = renamed.get(name) or _snake_case(field.path[-1])
        told = table.signals.get(signal, SignalTable())
        source = _source(f"{entry}.signals.{signal}", field, signal, told, units)
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
