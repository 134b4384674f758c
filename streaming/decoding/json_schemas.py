"""Fields of a JSON payload, from a file of JSON Schema (draft 2020-12, as far as one Spark expression can check it).

What would not be checked is refused, with the keyword's name: a schema that is believed to be enforced and is not, is
worse than none."""

import json
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

from config.error_words import words
from config.errors import ConfigError
from streaming.decoding.fields import Kind, PayloadField, no_signal

_KINDS: Final[dict[str, Kind]] = {"number": "double", "integer": "long", "string": "string", "boolean": "boolean"}
_NOTES: Final = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated", "readOnly", "writeOnly"}
)
"""Keywords that check nothing."""
_OF_OBJECTS: Final = frozenset({"type", "properties", "required", "additionalProperties"})
_OF_NUMBERS: Final = frozenset({"type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_OF_KIND: Final[dict[Kind, tuple[frozenset[str], tuple[type, ...]]]] = {
    "double": (_OF_NUMBERS, (int, float)),
    "long": (_OF_NUMBERS, (int,)),
    "string": (frozenset({"type", "format", "enum", "const", "minLength", "maxLength"}), (str,)),
    "boolean": (frozenset({"type", "enum", "const"}), (bool,)),
}
"""A kind's keywords, and what its values are in Python."""
_LIMITS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(_OF_NUMBERS, (lambda told: type(told) in (int, float) and math.isfinite(told), "a number")),
    **dict.fromkeys(
        ("minLength", "maxLength"), (lambda told: type(told) is int and told >= 0, "a count of characters")
    ),
    "enum": (lambda told: isinstance(told, list), "a list of values"),
    "const": (lambda _: True, "a value"),
    "format": (lambda told: told == "date-time", '"date-time", which alone is checked'),
}
"""By keyword: whether what it says of a field's values can be checked, and what it has to be."""


def json_fields(file: Path, ignored: Collection[str] = ()) -> tuple[PayloadField, ...]:
    """The fields a schema file describes, those of nested objects as ``object.field``; but for the ``ignored``.

    Raises ConfigError: the file cannot be read, or describes what cannot be checked."""
    try:
        schema = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: it cannot be read as JSON ({words(error)}).") from error
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ConfigError(f'{file}: a reading is one JSON object, so the schema has to begin with "type": "object".')
    return tuple(_object(file, schema, (), ignored, required=True))


def _object(
    file: Path, schema: dict[str, Any], path: tuple[str, ...], ignored: Collection[str], *, required: bool
) -> Iterator[PayloadField]:  # ``path``: that of the object, () for the payload itself
    at = f"{file}: {'.'.join(path) or 'the schema'}"
    _refuse_unknown(at, schema, _OF_OBJECTS)
    if schema.get("additionalProperties", True) is not True:
        raise ConfigError(f'{at} has "additionalProperties", but unknown fields are always ignored. Remove it.')
    properties, wanted = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(wanted, list):
        raise ConfigError(f'{at}: "properties" is an object and "required" a list of names.')
    for name in wanted:
        if not isinstance(name, str) or name not in properties:
            raise ConfigError(f"{at}: {name} is required but not among the properties: add it there, with its type.")
    spelled: dict[str, str] = {}
    for name, inner in properties.items():
        here, needed = (*path, name), required and name in wanted
        if ".".join(here) in ignored:
            continue
        if not name or "?" in name or {"'", '"'} <= set(name):  # Spark's paths have no way to write it
            raise ConfigError(
                f'{at}: the name {json.dumps(name)} cannot be looked up. Name the field in "ignore" of its type in'
                " schemas.toml, or give it a name without ? and with one kind of quotes."
            )
        if not isinstance(inner, dict):
            raise ConfigError(f'{at}: {name} needs an object that says its type, such as {{"type": "number"}}.')
        if inner.get("type") == "object":
            fields = [*_object(file, inner, here, ignored, required=needed)]
        else:
            fields = [_field(file, inner, here, required=needed)]
        if fields and (other := spelled.setdefault(name.lower(), name)) != name:  # Spark takes them for one
            raise ConfigError(
                f'{at}: {other} and {name} differ in case only. Name one in "ignore" of its type in schemas.toml.'
            )
        yield from fields


def _field(file: Path, schema: dict[str, Any], path: tuple[str, ...], *, required: bool) -> PayloadField:
    at = f"{file}: {'.'.join(path)}"
    declared = schema.get("type")
    types = declared if isinstance(declared, list) else [declared]
    kinds = [kind for kind in types if kind != "null"]  # a null counts as an absent field in any case
    if len(kinds) != 1 or not isinstance(kinds[0], str) or kinds[0] not in _KINDS:
        raise no_signal(file, path, json.dumps(declared))
    kind = _KINDS[kinds[0]]
    keywords, pythons = _OF_KIND[kind]
    _refuse_unknown(at, schema, keywords)
    limits: list[tuple[str, Any]] = []
    for keyword in sorted(schema.keys() & (keywords - {"type"})):
        told, (is_right, what) = schema[keyword], _LIMITS[keyword]
        if not is_right(told):
            raise ConfigError(f'{at}: "{keyword}" has to be {what}, not {json.dumps(told)}.')
        if keyword in ("enum", "const"):
            told = tuple(value for value in (told if keyword == "enum" else [told]) if value is not None)
            if wrong := [value for value in told if type(value) not in pythons]:
                raise ConfigError(f"{at}: {json.dumps(wrong[0])} is allowed by its list, but it is no {kind}.")
        if keyword != "format":
            limits.append((keyword, told))
    return PayloadField(path, kind, required, tuple(limits))


def _refuse_unknown(at: str, schema: dict[str, Any], known: frozenset[str]) -> None:
    for keyword in sorted(schema.keys() - known - _NOTES):
        if not keyword.startswith("x-"):
            raise ConfigError(
                f'{at} has "{keyword}", which is not checked here. Remove it, or write it as "x-{keyword}" to keep it'
                f" as a note; what is checked: {', '.join(sorted(known))}."
            )
