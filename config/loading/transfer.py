"""Checked settings as text for another process of the gateway, secrets included.

A worker must use the settings that its supervisor has checked, also if the file has changed since. So it gets values,
not the file's name. Only values that were set are sent: a worker of a newer version than its supervisor uses its own
defaults.
"""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from config.errors import ConfigError
from config.settings import Settings
from config.values.grammar import format_duration
from config.values.secret_files import FileSecret

_FILE, _VALUE = "$secret_file", "$secret"  # not the name of any setting, header or option


def to_json(settings: Settings) -> str:
    """The settings as one line with readable secrets, for a pipe between two processes, never for a file."""
    return json.dumps(plain(settings), ensure_ascii=False)


def from_json(text: str) -> Settings:
    """The settings that ``to_json`` was given. Relations between them are not checked again.

    Raises ConfigError for unknown settings of another version.
    """
    try:
        return Settings(**json.loads(text, object_hook=_secret))
    except (ValueError, TypeError, ValidationError) as error:
        where = ""
        if isinstance(error, ValidationError):  # its text may contain values
            where = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise ConfigError(
            f"The supervisor's settings cannot be used by this worker ({where or type(error).__name__}): the package "
            "was replaced by one that does not know them. Stop the gateway and start it again."
        ) from None


def _secret(table: dict[str, Any]) -> Any:
    if table.keys() == {_FILE, _VALUE}:
        return FileSecret(table[_VALUE], Path(table[_FILE]))
    return table


def plain(value: Any) -> Any:
    """A value of a setting as JSON has it: durations and paths as text, secrets readable."""
    match value:
        case FileSecret():  # with its file, which the worker reads again at a reconnect
            return {_FILE: str(value.file), _VALUE: value.get_secret_value()}
        case BaseModel():
            found = dict(iter(value))  # no attributes: an option of an interceptor may have the name of a method
            return {name: plain(found[name]) for name in sorted(value.model_fields_set)}
        case SecretStr():
            return value.get_secret_value()
        case timedelta():
            return format_duration(value)
        case Path():
            return str(value)
        case tuple() | list():
            return [plain(one) for one in value]
        case dict():
            return {key: plain(one) for key, one in value.items()}
        case _:
            return value
