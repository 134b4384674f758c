"""A question to an HTTP port of this machine."""

import http.client
from collections.abc import Mapping


def exchange(
    port: int,
    path: str,
    method: str = "GET",
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 20.0,
) -> tuple[int, str, bytes]:
    """Status, headers as text, and body. Raises OSError or http.client.HTTPException when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, str(answer.headers), answer.read()
    finally:
        connection.close()


def get(port: int, path: str, timeout_s: float = 20.0) -> tuple[int, str]:
    """Status and body."""
    status, _, body = exchange(port, path, timeout_s=timeout_s)
    return status, body.decode()
