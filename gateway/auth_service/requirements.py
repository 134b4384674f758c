"""What the service needs beyond settings that are right: packages, and files that can be read."""

from __future__ import annotations

__all__ = ["require_packages", "require_servable"]

from typing import TYPE_CHECKING, Final

from config.errors import ConfigError
from config.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from config.loading.load import Loaded
    from config.settings import AuthSettings

# Module names, and the packages that have them.
_ALWAYS: Final = {"argon2": "argon2-cffi", "bcrypt": "bcrypt", "httptools": "httptools"}
_BACKENDS: Final = {
    "jwt": {"jwt": "PyJWT", "cryptography": "cryptography"},
    "postgresql": {"asyncpg": "asyncpg"},
    "mysql": {"aiomysql": "aiomysql", "pymysql": "PyMySQL"},
    "redis": {"redis": "redis"},
}


def require_servable(loaded: Loaded) -> None:
    """Raise ConfigError unless ``gateway auth serve`` can start here with these settings, as far as can be seen without
    connecting to anything: packages that are missing, files that cannot be read."""
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
    """Raise ConfigError when a package is missing that the service needs; the gateway itself does without them."""
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
    """Why ``file`` cannot be read, or nothing. Not its name: somebody may have written the key itself there."""
    try:
        with file.open("rb"):
            return ""
    except (OSError, ValueError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or "no valid path"
