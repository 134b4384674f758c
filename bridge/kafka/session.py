"""One authenticated connection to a broker, which knows until when the broker takes it for authenticated.

aiokafka's own connection misses three things of SASL, each pinned by a test against a real broker:

- How long the session lives (KIP-368): the answer to SaslAuthenticate says it, from ``connections.max.reauth.ms`` and
  the token's life, and is thrown away. After that time the broker hangs up on the next request. aiokafka cannot
  authenticate again on a living connection, so a new one has to be there by then (``bridge.kafka.client``).
- That a token was refused: the broker says so in a challenge (RFC 7628, 3.2.2), which aiokafka takes for a yes; the
  next request is then hung up on, and nobody knows why.
- Which token it was, so that its source can be told.

And one of quotas (KIP-219): a broker answers at once, says for how long it will read nothing from this connection, and
does so. What was sent behind that request is neither lost nor late: its time-out begins when the broker reads again.
"""

from __future__ import annotations

__all__ = ["SessionConnection", "open_connection"]

import asyncio
import time
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.admin import SaslAuthenticateRequest

from bridge.certificate import shown_by
from bridge.kafka.login import ShownToken

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bridge.certificate import Validity
    from bridge.ports import Credential

_PRODUCE = 0
_MUTES_SINCE = 6  # the version of Produce that came with KIP-219: brokers without it wait before they answer
_CHALLENGE_ANSWER = (
    b"\x01"  # what a client answers to a refusal, for the broker to end it with an error (RFC 7628, 3.2.3)
)


class SessionConnection(AIOKafkaConnection):  # type: ignore[misc]
    """``AIOKafkaConnection`` that notes its session, and when the broker does not read from it.

    ``session_ends_ns`` is when the broker ends the session (monotonic), None when it never does or does not say so;
    ``began_ns`` when it began; ``credential`` the token that was shown, None without one; ``certificate`` how long the
    broker's is good, None without TLS.
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
        """For how long the broker will read nothing yet."""
        left_s: float = self._muted_until_s - self._loop.time()
        return max(0.0, left_s)

    async def connect(self) -> Any:
        made = await super().connect()
        self._stands, self._request_timeout = True, None
        return made

    def close(self, reason: Any = None, exc: Any = None) -> Any:
        """At once. Every request is waited for, so nothing in the buffers is of use to anybody; with TLS the socket
        would stay open until the broker has answered a farewell, which may be after the event loop's end."""
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
        """Send what belongs to the handshake."""
        response = await super().send(request, expect_response)
        if not isinstance(request, SaslAuthenticateRequest) or response.error_code != 0:
            return response
        if self._shown is not None and response.sasl_auth_bytes:
            response = await super().send(SaslAuthenticateRequest(_CHALLENGE_ANSWER))
            if response.error_code == 0:  # a broker that does not end it so
                raise kafka_errors.SaslAuthenticationFailed("the token was not accepted")
            return response
        lifetime_ms = getattr(response, "session_lifetime_ms", 0)
        if lifetime_ms > 0:
            self.session_ends_ns = time.monotonic_ns() + lifetime_ms * 1_000_000
        return response


async def open_connection(host: str, port: int, **options: Any) -> SessionConnection:
    """``aiokafka.conn.create_conn``, but for the kind of connection. Raises OSError, TimeoutError and KafkaError."""
    connection = SessionConnection(host, port, **options)
    await connection.connect()
    secured = connection._writer.get_extra_info("ssl_object")
    connection.certificate = None if secured is None else shown_by(secured)
    return connection
