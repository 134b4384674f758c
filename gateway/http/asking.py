"""A command's question to the running process on this machine: a path of its HTTP port, with the settings' token."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from bridge.fresh_secret import fresh

if TYPE_CHECKING:
    from config.settings import HttpSettings, ServerTlsSettings

_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound
_LARGEST: Final = 256 * 1024 * 1024
_PIECE: Final = 1 << 16
_PATIENCE: Final = 5  # times the time-out, for a large answer that comes in pieces
_NO_CHECK_TIME: Final = 0x20_0000  # X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python has no name for


def address_of(settings: HttpSettings) -> str:
    """Host and port at which this machine reaches the port, as a URL has them."""
    host = _EVERYWHERE.get(settings.host, settings.host)
    return f"{f'[{host}]' if ':' in host else host}:{settings.port}"


def ask(settings: HttpSettings, path: str, *, timeout_s: float = 2.0) -> tuple[int, bytes]:
    """Status and body of the answer from the process with these settings. Blocks for a few times ``timeout_s`` at most.

    The token goes only to the holder of the key of ``http.tls``, never to another process on this port. Raises OSError
    without an answer, for another certificate, and for an answer that is no HTTP.
    """
    deadline = time.monotonic() + _PATIENCE * timeout_s
    host = _EVERYWHERE.get(settings.host, settings.host)
    headers = {"Accept": "*/*"}
    if settings.token is not None:
        headers["Authorization"] = f"Bearer {fresh(settings.token, 'http.token')}"
    with _connection(settings.tls, host, settings.port, timeout_s) as connection:
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, _read(answer, deadline)
        except http.client.HTTPException as error:
            raise OSError(f"what answers at {host}:{settings.port} does not speak HTTP") from error


def _read(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """The whole body. Raises OSError for one that is too long, too slow or cut off."""
    whole, body = answer.length or 0, bytearray()
    while piece := answer.read1(_PIECE):
        body += piece
        if len(body) > _LARGEST:
            raise OSError(f"the answer has more than {_LARGEST >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer does not come to its end")
    if len(body) < whole:  # http.client tells that of read() alone
        raise OSError("the answer was cut off")
    return bytes(body)


@contextlib.contextmanager
def _connection(
    tls: ServerTlsSettings | None, host: str, port: int, timeout_s: float
) -> Iterator[http.client.HTTPConnection]:
    """A connection to the port; with ``tls`` only to the holder of that certificate."""
    if tls is None:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    else:
        # The certificate must be that of the settings. Its name does not matter here, nor an expiry: doctor reports
        # that.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
        context.load_verify_locations(tls.certificate_file)
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    try:
        yield connection
    finally:
        connection.close()
