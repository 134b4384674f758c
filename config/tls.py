"""The TLS table that every side has which connects to something."""

__all__ = ["TlsSettings"]

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from config.values.model import Table


class TlsSettings(Table):
    ca_file: Path | None = None
    """PEM file with the certificate authorities that may have signed the broker's certificate. Unset: the system's
    own, which is right for certificates bought from a public authority; a private authority has to be named here."""

    certificate_file: Path | None = None
    """PEM file with the client certificate and its chain, for a broker that asks for one. Unset: none is shown, which
    most brokers accept. Needs `key_file` unless the key stands in the same file."""

    key_file: Path | None = None
    """PEM file with the private key of `certificate_file`. Unset: the key is looked for in `certificate_file`."""

    key_password: SecretStr | None = None
    """Password of an encrypted private key. Unset: the key is not encrypted; an encrypted one then ends the start
    with an error instead of a prompt."""

    server_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The host name that the broker's certificate must carry, also sent as SNI. Unset: the host name of the address,
    which is right unless the broker is reached by an address or through a tunnel."""

    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest TLS version to accept. 1.2 because brokers in the field still speak it and it is not broken; "1.3"
    refuses them."""

    verify: bool = True
    """Whether the broker's certificate and host name are checked. Off, anybody on the way can read and change
    everything, the password included; it is there for a first try with a self-signed certificate, and every start
    warns of it."""
