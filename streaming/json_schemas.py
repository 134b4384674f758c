"""Fields of a JSON payload, from a file of JSON Schema (draft 2020-12, as far as one Spark expression can check it).

What would not be checked is refused, with the keyword's name: a schema that is believed to be enforced and is not, is
worse than none.
"""

from __future__ import annotations

__all__ = ["json_fields"]

import json
import math
from typing import TYPE_CHECKING, Any, Final

from config.error_words import words
from config.errors import ConfigError
from streaming.device_fields import PayloadField

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from streaming.device_fields import Kind

_KINDS: Final[dict[str, Kind]] = {"number": "double", "integer": "long", "string": "string", "boolean": "boolean"}
_NOTES: Final = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated", "readOnly", "writeOnly"}
)
"""Keywords that check nothing."""
_OF_OBJECTS: Final = frozenset({"type", "properties", "required", "additionalProperties"})
_OF_NUMBERS: Final = frozenset({"type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"})
_OF_KIND: Final[dict[Kind, frozenset[str]]] = {
    "double": _OF_NUMBERS,
    "long": _OF_NUMBERS,
    "string": frozenset({"type", "minLength", "maxLength", "enum", "const", "format"}),
    "boolean": frozenset({"type", "enum", "const"}),
}


def json_fields(file: Path, ignored: Collection[str] = ()) -> tuple[PayloadField, ...]:
    """The fields a schema file describes, those of nested objects as ``object.field``; but for the ``ignored``.

    Raises ConfigError: the file cannot be read, or describes what cannot be checked.
    """
    try:
        schema = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: it cannot be read as JSON ({words(error)}).") from error
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ConfigError(f'{file}: a reading is one JSON object, so the schema has to begin with "type": "object".')
    return tuple(_object(file, schema, (), frozenset(ignored), required=True))


def _object(
    file: Path, schema: dict[str, Any], path: tuple[str, ...], ignored: frozenset[str], *, required: bool
) -> Iterator[PayloadField]:
    at = ".".join(path)
    _refuse_unknown(file, at, schema, _OF_OBJECTS)
    if schema.get("additionalProperties", True) is not True:
        raise ConfigError(
            f'{file}: {at or "the schema"} has "additionalProperties", but unknown fields are always ignored: a newer'
            " device may send more than this schema knows. Remove it."
        )
    properties = schema.get("properties", {})
    wanted = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(wanted, list):
        raise ConfigError(f'{file}: {at or "the schema"}: "properties" is an object and "required" a list of names.')
    for name in wanted:
        if not isinstance(name, str) or name not in properties:
            raise ConfigError(
                f"{file}: {'.'.join((*path, str(name)))} is required but not among the properties: add it there, with"
                " its type."
            )
    for name, inner in properties.items():
        here = (*path, name)
        if ".".join(here) in ignored:
            continue
        if not isinstance(inner, dict):
            raise ConfigError(
                f'{file}: {".".join(here)} needs an object that says its type, such as {{"type": "number"}}.'
            )
        if inner.get("type") == "object":
            yield from _object(file, inner, here, ignored, required=required and name in wanted)
        else:
            yield _field(file, inner, here, required=required and name in wanted)


def _field(file: Path, schema: dict[str, Any], path: tuple[str, ...], *, required: bool) -> PayloadField:
    at = ".".join(path)
    declared = schema.get("type")
    types = declared if isinstance(declared, list) else [declared]
    kinds = [kind for kind in types if kind != "null"]  # a null counts as an absent field in any case
    if len(kinds) != 1 or not isinstance(kinds[0], str) or kinds[0] not in _KINDS:
        raise ConfigError(
            f"{file}: {at} has the type {json.dumps(declared)}, but a signal is one of number, integer, string and"
            f' boolean. Correct it, or name the field in "ignore" of its type in schemas.toml.'
        )
    kind = _KINDS[kinds[0]]
    _refuse_unknown(file, at, schema, _OF_KIND[kind])
    if schema.get("format", "date-time") != "date-time":
        raise ConfigError(f'{file}: {at} has the format {schema["format"]!r}, which is not checked: remove "format".')
    lower, lower_exclusive = _bound(file, at, schema, "minimum", "exclusiveMinimum", max)
    upper, upper_exclusive = _bound(file, at, schema, "maximum", "exclusiveMaximum", min)
    return PayloadField(
        path,
        kind,
        required,
        minimum=lower,
        maximum=upper,
        minimum_exclusive=lower_exclusive,
        maximum_exclusive=upper_exclusive,
        min_length=_length(file, at, schema, "minLength"),
        max_length=_length(file, at, schema, "maxLength"),
        allowed=_allowed(file, at, schema, kind),
    )


def _refuse_unknown(file: Path, at: str, schema: dict[str, Any], known: frozenset[str]) -> None:
    for keyword in schema:
        if keyword not in known and keyword not in _NOTES and not keyword.startswith("x-"):
            raise ConfigError(
                f'{file}: {at or "the schema"} has "{keyword}", which is not checked here. Remove it, or write it as'
                f' "x-{keyword}" to keep it as a note; what is checked: {", ".join(sorted(known))}.'
            )


def _bound(
    file: Path, at: str, schema: dict[str, Any], inclusive: str, exclusive: str, narrower: Any
) -> tuple[float | None, bool]:
    """The narrower of the two keywords that bound a number on one side, and whether the bound itself is outside."""
    bounds = []
    for keyword in (inclusive, exclusive):
        if keyword in schema:
            number = schema[keyword]
            if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
                raise ConfigError(f'{file}: {at}: "{keyword}" is a number, not {json.dumps(number)}.')
            bounds.append((number, keyword == exclusive))
    if not bounds:
        return None, False
    value = narrower(number for number, _ in bounds)
    return value, (value, True) in bounds


def _length(file: Path, at: str, schema: dict[str, Any], keyword: str) -> int | None:
    number = schema.get(keyword)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise ConfigError(f'{file}: {at}: "{keyword}" is a count of characters, not {json.dumps(number)}.')
    return number


def _allowed(file: Path, at: str, schema: dict[str, Any], kind: Kind) -> tuple[str | float | bool, ...] | None:
    if "enum" not in schema and "const" not in schema:
        return None
    values = schema.get("enum", [schema.get("const")])
    if not isinstance(values, list):
        raise ConfigError(f'{file}: {at}: "enum" is a list of values.')
    values = [value for value in values if value is not None]
    if "const" in schema:
        values = [value for value in values if value == schema["const"]]
    fits = {"string": (str,), "boolean": (bool,), "long": (int,), "double": (int, float)}[kind]
    for value in values:
        if not isinstance(value, fits) or (isinstance(value, bool) and kind != "boolean"):
            raise ConfigError(f"{file}: {at}: {json.dumps(value)} is allowed by its list, but it is no {kind}.")
    return tuple(values)
