"""A certificate authority of our own for the embedded brokers' TLS listeners.

Made by keytool's code inside a JVM that JPype starts: a runtime may come without the ``keytool`` command, keytool
cannot write a private key as PEM, and a Java is here anyway, so neither openssl nor another dependency is needed.
"""

from __future__ import annotations

__all__ = ["Certificates", "make_certificates"]

import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gateway.local.runtime.cache import locked
from gateway.local.runtime.errors import StartError
from gateway.local.runtime.java import ensure_java

_SCRIPT = Path(__file__).with_name("_make_certificates.py")


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files of one authority: valid ten years, EC P-256; the server is ``localhost``, 127.0.0.1 and ::1.

    The client certificate's common name is ``gateway-client``.
    """

    directory: Path
    password: str
    """Of the two PKCS12 files."""

    @property
    def ca_file(self) -> Path:
        """The authority's certificate, PEM: what a client trusts."""
        return self.directory / "ca.pem"

    @property
    def server_certificate(self) -> Path:
        return self.directory / "server.crt"

    @property
    def server_key(self) -> Path:
        return self.directory / "server.key"

    @property
    def server_pem(self) -> Path:
        """Key and certificates in one file, as Kafka takes them."""
        return self.directory / "server.pem"

    @property
    def server_keystore(self) -> Path:
        """PKCS12, as Java servers take it."""
        return self.directory / "server.p12"

    @property
    def truststore(self) -> Path:
        """The authority's certificate as PKCS12."""
        return self.directory / "ca.p12"

    @property
    def client_certificate(self) -> Path:
        return self.directory / "client.crt"

    @property
    def client_key(self) -> Path:
        return self.directory / "client.key"


def make_certificates(directory: Path) -> Certificates:
    """The certificates in ``directory``, made on first use (1 s, blocking). Raises StartError or JavaError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    password_file = directory / "password"
    with locked(directory / "lock"):
        if not password_file.exists():  # written last
            password = secrets.token_urlsafe(12)
            java = ensure_java()
            answer = subprocess.run(
                [sys.executable, "-P", _SCRIPT, java.jvm_library, directory],
                capture_output=True,
                text=True,
                check=False,
                input=password,  # not an argument, which everybody can read
            )
            if answer.returncode != 0:
                raise StartError(f"Certificates could not be made: {(answer.stderr or answer.stdout).strip()[-800:]}")
            password_file.touch(mode=0o600)
            password_file.write_text(password)
    return Certificates(directory, password_file.read_text())
