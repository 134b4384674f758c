"""The TLS of the service: a context made from files, and made again when they change."""

from __future__ import annotations

__all__ = ["TlsContext", "TlsFilesError"]

import os
import ssl
from typing import TYPE_CHECKING

import structlog

from config.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from config.auth import AuthTlsSettings

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class TlsFilesError(ConfigError):
    """A certificate, a key or an authority that cannot be used; the sentence says which."""


class TlsContext:
    """The context for new connections. Connections that are there keep the one they began with."""

    def __init__(self, settings: AuthTlsSettings) -> None:
        """Reads the files; blocks briefly. Raises TlsFilesError."""
        self._settings = settings
        self._seen = self._signature()
        self.context = _make(settings)

    def refresh(self) -> bool | None:
        """Makes the context anew where a file has changed: True when done, None when nothing has changed, False when
        the new files cannot be used, and the old context stays. Blocks briefly.

        A certificate and its key are two files that change one after the other: between the two they do not fit, and
        the change of the second is noticed as one of its own.
        """
        signature = self._signature()
        if signature == self._seen:
            return None
        self._seen = signature
        try:
            self.context = _make(self._settings)
        except TlsFilesError as error:
            _log.error("auth_tls_not_reloaded", error=str(error), consequence="the earlier certificate stays in use")
            return False
        _log.info("auth_tls_reloaded")
        return True

    def _signature(self) -> tuple[object, ...]:
        return tuple(_state_of(file) for file in _files(self._settings))


def _files(settings: AuthTlsSettings) -> Iterator[Path]:
    for file in (settings.certificate_file, settings.key_file, settings.client_ca_file):
        if file is not None:
            yield file


def _state_of(file: Path) -> object:
    """What changes when a file is written or replaced; the file behind a link, as a mounted secret is one."""
    try:
        found = os.stat(file)  # noqa: PTH116 - the result's fields are wanted, whatever the path is
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _make(settings: AuthTlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    password = settings.key_password.get_secret_value() if settings.key_password is not None else ""
    try:
        # A password that is always given, or OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(settings.certificate_file, settings.key_file, password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise TlsFilesError(_explain_pair(settings, error)) from None
    if settings.client_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.client_ca_file)
        except (OSError, ValueError) as error:
            raise TlsFilesError(
                f"auth.tls.client_ca_file cannot be used: {_why(error)}. It has to be a PEM file with certificates of "
                "authorities."
            ) from None
    return context


def _explain_pair(settings: AuthTlsSettings, error: OSError | ValueError) -> str:
    where = "auth.tls.certificate_file"
    if settings.key_file is not None:
        where += " and auth.tls.key_file"
    return (
        f"{where} cannot be used: {_why(error)}. Both have to be PEM, the key has to be the certificate's, and "
        "auth.tls.key_password its password if it is encrypted."
    )


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "OpenSSL cannot read it"
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    return "it cannot be read"
