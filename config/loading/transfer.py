"""Checked settings on their way to another process of ours: text that holds every value, secrets included.

A worker must run with what its supervisor has checked, also when the file has changed since. So it gets the values,
not the file's name. Only what somebody has set travels: a worker whose code is newer than its supervisor's (the package
was upgraded between) fills in its own defaults.
"""

from __future__ import annotations

__all__ = ["from_json", "to_json"]

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from config.errors import ConfigError
from config.settings import Settings
from config.values.grammar import format_duration
from config.values.secret_files import FileSecret

_FILE, _VALUE = "$secret_file", "$secret"  # no setting, header or option has such a name


def to_json(settings: Settings) -> str:
    """The settings as one line. It holds secrets in clear: for a pipe between two processes, never for a file."""
    return json.dumps(_plain(settings), ensure_ascii=False)


def from_json(text: str) -> Settings:
    """The settings that ``to_json`` was given. Relations between them are not checked again.

    Raises ConfigError when this code does not know them: another version wrote them.
    """
    try:
        return Settings(**json.loads(text, object_hook=_secret))
    except (ValueError, TypeError, ValidationError) as error:
        where = ""
        if isinstance(error, ValidationError):  # its own text may hold values
            where = ", ".join(".".join(map(str, one["loc"])) for one in error.errors(include_input=False))
        raise ConfigError(
            f"The supervisor's settings cannot be used by this worker ({where or type(error).__name__}): the package "
            "was replaced by one that does not know them. Stop the gateway and start it again."
        ) from None


def _secret(table: dict[str, Any]) -> Any:
    if table.keys() == {_FILE, _VALUE}:
        return FileSecret(table[_VALUE], Path(table[_FILE]))
    return table


def _plain(value: Any) -> Any:
    match value:
        case FileSecret():  # with its file: the worker reads it again when it connects again
            return {_FILE: str(value.file), _VALUE: value.get_secret_value()}
        case BaseModel():
            return {name: _plain(getattr(value, name)) for name in sorted(value.model_fields_set)}
        case SecretStr():
            return value.get_secret_value()
        case timedelta():
            return format_duration(value)
        case Path():
            return str(value)
        case tuple() | list():
            return [_plain(one) for one in value]
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case _:
            return value
