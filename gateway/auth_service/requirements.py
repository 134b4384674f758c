"""Checks for missing packages and unreadable files before the service starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from config.errors import ConfigError
from config.extras import require
from config.loading.load import unreadable_files

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
    problems: list[str] = []
    if settings.tls is not None:
        problems += unreadable_files(loaded, settings.tls, ("auth", "tls"))
    for name in settings.chain:
        if name != "database":  # its file is made
            problems += unreadable_files(loaded, getattr(settings, name), ("auth", name))
    if problems:
        raise ConfigError(*problems)
    if settings.tls is not None:
        from gateway.http.tls import TlsContext

        TlsContext(settings.tls)
    if "ldap" in settings.chain:
        from auth.backends.ldap import LdapAuthenticator

        LdapAuthenticator(settings.ldap)  # judges the name and the filter


def require_packages(settings: AuthSettings) -> None:
    """Raise ConfigError if a package of the service is missing. The gateway itself does not need them."""
    wanted = dict(_ALWAYS)
    for name in settings.chain:
        wanted |= _BACKENDS.get(name, {})
    require("The service", wanted, "auth")
