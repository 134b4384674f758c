"""What is known of the devices' payloads once the schema folder is read: fields, signals, types. No pyspark here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from config.errors import ConfigError, GatewayError
from streaming.decoding.schema_index import Framing, HeaderTable, KeyTable, LevelTable, ReceivedTable, TimeFormat
from streaming.decoding.units import Linear

Kind = Literal["double", "long", "string", "boolean"]
Format = Literal["json", "avro", "protobuf"]


class BadPayloadError(GatewayError):
    """Bytes that are no payload of their type: a word of ``BadRecord``, and the words for it."""

    def __init__(self, reason: str, detail: str | None) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class PayloadField:
    """One field of a payload, as its schema file has it. ``path``: the objects it is in, then its own name.

    ``limits``: what its values have to keep to, by JSON Schema's keywords, in the unit the device sends; of ``enum``
    and ``const`` a tuple of the only values. ``moment``: how a time is written, if the schema tells."""

    path: tuple[str, ...]
    kind: Kind
    required: bool = False
    limits: tuple[tuple[str, Any], ...] = ()
    moment: TimeFormat | None = None

    @property
    def name(self) -> str:
        """How the index and the reasons of the quarantine name it: ``meta.id``."""
        return ".".join(self.path)


def no_signal(file: Path, path: Sequence[str], what: str) -> ConfigError:
    """For a field whose values a column of silver cannot hold. ``what``: of which type it is, in words."""
    return ConfigError(
        f"{file}: {'.'.join(path)} is {what}, but a signal is one number, string, enum or boolean. Name"
        f' the field in "ignore" of its type in schemas.toml, or correct it.'
    )


Place = PayloadField | HeaderTable | LevelTable | KeyTable | ReceivedTable
"""Where a record has its device, sequence or time: in a field of the payload, or where the index says."""


class Source(NamedTuple):
    """A signal as one device type sends it: from which field, and how its number becomes the canonical unit."""

    signal: str
    field: PayloadField
    kind: Kind
    canonical: str
    convert: Linear | None


class Signal(NamedTuple):
    """A column of silver: its type, its unit ("" without one), and the device types that send it."""

    name: str
    kind: Kind
    unit: str
    types: tuple[str, ...]


class Binary(NamedTuple):
    """What Avro and Protobuf need to be decoded: the files' texts, so that Spark's Python workers need no folder.

    ``versions``: Avro's schemas by name, the reader's first; for Protobuf the one descriptor set. ``ids``: Confluent's
    schema ids → name of a version. ``message``: Protobuf's, with package."""

    framing: Framing
    versions: tuple[tuple[str, bytes], ...]
    ids: tuple[tuple[int, str], ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeviceType:
    """One type of devices. ``sequence`` is None if its readings carry none. ``kafka_topics`` are names,
    ``mqtt_topics`` filters: a record that came by one of them is of this type, whatever it says of itself."""

    name: str
    format: Format
    file: str
    fields: tuple[PayloadField, ...]
    sources: tuple[Source, ...]
    device: Place
    sequence: Place | None
    time: Place
    time_format: TimeFormat
    kafka_topics: tuple[str, ...] = ()
    mqtt_topics: tuple[str, ...] = ()
    binary: Binary | None = None
