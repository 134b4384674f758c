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

It also costs much where answers are small: a task reads frames, another one and a timer wait for each answer, and each
is a turn of the event loop. Here the bytes of an answer are cut into frames as they arrive, and ``ask`` needs no task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from struct import Struct
from typing import TYPE_CHECKING, Any

import aiokafka.errors as kafka_errors
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.protocol.admin import SaslAuthenticateRequest

from bridge.certificate import Validity, shown_by
from bridge.kafka.login import ShownToken
from bridge.kafka.produce import Question

if TYPE_CHECKING:
    from bridge.ports import Credential

Told = Callable[[Any, BaseException | None], None]  # receives an answer, or an error

_SIZE = Struct(">i")
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
        self.began_ns = 0  # of the handshake
        self.certificate: Validity | None = None  # the broker's; None without TLS
        self.session_ends_ns: int | None = None  # monotonic; None: without limit
        provider = self._sasl_oauth_token_provider
        self._shown_token = provider if isinstance(provider, ShownToken) else None
        self._patience_s: float = options.get("request_timeout_ms", 40_000) / 1000  # of a request
        self._is_connected = False
        self._muted_until_s = 0.0  # by the loop's clock
        self._send_timeouts: set[asyncio.Timeout] = set()  # of requests by ``send``
        # The requests of ``ask``, oldest first, with their times.
        self._open_asks: dict[asyncio.Future[Any], tuple[Told, float]] = {}
        self._oldest_timer: asyncio.TimerHandle | None = None  # when the oldest of ``_open_asks`` is overdue
        self._frame_part = bytearray()  # the beginning of a frame
        self._frame_bytes = 0  # of the frame that ``_frame_part`` begins; 4, its length, until that is known

    @property
    def muted_s(self) -> float:
        """Seconds for which the broker will not read from this connection."""
        left_s: float = self._muted_until_s - self._loop.time()
        return max(0.0, left_s)

    async def connect(self) -> Any:
        made = await super().connect()
        self._is_connected, self._request_timeout = True, None
        self._reader.feed_data = self._feed  # nothing is under way; the task that reads only learns of the end
        return made

    def close(self, reason: Any = None, exc: Any = None) -> Any:
        """Close at once. Every request was awaited, so the buffers hold nothing useful. A clean close of TLS would wait
        for the broker's answer, perhaps beyond the end of the event loop."""
        writer = self._writer
        closed = super().close(reason, exc)
        if writer is not None:
            writer.transport.abort()
        if self._oldest_timer is not None:
            self._oldest_timer.cancel()
        for answer in list(self._open_asks):
            self._report_answer(answer)
        return closed

    def ask(self, request: Any, told: Told) -> None:
        """Send a request. ``told`` gets its answer, or None and the error, as soon as it is there. Does not block.

        A request without answer for too long ends with RequestTimedOutError, and its connection ends. Raises
        KafkaConnectionError."""
        if self._writer is None:
            raise kafka_errors.KafkaConnectionError(f"No connection to broker at {self._host}:{self._port}")
        question, number = request.prepare(self._versions), self._next_correlation_id()
        header = question.build_request_header(correlation_id=number, client_id=self._client_id).encode()
        parts = question.parts() if isinstance(question, Question) else [question.encode()]
        self._writer.writelines((_SIZE.pack(len(header) + sum(map(len, parts))), header, *parts))
        answer = self._loop.create_future()
        self._requests.append((number, question, answer))
        self._open_asks[answer] = told, self._loop.time()
        if self._oldest_timer is None:
            self._oldest_timer = self._loop.call_later(self._patience_s, self._check_oldest)

    def _report_answer(self, answer: asyncio.Future[Any]) -> None:
        told, _ = self._open_asks.pop(answer, (None, 0))
        if told is not None:
            error = answer.exception()
            told(answer.result() if error is None else None, error)

    def _check_oldest(self) -> None:
        """End the connection if its oldest request is overdue. One timer serves all requests: nearly all are answered
        long before."""
        self._oldest_timer = None
        for answer, (_, asked_s) in self._open_asks.items():
            left_s = max(asked_s, self._muted_until_s) + self._patience_s - self._loop.time()
            if left_s > 0:
                self._oldest_timer = self._loop.call_later(left_s, self._check_oldest)
            else:
                answer.set_exception(kafka_errors.RequestTimedOutError())
                self.close(CloseReason.CONNECTION_TIMEOUT)
            return

    def send(self, request: Any, expect_response: bool = True) -> Any:
        if not self._is_connected:
            return self._send_handshake(request, expect_response)
        answer = super().send(request, expect_response)
        return self._within_patience(answer) if expect_response else answer

    async def _within_patience(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Await an answer as long as a request may take, counted from the end of a mute (a quota)."""
        limit = asyncio.timeout_at(max(self._loop.time(), self._muted_until_s) + self._patience_s)
        self._send_timeouts.add(limit)
        try:
            async with limit:
                return await answer
        finally:
            self._send_timeouts.discard(limit)

    def _feed(self, data: bytes) -> None:
        """Take bytes of the broker, and handle the frames that are complete."""
        rest = self._frame_part
        if rest:
            rest += data
            if len(rest) < self._frame_bytes:
                return
            data = bytes(rest)
            rest.clear()
        at, size = 0, len(data)
        while size >= at + 4 and self._writer is not None:
            end = at + 4 + int.from_bytes(data[at : at + 4])
            if end > size:
                self._frame_bytes = end - at
                rest += data[at:]
                return
            self._handle_frame(data[at + 4 : end])
            at = end
        self._frame_bytes = 4
        rest += data[at:]

    def _handle_frame(self, frame: bytes) -> None:
        """aiokafka's: match one answer to its request. Notes how long a quota mutes the broker."""
        answer = self._requests[0][2]
        super()._handle_frame(frame)
        if not answer.done() or answer.cancelled() or answer.exception() is not None:
            return
        throttle_ms = getattr(answer.result(), "throttle_time_ms", 0)
        if throttle_ms > 0 and self._versions.get(_PRODUCE, (0, 0))[1] >= _MUTES_SINCE:
            self._mute(throttle_ms / 1000)
        self._report_answer(answer)

    def _mute(self, seconds: float) -> None:
        self._muted_until_s = max(self._muted_until_s, self._loop.time() + seconds)
        for limit in self._send_timeouts:
            if not limit.expired():
                limit.reschedule(self._muted_until_s + self._patience_s)

    @property
    def credential(self) -> Credential | None:
        return None if self._shown_token is None else self._shown_token.credential

    async def _do_sasl_handshake(self) -> None:
        """aiokafka's: log in. Tells the token's source when the broker refuses the token."""
        self.began_ns = time.monotonic_ns()
        try:
            await super()._do_sasl_handshake()
        except kafka_errors.SaslAuthenticationFailed:
            if self._shown_token is not None:
                self._shown_token.refused()
            raise

    async def _send_handshake(self, request: Any, expect_response: bool) -> Any:
        """Send a request of the handshake and note what its answer says about the session."""
        response = await super().send(request, expect_response)
        if not isinstance(request, SaslAuthenticateRequest) or response.error_code != 0:
            return response
        if self._shown_token is not None and response.sasl_auth_bytes:
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
