"""Settings from one TOML file, ``GATEWAY_*`` variables and secret files: merged, checked, each with its origin.

Weakest first: defaults, the TOML file, the secrets directory, the environment, a command's own options. Tables merge
key by key; lists and free maps (headers) replace each other whole. The source classes are those of pydantic-settings.
The merging is ours, because pydantic-settings forgets origins and stops at the first problem.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from config.errors import ConfigError
from config.loading.sources import EnvironmentSource, FileSource, Layer, OverrideSource, SecretsDirectorySource
from config.origins import Origin, Problem, SecretFile
from config.relations import (
    auth,
    auth_backends,
    commands,
    credentials,
    flow,
    http,
    jwt,
    kafka,
    mqtt,
    operate,
    spool,
    unused,
)
from config.relations.rules import View, check
from config.schema import Path as SettingPath
from config.schema import dotted, find
from config.settings import Settings
from config.values.secret_files import FileSecret, read_secret
from config.wording import describe, origin_of, shown


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked settings, the origin of each, and warnings. Its repr holds no secret."""

    settings: Settings
    provenance: Mapping[SettingPath, Origin]
    warnings: tuple[str, ...]
    file: Path | None

    @property
    def missing_file(self) -> str:
        """A sentence when no settings file was found, with where it was looked for; else empty."""
        if self.file is not None:
            return ""
        return (
            "There is no settings file: --config and GATEWAY_CONFIG name none, and there is no gateway.toml in "
            f"{Path.cwd()}. `gateway init` writes one."
        )

    @property
    def all_defaults(self) -> str:
        """A sentence when nothing at all sets a setting: no file, no variable, no option; else empty."""
        if self.provenance or not self.missing_file:
            return ""
        return f"{self.missing_file} Until then all settings are the defaults."

    @property
    def profile(self) -> str:
        """A sentence about what a chosen ``flow.profile`` sets; empty for the default one."""
        flow = self.settings.flow
        if flow.profile == "balanced":
            return ""
        pairs = {name: getattr(flow, name) for name in ("linger_max", "read_pacing_max")}
        said = ", ".join(f"flow.{name} = {shown(one)} ({self.origin(f'flow.{name}')})" for name, one in pairs.items())
        return f"flow.profile = {flow.profile}: {said}."

    def origin(self, path: str | SettingPath) -> Origin:
        """Where the value at ``path`` (dotted, or as a tuple) was written; for a table, any part of it."""
        return origin_of(tuple(path.split(".")) if isinstance(path, str) else path, self.provenance)


_RELATIONS = (mqtt, kafka, commands, credentials, flow, spool, jwt, auth, auth_backends, operate, http)
_REFUSED = tuple(rule for relations in _RELATIONS for rule in relations.REFUSED)
_WARNED = tuple(rule for relations in (*_RELATIONS, unused) for rule in relations.WARNED)


def load(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read and check all settings. Reads files, so it blocks briefly; call it before the loop starts.

    ``path`` is the TOML file; without it ``GATEWAY_CONFIG`` names one, and without that ``./gateway.toml`` is read if
    present. ``overrides`` are stronger than everything else: nested tables, or dotted keys. Raises ConfigError with
    every problem found.
    """
    merged = Layer()
    file = _file(path, environ)
    if file is not None:
        _merge(merged, FileSource(file, str(file)).layer)
    if folder := environ.get("GATEWAY_SECRETS_DIR"):
        _merge(merged, SecretsDirectorySource(Path(folder)).layer)
    _merge(merged, EnvironmentSource(environ).layer)
    if overrides:
        _merge(merged, OverrideSource(overrides).layer)
    _read_secret_files(merged, merged.values, ())
    settings = _validate(merged)
    view = View(settings, merged.origins)
    problems = [str(problem) for problem in merged.problems]
    problems += check(_REFUSED, view, merged.doubtful)
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    warnings = check(_WARNED, view, ())
    return Loaded(settings, MappingProxyType(merged.origins), tuple(warnings), file)


def _file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The settings file by option, variable or place; None without one."""
    if path is not None:
        return path
    if named := environ.get("GATEWAY_CONFIG"):
        return Path(named)
    beside = Path("gateway.toml")
    return beside if beside.exists() else None


def _merge(weaker: Layer, stronger: Layer) -> None:
    weaker.problems += stronger.problems
    weaker.doubtful |= stronger.doubtful
    _merge_tables(weaker, weaker.values, stronger, stronger.values, ())


def _merge_tables(
    weaker: Layer, into: dict[str, Any], stronger: Layer, values: dict[str, Any], at: SettingPath
) -> None:
    """Put the stronger ``values`` of the table at this path into the weaker ones, and their origins into ``weaker``."""
    for key, value in values.items():
        path = (*at, key)
        field = find(Settings, path)
        standing = into.get(key)
        if field is not None and field.kind == "table" and isinstance(standing, dict) and isinstance(value, dict):
            _merge_tables(weaker, standing, stronger, value, path)
            continue
        into[key] = value
        size = len(path)
        for other in [one for one in weaker.origins if one[:size] == path]:
            del weaker.origins[other]
        weaker.origins.update({one: origin for one, origin in stronger.origins.items() if one[:size] == path})


def _read_secret_files(merged: Layer, values: Any, at: SettingPath) -> None:
    """Replace files of secrets by the secrets. A file that a stronger source overrides is not read."""
    for key, value in list(values.items() if isinstance(values, dict) else enumerate(values)):
        path = (*at, key)
        if isinstance(value, SecretFile):
            origin = merged.origins[path]
            try:
                file = Path(value.file)
                values[key] = FileSecret(read_secret(file), file)
                merged.origins[path] = Origin(origin.source, origin.place, secret_file=value.file)
            except ValueError as error:
                merged.problems.append(Problem((*at, f"{key}_file"), origin, str(error)))
                merged.doubtful.add(path)
                values[key] = SecretStr("")  # stands for the unread secret, so that its absence is not reported too
        elif isinstance(value, dict | list):
            _read_secret_files(merged, value, path)


def _validate(merged: Layer) -> Settings:
    """The settings as far as they are valid; the rest is noted and left at its default, so that relations show."""
    values = merged.values
    noted: set[SettingPath] = set()
    while True:
        try:
            return Settings(**values)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        for one in errors:
            problem = describe(one, merged.origins)
            if one["type"] == "too_short" and any(_within(other["loc"], one["loc"]) for other in errors):
                continue  # a list is too short only because of the wrong items in it, which are reported
            if problem.path not in noted:  # a union reports each of its members
                noted.add(problem.path)
                merged.problems.append(problem)
            merged.doubtful.add(_drop(values, problem.path, missing=one["type"] == "missing"))


def _within(path: tuple[str | int, ...], whole: tuple[str | int, ...]) -> bool:
    return len(path) > len(whole) and path[: len(whole)] == whole


def _drop(values: dict[str, Any], path: SettingPath, *, missing: bool) -> SettingPath:
    """Remove a wrong value, or the table that lacks one; a list is removed whole. Returns the removed path."""
    gone: list[str] = []
    for step in path[:-1] if missing else path:
        if isinstance(step, int):
            break
        gone.append(step)
    where = values
    for at, step in enumerate(gone):
        if at == len(gone) - 1 or not isinstance(where.get(step), dict):
            where.pop(step, None)
            return tuple(gone[: at + 1])
        where = where[step]
    return tuple(gone)


def check_relations(settings: Settings, provenance: Mapping[SettingPath, Origin]) -> None:
    """Raise ConfigError when settings merged from two sources contradict each other."""
    if problems := check(_REFUSED, View(settings, provenance), ()):
        raise ConfigError(*dict.fromkeys(problems))


def require_runnable(loaded: Loaded) -> None:
    """Raise ConfigError unless a gateway can start here with these settings.

    Checks what `gateway config show`, or a Spark job on another machine, does not need: a route, and the files with
    certificates, keys and tokens.
    """
    problems = []
    if not loaded.settings.routes:
        problems.append(
            loaded.missing_file
            or "routes: none is given, so nothing can be subscribed; add a [[routes]] table with name, filters, topic"
        )
    for side in ("mqtt", "kafka", "http"):
        problems += unreadable_files(loaded, getattr(loaded.settings, side), (side,))
    if problems:
        raise ConfigError(*problems)


def unreadable_files(loaded: Loaded, table: BaseModel, at: SettingPath) -> Iterator[str]:
    """A sentence for each unreadable file of the table at ``at``: certificates, keys, tokens."""
    for path, file in _files(table, at):
        if reason := _unreadable(file):
            yield f"{dotted(path)} ({loaded.origin(path)}): the file cannot be read: {reason}"


def _files(table: BaseModel, at: SettingPath) -> Iterator[tuple[SettingPath, Path]]:
    """Every file that a setting of the table names, with that setting."""
    for name in type(table).model_fields:
        value = getattr(table, name)
        if isinstance(value, Path):
            yield (*at, name), value
        elif isinstance(value, BaseModel):
            yield from _files(value, (*at, name))
        elif isinstance(value, tuple):
            for number, one in enumerate(value):
                if isinstance(one, BaseModel):
                    yield from _files(one, (*at, name, number))


def _unreadable(file: Path) -> str:
    """Why ``file`` cannot be read, or nothing. Never its name, because a user may have written the key itself there."""
    try:
        with file.open("rb"):
            return ""
    except (OSError, ValueError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or "no valid path"
