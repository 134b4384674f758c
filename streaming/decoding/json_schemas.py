"""Fields of a JSON payload, from a file of JSON Schema (draft 2020-12, as far as one Spark expression can check it).

What would not be checked is refused, with the keyword's name: a schema that is believed to be enforced and is not, is
worse than none.
"""

import json
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from config.error_words import words
from config.errors import ConfigError
from streaming.decoding.fields import Kind, PayloadField

_KINDS: Final[dict[str, Kind]] = {"number": "double", "integer": "long", "string": "string", "boolean": "boolean"}
_NOTES: Final = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated", "readOnly", "writeOnly"}
)
"""Keywords that check nothing."""
_OF_OBJECTS: Final = frozenset({"type", "properties", "required", "additionalProperties"})
_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LENGTHS: Final = frozenset({"minLength", "maxLength"})
_CHOICES: Final = frozenset({"enum", "const"})
_OF_KIND: Final[dict[Kind, frozenset[str]]] = {
    "double": _CHOICES | _BOUNDS | {"type"},
    "long": _CHOICES | _BOUNDS | {"type"},
    "string": _CHOICES | _LENGTHS | {"type", "format"},
    "boolean": _CHOICES | {"type"},
}
_PYTHONS: Final[dict[Kind, tuple[type, ...]]] = {
    "double": (int, float),
    "long": (int,),
    "string": (str,),
    "boolean": (bool,),
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
) -> Iterator[PayloadField]:  # ``path``: that of the object, () for the payload itself
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
    limits = [(keyword, _limit(f"{file}: {at}", keyword, schema[keyword], kind)) for keyword in sorted(schema)]
    return PayloadField(path, kind, required, tuple(limit for limit in limits if limit[1] is not None))


def _refuse_unknown(file: Path, at: str, schema: dict[str, Any], known: frozenset[str]) -> None:  # at "": the payload
    for keyword in schema:
        if keyword not in known and keyword not in _NOTES and not keyword.startswith("x-"):
            raise ConfigError(
                f'{file}: {at or "the schema"} has "{keyword}", which is not checked here. Remove it, or write it as'
                f' "x-{keyword}" to keep it as a note; what is checked: {", ".join(sorted(known))}.'
            )


def _limit(at: str, keyword: str, told: Any, kind: Kind) -> Any:
    """What a keyword says of a field's values, checked; None if it says nothing of them."""
    if keyword in _BOUNDS:
        if isinstance(told, bool) or not isinstance(told, int | float) or not math.isfinite(told):
            raise ConfigError(f'{at}: "{keyword}" is a number, not {json.dumps(told)}.')
        return told
    if keyword in _LENGTHS:
        if isinstance(told, bool) or not isinstance(told, int) or told < 0:
            raise ConfigError(f'{at}: "{keyword}" is a count of characters, not {json.dumps(told)}.')
        return told
    if keyword not in _CHOICES:
        return None
    values = [told] if keyword == "const" else told
    if not isinstance(values, list):
        raise ConfigError(f'{at}: "enum" is a list of values.')
    values = [value for value in values if value is not None]
    for value in values:
        if not isinstance(value, _PYTHONS[kind]) or (isinstance(value, bool) and kind != "boolean"):
            raise ConfigError(f"{at}: {json.dumps(value)} is allowed by its list, but it is no {kind}.")
    return tuple(values)
