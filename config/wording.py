"""pydantic's errors in our words: what the value must be, and the value if it cannot be a secret."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pydantic_core import ErrorDetails

from config.origins import DEFAULT, Origin, Problem
from config.schema import Field, Path, dotted, find
from config.settings import Settings
from config.tables.service import FLOW_PROFILES
from config.values.grammar import format_bytes, format_duration

_PROFILE = ("flow", "profile")  # gives other settings their defaults
_LONGEST = 60  # characters of a value that a message repeats


def describe(error: ErrorDetails, origins: Mapping[Path, Origin]) -> Problem:
    """One of pydantic's errors as a Problem of ours."""
    path: Path = tuple(step for step in error["loc"] if step != "[key]")
    if error["type"] == "missing":  # written nowhere: name the origin of its neighbours
        return Problem(path, _inside(path[:-1], origins), "is required here and not given")
    return Problem(path, origin_of(path, origins), _sentence(error, path), _value(error, path))


def origin_of(path: Path, origins: Mapping[Path, Origin]) -> Origin:
    """Where the value at ``path`` was written; for an item of a list or a map, where that was; for a table, any part
    of it."""
    if path in origins:
        return origins[path]
    field = find(Settings, path)
    if field is not None and field.kind == "table" and path[-1] == field.name:
        return _inside(path, origins)
    chosen = origins.get(_PROFILE)
    if chosen is not None and path[:-1] == _PROFILE[:-1] and any(path[-1] in one for one in FLOW_PROFILES.values()):
        return replace(chosen, place=f"{chosen}, by flow.profile")
    parent = find(Settings, path[:-1])
    if isinstance(path[-1], int) or (parent is not None and parent.kind == "map"):
        return origin_of(path[:-1], origins)
    return DEFAULT


def _inside(path: Path, origins: Mapping[Path, Origin]) -> Origin:
    return next((origin for at, origin in origins.items() if at[: len(path)] == path), DEFAULT)


def shown(value: object, field: Field | None = None) -> str:
    """A value as sentences show it: ``30s``, ``32MiB``, ``"text"``. ``field`` tells whether a number counts bytes."""
    match value:
        case timedelta():
            return format_duration(value)
        case int() if field is not None and field.unit == "bytes" and not isinstance(value, bool):
            return format_bytes(value)
        case _:
            return as_toml(value)


def as_toml(value: object, field: Field | None = None) -> str:
    """A value as TOML writes it. Not for None, which TOML lacks."""
    match value:
        case bool():
            return "true" if value else "false"
        case timedelta():
            return f'"{format_duration(value)}"'
        case int() if field is not None and field.unit == "bytes":
            text = format_bytes(value)
            return text if text.isdigit() else f'"{text}"'
        case int() | float():
            return str(value)
        case list() | tuple():
            return "[" + ", ".join(map(as_toml, value)) + "]"
        case Mapping():
            return "{" + ", ".join(f"{_quoted(str(key))} = {as_toml(one)}" for key, one in value.items()) + "}"
        case _:
            return _quoted(str(value))


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are a part of TOML's, but for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(error: ErrorDetails, path: Path) -> str | None:
    """The rejected value, if it cannot be a secret: a short scalar of a plain setting, without "@"."""
    field = find(Settings, path)
    value = error.get("input")
    if field is None or field.sensitive or field.kind not in {"value", "list"}:
        return None
    if isinstance(value, bool | int | float):
        return shown(value)
    if isinstance(value, str) and len(value) <= _LONGEST and value.isprintable() and "@" not in value:
        return shown(value)
    return None


def _sentence(error: ErrorDetails, path: Path) -> str:
    """What is wrong, to follow the setting's name: "must be a number"."""
    context: dict[str, Any] = error.get("ctx", {})
    match error["type"]:
        case "value_error":
            return str(context["error"])
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            return _beyond(error["type"], path)
        case "literal_error":
            return f"must be one of {context['expected'].replace(' or ', ', ')}"
        case "string_pattern_mismatch":
            return f"must match {context['pattern']}"
        case "string_too_short" | "too_short":
            return "must not be empty" if context["min_length"] == 1 else f"needs at least {context['min_length']}"
        case "string_too_long" | "too_long":
            return f"is longer than {context['max_length']}"
        case "finite_number":
            return "must be a finite number"
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            return "must be a whole number"
        case "float_type" | "float_parsing":
            return "must be a number"
        case "bool_type" | "bool_parsing":
            return "must be true or false"
        case "string_type" | "path_type":
            return "must be a text in quotes"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a table of settings"
        case "tuple_type" | "list_type" if isinstance(error["input"], Mapping):
            return f"must be a list, in brackets; in TOML each of its tables begins with [[{dotted(path)}]]"
        case "tuple_type" | "list_type":
            return "must be a list, in brackets"
        case _:
            return error["msg"]


def _beyond(kind: str, path: Path) -> str:
    """Which bound was crossed. The bound is the field's, because pydantic gives a timedelta's as its repr."""
    name, words = {
        "greater_than": ("gt", "must be more than"),
        "greater_than_equal": ("ge", "must be at least"),
        "less_than": ("lt", "must be less than"),
        "less_than_equal": ("le", "must be at most"),
    }[kind]
    field = find(Settings, path)
    assert field is not None
    limit = field.bounds[name]
    return f"{words} {shown(limit, field)}"
