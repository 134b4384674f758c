"""The schema folder: what each type of devices sends, and in which units silver keeps it. No pyspark until columns are
asked for.

    schemas.toml    the index: types, topics, where device, sequence and time are, units (``schema_index``)
    TYPE.json       JSON Schema of a type's payload, or
    TYPE.avsc       its Avro schema, or
    TYPE.desc       the Protobuf descriptor set its message is in
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from config.errors import ConfigError
from streaming.decoding.device_types import device_type
from streaming.decoding.fields import DeviceType, Kind, Signal
from streaming.decoding.schema_index import INDEX, read_index

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


@dataclass(frozen=True, slots=True)
class DeviceSchemas:
    """A schema folder, read and checked.

    ``types``: by name. ``other``: the type that a JSON record is taken for which names none of them; None if such go to
    quarantine. ``signals``: silver's columns by name.
    """

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
    """The schemas of a folder; those that come with the gateway if it is None. Reads files, blocks.

    A folder that does not say what other types are gets the gateway's own ``reading`` for them. Raises ConfigError with
    a sentence for each thing to correct: file, type, field, what is wrong.
    """
    folder = folder or DEFAULT_FOLDER
    index = read_index(folder)
    types: dict[str, DeviceType] = {}
    problems: list[str] = []
    for name, table in index.types.items():
        try:
            types[name] = device_type(folder, name, table, index.units, index.type_field)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    other = None if index.other_types == _NO_TYPE else types.get(index.other_types)
    if other is None and index.other_types == "reading":
        other = load_device_schemas(None).other
    elif other is None and index.other_types != _NO_TYPE:
        raise ConfigError(
            f"{folder / INDEX}: other_types is {index.other_types!r}, which is none of the types: {', '.join(types)}."
        )
    if other is not None and other.format != "json":
        raise ConfigError(
            f"{folder / INDEX}: other_types is {other.name!r}, which is {other.format}: only a JSON record can tell a"
            " type, so it has to be a type of JSON."
        )
    _refuse_unclear_topics(folder / INDEX, types.values(), index.type_header)
    every = [*types.values(), *([other] if other is not None and other.name not in types else [])]
    signals = _signals(folder / INDEX, every)
    return DeviceSchemas(types, other, index.type_field, index.type_header, signals)


def _signals(index: Path, types: Iterable[DeviceType]) -> dict[str, Signal]:  # by name; ConfigError if two differ
    signals: dict[str, Signal] = {}
    for kind in types:
        for source in kind.sources:
            if source.signal in RESERVED:
                raise ConfigError(
                    f"{kind.file}: the field {source.field.name} of type {kind.name} would be the column"
                    f" {source.signal}, which silver has already. Give it another name in {index}:"
                    f' [types.{kind.name}.signals.{source.signal}_value] field = "{source.field.name}".'
                )
            known = signals.get(source.signal)
            if known is None:
                signals[source.signal] = Signal(source.signal, source.kind, source.canonical, (kind.name,))
                continue
            if known.unit != source.canonical:
                raise ConfigError(
                    f"{index}: {source.signal} is kept in {known.unit or 'no unit'} for type {known.types[0]} and in"
                    f" {source.canonical or 'no unit'} for type {kind.name}. A column has one unit: name it in [units],"
                    " or give one of the two signals another name."
                )
            signals[source.signal] = known._replace(
                kind=_common(index, known, source.kind, kind), types=(*known.types, kind.name)
            )
    return signals


def _common(index: Path, known: Signal, kind: Kind, of: DeviceType) -> Kind:  # one that holds both kinds
    if known.kind == kind:
        return kind
    if {known.kind, kind} == {"double", "long"}:
        return "double"
    raise ConfigError(
        f"{index}: {known.name} is a {known.kind} for type {known.types[0]} and a {kind} for type {of.name}"
        f' ({of.file}). A column has one type: give one of them another name, [types.{of.name}.signals.…] field = "…".'
    )


def _refuse_unclear_topics(index: Path, types: Iterable[DeviceType], header: str | None) -> None:
    owners: dict[str, str] = {}
    for kind in types:
        for topic in {*kind.kafka_topics, *(f"MQTT {filter_}" for filter_ in kind.mqtt_topics)}:
            if topic in owners:
                raise ConfigError(
                    f"{index}: the topic {topic} is type {owners[topic]}'s and type {kind.name}'s. A topic tells one"
                    " type; leave it to one of them, or let a header (type_header) tell."
                )
            owners[topic] = kind.name
        if kind.format != "json" and not (kind.kafka_topics or kind.mqtt_topics or header):
            raise ConfigError(
                f"{index}: nothing tells that a record is of type {kind.name}: {kind.format} cannot be looked into"
                f" before it is known. Name its kafka_topics or mqtt_topics, or a type_header for all types."
            )
