"""A recognisable text in every setting that holds a secret, found by walking the settings, so that a new one is covered
by itself."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from config.schema import Field, Path, dotted, environment_name, fields_of
from config.settings import Settings

MARK = "kanarie"  # short: pydantic truncates long inputs, and prints short ones whole
_EXAMPLES = ("example", 1, "https://issuer.example/token", "1s", ["example"], ["HS256"], True)


@dataclass(frozen=True)
class Canary:
    """One secret setting: where it stands, and the tables around it with all that they require."""

    path: Path
    field: Field
    text: str

    def __str__(self) -> str:
        return dotted(self.path)

    @property
    def value(self) -> Any:
        """What to write there: of a map, one entry with the text as its value."""
        return {"x-canary": self.text} if self.field.kind == "map" else self.text

    def tables(self, value: Any = None) -> dict[str, Any]:
        """Settings with nothing but this secret and what its tables need; ``value`` in its place, if given."""
        made = self._table(Settings, 0, self.value if value is None else value)
        assert isinstance(made, dict)
        return made

    def _table(self, table: type[BaseModel], depth: int, value: Any) -> Any:
        step = self.path[depth]
        if isinstance(step, int):
            return [self._table(table, depth + 1, value)]
        needed = {name: example(field) for name, field in fields_of(table).items() if field.info.is_required()}
        if depth == len(self.path) - 1:
            return needed | {step: value}
        below = fields_of(table)[step]
        assert below.table is not None
        return needed | {step: self._table(below.table, depth + 1, value)}


def canaries() -> list[Canary]:
    """One for each secret in the settings tree, those in lists of tables too."""
    return [
        Canary(path, field, f"{MARK}-{number}-0x5ec7e7") for number, (path, field) in enumerate(_walk(Settings, ()))
    ]


def _walk(table: type[BaseModel], at: Path) -> Iterator[tuple[Path, Field]]:
    for field in fields_of(table).values():
        path = (*at, field.name)
        if field.sensitive:
            yield path, field
        elif field.table is not None:
            yield from _walk(field.table, path if field.kind == "table" else (*path, 0))


def example(field: Field) -> Any:
    """Any value that a required field takes."""
    if field.kind == "table" and field.table is not None:
        return {name: example(one) for name, one in fields_of(field.table).items() if one.info.is_required()}
    kind: Any = (
        Annotated[(field.info.annotation, *field.info.metadata)] if field.info.metadata else field.info.annotation
    )
    for value in _EXAMPLES:
        try:
            TypeAdapter(kind).validate_python(value)
        except ValidationError:
            continue
        return value
    raise AssertionError(f"no example fits the required setting {field.name}: add one to _EXAMPLES")


def environment_of(canary: Canary) -> dict[str, str]:
    """GATEWAY_… variables with the secret and its surroundings: whole tables as JSON where a list is on the way."""
    found: dict[str, str] = {}
    for path, value in nested(canary.tables()):
        found[environment_name(path)] = value if isinstance(value, str) else json.dumps(value)
    return found


def nested(tables: dict[str, Any], at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Leaves by path, as environment variables can name them: a list, and a free map, is one leaf."""
    table: Any = Settings
    for step in at:
        table = fields_of(table)[str(step)].table
    for name, value in tables.items():
        if fields_of(table)[name].kind == "table":
            yield from nested(value, (*at, name))
        else:
            yield (*at, name), value
