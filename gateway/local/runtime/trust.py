"""A trust store for Java from this machine's PEM certificates.

Java does not read the PEM bundle other programs use. A JKS file is simple enough to write here, and needs neither
keytool (a run per certificate, 140 of them) nor another dependency. It holds public certificates only.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.local.runtime.java import Java

_PASSWORD = "changeit"  # noqa: S105 - Java's own default; it seals a list of public certificates
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def trust_store_options(java: Java, directory: Path) -> list[str]:
    """JVM flags that make ``java`` trust what this machine trusts; empty where its own store already does.

    A bundle named by SSL_CERT_FILE or REQUESTS_CA_BUNDLE is used with any Java. Without one, an installed Java is
    left to its administrator, and the wheel, which brings a store that nobody here has added to, gets the system's
    bundle.
    """
    bundle = _named_bundle() or (_system_bundle() if java.source == "wheel" else None)
    if bundle is None:
        return []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=bundle)
    except (OSError, ssl.SSLError):  # no certificates in it; Java's own store is then the better guess
        return []
    store = directory / "trust.jks"
    store.write_bytes(jks(context.get_ca_certs(binary_form=True)))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]


def jks(certificates: Iterable[bytes], password: str = _PASSWORD) -> bytes:
    """A Java key store of trusted certificates (DER). Layout: ``sun.security.provider.JavaKeyStore``."""
    entries = []
    for number, der in enumerate(certificates):
        alias = f"ca{number}".encode()
        entries.append(
            struct.pack(">IH", 2, len(alias))
            + alias
            + struct.pack(">QH", 0, 5)
            + b"X.509"
            + struct.pack(">I", len(der))
            + der
        )
    body = struct.pack(">III", 0xFEEDFEED, 2, len(entries)) + b"".join(entries)
    seal = hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + body)  # noqa: S324 - the format's own, guards nothing
    return body + seal.digest()


def _named_bundle() -> Path | None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if (value := os.environ.get(name)) and Path(value).is_file():
            return Path(value)
    return None


def _system_bundle() -> Path | None:
    default = ssl.get_default_verify_paths().cafile
    for path in (default, *_BUNDLES):
        if path and Path(path).is_file():
            return Path(path)
    return None
