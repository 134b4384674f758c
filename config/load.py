"""Settings from one TOML file, ``GATEWAY_*`` variables and secret files: merged, checked as a whole, each with its
origin.

Weakest first: defaults, the TOML file, the secrets directory, the environment, a command's own options. Tables merge
key by key; lists and free maps (headers) replace each other whole. pydantic-settings would merge as well, but forgets
where a value came from and stops at the first problem; its source classes are the base here, the merging is ours.
"""

from __future__ import annotations

__all__ = ["Loaded", "load", "require_runnable"]

import os
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr, ValidationError

from config.errors import ConfigError
from config.origins import DEFAULT, Origin, Problem, SecretFile
from config.schema import Path as SettingPath
from config.schema import find
from config.settings import Settings
from config.sources import EnvironmentSource, FileSource, Layer, OverrideSource, SecretsDirectorySource, read_secret
from config.wording import describe

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked settings, where each came from, and what is allowed but deserves a look. Its repr holds no secret."""

    settings: Settings
    provenance: Mapping[SettingPath, Origin]
    warnings: tuple[str, ...]
    file: Path | None

    def origin(self, path: str | SettingPath) -> Origin:
        """Where the value at ``path`` (dotted, or as a tuple) was written; of what holds it, when it was given as a
        whole."""
        steps: SettingPath = tuple(path.split(".")) if isinstance(path, str) else path
        while steps:
            if steps in self.provenance:
                return self.provenance[steps]
            steps = steps[:-1]
        return DEFAULT


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
    if merged.problems or settings is None:
        raise ConfigError(*dict.fromkeys(str(problem) for problem in merged.problems))
    return Loaded(settings, MappingProxyType(merged.origins), (), file)


def _file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is not None:
        return path
    if named := environ.get("GATEWAY_CONFIG"):
        return Path(named)
    beside = Path("gateway.toml")
    return beside if beside.exists() else None


def _merge(weaker: Layer, stronger: Layer) -> None:
    weaker.problems += stronger.problems
    _merge_tables(weaker, weaker.values, stronger, stronger.values, ())


def _merge_tables(
    weaker: Layer, into: dict[str, Any], stronger: Layer, values: dict[str, Any], at: SettingPath
) -> None:
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
    """Put the secrets themselves in the place of the files that hold them. A file that a stronger source makes moot
    is not read."""
    for key, value in list(values.items() if isinstance(values, dict) else enumerate(values)):
        path = (*at, key)
        if isinstance(value, SecretFile):
            origin = merged.origins[path]
            try:
                values[key] = SecretStr(read_secret(Path(value.file)))
                merged.origins[path] = Origin(origin.source, origin.place, secret_file=value.file)
            except ValueError as error:
                merged.problems.append(Problem((*at, f"{key}_file"), origin, str(error)))
                values[key] = SecretStr("")  # stands for the unread secret, so that its absence is not reported too
        elif isinstance(value, dict | list):
            _read_secret_files(merged, value, path)


def _validate(merged: Layer) -> Settings | None:
    """The settings, or None with the problems noted."""
    try:
        return Settings(**merged.values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=True)
    for one in found:
        merged.problems.append(describe(one, merged.origins))
    return None


def require_runnable(loaded: Loaded) -> None:
    """Raise ConfigError unless a gateway can start with these settings: what a look at them, or another command, does
    not need."""
    if not loaded.settings.routes:
        raise ConfigError(
            "routes: none is given, so nothing can be subscribed; add a [[routes]] table with name, filters and topic"
        )
