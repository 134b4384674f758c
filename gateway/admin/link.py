"""One connection to one broker, with a time-out for each question.

kafka-python's network layer is not used. Its bootstrap waits for one random broker for the whole time, so one frozen
broker of three ends every third command. It also logs failures instead of raising them. Its messages
(``kafka.protocol``) and logins (``kafka.net.sasl``) are used.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from bridge.tls import distrust
from config.error_words import words
from gateway.admin.errors import (
    AdminRefusedError,
    AdminUnsupportedError,
    BrokerSilentError,
    BrokerUnreachableError,
)
from gateway.admin.protocol import KafkaProtocol, kafka_errors, metadata_api, sasl_api

if TYPE_CHECKING:
    from gateway.admin.login import AdminLogin

_UNSUPPORTED_VERSION: Final = 35
_READ_BYTES: Final = 1 << 16
_FRAME_BYTES: Final = 256 << 20  # a larger answer is taken for garbage


class Link:
    """A connection that is made when first needed, and again after it broke.

    One question at a time; a second thread waits for the first. ``close`` may be called from any thread and ends a
    waiting question. ``name`` is the broker's name in messages.
    """

    def __init__(self, host: str, port: int, name: str, login: AdminLogin, client_id: str) -> None:
        self.host, self.port, self.name = host, port, name
        self._login = login
        self._client_id = client_id
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._protocol: Any = None
        self._closed = False
        self.versions: dict[int, tuple[int, int]] = {}  # lowest and highest by api key; empty until connected

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def ask(self, request: Any, timeout_s: float, *, max_version: int | None = None, again: bool = True) -> Any:
        """The answer to a message of kafka-python, in the newest version that both sides know. Blocks for at most
        ``timeout_s``, including the connection. With ``again`` the question may be sent twice, which happens when an
        idle connection turns out to be dead.

        Raises BrokerUnreachableError, BrokerSilentError, AdminRefusedError, AdminUnsupportedError.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise BrokerSilentError(f"{self.name} did not answer an earlier question within {timeout_s:g} s.")
        try:
            reused = self._socket is not None
            try:
                return self._ask_once(request, deadline, timeout_s, max_version)
            except BrokerUnreachableError:
                if not (reused and again) or self._closed:
                    raise
                return self._ask_once(request, deadline, timeout_s, max_version)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the connection and a waiting question. Never raises."""
        self._closed = True
        self._disconnect()

    def _ask_once(self, request: Any, deadline: float, timeout_s: float, max_version: int | None) -> Any:
        """One attempt of ``ask``; connects first if necessary. ``timeout_s`` is for the error's text alone."""
        try:
            if self._socket is None:
                self._connect(deadline)
            request.API_VERSION = self._version_for(request, max_version)
            return self._exchange(request, deadline)
        except TimeoutError as error:
            self._disconnect()
            raise BrokerSilentError(
                f"{self.name} did not answer within {timeout_s:g} s ({_what(request)}). A frozen or overloaded "
                "process still accepts connections: check its log and CPU, and restart it if it hangs."
            ) from error
        except (OSError, EOFError) as error:
            self._disconnect()
            raise BrokerUnreachableError(f"{self.name} {_cause(error, self._login.where)}") from error
        except (kafka_errors.KafkaProtocolError, ValueError, IndexError) as error:
            self._disconnect()
            raise BrokerUnreachableError(
                f"{self.name} does not answer as Kafka does. Check the port and {self._login.where}.security: "
                "does the listener use TLS?"
            ) from error

    def _version_for(self, request: Any, max_version: int | None) -> int:
        """The newest version of this request that both sides know, at most ``max_version``."""
        ours = request.max_version if max_version is None else min(max_version, request.max_version)
        low, high = self.versions.get(request.API_KEY, (0, -1))
        if high < 0 or low > ours:
            raise AdminUnsupportedError(f"{self.name} does not know {_what(request)}: its Kafka is too old.")
        return int(min(ours, high))

    # --- connecting ---

    def _connect(self, deadline: float) -> None:
        if self._closed:
            raise self._was_closed()
        raw = socket.create_connection((self.host, self.port), timeout=_left(deadline))
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._login.tls is not None:
                raw = self._login.tls.wrap_socket(raw, server_hostname=self.host)
        except BaseException:
            raw.close()
            raise
        self._socket = raw
        if self._closed:  # meanwhile: close may have looked before the socket was here
            self._socket = None
            raw.close()
            raise self._was_closed()
        self._protocol = KafkaProtocol(client_id=self._client_id, receive_message_max_bytes=_FRAME_BYTES)
        self._greet(deadline)
        if self._login.sasl is not None:
            self._log_in(deadline)

    def _was_closed(self) -> BrokerUnreachableError:
        return BrokerUnreachableError(f"The connection to {self.name} was closed.")

    def _greet(self, deadline: float) -> None:
        """Ask for the broker's versions. An old broker answers in version 0."""
        version = metadata_api.ApiVersionsRequest.max_version
        while True:
            request = greeting(version=version)
            answer = self._exchange(request, deadline)
            if answer.error_code != _UNSUPPORTED_VERSION or version == 0:
                break
            known = [key.max_version for key in answer.api_keys if key.api_key == request.API_KEY]
            version = min(known[0], version - 1) if known else 0
        if answer.error_code != 0:
            self._disconnect()
            raise BrokerUnreachableError(f"{self.name} refuses the connection: {_said(answer.error_code)}.")
        self.versions = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}

    def _log_in(self, deadline: float) -> None:
        sasl = self._login.sasl
        assert sasl is not None
        answer = self._exchange(sasl_api.SaslHandshakeRequest(version=1, mechanism=sasl.mechanism), deadline)
        if answer.error_code != 0:
            self._disconnect()
            raise AdminRefusedError(
                f"{self.name} does not know {sasl.mechanism}; it knows {', '.join(answer.mechanisms) or 'nothing'}. "
                f"Set {self._login.where}.sasl.mechanism to one of them."
            )
        mechanism = self._login.mechanism()
        high = self.versions.get(sasl_api.SaslAuthenticateRequest.API_KEY, (0, 0))[1]
        while not mechanism.is_done():
            request = sasl_api.SaslAuthenticateRequest(version=min(high, 2), auth_bytes=mechanism.auth_bytes())
            answer = self._exchange(request, deadline)
            said = answer.error_message or ""
            if answer.error_code == 0:
                try:
                    mechanism.receive(answer.auth_bytes)
                except (ValueError, KeyError) as error:
                    said = words(error)
                else:
                    continue
            self._disconnect()
            self._login.refused()
            raise AdminRefusedError(
                f"{self.name} does not let {self._login.who} in: {said or _said(answer.error_code)}. "
                f"{self._login.check}"
            )
        if not mechanism.is_authenticated():
            self._disconnect()
            self._login.refused()
            raise AdminRefusedError(f"{self.name} does not let {self._login.who} in. {self._login.check}")

    # --- bytes ---

    def _exchange(self, request: Any, deadline: float) -> Any:
        """Send a request and return its answer. Raises EOFError on a closed connection, TimeoutError, OSError."""
        connection, protocol = self._socket, self._protocol
        if connection is None:
            raise EOFError
        protocol.send_request(request)
        connection.settimeout(_left(deadline))
        connection.sendall(protocol.send_bytes())
        while True:
            connection.settimeout(_left(deadline))
            data = connection.recv(_READ_BYTES)
            if not data:
                raise EOFError
            for _, answer in protocol.receive_bytes(data):
                return answer

    def _disconnect(self) -> None:
        connection, self._socket = self._socket, None
        if connection is None:
            return
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def greeting(**options: Any) -> Any:
    """The question for a broker's versions."""
    return metadata_api.ApiVersionsRequest(
        client_software_name="mqtt-kafka-gateway", client_software_version="1", **options
    )


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _what(request: Any) -> str:
    return str(type(request).__name__.removesuffix("Request"))


def _said(code: int) -> str:
    return str(kafka_errors.for_code(code).message)


def _cause(error: BaseException, where: str) -> str:
    """The rest of a sentence after a broker's name. ``where``: the settings' table, "kafka" or "admin"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return distrust(error, f"{where}.tls")
    if isinstance(error, ssl.SSLError):
        return f"does not accept TLS ({words(error)}). Check that its listener uses TLS, and which version."
    if isinstance(error, socket.gaierror):
        return f"cannot be reached: {words(error)}. Check the name, and advertised.listeners of the broker."
    if isinstance(error, EOFError | ConnectionResetError | BrokenPipeError):
        return (
            "closed the connection. It may be stopping, or its listener requires TLS or a login that is not "
            f"configured here: check {where}.security."
        )
    if isinstance(error, ConnectionRefusedError):
        return "refuses connections. Is the broker running, and is this its address and port?"
    return f"cannot be reached ({words(error)}). Check the address, firewalls and advertised.listeners."
