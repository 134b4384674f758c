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
from streaming.decoding.fields import BadPayloadError, Binary, Kind, PayloadField
from streaming.decoding.schema_index import TypeTable

_KINDS: Final[dict[str, Kind]] = {
    "int": "long",
    "long": "long",
    "float": "double",
    "double": "double",
    "string": "string",
    "enum": "string",
    "boolean": "boolean",
}
_MOMENTS: Final = {"timestamp-millis": "ms", "timestamp-micros": "us", "timestamp-nanos": "ns"}


def avro_fields(file: Path, table: TypeTable) -> tuple[tuple[PayloadField, ...], Binary]:
    """The fields of a type's schema, those of nested records as ``record.field``, and what decodes its payloads.

    Raises ConfigError for a schema that cannot be used, older versions among them.
    """
    versions = [(file.name, _read(file)), *((name, _read(file.parent / name)) for name in table.versions)]
    if len(versions) > 1 and table.framing == "none":
        raise ConfigError(
            f"{file}: the type has the versions {', '.join(table.versions)}, but framing is none: nothing in front of"
            " the bytes would tell which one wrote them, and Avro read by the wrong one is not an error but other"
            ' numbers. Have devices send framing "single_object" or "confluent", or their own type for each version.'
        )
    ids = [(file.name, table.id), *table.versions.items()]
    if table.framing == "confluent" and (without := [name for name, number in ids if not number]):
        raise ConfigError(
            f"{file}: with framing confluent each schema has the id of the registry: say id for {file.name} and"
            f" versions = {{FILE = ID}} for others; {', '.join(without)} has none."
        )
    fields = tuple(_fields(file, versions[0][1], (), table))
    texts = tuple((name, json.dumps(_plain(schema)).encode()) for name, schema in versions)
    return fields, Binary(table.framing, texts, tuple((number, name) for name, number in ids if number))


def avro_reader(binary: Binary, fields: Sequence[PayloadField]) -> Callable[[bytes], list[Any]]:  # bytes to values
    schemas = {name: fastavro.parse_schema(json.loads(text)) for name, text in binary.versions}
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


def _fields(file: Path, record: dict[str, Any], path: tuple[str, ...], table: TypeTable) -> Iterator[PayloadField]:
    for told in record["fields"]:
        here = (*path, told["name"])  # ``path`` is that of ``record`` in the payload
        name = ".".join(here)
        if name in table.ignore:
            continue
        inner, nullable = _without_null(told["type"])
        if isinstance(inner, dict) and inner.get("type") == "record":
            for field in _fields(file, inner, here, table):
                yield PayloadField(field.path, field.kind, field.required and not nullable)
            continue
        named = inner if isinstance(inner, dict) else {"type": inner}
        kind, moment = _KINDS.get(str(named.get("type"))), _MOMENTS.get(str(named.get("logicalType")))
        if kind is None:
            raise ConfigError(
                f"{file}: {name} is {json.dumps(told['type'])}, but a signal is a number, a string, an enum or a"
                f' boolean, or null. Name the field in "ignore" of its type in schemas.toml.'
            )
        if name == table.time and moment not in (None, table.time_format):
            raise ConfigError(
                f"{file}: {name} is a {named['logicalType']}, but its type's time_format is {table.time_format}. Say"
                f' time_format = "{moment}" in schemas.toml.'
            )
        yield PayloadField(here, kind, required=not nullable)


def _without_null(told: Any) -> tuple[Any, bool]:
    if not isinstance(told, list):
        return told, False
    kinds = [kind for kind in told if kind != "null"]
    return (kinds[0] if len(kinds) == 1 else told), "null" in told


def _plain(schema: Any) -> Any:
    """The schema without logical types: a time is wanted as the number it is, not as Python's datetime."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if isinstance(schema, dict):
        return {name: _plain(one) for name, one in schema.items() if name not in ("logicalType", "doc")}
    return schema
