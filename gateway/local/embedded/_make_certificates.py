"""Makes the files of ``certificates.py`` inside a JVM.

Run as a script: ``_make_certificates.py JVM_LIBRARY DIRECTORY``, the password on standard input.
"""

from __future__ import annotations

import base64
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import jpype

_DAYS = "3650"


def main(jvm_library: str, directory: Path, password: str) -> None:
    """Write CA, server and client certificate; ``certificates.Certificates`` says which files."""
    jpype.startJVM(
        "-Xmx64m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "--add-exports=java.base/sun.security.tools.keytool=ALL-UNNAMED",
        jvmpath=jvm_library,
        classpath=[],
    )
    # keytool's code is in java.base, so it is there even in a runtime without the keytool command.
    keytool = jpype.JClass("sun.security.tools.keytool.Main")
    store_path = directory / "all.p12"
    common = ["-keystore", str(store_path), "-storetype", "PKCS12", "-storepass", password, "-keyalg", "EC"]
    common += ["-groupname", "secp256r1", "-validity", _DAYS, "-genkeypair"]
    authority = [
        "-alias",
        "ca",
        "-dname",
        "CN=Gateway development CA",
        "-ext",
        "bc:c=ca:true",
        "-ext",
        "ku:c=keyCertSign",
    ]
    server = ["-alias", "server", "-signer", "ca", "-dname", "CN=localhost", "-ext", "eku=serverAuth"]
    server += ["-ext", "san=dns:localhost,ip:127.0.0.1,ip:0:0:0:0:0:0:0:1"]
    client = ["-alias", "client", "-signer", "ca", "-dname", "CN=gateway-client", "-ext", "eku=clientAuth"]
    for special in (authority, server, client):
        keytool.main(jpype.JArray(jpype.JString)([*common, *special]))

    key_store, file_class = jpype.JClass("java.security.KeyStore"), jpype.JClass("java.io.File")
    secret = jpype.JString(password).toCharArray()
    store = key_store.getInstance(file_class(str(store_path)), secret)
    _write(directory / "ca.pem", _pem("CERTIFICATE", store.getCertificate("ca")))
    for name in ("server", "client"):
        chain = "".join(_pem("CERTIFICATE", certificate) for certificate in store.getCertificateChain(name))
        key = _pem("PRIVATE KEY", store.getKey(name, secret))
        _write(directory / f"{name}.crt", chain)
        _write(directory / f"{name}.key", key)
        _write(directory / f"{name}.pem", key + chain)

    keys = key_store.getInstance("PKCS12")
    keys.load(None, secret)
    keys.setKeyEntry("server", store.getKey("server", secret), secret, store.getCertificateChain("server"))
    _store(keys, directory / "server.p12", secret)
    trusted = key_store.getInstance("PKCS12")
    trusted.load(None, secret)
    trusted.setCertificateEntry("ca", store.getCertificate("ca"))
    _store(trusted, directory / "ca.p12", secret)
    store_path.unlink()


def _pem(kind: str, item: Any) -> str:
    body = "\n".join(textwrap.wrap(base64.b64encode(bytes(item.getEncoded())).decode(), 64))
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----\n"


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def _store(store: Any, path: Path, secret: Any) -> None:
    stream = jpype.JClass("java.io.FileOutputStream")(str(path))
    store.store(stream, secret)
    stream.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.stdin.read())
    sys.stdout.flush()
    os._exit(0)  # the JVM's own exit is not waited for: nothing is left to write
