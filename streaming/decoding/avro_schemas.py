"""Avro payloads: the fields of a schema, and the decoding of one payload. Imported only where a type is Avro."""

import json
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType, fingerprint, to_parsing_canonical_form

from config.error_words import words
from config.errors import ConfigError
from streaming.decoding.fields import BadPayloadError, Binary, Kind, PayloadField, no_signal
from streaming.decoding.schema_index import TimeFormat, TypeTable

_KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("int", "long"), "long"),
    **dict.fromkeys(("float", "double"), "double"),
    **dict.fromkeys(("string", "enum"), "string"),
    "boolean": "boolean",
}
_MOMENTS: Final[dict[str, TimeFormat]] = {
    "timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns",
}  # fmt: skip


def avro_fields(file: Path, table: TypeTable) -> tuple[tuple[PayloadField, ...], Binary]:
    """The fields of a type's schema, those of nested records as ``record.field``, and what decodes its payloads.

    Raises ConfigError for a schema that cannot be used, older versions among them."""
    if table.versions and table.framing == "none":
        raise ConfigError(
            f"{file}: the type has the versions {', '.join(table.versions)}, but framing is none: nothing would tell"
            ' which one wrote the bytes. Have devices send framing "single_object" or "confluent", or a type for each.'
        )
    ids = {file.name: table.id, **table.versions}
    if table.framing == "confluent" and (without := [name for name, number in ids.items() if not number]):
        raise ConfigError(
            f"{file}: with framing confluent each schema has the id of the registry; {', '.join(without)} has none."
            f" Say id for {file.name} and versions = {{FILE = ID}} for others."
        )
    schemas = {name: _read(file.parent / name) for name in ids}
    fields = tuple(_fields(file, schemas[file.name], (), table, required=True))
    texts = tuple((name, json.dumps(schema).encode()) for name, schema in schemas.items())
    return fields, Binary(table.framing, texts, tuple((number, name) for name, number in ids.items() if number))


def avro_reader(binary: Binary, fields: Sequence[PayloadField]) -> Callable[[bytes], list[Any]]:  # bytes to values
    schemas = {name: fastavro.parse_schema(json.loads(text, object_hook=_plain)) for name, text in binary.versions}
    reader = schemas[binary.versions[0][0]]
    by_id = {number.to_bytes(4, "big"): schemas[name] for number, name in binary.ids}
    by_print = {
        bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")): schema
        for schema in schemas.values()
    }
    known, mark, length = {
        "none": ({b"": reader}, b"", 0),
        "confluent": (by_id, b"\x00", 4),
        "single_object": (by_print, b"\xc3\x01", 8),
    }[binary.framing]
    start, end = len(mark), len(mark) + length

    def writer(payload: bytes) -> Any:  # the schema that it was written by
        name = payload[start:end]
        if payload[:start] != mark or len(name) < length:
            raise BadPayloadError("not_avro", f"it does not begin as {binary.framing} framing does")
        if (found := known.get(name)) is None:
            told = int.from_bytes(name, "big") if binary.framing == "confluent" else name.hex()
            raise BadPayloadError("schema", f"no version in the index has the schema id {told}")
        return found

    def read(payload: bytes) -> list[Any]:
        schema, stream = writer(payload), BytesIO(payload)
        stream.seek(end)
        try:
            value = fastavro.schemaless_reader(stream, schema, reader)
        except SchemaResolutionError as error:
            raise BadPayloadError("wrong_type", f"the writer's schema does not fit the reader's: {error}") from error
        except Exception as error:
            raise BadPayloadError("not_avro", f"{type(error).__name__}: {error}") from error
        if stream.tell() != len(payload):
            raise BadPayloadError("not_avro", f"{len(payload) - stream.tell()} bytes are left over behind the record")
        return [_inside(value, field.path) for field in fields]

    return read


def _inside(value: Any, path: tuple[str, ...]) -> Any:  # None if it, or a record around it, is null
    for name in path:
        if value is None:
            return None
        value = value[name]
    return value


def _read(file: Path) -> dict[str, Any]:  # a schema of a record, as JSON
    try:
        schema = json.loads(file.read_bytes())
        fastavro.parse_schema(schema, _force=True)
    except (OSError, ValueError, KeyError, TypeError, SchemaParseException, UnknownType) as error:
        raise ConfigError(f"{file}: it cannot be read as an Avro schema ({words(error)}).") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError(f'{file}: a reading is one record, so the schema has to be of "type": "record".')
    return schema


def _fields(
    file: Path, record: dict[str, Any], path: tuple[str, ...], table: TypeTable, *, required: bool
) -> Iterator[PayloadField]:  # ``path`` is that of ``record`` in the payload
    for told in record["fields"]:
        here = (*path, told["name"])
        if ".".join(here) in table.ignore:
            continue
        kinds = told["type"] if isinstance(told["type"], list) else [told["type"]]
        needed, kinds = required and "null" not in kinds, [kind for kind in kinds if kind != "null"]
        inner = kinds[0] if len(kinds) == 1 else None
        inner = inner if isinstance(inner, dict) else {"type": inner}
        if inner["type"] == "record":
            yield from _fields(file, inner, here, table, required=needed)
        elif (kind := _KINDS.get(str(inner["type"]))) is None:
            raise no_signal(file, here, json.dumps(told["type"]))
        else:
            yield PayloadField(here, kind, needed, moment=_MOMENTS.get(str(inner.get("logicalType"))))


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without its logical type: a time is wanted as the number it is, not as Python's datetime."""
    return {name: one for name, one in schema.items() if name != "logicalType"}
