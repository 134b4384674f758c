"""Checks for missing packages and unreadable files before the service starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from config.errors import ConfigError
from config.extras import require

if TYPE_CHECKING:
    from config.loading.load import Loaded
    from config.settings import AuthSettings

# Module names, and the packages that have them.
_ALWAYS: Final = {"argon2": "argon2-cffi", "bcrypt": "bcrypt"}
_BACKENDS: Final = {
    "jwt": {"jwt": "PyJWT", "cryptography": "cryptography"},
    "postgresql": {"asyncpg": "asyncpg"},
    "mysql": {"aiomysql": "aiomysql", "pymysql": "PyMySQL"},
    "redis": {"redis": "redis"},
}


def require_servable(loaded: Loaded) -> None:
    """Raise ConfigError if missing packages or unreadable files keep ``gateway auth serve`` from starting with these
    settings. Connects to nothing."""
    settings = loaded.settings.auth
    require_packages(settings)
    problems = []
    for path, file in _files(settings):
        if reason := _unreadable(file):
            problems.append(f"{path} ({loaded.origin(path)}): the file cannot be read: {reason}")
    if problems:
        raise ConfigError(*problems)
    if settings.tls is not None:
        from gateway.http.tls import TlsContext

        TlsContext(settings.tls)


def require_packages(settings: AuthSettings) -> None:
    """Raise ConfigError if a package of the service is missing. The gateway itself does not need them."""
    wanted = dict(_ALWAYS)
    for name in settings.chain:
        wanted |= _BACKENDS.get(name, {})
    require("The service", wanted, "auth")


def _files(settings: AuthSettings) -> Iterator[tuple[str, Path]]:
    tls = settings.tls
    if tls is not None:
        yield "auth.tls.certificate_file", tls.certificate_file
        if tls.key_file is not None:
            yield "auth.tls.key_file", tls.key_file
        if tls.client_ca_file is not None:
            yield "auth.tls.client_ca_file", tls.client_ca_file
    if settings.users_file is not None and "users_file" in settings.chain:
        yield "auth.users_file.file", settings.users_file.file


def _unreadable(file: Path) -> str:
    """Why ``file`` cannot be read, or an empty text. Without its name, which may be a secret given by mistake."""
    try:
        with file.open("rb"):
            return ""
    except (OSError, ValueError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or "no valid path"
