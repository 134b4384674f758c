"""The sources of settings, each as a layer: raw values by table, with their origins.

A layer is read along the models. Unknown keys are refused first, with the nearest known one. A secret is wrapped at
once, so that no later message can contain it.
"""

import json
import re
import tomllib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from config.loading.toml_lines import line_numbers
from config.origins import Origin, Problem, SecretFile
from config.removed import REMOVED
from config.schema import DELIMITER, PREFIX, Field, Path, dotted, environment_name, environment_names, fields_of, walk
from config.settings import Settings
from config.values.files import read_at_most
from config.values.secret_files import FileSecret, read_secret

_LARGEST_FILE = 16 << 20  # bytes

RESERVED = {
    "GATEWAY_CACHE": "folder where the embedded brokers of laptop and tests keep what they downloaded",
    "GATEWAY_CONFIG": "path of the TOML file, when `--config` does not give one",
    "GATEWAY_MAVEN_MIRROR": "address of a Maven repository to download the embedded brokers from",
    "GATEWAY_SECRETS_DIR": "folder with a file for each secret, named like `mqtt__password`",
}
"""The gateway's environment variables that are not settings, with their meaning."""

# A Kubernetes service called "gateway…" sets these in every container; they are not misspelt settings.
# Only a whole address tells the shortest from one: GATEWAY_HTTP_PORT=9464 lacks an underscore.
_SERVICE_LINK = re.compile(
    r"GATEWAY_(?:[A-Z0-9_]+_)?(?:PORT=(?:tcp|udp|sctp)://.*"
    r"|(?:SERVICE_(?:HOST|PORT(?:_[A-Z0-9_]+)?)|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
    r"=(?:(?:tcp|udp|sctp)://.*|[\d.]+|[0-9a-fA-F:]+|tcp|udp|sctp))"
)
_NEAR = 0.6  # difflib's default for a likely misspelling
_VERY_NEAR = 0.8  # where a better guess exists, or other programs' files may be


@dataclass(slots=True)
class Layer:
    """The values of one source. ``doubtful`` are settings with a problem: rules that need them are skipped."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    doubtful: set[Path] = field(default_factory=set)


class LayerSource(PydanticBaseSettingsSource):
    """A settings source that keeps the origin of each value. A call returns only the values."""

    def __init__(self) -> None:
        super().__init__(Settings)
        self.layer = Layer()

    def __call__(self) -> dict[str, Any]:
        return self.layer.values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of one top-level field, for pydantic-settings' interface."""
        del field
        return self.layer.values.get(field_name), field_name, False

    @abstractmethod
    def origin(self, path: Path) -> Origin | None:
        """The origin of the value at ``path``; None for a table from several variables."""

    def read(self, raw: Mapping[str, Any]) -> None:
        self.layer.values = self._table(raw, Settings, ())

    def refuse(self, path: Path, sentence: str, origin: Origin | None = None, meant: Path | None = None) -> None:
        """Note a problem; ``meant`` is the setting that the author probably meant, if it is not ``path``."""
        self.layer.problems.append(Problem(path, origin or self.origin(path), sentence))
        self.layer.doubtful.add(path if meant is None else meant)

    def _table(self, raw: Mapping[str, Any], table: type[BaseModel], at: Path) -> dict[str, Any]:
        """The known settings of a table, with their origins noted; problems are noted too."""
        fields = fields_of(table)
        secret_files = {f"{name}_file": name for name, one in fields.items() if one.kind == "secret"}
        values: dict[str, Any] = {}
        for key, value in raw.items():
            path = (*at, key)
            if key in secret_files and key not in fields:
                name = secret_files[key]
                if name in raw:
                    sentence = f"stands beside {dotted((*at, name))}; give one of the two"
                    self.refuse(path, sentence, meant=(*at, name))
                elif not isinstance(value, str | FilePath) or not str(value):
                    self.refuse(path, "must be the path of a file", meant=(*at, name))
                else:
                    self._keep(values, name, SecretFile(str(value)), (*at, name), self.origin(path))
            elif key not in fields and table.model_config.get("extra") == "allow":
                self._keep(
                    values, key, value, path, self.origin(path)
                )  # the interceptor checks it: see InterceptorSettings
            elif key not in fields:
                sentence, meant = _unknown(key, at, {**{name: name for name in fields}, **secret_files})
                self.refuse(path, sentence, meant=meant)
            else:
                self._keep(values, key, self._value(value, fields[key], path), path, self.origin(path))
        return values

    def _keep(self, values: dict[str, Any], key: str, value: Any, path: Path, origin: Origin | None) -> None:
        values[key] = value
        if origin is not None:
            self.layer.origins[path] = origin

    def _value(self, value: Any, of: Field, path: Path) -> Any:
        """The value, with tables read and secrets wrapped; one of a wrong type stays, for pydantic to refuse."""
        if of.kind == "secret":
            return SecretStr(value) if isinstance(value, str) else value
        if of.kind == "table" and of.table is not None and isinstance(value, Mapping):
            return self._table(value, of.table, path)
        if of.kind == "tables" and of.table is not None and isinstance(value, list | tuple):
            items: list[Any] = []
            for number, item in enumerate(value):
                below = (*path, number)
                if (origin := self.origin(below)) is not None:
                    self.layer.origins[below] = origin
                items.append(self._table(item, of.table, below) if isinstance(item, Mapping) else item)
            return items
        if of.kind == "map" and isinstance(value, Mapping):
            for key in value:
                if (origin := self.origin((*path, key))) is not None:
                    self.layer.origins[(*path, key)] = origin
        return value


def _unknown(key: str, at: Path, known: Mapping[str, str]) -> tuple[str, Path]:
    """The sentence about an unknown key, and the setting that was probably meant. ``known``: each key there with its
    setting."""
    if removed := REMOVED.get((*at, key)):
        return removed, (*at, key)
    elsewhere = [path for path, of in walk(Settings) if path[-1] == key and of.kind != "table"]
    elsewhere.sort(key=lambda path: path[: len(at)] != at)  # names below this table first
    if near := get_close_matches(key, known, 1, _NEAR if not elsewhere else _VERY_NEAR):
        return f'is no setting; did you mean "{dotted((*at, near[0]))}"?', (*at, known[near[0]])
    if elsewhere:
        return f'is no setting; did you mean "{dotted(elsewhere[0])}"?', elsewhere[0]
    where = f"[{dotted(at)}]" if at else "the top level"
    return f"is no setting; {where} knows {', '.join(known)}", (*at, key)


class FileSource(LayerSource):
    """The TOML file. ``shown`` is its name in messages."""

    def __init__(self, path: FilePath, shown: str) -> None:
        """``shown`` is the file's name in messages."""
        super().__init__()
        self._shown = shown
        self._lines: dict[Path, int] = {}
        try:
            data = read_at_most(path, _LARGEST_FILE)
        except OSError as error:
            self._fail(f"cannot be read: {error.strerror or error}; is the path right, and may this user read it?")
            return
        except ValueError as error:
            self._fail(f"cannot be read: {error}")
            return
        try:
            text = data.decode("utf-8-sig")
            raw = tomllib.loads(text)
        except UnicodeDecodeError as error:
            self._fail(f"is not UTF-8 text at byte {error.start}; TOML files are")
        except (ValueError, RecursionError) as error:  # TOMLDecodeError, too long numbers, too deep nesting
            hint = "; a text stands in quotes" if "Invalid value" in str(error) else ""
            self._fail(f"is not valid TOML: {error}{hint}")
        else:
            self._lines = line_numbers(text)
            self.read(raw)

    def _fail(self, sentence: str) -> None:
        self.refuse((), sentence, Origin("file", self._shown))

    def origin(self, path: Path) -> Origin:
        """The line of the value, or of the nearest table or key around it."""
        while path:
            if path in self._lines:
                return Origin("file", f"{self._shown}:{self._lines[path]}")
            path = path[:-1]
        return Origin("file", self._shown)


class _TextSource(LayerSource):
    """A source with texts under flat names."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[Path, Origin] = {}

    def origin(self, path: Path) -> Origin | None:
        """Where the value, or the nearest table around it, was given; None for neither."""
        while path:
            if path in self._places:
                return self._places[path]
            path = path[:-1]
        return None

    def take(self, found: list[tuple[Path, Field, str | FileSecret, Origin]]) -> None:
        """Read texts: whole tables first, so that single values add to them."""
        raw: dict[str, Any] = {}
        for path, of, text, origin in sorted(found, key=lambda one: len(one[0])):
            self._places[path] = origin
            try:
                value = text if isinstance(text, FileSecret) else _decode(text, of, secret_file=path[-1] != of.name)
            except ValueError as error:
                self.refuse(path, str(error))
                continue
            _put(raw, path, value)
        self.read(raw)


class EnvironmentSource(_TextSource):
    """``GATEWAY_*`` variables. An empty one counts as unset, because compose files cannot omit one."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__()
        known = environment_names(Settings)
        found: list[tuple[Path, Field, str | FileSecret, Origin]] = []
        for name in sorted(environ):
            text = environ[name]
            if not name.upper().startswith(PREFIX) or name in RESERVED:
                continue
            origin = Origin("environment", name)
            if name in known:
                if text:
                    path, of = known[name]
                    found.append((path, of, text, origin))
            elif not _SERVICE_LINK.fullmatch(f"{name}={text}"):
                sentence, meant = _unknown_name(name)
                self.refuse((), sentence, origin, meant)
        self.take(found)


def _unknown_name(name: str) -> tuple[str, Path]:
    """The sentence about an unknown variable, and the setting that was probably meant."""
    for removed, sentence in REMOVED.items():
        if name.upper() == environment_name(removed):
            return sentence, removed
    for path, of in walk(Settings):
        whole = environment_name(path)
        if of.kind in {"list", "map", "tables"} and name.upper().startswith(f"{whole}_"):
            return f"is no setting; give all of {dotted(path)} at once, as JSON in {whole}", path
    known = {one: (*path[:-1], of.name) for one, (path, of) in environment_names(Settings).items()}
    near = get_close_matches(name.upper(), [*known, *RESERVED], 1, _NEAR)
    if not near:
        return "is no setting; `gateway config reference` lists all names", (name,)
    return f"is no setting; did you mean {near[0]}?", known.get(near[0], (name,))


class SecretsDirectorySource(_TextSource):
    """A folder with one file for each value, as containers mount secrets: ``mqtt__password`` holds ``mqtt.password``.

    Other programs' files are ignored, but names similar to a setting's are refused. Settings of the top level are not
    read: a file called ``worker`` may be another program's.
    """

    def __init__(self, folder: FilePath) -> None:
        super().__init__()
        known = {
            DELIMITER.join(map(str, path)): (path, of)
            for path, of in walk(Settings)
            if of.kind in {"secret", "value"} and len(path) > 1
        }
        found: list[tuple[Path, Field, str | FileSecret, Origin]] = []
        try:
            files = sorted(folder.iterdir())
        except OSError as error:
            named = Origin("environment", "GATEWAY_SECRETS_DIR")
            self.refuse((), f"the folder {folder} cannot be read: {error.strerror}", named)
            files = []
        for file in files:
            name = file.name.lower()
            origin = Origin("secrets directory", str(file))
            if name in known:
                path, of = known[name]
                try:
                    text = read_secret(file)
                    found.append((path, of, FileSecret(text, file) if of.kind == "secret" else text, origin))
                except ValueError as error:
                    self.refuse(path, str(error), origin)
            elif not name.startswith(".") and (near := get_close_matches(name, known, 1, _VERY_NEAR)):
                self.refuse((), f'is no setting; did you mean "{near[0]}"?', origin, known[near[0]][0])
        self.take(found)


class OverrideSource(LayerSource):
    """Values of a command's options: nested, or with dotted keys (``{"mqtt.sessions": 1}``)."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__()
        raw: dict[str, Any] = {}
        for key, value in values.items():
            _put(raw, tuple(key.split(".")), value)
        self.read(raw)

    def origin(self, path: Path) -> Origin:
        del path
        return Origin("override", "command line")


def _decode(text: str, of: Field, *, secret_file: bool) -> Any:
    """The value of a text, as TOML would give it: JSON for tables and maps, JSON or commas for lists. Raises
    ValueError."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8 text") from None
    if secret_file or of.kind in {"value", "secret"}:
        return text
    if of.kind == "list" and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        wanted = "an array" if of.kind in {"list", "tables"} else "an object"
        raise ValueError(f"must be JSON, {wanted}: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("must be JSON, nested less deeply") from None


def _put(raw: dict[str, Any], path: Path, value: Any) -> None:
    """Set a nested value in ``raw``, replacing values that are no tables."""
    where = raw
    for step in path[:-1]:
        below = where.get(str(step))
        if not isinstance(below, dict):
            below = where[str(step)] = {}
        where = below
    last = str(path[-1])
    standing = where.get(last)
    if isinstance(standing, dict) and isinstance(value, Mapping):
        for key, one in value.items():
            _put(standing, (key,), one)
    else:
        where[last] = dict(value) if isinstance(value, Mapping) else value
