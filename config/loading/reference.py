"""The configuration reference as Markdown, made from the models and the text under each of their fields."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, Final, Literal

from pydantic_core import PydanticUndefined

from config.errors import ExitStatus
from config.loading.sources import RESERVED
from config.prose import lines_of
from config.schema import Field, Path, bare, dotted, fields_of, find, owner_of, texts_of
from config.settings import Settings
from config.values.grammar import BYTES_GRAMMAR, DURATION_GRAMMAR
from config.wording import as_toml, shown

if typing.TYPE_CHECKING:
    from pydantic import BaseModel

_WIDTH: Final = 100  # columns of a line

_HEAD = """\
# Configuration

`gateway config reference` makes this page from the source of the settings; a test keeps it current.

A gateway reads one TOML file, environment variables and secret files. It checks everything before
anything starts, and ends with status {config} if something is wrong
([exit statuses](commands.md#exit-status)). `gateway config check` does only that. `gateway config
show` prints every setting with its source.

## Where settings come from

Stronger sources win, key by key; lists and header tables are replaced whole. Weakest first:

1. the defaults below;
2. the TOML file: that of `--config`, otherwise `GATEWAY_CONFIG`, otherwise `./gateway.toml`;
3. the secrets directory `GATEWAY_SECRETS_DIR`;
4. environment variables;
5. options of the command itself.

**Environment.** The variable of `mqtt.tls.ca_file` is `GATEWAY_MQTT__TLS__CA_FILE`. Lists are JSON
arrays or values separated by commas. Tables, header tables and lists of tables (`[[…]]`,
`GATEWAY_ROUTES`) are JSON; a variable of a single setting wins over its table's. An empty variable
counts as unset.

**Secrets.** Each setting of the type "secret text" also exists with `_file` after its name:
`password_file = "/run/secrets/mqtt"` or `GATEWAY_MQTT__PASSWORD_FILE`. In a secrets directory the
file `mqtt__password` holds `mqtt.password`; it may also hold other single values. One line end at the
end of the file is cut off. Relative paths start at the working directory. Messages, logs and `gateway
config show` never show a secret.

**Mistakes.** Unknown keys and `GATEWAY_` variables, and settings that contradict each other, are
refused: all at once, each with file and line or variable. Variables that Kubernetes makes from
services (`GATEWAY_PORT=tcp://…`) are ignored.

## How values are written

The line below the name of a setting has its default after `=`, and its choices or range. A setting
without a default is marked: required, or unset.

- Duration: {duration}.
  Several units go from large to small. Nothing is rounded.
- Size: {bytes}.
- Placeholders `${{…}}` stand for values of the message or the session.

## Other environment variables

{variables}
"""


def reference() -> str:
    """The reference of all settings, as Markdown."""
    head = _HEAD.format(
        config=int(ExitStatus.CONFIG),
        duration=DURATION_GRAMMAR.removeprefix("a duration is "),
        bytes=BYTES_GRAMMAR.removeprefix("a size is "),
        variables="\n".join(f"- `{name}`: {meaning}." for name, meaning in RESERVED.items()),
    )
    return "\n".join([head, *_table(Settings, (), "", _homes())]).rstrip() + "\n"


Homes = dict[tuple[type, str], Path]


def _homes() -> Homes:
    """By field the table that describes it. Of several tables with one class it is the first of the least nested."""
    homes: Homes = {}
    tables: list[tuple[type[BaseModel], Path]] = [(Settings, ())]
    for table, at in tables:  # grows while it is read
        for field in fields_of(table).values():
            home = homes.setdefault((owner_of(table, field.name), field.name), at)
            if field.table is not None and home == at:
                tables.append((field.table, (*at, field.name)))
    return homes


def _table(table: type[BaseModel], at: Path, intro: str, homes: Homes, *, repeated: bool = False) -> Iterator[str]:
    """A section for a table: its own settings, then the tables below it."""
    yield from (f"## {_heading(at, repeated=repeated)}" if at else "## Top level", "")
    if intro:
        yield from (*lines_of(intro, _WIDTH), "")
    texts = texts_of(table)
    nested = []
    elsewhere: dict[Path, list[str]] = {}
    for field in fields_of(table).values():
        home = homes[owner_of(table, field.name), field.name]
        if home != at:
            elsewhere.setdefault(home, []).append(f"`{field.name}`")
        elif field.table is not None and _at_home(field.table, path := (*at, field.name), homes):
            nested.append((field, path))
        else:
            said = lines_of(texts[field.name], _WIDTH)
            yield from (f"### `{dotted((*at, field.name))}`", "", _facts(field, homes), "", *said, "")
    if elsewhere:
        named = "; ".join(f"{', '.join(names)} as in {_link(home)}" for home, names in elsewhere.items())
        yield from (*lines_of(f"Further settings: {named}.", _WIDTH), "")
    for field, path in nested:
        assert field.table is not None
        text = texts[field.name]
        words = text + (" Unset by default." if field.nullable and "Unset" not in text else "")
        yield from _table(field.table, path, words, homes, repeated=field.kind == "tables")


def _at_home(table: type[BaseModel], at: Path, homes: Homes) -> bool:
    """Whether a setting of the table at ``at`` is described there."""
    return any(homes[owner_of(table, name), name] == at for name in fields_of(table))


def _heading(at: Path, *, repeated: bool) -> str:
    return f"`[[{dotted(at)}]]`" if repeated else f"`[{dotted(at)}]`"


def _link(home: Path) -> str:
    found = find(Settings, home)
    assert found is not None
    return f"[{_heading(home, repeated=found.kind == 'tables')}](#{re.sub('[^a-z0-9_]', '', dotted(home))})"


def _facts(field: Field, homes: Homes) -> str:
    """Type or range, and default. A default or a range tells what kind of value it is, where there is one."""
    default = field.info.default
    nullable = ", unset" if default is None else ", required" if default is PydanticUndefined else ""
    if field.table is not None:
        name = next(iter(fields_of(field.table)))
        link = _link(homes[owner_of(field.table, name), name])
        return f"{'list of tables' if field.kind == 'tables' else 'table'} as {link}{nullable}"
    shown_default = "" if nullable else f"= `{as_toml(default, field)}`"
    annotation, _ = bare(field.info.annotation)
    if typing.get_origin(annotation) is Literal:
        choices = typing.get_args(annotation)
        marks = [f"`{as_toml(one)}`" + (" (default)" if one == default else "") for one in choices]
        return f"{', '.join(marks[:-1])} or {marks[-1]}{nullable}"
    if (field.kind == "list" and typing.get_origin(_item(annotation)) is Literal) and not nullable:
        return f"{shown_default}; {_type(field, annotation)}"
    if bounds := _range(field):
        return f"{bounds}{nullable}" if nullable else f"{shown_default}; {bounds}"
    return f"{_type(field, annotation)}{nullable}" if nullable else shown_default


def _type(field: Field, annotation: Any) -> str:
    """What kind of value it is, where neither a default nor a range tells."""
    if field.kind == "secret":
        return "secret text"
    if field.kind == "list":
        item = _item(annotation)
        if typing.get_origin(item) is Literal:
            return "list of " + ", ".join(f"`{as_toml(one)}`" for one in typing.get_args(item))
        return "list of texts"
    return {bool: "true or false", str: "text", FilePath: "path"}[annotation]


def _item(annotation: Any) -> Any:
    return bare(typing.get_args(annotation)[0])[0]


def _range(field: Field) -> str:
    """The bounds, as ``1 to 64``; empty without any."""
    if field.kind == "map":
        return ""
    bounds = {name: shown(limit, field) for name, limit in field.bounds.items() if name in {"ge", "gt", "le", "lt"}}
    if set(bounds) == {"ge", "le"}:
        return f"{bounds['ge']} to {bounds['le']}"
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    return " ".join(f"{words[name]} {limit}" for name, limit in bounds.items())
