"""One authenticated connection to a broker, with the end of its session.

aiokafka's connection lacks three things of SASL, each pinned by a test with a real broker:

- The life of the session (KIP-368). The answer to SaslAuthenticate has it, from ``connections.max.reauth.ms`` and the
  life of the token; aiokafka drops it. After that time the broker closes the connection at the next request. aiokafka
  cannot authenticate an open connection again, so another one must replace it (``bridge.kafka.client``).
- The refusal of a token. The broker sends it as a challenge (RFC 7628, 3.2.2), which aiokafka takes for success. The
  broker then closes the connection at the next request, without a reason.
- The presented token, so that its source can be told of a refusal.

It also lacks quotas (KIP-219). A broker answers at once with the time for which it will not read from this connection.
The time-out of later requests begins when the broker reads again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.admin import SaslAuthenticateRequest

from bridge.certificate import Validity, shown_by
from bridge.kafka.login import ShownToken

if TYPE_CHECKING:
    from bridge.ports import Credential

_PRODUCE = 0
_MUTES_SINCE = 6  # the version of Produce with KIP-219; older brokers wait before they answer
_CHALLENGE_ANSWER = b"\x01"  # a client's answer to a refusal, after which the broker sends an error (RFC 7628, 3.2.3)


class SessionConnection(AIOKafkaConnection):  # type: ignore[misc]
    """``AIOKafkaConnection`` that notes its session, and when the broker does not read from it.

    ``session_ends_ns`` is when the broker ends the session (monotonic), None if never or unknown; ``began_ns`` is its
    start. ``credential`` is the presented token, or None. ``certificate`` is the validity of the broker's certificate,
    None without TLS.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.began_ns = 0
        self.certificate: Validity | None = None
        self.session_ends_ns: int | None = None
        provider = self._sasl_oauth_token_provider
        self._shown = provider if isinstance(provider, ShownToken) else None
        self._patience_s: float = options.get("request_timeout_ms", 40_000) / 1000  # of a request
        self._stands = False
        self._muted_until_s = 0.0  # by the loop's clock
        self._limits: set[asyncio.Timeout] = set()  # of the requests under way

    @property
    def muted_s(self) -> float:
        """Seconds for which the broker will not read from this connection."""
        left_s: float = self._muted_until_s - self._loop.time()
        return max(0.0, left_s)

    async def connect(self) -> Any:
        made = await super().connect()
        self._stands, self._request_timeout = True, None
        return made

    def close(self, reason: Any = None, exc: Any = None) -> Any:
        """Close at once. Every request was awaited, so the buffers hold nothing useful. A clean close of TLS would wait
        for the broker's answer, perhaps beyond the end of the event loop."""
        writer = self._writer
        closed = super().close(reason, exc)
        if writer is not None:
            writer.transport.abort()
        return closed

    def send(self, request: Any, expect_response: bool = True) -> Any:
        if not self._stands:
            return self._send_noting(request, expect_response)
        answer = super().send(request, expect_response)
        return self._within_patience(answer) if expect_response else answer

    async def _within_patience(self, answer: Coroutine[Any, Any, Any]) -> Any:
        limit = asyncio.timeout_at(max(self._loop.time(), self._muted_until_s) + self._patience_s)
        self._limits.add(limit)
        try:
            async with limit:
                return await answer
        finally:
            self._limits.discard(limit)

    def _handle_frame(self, frame: bytes) -> None:
        answer = self._requests[0][2]
        super()._handle_frame(frame)
        if not answer.done() or answer.cancelled() or answer.exception() is not None:
            return
        throttle_ms = getattr(answer.result(), "throttle_time_ms", 0)
        if throttle_ms > 0 and self._versions.get(_PRODUCE, (0, 0))[1] >= _MUTES_SINCE:
            self._mute(throttle_ms / 1000)

    def _mute(self, seconds: float) -> None:
        self._muted_until_s = max(self._muted_until_s, self._loop.time() + seconds)
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(self._muted_until_s + self._patience_s)

    @property
    def credential(self) -> Credential | None:
        return None if self._shown is None else self._shown.credential

    async def _do_sasl_handshake(self) -> None:
        self.began_ns = time.monotonic_ns()
        try:
            await super()._do_sasl_handshake()
        except kafka_errors.SaslAuthenticationFailed:
            if self._shown is not None:
                self._shown.refused()
            raise

    async def _send_noting(self, request: Any, expect_response: bool) -> Any:
        """Send a request of the handshake and note what its answer says about the session."""
        response = await super().send(request, expect_response)
        if not isinstance(request, SaslAuthenticateRequest) or response.error_code != 0:
            return response
        if self._shown is not None and response.sasl_auth_bytes:
            response = await super().send(SaslAuthenticateRequest(_CHALLENGE_ANSWER))
            if response.error_code == 0:  # a broker that sends no error here
                raise kafka_errors.SaslAuthenticationFailed("the token was not accepted")
            return response
        lifetime_ms = getattr(response, "session_lifetime_ms", 0)
        if lifetime_ms > 0:
            self.session_ends_ns = time.monotonic_ns() + lifetime_ms * 1_000_000
        return response


async def open_connection(host: str, port: int, **options: Any) -> SessionConnection:
    """As ``aiokafka.conn.create_conn``, for this kind of connection. Raises OSError, TimeoutError and KafkaError."""
    connection = SessionConnection(host, port, **options)
    await connection.connect()
    secured = connection._writer.get_extra_info("ssl_object")
    connection.certificate = None if secured is None else shown_by(secured)
    return connection
