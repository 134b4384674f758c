"""What the settings tree consists of, read from the models: paths, kinds, environment names, and the text under each
field."""

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from config.values.grammar import parse_bytes, parse_duration

PREFIX = "GATEWAY_"
DELIMITER = "__"

Path = tuple[str | int, ...]
"""Where a value stands: ``("routes", 0, "topic")``."""

Kind = Literal["value", "secret", "list", "map", "table", "tables"]
"""value: one scalar. list, map: scalars in order or by free name. table: a model. tables: a list of models."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a table, as the sources and the reference need to know it."""

    name: str
    kind: Kind
    table: type[BaseModel] | None  # the model of a "table" or of each of "tables"
    nullable: bool
    info: FieldInfo

    @property
    def unit(self) -> Literal["duration", "bytes"] | None:
        """How a person writes its values, where that is not as a plain number."""
        if any(getattr(one, "func", None) is parse_duration for one in self.metadata):
            return "duration"
        if any(getattr(one, "func", None) is parse_bytes for one in self.metadata):
            return "bytes"
        return None

    @property
    def metadata(self) -> tuple[object, ...]:
        """All arguments after the type in ``Annotated[…]``."""
        return (*self.info.metadata, *_metadata(self.info.annotation))

    @property
    def bounds(self) -> dict[str, Any]:
        """The limits of its values: ``ge``, ``gt``, ``le``, ``lt``, ``min_length``, ``max_length``, ``pattern`` as far
        as given."""
        found: dict[str, Any] = {}
        for one in self.metadata:
            for name in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern"):
                if (limit := getattr(one, name, None)) is not None:
                    found[name] = limit
        return found

    @property
    def sensitive(self) -> bool:
        """Whether its value is never shown: a secret, or ``repr=False`` for a value that may contain one."""
        return self.kind == "secret" or not self.info.repr


@cache
def fields_of(table: type[BaseModel]) -> dict[str, Field]:
    """The fields of a table by name, in the order written."""
    return {name: _field(name, info) for name, info in table.model_fields.items()}


def _field(name: str, info: FieldInfo) -> Field:
    """A field by its annotation."""
    annotation, nullable = bare(info.annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if _is_table(annotation):
        return Field(name, "table", annotation, nullable, info)
    if annotation is SecretStr:
        return Field(name, "secret", None, nullable, info)
    if origin is dict:
        return Field(name, "map", None, nullable, info)
    if origin is tuple:
        item, _ = bare(arguments[0])
        return Field(name, "tables" if _is_table(item) else "list", item if _is_table(item) else None, nullable, info)
    return Field(name, "value", None, nullable, info)


def _is_table(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def bare(annotation: Any) -> tuple[Any, bool]:
    """The type without ``Annotated[…]`` and ``… | None``, and whether None was there."""
    nullable = False
    while True:
        arguments = typing.get_args(annotation)
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = arguments[0]
        elif typing.get_origin(annotation) in {typing.Union, types.UnionType} and types.NoneType in arguments:
            nullable = True
            annotation = next(one for one in arguments if one is not types.NoneType)
        else:
            return annotation, nullable


def _metadata(annotation: Any) -> Iterator[object]:
    """The arguments after the type in ``Annotated[…]``, also inside ``… | None`` and of a mapping's values."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        for one in typing.get_args(annotation):
            yield from _metadata(one)
    elif typing.get_origin(annotation) is dict:
        yield from _metadata(typing.get_args(annotation)[1])
    elif typing.get_origin(annotation) is typing.Annotated:
        inner, *others = typing.get_args(annotation)
        yield from _metadata(inner)
        for one in others:
            yield from one.metadata if isinstance(one, FieldInfo) else (one,)


def walk(table: type[BaseModel], at: Path = ()) -> Iterator[tuple[Path, Field]]:
    """Every field below ``table`` with its path, tables before their fields; what lists of tables hold is left out."""
    for field in fields_of(table).values():
        path = (*at, field.name)
        yield path, field
        if field.kind == "table" and field.table is not None:
            yield from walk(field.table, path)


def find(table: type[BaseModel], path: Path) -> Field | None:
    """The field that ``path`` leads to or into (an item of a list leads to the list), or None."""
    field: Field | None = None
    where: type[BaseModel] | None = table
    for step in path:
        if isinstance(step, int):
            continue
        if where is None:
            return field
        field = fields_of(where).get(step)
        if field is None:
            return None
        where = field.table
    return field


def dotted(path: Path) -> str:
    """``routes[0].topic`` for ``("routes", 0, "topic")``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def environment_name(path: Path) -> str:
    """``GATEWAY_MQTT__SESSIONS`` for ``("mqtt", "sessions")``."""
    return PREFIX + DELIMITER.join(str(step).upper() for step in path)


@cache
def environment_names(table: type[BaseModel]) -> dict[str, tuple[Path, Field]]:
    """Every environment name of a setting. A secret has two; the path of its ``_FILE`` name ends in ``<name>_file``."""
    names: dict[str, tuple[Path, Field]] = {}
    for path, field in walk(table):
        names[environment_name(path)] = (path, field)
        if field.kind == "secret":
            file_path = (*path[:-1], f"{field.name}_file")
            names[environment_name(file_path)] = (file_path, field)
    return names


def owner_of(table: type[BaseModel], name: str) -> type:
    """The class that defines a field: ``table``, or the one that it has the field from."""
    return next(one for one in table.__mro__ if name in inspect.get_annotations(one))


def texts_of(table: type[BaseModel]) -> dict[str, str]:
    """The documentation under each field of ``table``, read from its source: for the reference, not for the running
    gateway."""
    return {name: text for name in fields_of(table) if (text := _texts_in(owner_of(table, name)).get(name))}


@cache
def _texts_in(owner: type) -> dict[str, str]:
    """The text under each field in the source of a class, by the field's name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            match following:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    texts[statement.target.id] = " ".join(text.split())
                case _:
                    pass
    return texts
