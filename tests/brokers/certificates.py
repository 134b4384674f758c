"""The files with which a broker's TLS listeners start and its clients trust them, of an authority of their own."""

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12

from tests.servers.authority import Authority

PASSWORD = "opens the PKCS12 file"
_LEFT = dt.timedelta(days=3650)


@dataclass(frozen=True)
class Certificates:
    """PEM files, but for the last. The server is localhost and 127.0.0.1."""

    ca_file: Path
    server_certificate: Path
    server_key: Path
    client_certificate: Path
    client_key: Path
    server_pem: Path
    """Key and certificates in one file, as Kafka takes them."""
    server_keystore: Path
    """PKCS12, as Java servers take it."""


def make_certificates(directory: Path) -> Certificates:
    """Make them in ``directory``, which must not be there."""
    directory.mkdir(mode=0o700)
    authority = Authority(directory)
    server, client = authority.issue("server", left=_LEFT), authority.issue("client", left=_LEFT)
    made = Certificates(
        authority.ca_file, server.certificate, server.key, client.certificate, client.key,
        directory / "server.pem", directory / "server.p12",
    )  # fmt: skip
    key, own, ca = (file.read_bytes() for file in (server.key, server.certificate, authority.ca_file))
    made.server_pem.write_bytes(key + own + ca)
    private = serialization.load_pem_private_key(key, None)
    leaf, root = x509.load_pem_x509_certificate(own), x509.load_pem_x509_certificate(ca)
    sealed = serialization.BestAvailableEncryption(PASSWORD.encode())
    made.server_keystore.write_bytes(
        pkcs12.serialize_key_and_certificates(b"server", private, leaf, [root], sealed)  # type: ignore[arg-type]
    )
    return made
