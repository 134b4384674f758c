"""Asks the gateway in this container how it is: ``healthcheck.py [/healthz | /readyz]``, status 0 for yes.

Standard library only and no settings machinery, because it runs every few seconds: the port is looked up where the
gateway itself would find it, in the environment and then in the TOML file.
"""

from __future__ import annotations

__all__ = ["address", "main"]

import http.client
import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_SECONDS = 3.0


def address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port to ask: the gateway's own, with "every interface" replaced by loopback."""
    table = {}
    try:
        with Path(environ.get("GATEWAY_CONFIG", "gateway.toml")).open("rb") as file:
            table = tomllib.load(file).get("http", {})
    except FileNotFoundError:
        pass  # everything may come from the environment
    host = environ.get("GATEWAY_HTTP__HOST") or table.get("host", "127.0.0.1")
    port = environ.get("GATEWAY_HTTP__PORT") or table.get("port", 9464)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port)  # noqa: S104 - compared, not bound


def main(arguments: list[str], environ: Mapping[str, str]) -> int:
    """Prints the answer's first line; 0 if it was 200, 1 for anything else."""
    path = arguments[0] if arguments else "/healthz"
    connection = http.client.HTTPConnection(*address(environ), timeout=TIMEOUT_SECONDS)
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
