"""Tests one address step by step: name, port, TLS and certificate, each with its duration."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bridge.certificate import Validity, shown_by
from config.error_words import words

Failure = Literal["name", "refused", "unreachable", "silent", "closed", "certificate", "tls"]


@dataclass(frozen=True, slots=True)
class Step:
    """The duration of a step; ``failure`` and ``detail`` have the reason of a failure."""

    seconds: float
    failure: Failure | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TlsStep:
    """TLS with the context of the settings. ``validity`` is that of the peer's certificate, accepted or not; None
    without a certificate."""

    step: Step
    version: str | None = None
    validity: Validity | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The measurements of ``host:port``. Steps after a failed one are None, as is ``tls`` without TLS."""

    host: str
    port: int
    name: Step
    ips: tuple[str, ...] = ()
    tcp: Step | None = None
    tls: TlsStep | None = None

    @property
    def reached(self) -> bool:
        if self.tcp is None or self.tcp.failure is not None:
            return False
        return self.tls is None or self.tls.step.failure is None


async def reach(
    host: str, port: int, timeout_s: float, context: Callable[[], ssl.SSLContext] | None = None
) -> Endpoint:
    """Resolve, connect and, with a ``context``, do the TLS handshake, each within ``timeout_s``. Never raises
    OSError."""
    loop, began = asyncio.get_running_loop(), time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return Endpoint(host, port, Step(time.monotonic() - began, "silent", "the resolver does not answer"))
    except (OSError, UnicodeError) as error:
        return Endpoint(host, port, Step(time.monotonic() - began, "name", words(error)))
    name = Step(time.monotonic() - began)
    ips = tuple(dict.fromkeys(str(one[4][0]) for one in found))
    tcp, tls = await _connect(host, port, timeout_s, context)
    return Endpoint(host, port, name, ips, tcp, tls)


async def _connect(
    host: str, port: int, timeout_s: float, context: Callable[[], ssl.SSLContext] | None
) -> tuple[Step, TlsStep | None]:
    """The step of connecting, and that of TLS: None without a ``context``, or if there is no connection."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return Step(time.monotonic() - began, "silent", f"no answer within {timeout_s:g} s"), None
    except OSError as error:
        return Step(time.monotonic() - began, _why_not(error), words(error)), None
    tcp = Step(time.monotonic() - began)
    try:
        return tcp, None if context is None else await _handshake(writer, host, timeout_s, context())
    finally:
        await _close(writer)


async def _handshake(writer: asyncio.StreamWriter, host: str, timeout_s: float, context: ssl.SSLContext) -> TlsStep:
    """The step of TLS; of a certificate that is not trusted also its validity."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            await writer.start_tls(context, server_hostname=host, ssl_handshake_timeout=timeout_s + 1)
    except TimeoutError:
        return TlsStep(Step(time.monotonic() - began, "silent", f"no answer within {timeout_s:g} s"))
    except ssl.SSLCertVerificationError as error:
        failed = Step(time.monotonic() - began, "certificate", error.verify_message)
        address = writer.get_extra_info("peername")
        return TlsStep(failed, None, await _look_without_trust(address, host, timeout_s, context))
    except ssl.SSLError as error:
        return TlsStep(Step(time.monotonic() - began, "tls", words(error)))
    except (OSError, EOFError) as error:
        return TlsStep(Step(time.monotonic() - began, "closed", words(error)))
    secured: Any = writer.get_extra_info("ssl_object")
    return TlsStep(Step(time.monotonic() - began), secured.version(), shown_by(secured))


async def _look_without_trust(address: Any, host: str, timeout_s: float, like: ssl.SSLContext) -> Validity | None:
    """The validity of a certificate that was not accepted. Nothing is sent over the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = like.minimum_version
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    name = getattr(like, "server_name", None) or host
    with contextlib.suppress(OSError, TimeoutError, EOFError):
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(*address[:2], ssl=context, server_hostname=name)
        try:
            return shown_by(writer.get_extra_info("ssl_object"))
        finally:
            await _close(writer)
    return None


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close at once: a frozen peer would not answer a clean close, and ``wait_closed`` hangs after an aborted TLS
    handshake."""
    writer.transport.abort()
    await asyncio.sleep(0)  # the loop closes it in its next turn


def _why_not(error: OSError) -> Failure:
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return "closed" if isinstance(error, ConnectionError) else "unreachable"
