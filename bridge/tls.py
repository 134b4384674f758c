"""TLS contexts from settings, for both sides."""

from __future__ import annotations

__all__ = ["tls_context"]

import ssl
from typing import TYPE_CHECKING, Any

from config.errors import ConfigError

if TYPE_CHECKING:
    from config.settings import TlsSettings

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class _NamedContext(ssl.SSLContext):
    """Sends and verifies ``server_name`` whatever host the connection goes to: paho and aiokafka always pass the
    host."""

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
    """A client context that follows the settings. ``where`` names their place ("mqtt.tls"). Reads files; raises
    ConfigError."""
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
            f"{where}.ca_file {settings.ca_file} cannot be used ({error}). "
            "It must be a readable PEM file with the CA's certificate."
        ) from error
    if settings.certificate_file is not None:
        password = settings.key_password.get_secret_value() if settings.key_password is not None else ""
        try:
            # A callable, so that OpenSSL never asks for a passphrase on the terminal.
            context.load_cert_chain(settings.certificate_file, settings.key_file, lambda: password)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{where}.certificate_file {settings.certificate_file} with key_file {settings.key_file} cannot be "
                f"used ({error}). Check that both are readable PEM files, that the key belongs to the certificate, "
                f"and {where}.key_password."
            ) from error
    return context
