"""The configuration reference as Markdown, made from the models and the text under each of their fields."""

from __future__ import annotations

__all__ = ["reference"]

import types
import typing
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

from pydantic_core import PydanticUndefined

from config.errors import ExitStatus
from config.loading.sources import RESERVED
from config.schema import Field, Path, dotted, environment_name, fields_of, texts_of
from config.settings import Settings
from config.values.grammar import BYTES_GRAMMAR, DURATION_GRAMMAR
from config.wording import as_toml, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

_HEAD = """\
# Configuration

This page is made by `gateway config reference` from the settings' own source; a test keeps it current.

A gateway reads one TOML file, environment variables and secret files, checks everything at once, and ends with
status {config} before anything starts when something is wrong. `gateway config check` does only that; `gateway
config show` prints every setting with the place it came from.

## Where settings come from

Stronger sources win, key by key; lists and header tables are replaced whole. Weakest first:

1. the defaults below;
2. the TOML file: the one that `--config` names, else the one that `GATEWAY_CONFIG` names, else `./gateway.toml` if
   it exists;
3. the secrets directory, if `GATEWAY_SECRETS_DIR` names one;
4. environment variables;
5. options of the command itself.

**Environment.** A setting's name is `GATEWAY_` and its path in capitals, with `__` between the tables:
`mqtt.tls.ca_file` is `GATEWAY_MQTT__TLS__CA_FILE`. Lists are JSON arrays, or values separated by commas; tables,
header tables and lists of tables (`GATEWAY_ROUTES`) are JSON. A table given as JSON and single names of the same
table add up, and the single name wins. A variable that is set to nothing counts as not set.

**Secrets.** Where a secret may stand, its name with `_file` may stand instead, with the path of a file that holds
it: `password_file = "/run/secrets/mqtt"` or `GATEWAY_MQTT__PASSWORD_FILE`. In a secrets directory the file
`mqtt__password` holds `mqtt.password`; any other single value of a table may lie there too. One line end at the end
of such a file is cut off. Relative paths start at the working directory. Secrets are shown nowhere: not in
messages, not in logs, not by `gateway config show`.

**Mistakes.** An unknown key in the file and an unknown `GATEWAY_` variable are refused, with the nearest known
name; so are settings that contradict each other. All of it is told at once, each with file and line or variable.
Variables that Kubernetes makes from services (`GATEWAY_PORT=tcp://…`, `GATEWAY_SERVICE_HOST`) are recognised and
left alone.

## How values are written

- Duration: {duration}. Units are not guessed, several go from large to small, and nothing is rounded.
- Size: {bytes}.
- Placeholders `${{…}}` stand for values of the message or the session; each setting says which it knows.

## Other environment variables

{variables}

## Exit statuses

| status | meaning |
|---|---|
{statuses}
"""


def reference() -> str:
    """The whole page."""
    head = _HEAD.format(
        config=int(ExitStatus.CONFIG),
        duration=DURATION_GRAMMAR.removeprefix("a duration is "),
        bytes=BYTES_GRAMMAR.removeprefix("a size is "),
        variables="\n".join(f"- `{name}`: {meaning}." for name, meaning in RESERVED.items()),
        statuses="\n".join(f"| {int(one)} | {one.meaning} |" for one in ExitStatus),
    )
    return "\n".join([head, *_table(Settings, (), "")]).rstrip() + "\n"


def _table(table: type[BaseModel], at: Path, text: str, *, repeated: bool = False) -> Iterator[str]:
    """A section for a table: its own settings, then the tables below it."""
    name = dotted(at)
    heading = f"`[[{name}]]`" if repeated else f"`[{name}]`" if at else "Top level"
    yield from (f"## {heading}", "")
    if text:
        yield from (text, "")
    if repeated:
        where = (
            f"one JSON array in `{environment_name(at)}`" if len(at) == 1 else f"part of `{environment_name(at[:1])}`"
        )
        yield from (f"A list of tables; in the environment {where}.", "")
    texts = texts_of(table)
    nested = []
    for field in fields_of(table).values():
        if field.table is not None:
            nested.append(field)
        else:
            yield from _setting(field, (*at, field.name), texts[field.name], in_list=repeated)
    for field in nested:
        assert field.table is not None
        words = texts[field.name] + (" Unset by default." if field.nullable else "")
        yield from _table(field.table, (*at, field.name), words, repeated=field.kind == "tables")


def _setting(field: Field, path: Path, text: str, *, in_list: bool) -> Iterator[str]:
    facts = [_type(field), _default(field)]
    if not in_list:
        name = environment_name(path)
        facts.append(f"`{name}`" + (f" or `{name}_FILE`" if field.kind == "secret" else ""))
    elif field.kind == "secret":
        facts.append(f"or `{field.name}_file`")
    yield from (f"### `{dotted(path)}`", "", " · ".join(facts), "", text, "")


def _default(field: Field) -> str:
    default = field.info.default
    if default is PydanticUndefined:
        return "required"
    return "not set" if default is None else f"default `{as_toml(default, field)}`"


def _type(field: Field) -> str:
    if field.kind == "secret":
        return "secret text"
    if field.kind == "map":
        return "table of texts"
    annotation = _inner(field.info.annotation)
    if field.kind == "list":
        return "list of " + _scalar(_inner(typing.get_args(annotation)[0]), field, plural=True)
    return _scalar(annotation, field, plural=False) + _range(field)


def _scalar(annotation: Any, field: Field, *, plural: bool) -> str:
    if typing.get_origin(annotation) is Literal:
        return ("" if plural else "one of ") + ", ".join(f"`{as_toml(one)}`" for one in typing.get_args(annotation))
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", FilePath: "path"}
    if field.unit is not None:
        return "duration" if field.unit == "duration" else "size"
    return names[annotation] + ("s" if plural else "")


def _range(field: Field) -> str:
    bounds = field.bounds
    parts = [
        f"{words} {shown(bounds[name], field)}"
        for name, words in (("ge", "from"), ("gt", "more than"), ("le", "to"), ("lt", "less than"))
        if name in bounds
    ]
    return ", " + " ".join(parts) if parts else ""


def _inner(annotation: Any) -> Any:
    """The type without ``Annotated[…]`` and ``… | None``."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif typing.get_origin(annotation) in {typing.Union, types.UnionType}:
            annotation = next(one for one in typing.get_args(annotation) if one is not types.NoneType)
        else:
            return annotation
