"""The TLS of the gateway's own servers: a context made from files, and made again when they change."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from bridge.fresh_secret import fresh
from config.errors import ConfigError

if TYPE_CHECKING:
    from config.tables.tls import ServerTlsSettings

_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)


class TlsFilesError(ConfigError):
    """A certificate, a key or an authority that cannot be used; the sentence says which."""


class TlsContext:
    """The context for new connections. Existing connections keep theirs.

    ``where`` is the name of the table. With authorities of clients in it, a client certificate is required; with
    ``optional``, it is only verified if there is one.
    """

    def __init__(self, settings: ServerTlsSettings, where: str = "auth.tls", *, optional: bool = False) -> None:
        """Reads the files; blocks briefly. ``optional``: clients need no certificate. Raises TlsFilesError."""
        self._settings = settings
        self._where = where
        self._optional = optional
        self._refused: object = None  # the files that could not be used
        self._seen = self._signature()
        self.context = self._make()

    def refresh(self) -> bool | None:
        """Make the context again if a file has changed. True when done, None without a change. Blocks briefly.

        False when the new files cannot be used: the old context stays. They are tried again, because a chmod changes
        nothing of their signature. A certificate and its key are two files that change one after the other. Between the
        two changes they do not match.
        """
        signature = self._signature()
        if signature == self._seen:
            return None
        refused, self._refused = self._refused, signature
        try:
            self.context = self._make()
        except TlsFilesError as error:
            if signature != refused:
                _log.error(
                    "server_tls_not_reloaded",
                    table=self._where,
                    error=str(error),
                    consequence="the earlier certificate stays in use",
                )
            return False
        self._seen = signature
        _log.info("server_tls_reloaded", table=self._where)
        return True

    def following(self) -> ssl.SSLContext:
        """A context for asyncio's servers, which keep theirs: each handshake checks the files."""
        return _FollowingContext.of(self)

    def _signature(self) -> tuple[object, ...]:
        return tuple(_state_of(file) for file in _files(self._settings))

    def _make(self) -> ssl.SSLContext:
        """A context from the files as they are now. Raises TlsFilesError."""
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        password = ""
        if settings.key_password is not None:
            password = fresh(settings.key_password, f"{self._where}.key_password")
        try:
            # A password that is always given, or OpenSSL would ask the terminal for that of an encrypted key.
            context.load_cert_chain(settings.certificate_file, settings.key_file, password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise TlsFilesError(self._explain_pair(error)) from None
        if settings.client_ca_file is not None:
            context.verify_mode = ssl.CERT_OPTIONAL if self._optional else ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(settings.client_ca_file)
            except (OSError, ValueError) as error:
                raise TlsFilesError(
                    f"{self._where}.client_ca_file cannot be used: {_why(error)}. It has to be a PEM file with "
                    "certificates of authorities."
                ) from None
        return context

    def _explain_pair(self, error: OSError | ValueError) -> str:
        names = f"{self._where}.certificate_file"
        if self._settings.key_file is not None:
            names += f" and {self._where}.key_file"
        return (
            f"{names} cannot be used: {_why(error)}. Both have to be PEM, the key has to be the certificate's, and "
            f"{self._where}.key_password its password if it is encrypted."
        )


class _FollowingContext(ssl.SSLContext):
    """A context for asyncio; its handshakes use the present ``TlsContext``."""

    _source: TlsContext

    @classmethod
    def of(cls, source: TlsContext) -> _FollowingContext:
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made._source = source
        return made

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        self._source.refresh()
        return self._source.context.wrap_bio(*args, **kwargs)


def _files(settings: ServerTlsSettings) -> Iterator[Path]:
    for file in (settings.certificate_file, settings.key_file, settings.client_ca_file):
        if file is not None:
            yield file


def _state_of(file: Path) -> object:
    """What changes when a file, or that behind a link (as a mounted secret is one), is written or replaced."""
    try:
        found = os.stat(file)  # noqa: PTH116 - the result's fields are wanted, whatever the path is
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "OpenSSL cannot read it"
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    return "it cannot be read"
