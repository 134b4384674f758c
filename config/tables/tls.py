"""TLS settings: of connections that the gateway makes, and of ports that it serves."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.values.model import Table


class TlsSettings(Table):
    ca_file: Path | None = None
    """PEM file with the certificate authorities that may sign the server's certificate. Unset: the system's own."""

    certificate_file: Path | None = None
    """PEM file with the client certificate and its chain. Unset: none is sent."""

    key_file: Path | None = None
    """PEM file with the private key of `certificate_file`. Unset: the key is in `certificate_file`."""

    key_password: SecretStr | None = None
    """Password of an encrypted private key."""

    server_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Host name that the server's certificate must carry, also sent as SNI. Unset: the host of the address."""

    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """Oldest TLS version to accept; many servers still use 1.2."""

    verify: bool = True
    """Whether the server's certificate and host name are checked. Off, for a first try with a self-signed certificate:
    anybody on the network path can read and change everything, the password included. Every start warns of it."""


class ServerTlsSettings(Table):
    certificate_file: Path
    """PEM file with the server's certificate and its chain. All files of this table are read again when they change."""

    key_file: Path | None = None
    """PEM file with the private key. Unset: the key is in `certificate_file`."""

    key_password: SecretStr | None = None
    """Password of an encrypted private key."""

    client_ca_file: Path | None = None
    """PEM file with the authorities that sign client certificates (mutual TLS). Set: only a client with such a
    certificate is answered; the operator's port also answers to `http.token`, and `/healthz` and `/readyz` to all."""
