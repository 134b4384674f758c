"""Why a server could not be reached, from errors of the system and TLS: one wording for all backends."""

import socket
import ssl
from collections.abc import Iterator

from auth.errors import DownCause
from bridge.tls import distrust
from config.error_words import words


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, nearest first: client libraries wrap the system's errors."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        waiting += (one.__cause__, one.__context__)


def network_cause(error: BaseException, table: str) -> tuple[DownCause, str] | None:
    """The class of a network failure, and the rest of a sentence that begins with the server's name; None for other
    errors. ``table`` is the settings' place ("auth.ldap")."""
    for one in causes(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            return "tls", distrust(one, f"{table}.tls").rstrip(".")
        if isinstance(one, ssl.SSLError):
            return "tls", (
                f"cannot be asked ({words(one)}): does it speak TLS on this port, and "
                f"does it ask for a client certificate ({table}.tls.certificate_file)?"
            )
        if isinstance(one, socket.gaierror):
            return "unreachable", "has a host name that does not resolve: check its spelling and DNS"
        if isinstance(one, ConnectionRefusedError):
            return "unreachable", "refuses connections: is it running, and is the port right?"
        if isinstance(one, ConnectionResetError | BrokenPipeError | ConnectionAbortedError | EOFError):
            return "lost", "closed the connection: was it stopped, or did a proxy in between close it?"
        if isinstance(one, TimeoutError) and one.errno is not None:
            return "unreachable", "cannot be reached (the network's time-out): check host, port and firewalls"
        if isinstance(one, OSError) and one.errno is not None:
            return "unreachable", f"cannot be reached ({words(one)}): check host, port and routes"
    return None
