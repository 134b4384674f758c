"""``schemas.toml``, the index of a schema folder: the types, where their records come from, the signals' units."""

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import ErrorDetails

from config.error_words import words
from config.errors import ConfigError
from config.values.grammar import Count
from config.values.model import Table
from config.values.topic_filters import check_filter

INDEX: Final = "schemas.toml"
Framing = Literal["none", "confluent", "single_object"]
TimeFormat = Literal["s", "ms", "us", "ns", "iso8601"]
_Name = Annotated[str, Field(min_length=1)]
_SignalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]


class HeaderTable(Table):
    header: _Name  # of the Kafka record


class LevelTable(Table):
    mqtt_topic: Annotated[Count, Field(ge=-64, le=64)]  # a level of the header mqtt.topic, from 0; -1 is the last


class KeyTable(Table):
    key: Literal[True]  # the Kafka record's


class ReceivedTable(Table):
    received: Literal[True]  # the Kafka record's timestamp: when the gateway received the message


class SignalTable(Table):
    field: _Name | None = None
    """The payload's field. Default: the one that has the signal's name."""
    unit: str | None = None
    """What the device sends. Default: what silver has, which is as in ``[units]``, or else this unit."""


class TypeTable(Table):
    file: _Name | None = None
    """The schema. Default: the type's name with ``.json``, ``.avsc`` or ``.desc``, whichever is there."""
    message: _Name | None = None
    """Protobuf's message in the descriptor set, with its package. Default: the only one there is."""
    framing: Framing = "none"
    """What is in front of Avro's bytes: nothing; 0 and a schema id of 4 bytes (Confluent); C3 01 and a fingerprint."""
    versions: dict[_Name, Count | None] = Field(default_factory=dict)
    """Avro: older schemas' files, with the id they have in Confluent's registry (``{}`` entries without one: 0)."""
    id: Count | None = None
    """Avro with Confluent's framing: the id of ``file`` itself."""
    kafka_topics: tuple[_Name, ...] = ()
    """Records of these Kafka topics are of this type."""
    mqtt_topics: tuple[Annotated[str, AfterValidator(check_filter)], ...] = ()
    """Records whose MQTT topic matches one of these filters are of this type."""
    device: _Name | HeaderTable | LevelTable | KeyTable = "device"
    sequence: _Name | HeaderTable | None = None
    """Default: the field ``seq`` where there is one."""
    time: _Name | ReceivedTable = "ts"
    time_format: TimeFormat = "ms"
    """How the time is written: a number since 1970 in this unit, or text such as 2026-11-21T06:00:00.5+01:00."""
    ignore: tuple[_Name, ...] = ()
    """Fields that become no signal."""
    signals: dict[_SignalName, SignalTable] = Field(default_factory=dict)
    """Signals whose name is not the field's, or whose unit is not the canonical one."""


class IndexTable(Table):
    other_types: _Name = "reading"
    """The type that JSON records are taken for whose own type is not among the types; ``quarantine``: none."""
    type_field: Annotated[str, Field(pattern=r'^[^?"]+$')] = "type"
    """The field of a JSON payload that tells the type."""
    type_header: _Name | None = None
    """The header that tells the type of any record."""
    units: dict[_SignalName, str] = Field(default_factory=dict)
    """Canonical units, by signal."""
    types: Annotated[
        dict[Annotated[str, Field(pattern=r"^[^\s/\\'\"]+$", max_length=200)], TypeTable], Field(min_length=1)
    ]


def read_index(folder: Path) -> IndexTable:
    """The index of a schema folder. Raises ConfigError with a sentence for each thing to correct."""
    file = folder / INDEX
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        told = f"{file} is not there; docs/streaming.md shows one. Is stream.silver.schemas the right folder?"
        raise ConfigError(told) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: it cannot be read as TOML ({words(error)}).") from error
    try:
        return IndexTable.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(*dict.fromkeys(_sentence(file, one) for one in error.errors())) from error


def _sentence(file: Path, error: ErrorDetails) -> str:  # pydantic's error in words
    branches = {"HeaderTable", "LevelTable", "KeyTable", "ReceivedTable", "str", "constrained-str"}
    path = [str(part) for part in error["loc"] if str(part) not in branches and "[" not in str(part)]
    at = ".".join(path)
    if error["type"] == "extra_forbidden":
        tables: dict[int, type[Table]] = {3: TypeTable, 5: SignalTable}
        near = get_close_matches(path[-1], tables.get(len(path), IndexTable).model_fields, 1)
        return f"{file}: {at} is unknown{f'; is {near[0]} meant?' if near else ', remove it.'}"
    return f"{file}: {at}: {error['msg'].removeprefix('Value error, ')}."
