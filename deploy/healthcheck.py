"""Asks the gateway in this container how it is: ``healthcheck.py [/healthz | /readyz] [auth]``, status 0 for yes.

With ``auth`` it is the service that EMQX asks, `gateway auth serve`. Standard library only and no settings machinery,
because it runs every few seconds: the port is looked up where the gateway itself would find it, in the environment and
then in the TOML file. Both paths are open: no token is needed. With `http.tls` the port speaks TLS; whose certificate
it is does not matter on the way to this container's own process.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 3.0


# Which table says where, its names for host and port, and the port unless told.
WHERE = {"gateway": ("http", "host", "port", 9464), "auth": ("auth", "operator_host", "operator_port", 9465)}


def address(environ: Mapping[str, str], process: str = "gateway") -> tuple[str, int]:
    """Host and port to ask: the process's own, with "every interface" replaced by loopback."""
    name, host_key, port_key, usual_port = WHERE[process]
    table = _table(environ, name)
    prefix = f"GATEWAY_{name.upper()}__"
    host = environ.get(prefix + host_key.upper()) or table.get(host_key, "127.0.0.1")
    port = environ.get(prefix + port_key.upper()) or table.get(port_key, usual_port)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port)  # noqa: S104 - compared, not bound


def encrypted(environ: Mapping[str, str]) -> bool:
    """Whether the port speaks TLS: `http.tls` is there, which every process of the gateway's shares."""
    whole = environ.get("GATEWAY_HTTP__TLS")
    tls = json.loads(whole) if whole else _table(environ, "http").get("tls")
    return bool(tls or environ.get("GATEWAY_HTTP__TLS__CERTIFICATE_FILE"))  # a variable may say null: none


def _table(environ: Mapping[str, str], name: str) -> dict[str, Any]:
    """A table of the file, with what the secrets directory and then the table's own variable have of it."""
    found: dict[str, Any] = {}  # everything may come from the environment
    with contextlib.suppress(FileNotFoundError):
        text = Path(environ.get("GATEWAY_CONFIG") or "gateway.toml").read_text("utf-8-sig")  # as the gateway reads it
        found |= tomllib.loads(text).get(name, {})
    if folder := environ.get("GATEWAY_SECRETS_DIR"):
        for file in Path(folder).iterdir():
            table, _, key = file.name.lower().partition("__")
            if table == name and key:
                found[key.partition("__")[0]] = file.read_text().strip()
    found |= json.loads(environ.get(f"GATEWAY_{name.upper()}") or "{}")
    return found


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    """Prints the answer's first line; 0 if it was 200, 1 for anything else."""
    path = arguments[0] if arguments else "/healthz"
    where = address(environ, *arguments[1:2])
    connection = http.client.HTTPConnection(*where, timeout=TIMEOUT_SECONDS)
    if encrypted(environ):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(*where, timeout=TIMEOUT_SECONDS, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        print(answer.status, answer.read(500).decode(errors="replace").partition("\n")[0])
    except (OSError, http.client.HTTPException) as error:
        print(f"{path}: {error}")
        return 1
    finally:
        connection.close()
    return 0 if answer.status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
