"""Client TLS contexts from settings. They follow changes of their files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from bridge.certificate import Validity, validity
from bridge.fresh_secret import fresh
from config.error_words import words
from config.errors import ConfigError

if TYPE_CHECKING:
    from config.settings import Settings, TlsSettings

log = structlog.get_logger("credentials")

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


# <openssl/x509_vfy.h>
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAMES = (62, 64)  # host name, IP address


def distrust(error: ssl.SSLCertVerificationError, table: str) -> str:
    """The rest of a sentence after "the server …": the fault of its certificate, and what to do. ``table`` names the
    settings ("mqtt.tls")."""
    code = error.verify_code
    if code == _EXPIRED:
        return (
            "shows a certificate that has expired, or whose authority has expired. Renew it there, and compare the "
            "clocks: no setting of the gateway helps."
        )
    if code == _NOT_YET_VALID:
        return "shows a certificate that is not valid yet. Compare its machine's clock with this one's."
    check = f"{table}.server_name (the name that it carries)" if code in _OTHER_NAMES else f"{table}.ca_file"
    return f"shows a certificate that is not trusted ({error.verify_message}). Check {check}."


class _NamedContext(ssl.SSLContext):
    """Sends and verifies ``server_name`` for any host, because paho and aiokafka always pass the host."""

    server_name: str | None = None

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        if self.server_name is not None:
            kwargs["server_hostname"] = self.server_name
        return super().wrap_socket(*args, **kwargs)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        if self.server_name is not None:
            kwargs["server_hostname"] = self.server_name
        return super().wrap_bio(*args, **kwargs)


def tls_context(settings: TlsSettings, where: str) -> ssl.SSLContext:
    """A client context by the settings. ``where`` is their place ("mqtt.tls"). Reads files; raises ConfigError."""
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = settings.server_name
    context.minimum_version = _VERSIONS[settings.minimum_version]
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        if settings.ca_file is not None:
            context.load_verify_locations(settings.ca_file)
        else:
            context.load_default_certs()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{where}.ca_file {settings.ca_file} cannot be used ({words(error)}). "
            "It must be a readable PEM file with the CA's certificate."
        ) from error
    if settings.certificate_file is not None:
        password = fresh(settings.key_password, f"{where}.key_password") if settings.key_password is not None else ""
        try:
            # A callable, so that OpenSSL does not ask for a passphrase on the terminal.
            context.load_cert_chain(settings.certificate_file, settings.key_file, lambda: password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{where}.certificate_file {settings.certificate_file} with key_file {settings.key_file} cannot be "
                f"used ({words(error)}). Check that both are readable PEM files, that the key belongs to the "
                f"certificate, and {where}.key_password."
            ) from error
    return context


def client_tables(settings: Settings) -> dict[str, TlsSettings]:
    """The tables of client TLS that a connection uses, by their places ("mqtt.tls"), without those of ``auth``."""
    found: dict[str, TlsSettings] = {}
    if any(text.lower().startswith(("mqtts:", "wss:")) for text in settings.mqtt.addresses):
        found["mqtt.tls"] = settings.mqtt.tls
    tokens = {"mqtt.token": settings.mqtt.token}
    kafka, admin = settings.kafka, settings.admin
    for side, security, tls, sasl in (
        ("kafka", kafka.security, kafka.tls, kafka.sasl),
        ("admin", admin.security or "", admin.tls, admin.sasl),
    ):
        if security.endswith("SSL"):
            found[f"{side}.tls"] = tls
        tokens[f"{side}.sasl.token"] = sasl.token if sasl is not None else None
    for where, token in tokens.items():
        if token is not None and token.oauth is not None and token.oauth.token_url.lower().startswith("https:"):
            found[f"{where}.oauth.tls"] = token.oauth.tls
    if (settings.emqx.url or "").lower().startswith("https:"):
        found["emqx.tls"] = settings.emqx.tls
    return found


class TlsFiles:
    """A client context that follows its files. Ask for it before each connection.

    ``where`` names the table ("mqtt.tls"). Reads the files; raises ConfigError for unusable ones. Later unusable files
    (a certificate before its key is written) keep the last context. ``validity`` is that of the client certificate,
    None without one.
    """

    def __init__(self, settings: TlsSettings, where: str) -> None:
        self._settings = settings
        self._where = where
        files = [settings.ca_file, settings.certificate_file, settings.key_file]
        if settings.ca_file is None:  # the system's authorities change too
            system = ssl.get_default_verify_paths()
            files += [Path(place) for place in (system.cafile, system.capath) if place is not None]
        self._files = tuple(file for file in files if file is not None)
        self._stamps = self._look()  # of the files, as last read
        self._context = tls_context(settings, where)
        self.validity = self._validity()  # of the client certificate; None without one

    def context(self) -> ssl.SSLContext:
        """The context for a new connection. Checks the files' times, and reads changed files."""
        stamps = self._look()  # before reading: a change in between is then found the next time
        if stamps != self._stamps:
            try:
                self._context = tls_context(self._settings, self._where)
            except ConfigError as error:
                log.warning(
                    "tls_files_not_usable",
                    table=self._where,
                    problem=str(error),
                    consequence="the files that were read last are used; looked at again for the next connection",
                    repeat_key=self._where,
                )
            else:
                self._stamps = stamps
                self.validity = self._validity()
                log.info("tls_files_changed", table=self._where, files=[str(file) for file in self._files])
        return self._context

    def _validity(self) -> Validity | None:
        """The validity of the client certificate; None without one, or when it cannot be read."""
        if self._settings.certificate_file is None:
            return None
        try:
            return validity(self._settings.certificate_file)
        except ValueError as error:  # OpenSSL accepted the file
            log.warning("certificate_not_read", table=self._where, problem=str(error))
            return None

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(file) for file in self._files)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """A value that changes when a file is written or replaced (also by a link to another file, as in Kubernetes)."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
