"""All settings in effect with their origins: for people as TOML, for programs as plain values. Secrets are masked."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from config.loading.load import Loaded
from config.loading.transfer import plain
from config.origins import Origin
from config.schema import Field, Path, dotted, fields_of
from config.wording import as_toml

_MASK = "********"
_COLUMN = 48  # column of the origins, unless a value is longer


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    field: Field
    value: Any
    origin: Origin


def as_text(loaded: Loaded) -> str:
    """The settings as a TOML document that loads to the same settings. Secret and unset ones are comments."""
    lines: list[str] = []
    _write(lines, loaded, loaded.settings, ())
    return "\n".join(lines) + "\n"


def _write(lines: list[str], loaded: Loaded, table: BaseModel, at: Path) -> None:
    """Append the lines of a table: its own settings, then the tables below it."""
    entries = list(_entries(loaded, table, at))
    plain = [one for one in entries if not _nested(one)]
    for entry in plain:
        text = _line(entry)
        lines.append(f"{text:<{_COLUMN}}  # {entry.origin}")
    for entry in entries:
        if isinstance(entry.value, BaseModel):
            lines += ["", f"[{_header(entry.path)}]"]
            _write(lines, loaded, entry.value, entry.path)
        elif _nested(entry):
            for number, item in enumerate(entry.value):
                below = (*entry.path, number)
                lines += ["", f"[[{_header(entry.path)}]]"]
                _write(lines, loaded, item, below)


def _nested(entry: _Entry) -> bool:
    """Whether the field needs headers of its own; an empty list of tables is written as ``[]``."""
    return isinstance(entry.value, BaseModel) or (entry.field.kind == "tables" and bool(entry.value))


def _header(path: Path) -> str:
    return ".".join(str(step) for step in path if not isinstance(step, int))


def _line(entry: _Entry) -> str:
    """A setting as TOML; unset ones and secrets as a comment."""
    name, value = entry.field.name, entry.value
    if value is None:
        return f"# {name} is not set"
    if entry.field.sensitive:
        return f"# {name} = {_masked(value)}"
    return f"{name} = {as_toml(value, entry.field)}"


def _masked(value: Any) -> str:
    """A secret map. Its names are shown, because they are names of headers."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_toml(key)} = {_MASK}" for key in value) + "}"
    return _MASK


def as_data(loaded: Loaded) -> dict[str, Any]:
    """For programs: ``settings`` with path, value, source and place of each, then ``warnings`` and ``file``.

    Durations are text in the duration grammar, sizes numbers of bytes. A secret has the value None, ``secret`` true
    and ``given``.
    """
    settings = []
    for entry in _leaves(loaded, loaded.settings, ()):
        hidden = entry.field.sensitive
        one: dict[str, Any] = {
            "path": dotted(entry.path),
            "value": None if hidden else plain(entry.value),
            "source": entry.origin.source,
            "place": str(entry.origin),
        }
        if hidden:
            one |= {"secret": True, "given": bool(entry.value)}
        settings.append(one)
    return {
        "settings": settings,
        "warnings": list(loaded.warnings),
        "file": None if loaded.file is None else str(loaded.file),
    }


def _entries(loaded: Loaded, table: BaseModel, at: Path) -> Iterator[_Entry]:
    """The settings of a table, tables among them."""
    for field in fields_of(type(table)).values():
        path = (*at, field.name)
        yield _Entry(path, field, getattr(table, field.name), loaded.origin(path))
    for name, value in (table.model_extra or {}).items():  # an interceptor's own options, which no field describes
        path = (*at, name)
        yield _Entry(path, Field(name, "value", None, nullable=True, info=FieldInfo()), value, loaded.origin(path))


def _leaves(loaded: Loaded, table: BaseModel, at: Path) -> Iterator[_Entry]:
    """The settings of a table and of all below it, without the tables themselves."""
    for entry in _entries(loaded, table, at):
        if isinstance(entry.value, BaseModel):
            yield from _leaves(loaded, entry.value, entry.path)
        elif _nested(entry):
            for number, item in enumerate(entry.value):
                yield from _leaves(loaded, item, (*entry.path, number))
        else:
            yield entry
