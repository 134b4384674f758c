"""Protobuf payloads: the fields of a message, and the decoding of one payload. Imported only where a type is
Protobuf."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from config.error_words import words
from config.errors import ConfigError
from streaming.decoding.fields import BadPayloadError, Binary, Kind, PayloadField, no_signal
from streaming.decoding.schema_index import TypeTable

# The numbers of descriptor.proto's Type: double, float, …; groups, messages and bytes are no signals.
_KINDS: Final[dict[int, Kind]] = {
    **dict.fromkeys((1, 2), "double"),
    **dict.fromkeys((3, 4, 5, 6, 7, 13, 15, 16, 17, 18), "long"),
    8: "boolean",
    **dict.fromkeys((9, 14), "string"),
}
_ENUM: Final = 14


def protobuf_fields(file: Path, table: TypeTable) -> tuple[tuple[PayloadField, ...], Binary]:
    """The fields of a type's message, those of nested messages as ``message.field``, and what decodes its payloads.

    A ``google.protobuf.Timestamp`` is one whole number, the nanoseconds since 1970. Raises ConfigError for a descriptor
    set or a message that cannot be used."""
    try:
        data = file.read_bytes()
        pool, files = _pool(data)
    except (OSError, DecodeError, TypeError) as error:
        raise ConfigError(
            f"{file}: it cannot be read as a descriptor set ({words(error)}). It is made by protoc --include_imports"
            f" --descriptor_set_out={file.name} {file.stem}.proto"
        ) from error
    own = [one for one in files if one.package != "google.protobuf"]
    names = [f"{one.package}.{message.name}".lstrip(".") for one in own for message in one.message_type]
    message = table.message or (names[0] if len(names) == 1 else "")
    if message not in names:
        wrong = f"it has no message {message}" if message else "the index names no message"
        raise ConfigError(f"{file}: {wrong}. Say message = … in schemas.toml; there are {', '.join(names)}.")
    fields = tuple(_fields(file, pool.FindMessageTypeByName(message), (), table, ()))
    return fields, Binary("none", ((file.name, data),), message=message)


def protobuf_reader(binary: Binary, fields: Sequence[PayloadField]) -> Callable[[bytes], list[Any]]:  # bytes to values
    pool, _ = _pool(binary.versions[0][1])
    made: Any = GetMessageClass(pool.FindMessageTypeByName(binary.message))

    def read(payload: bytes) -> list[Any]:
        try:
            message = made.FromString(payload)
        except DecodeError as error:
            raise BadPayloadError("not_protobuf", f"it is no {binary.message}: {error}") from error
        if wrong := ", ".join(_of_other_types(message, "")):
            raise BadPayloadError("wrong_type", wrong)
        found = [_value(message, field.path) for field in fields]
        if bytes in map(type, found):  # what the library makes of other bytes in a text of proto2
            raise BadPayloadError("not_protobuf", f"a text in {binary.message} is not UTF-8")
        return found

    return read


def _of_other_types(message: Any, before: str) -> Iterator[str]:  # before: the path, with a dot
    """Fields that came in another wire type than the message has for their number: the library keeps such unknown."""
    known = message.DESCRIPTOR.fields_by_number
    for unknown in UnknownFieldSet(message):
        if unknown.field_number in known:
            yield f"{before}{known[unknown.field_number].name} is sent with the wire type {unknown.wire_type}"
    for field, value in message.ListFields():
        if field.message_type is not None and not field.is_repeated:
            yield from _of_other_types(value, f"{before}{field.name}.")


def _value(message: Any, path: tuple[str, ...]) -> Any:  # None if it is absent
    for name in path[:-1]:
        if not message.HasField(name):
            return None
        message = getattr(message, name)
    field = message.DESCRIPTOR.fields_by_name[path[-1]]
    if field.has_presence and not message.HasField(path[-1]):
        return None
    value = getattr(message, path[-1])
    if field.type == _ENUM:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return value.seconds * 1_000_000_000 + value.nanos if _is_moment(field) else value


def _pool(data: bytes) -> tuple[Any, list[Any]]:  # and the descriptor set's files
    pool: Any = DescriptorPool()
    files = [*FileDescriptorSet.FromString(data).file]
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return pool, files


def _is_moment(field: Any) -> bool:
    return field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp"


def _fields(
    file: Path, message: Any, path: tuple[str, ...], table: TypeTable, outer: tuple[str, ...]
) -> Iterator[PayloadField]:  # ``outer``: the full names of the fields around
    for field in message.fields:
        here = (*path, field.name)
        if ".".join(here) in table.ignore:
            continue
        kind = "long" if _is_moment(field) else _KINDS.get(field.type)
        if field.is_repeated or (kind is None and field.message_type is None) or field.full_name in outer:
            raise no_signal(file, here, "a list, bytes or within itself")
        if kind is None:
            yield from _fields(file, field.message_type, here, table, (*outer, field.full_name))
        else:
            yield PayloadField(here, kind, field.is_required, moment="ns" if _is_moment(field) else None)
