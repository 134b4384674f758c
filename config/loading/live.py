"""Which changed settings a running gateway can take, and which need a restart of its workers.

    live      the running workers take it; no session is disconnected
    restart   connections, files or a number of objects depend on it, and are made at a start
    other     commands and other processes read it themselves

Live settings replace objects of the data path (routes, limits, credentials). Identity (``instance``, ``data_dir``),
connections and their guarantees (``mqtt.addresses``, ``kafka``), and numbers (``workers``, ``mqtt.sessions``) need a
restart.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

from pydantic import BaseModel, SecretStr

from config.origins import Origin
from config.schema import Field, Path, fields_of
from config.settings import Settings
from config.wording import as_toml, origin_of

Effect = Literal["live", "restart", "other"]

LIVE: Final = (
    "routes", "interceptors", "flow", "dead_letter", "log.level", "shutdown_timeout", "http.overdue_after",
    "http.token", "emqx", "canary",
    "admin.watch_groups", "admin.watch_interval", "admin.watch_lag",
    "spool.after", "spool.max_bytes", "spool.replay_max_bytes_per_second",
    "mqtt.username", "mqtt.password", "kafka.sasl.username", "kafka.sasl.password",
    "kafka.topics.partitions", "kafka.topics.replication", "kafka.topics.declare",
)  # fmt: skip
OTHER: Final = ("admin", "stream", "auth")
_FIXED: Final = ("instance", "data_dir", "http.host", "http.port", "http.tls")  # for a supervisor, too

_LONGEST: Final = 120  # characters of a value that is shown


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs. ``before`` and ``after`` are texts for people, None without a value; secrets are never
    shown. ``path`` has the name of an item in a list of tables."""

    path: str
    before: str | None
    after: str | None
    origin: str
    effect: Effect

    def __str__(self) -> str:
        """``flow.linger_max: "20ms" → "50ms" (gateway.toml:12)``."""
        before = "not set" if self.before is None else self.before
        after = "not set" if self.after is None else self.after
        if before == after:  # secrets
            return f"{self.path}: changed ({self.origin})"
        return f"{self.path}: {before} → {after} ({self.origin})"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def remedy(waiting: Iterable[Change], workers: int | None) -> str:
    """How to apply changes that need a restart. The supervisor stays for ``gateway restart``, so its settings need a
    new start, as does a gateway without one (``workers`` 0)."""
    for one in waiting:
        came_or_went = one.path == "workers" and "0" in (one.before, one.after)  # the supervisor
        if came_or_went or f"{one.path}.".startswith(tuple(f"{name}." for name in _FIXED)):
            workers = 0
    return "a stop and a start of the gateway" if workers == 0 else "`gateway restart --reload`"


def effect_of(path: Path, before: object, after: object) -> Effect:
    """What a change of the setting at ``path`` needs. The values matter for ``spool.after``."""
    names = ".".join(str(step) for step in path if isinstance(step, str))
    if names == "spool.after" and not (before and after):
        return "restart"  # 0 sends every batch through the disk, from the first message on
    if any(names == one or names.startswith(f"{one}.") for one in LIVE):
        return "live"
    if any(names == one or names.startswith(f"{one}.") for one in OTHER):
        return "other"
    return "restart"


def changes(before: Settings, after: Settings, origins: Mapping[Path, Origin]) -> list[Change]:
    """Every setting in which ``after`` differs, in the order of the settings; ``origins`` are those of ``after``."""
    fixed = _of_commands(before)
    found = _changes(before, after, (), "", origins)
    return [replace(one, effect="restart") if one.path in fixed else one for one in found]


def only_live(before: Settings, after: Settings) -> Settings:
    """``before`` with every change of ``after`` that needs no restart."""
    merged = _merge(before, after, ())
    assert isinstance(merged, type(before))
    if not (fixed := _of_commands(before)):
        return merged
    topics = {route.name: route.topic for route in before.routes if f"routes[{route.name}].topic" in fixed}
    routes = [route.model_copy(update={"topic": topics.get(route.name, route.topic)}) for route in merged.routes]
    dead_letter = merged.dead_letter.model_copy(update={"topic": before.dead_letter.topic})
    return merged.model_copy(update={"routes": tuple(routes), "dead_letter": dead_letter})


def _of_commands(settings: Settings) -> frozenset[str]:
    """Kafka topics that running commands read answers from, or bury records in: those of their start."""
    ways = {name for one in settings.commands for name in (one.answers, one.delivered_by, one.presence)}
    return frozenset({"dead_letter.topic", *(f"routes[{name}].topic" for name in ways)} if settings.commands else ())


def _merge(before: BaseModel, after: BaseModel, at: Path) -> BaseModel:
    """``before``, the table at this path, with every change of ``after`` that needs no restart."""
    update: dict[str, Any] = {}
    for name, field in fields_of(type(before)).items():
        old, new, path = getattr(before, name), getattr(after, name), (*at, name)
        if same(old, new):
            continue
        if field.kind == "table" and isinstance(old, BaseModel) and isinstance(new, BaseModel):
            update[name] = _merge(old, new, path)
        elif effect_of(path, old, new) != "restart":
            update[name] = new
    return before.model_copy(update=update) if update else before


def same(one: object, other: object) -> bool:
    """Whether two values are equal, secrets by their text and the file from which they are read again."""
    if isinstance(one, SecretStr) and isinstance(other, SecretStr):
        text, file = one.get_secret_value(), getattr(one, "file", None)
        return text == other.get_secret_value() and file == getattr(other, "file", None)
    if isinstance(one, BaseModel) and type(one) is type(other):
        assert isinstance(other, BaseModel)
        extra = (one.model_extra or {}) == (other.model_extra or {})
        return extra and all(same(getattr(one, name), getattr(other, name)) for name in type(one).model_fields)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def _changes(
    before: BaseModel, after: BaseModel, at: Path, said: str, origins: Mapping[Path, Origin]
) -> Iterator[Change]:
    """The differences between two tables at the path ``at``, which ``said`` writes with the names of items."""
    for name, field in fields_of(type(after)).items():
        old, new, path = getattr(before, name), getattr(after, name), (*at, name)
        if same(old, new):
            continue
        text = f"{said}.{name}" if said else name
        if field.kind == "table" and isinstance(old, BaseModel) and isinstance(new, BaseModel):
            yield from _changes(old, new, path, text, origins)
        elif field.kind == "tables":
            yield from _of_tables(old, new, path, text, origins)
        else:
            yield _change(old, new, path, text, origins, field)
    yield from _of_options(before.model_extra or {}, after.model_extra or {}, at, said, origins)


def _of_options(
    before: Mapping[str, Any], after: Mapping[str, Any], at: Path, said: str, origins: Mapping[Path, Origin]
) -> Iterator[Change]:
    """An interceptor's own options, which no field describes."""
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield _change(before.get(name), after.get(name), (*at, name), f"{said}.{name}", origins, None)


def _of_tables(
    before: tuple[BaseModel, ...], after: tuple[BaseModel, ...], path: Path, said: str, origins: Mapping[Path, Origin]
) -> Iterator[Change]:
    """Changes in a list of tables: each item against the one of the same name, or else the same place; then the
    order."""
    old, new = _by_name(before), _by_name(after)
    effect = effect_of(path, before, after)
    for key in dict.fromkeys((*old, *new)):
        text = f"{said}[{key}]"
        if key not in new:
            yield Change(text, "there", None, _origin(path, origins), effect)
            continue
        place, table = new[key]
        below = (*path, place)
        if key not in old:
            yield Change(text, None, "there", _origin(below, origins), effect)
        else:
            yield from _changes(old[key][1], table, below, text, origins)
    if [key for key in old if key in new] != [key for key in new if key in old]:
        yield Change(f"{said}, order", " ".join(old), " ".join(new), _origin(path, origins), effect)


def _by_name(tables: tuple[BaseModel, ...]) -> dict[str, tuple[int, BaseModel]]:
    """The tables of an array with their places, by name; by place if names are equal or missing."""
    names = [str(getattr(table, "name", None) or place) for place, table in enumerate(tables)]
    if len(set(names)) < len(names):
        names = [str(place) for place in range(len(tables))]
    return {name: (place, table) for place, (name, table) in enumerate(zip(names, tables, strict=True))}


def _change(
    old: object, new: object, path: Path, said: str, origins: Mapping[Path, Origin], field: Field | None
) -> Change:
    """``said`` is the setting's path with the names of items, ``path`` with their places; ``field`` is None for an
    interceptor's own option."""
    hide = field is not None and field.sensitive
    return Change(
        said, _shown(old, field, hide=hide), _shown(new, field, hide=hide), _origin(path, origins),
        effect_of(path, old, new),
    )  # fmt: skip


def _shown(value: object, field: Field | None, *, hide: bool) -> str | None:
    """The value for a sentence, a secret masked; None when not set."""
    if value is None:
        return None
    if hide or isinstance(value, SecretStr):
        return "********"
    if isinstance(value, BaseModel):
        return "there"
    text = as_toml(value, field) if not isinstance(value, timedelta) else as_toml(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _origin(path: Path, origins: Mapping[Path, Origin]) -> str:
    return str(origin_of(path, origins))
