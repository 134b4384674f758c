"""The schema folder: what each type of devices sends, and in which units silver keeps it. It has an index,
``schemas.toml``, and for each type a JSON Schema (``.json``), an Avro schema (``.avsc``) or a Protobuf descriptor set
(``.desc``). No pyspark until columns are asked for."""

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
    """The schemas of a folder; those that come with the gateway if it is None. Reads files, blocks.

    A folder that does not say what other types are gets the gateway's own ``reading`` for them. Raises ConfigError with
    a sentence for each thing to correct: file, type, field, what is wrong.
    """
    folder = folder or DEFAULT_FOLDER
    at, index = folder / INDEX, read_index(folder)
    types: dict[str, DeviceType] = {}
    problems: list[str] = []
    for name, table in index.types.items():
        try:
            types[name] = device_type(folder, name, table, index.units, index.type_field)
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
        raise ConfigError(
            f"{at}: other_types is {other.name!r}, which is {other.format}: only a JSON record can tell a type, so it"
            " has to be a type of JSON."
        )
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
                    f"{kind.file}: the field {source.field.name} of type {kind.name} would be the column {name}, which"
                    f" silver has already. Give it another name in {index}: [types.{kind.name}.signals.{name}_value]"
                    f' field = "{source.field.name}".'
                )
            known = signals.setdefault(name, Signal(name, source.kind, source.canonical, ()))
            if known.unit != source.canonical:
                raise ConfigError(
                    f"{index}: {name} is kept in {known.unit or 'no unit'} for type {known.types[0]} and in"
                    f" {source.canonical or 'no unit'} for type {kind.name}. A column has one unit: name it in [units],"
                    " or give one of the two signals another name."
                )
            kinds: set[Kind] = {known.kind, source.kind}
            if len(kinds) > 1 and kinds != {"double", "long"}:
                raise ConfigError(
                    f"{index}: {name} is a {known.kind} for type {known.types[0]} and a {source.kind} for type"
                    f" {kind.name} ({kind.file}). A column has one type: give one of them another name,"
                    f' [types.{kind.name}.signals.…] field = "…".'
                )
            wider = known.kind if len(kinds) == 1 else "double"
            signals[name] = known._replace(kind=wider, types=(*known.types, kind.name))
    return signals


def _refuse_unclear_topics(index: Path, types: Iterable[DeviceType], header: str | None) -> None:
    owners: dict[str, str] = {}
    for kind in types:
        for topic in (*kind.kafka_topics, *(f"MQTT {filter_}" for filter_ in kind.mqtt_topics)):
            if (owner := owners.setdefault(topic, kind.name)) != kind.name:
                raise ConfigError(
                    f"{index}: the topic {topic} is type {owner}'s and type {kind.name}'s. A topic tells one type;"
                    " leave it to one of them, or let a header (type_header) tell."
                )
        if kind.format != "json" and not (kind.kafka_topics or kind.mqtt_topics or header):
            raise ConfigError(
                f"{index}: nothing tells that a record is of type {kind.name}: {kind.format} cannot be looked into"
                " before it is known. Name its kafka_topics or mqtt_topics, or a type_header for all types."
            )
