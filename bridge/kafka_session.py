"""One authenticated connection to a broker, which knows until when the broker takes it for authenticated.

aiokafka's own connection misses three things of SASL, each pinned by a test against a real broker:

- How long the session lives (KIP-368): the answer to SaslAuthenticate says it, from ``connections.max.reauth.ms`` and
  the token's life, and is thrown away. After that time the broker hangs up on the next request. aiokafka cannot
  authenticate again on a living connection, so a new one has to be there by then (``bridge.kafka_client``).
- That a token was refused: the broker says so in a challenge (RFC 7628, 3.2.2), which aiokafka takes for a yes; the
  next request is then hung up on, and nobody knows why.
- Which token it was, so that its source can be told.
"""

from __future__ import annotations

__all__ = ["SessionConnection", "open_connection"]

import time
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.admin import SaslAuthenticateRequest

from bridge.kafka_login import ShownToken

if TYPE_CHECKING:
    from bridge.ports import Credential

_CHALLENGE_ANSWER = (
    b"\x01"  # what a client answers to a refusal, for the broker to end it with an error (RFC 7628, 3.2.3)
)


class SessionConnection(AIOKafkaConnection):  # type: ignore[misc]
    """``AIOKafkaConnection`` that notes its session.

    ``session_ends_ns`` is when the broker ends the session (monotonic), None when it never does or does not say so;
    ``began_ns`` when it began; ``credential`` the token that was shown, None without one.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.began_ns = 0
        self.session_ends_ns: int | None = None
        provider = self._sasl_oauth_token_provider
        self._shown = provider if isinstance(provider, ShownToken) else None

    @property
    def credential(self) -> Credential | None:
        return None if self._shown is None else self._shown.credential

    async def _do_sasl_handshake(self) -> None:
        self.began_ns = time.monotonic_ns()
        self.send = self._send_noting  # for the handshake alone: requests of the data path pay nothing
        try:
            await super()._do_sasl_handshake()
        except kafka_errors.SaslAuthenticationFailed:
            if self._shown is not None:
                self._shown.refused()
            raise
        finally:
            del self.send

    async def _send_noting(self, request: Any, *, expect_response: bool = True) -> Any:
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
    return connection
