"""EMQX's part in the auth rows: questions over keep-alive connections, and how long each answer took.

Runs in a process of its own (``Helper``), on another core than the service where there is one.
"""

import itertools
import json
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Final

ALLOWED: Final = b'"result":"allow"'
_ANSWER_MAX: Final = 64 << 10
_STALLED_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Load:
    """Requests for a closed loop: on each connection the next goes out when the last is answered."""

    requests: tuple[bytes, ...]
    count: int  # the requests are repeated until so many are answered
    connections: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """Two streams at fixed rates, each over connections of its own, whatever the answers take."""

    cached: tuple[bytes, ...]
    fresh: tuple[bytes, ...]  # each once
    cached_per_s: int
    fresh_per_s: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Slice:
    """What came of one load. Latencies are in order of size, in ns; of a ``Mixed`` those of the cached ones, from the
    moment when each was due."""

    seconds: float
    latencies_ns: tuple[int, ...]
    others_ns: tuple[int, ...] = ()

    @property
    def per_s(self) -> float:
        return len(self.latencies_ns) / self.seconds

    def quantile_ms(self, share: float) -> float:
        """Of the latencies."""
        return self.latencies_ns[min(len(self.latencies_ns) - 1, int(share * len(self.latencies_ns)))] / 1e6


def login_request(path: str, secret: str, fields: dict[str, object]) -> bytes:
    """A question as EMQX 5.8 sends it."""
    body = json.dumps(fields, separators=(",", ":")).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1:8085",
        "accept: application/json",
        "cache-control: no-cache",
        "connection: keep-alive",
        "keep-alive: timeout=30, max=1000",
        "content-type: application/json",
        f"authorization: Bearer {secret}",
        f"content-length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def auth_load(pipe: Pipe, port: int) -> None:
    """Answers each ``Load`` or ``Mixed`` that comes with a ``Slice``, until the pipe ends."""
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        os.sched_setaffinity(0, cores - {min(cores)})
    while True:
        task = pipe.recv()
        pipe.send(_closed_loop(port, task) if isinstance(task, Load) else _open_loop(port, task))


def _connect(port: int, count: int) -> list[socket.socket]:
    found = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=_STALLED_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.append(one)
    return found


def _received(one: socket.socket) -> bytes:
    if not (data := one.recv(_ANSWER_MAX)):
        raise ValueError("the service closed a connection; its log says why")
    return data


def _complete(answer: bytes) -> bool:
    """Whether a whole answer is there. Raises ValueError when it is not the right one."""
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    length = int(answer[answer.rindex(b": ", 0, end) + 2 : end])  # content-length is the service's last field
    if len(answer) - end - 4 < length:
        return False
    if ALLOWED not in answer:
        raise ValueError(f"not allowed: {answer[:300]!r}")
    return True


def _closed_loop(port: int, load: Load) -> Slice:
    sockets = _connect(port, load.connections)
    selector = selectors.DefaultSelector()
    parts: dict[int, bytes] = {}
    sent_ns: dict[int, int] = {}
    requests = itertools.islice(itertools.cycle(load.requests), load.count)
    latencies: list[int] = []
    clock = time.perf_counter_ns
    try:
        began_ns = clock()
        for one in sockets:
            selector.register(one, selectors.EVENT_READ, one)
            if (request := next(requests, None)) is not None:
                sent_ns[one.fileno()] = clock()
                one.sendall(request)
        while len(latencies) < load.count:
            ready = selector.select(_STALLED_S)
            if not ready:
                raise ValueError(f"no answer for {_STALLED_S:g} s")
            for key, _ in ready:
                one = key.data
                answer = parts.pop(key.fd, b"") + _received(one)
                if not _complete(answer):
                    parts[key.fd] = answer
                    continue
                now_ns = clock()
                latencies.append(now_ns - sent_ns[key.fd])
                if (request := next(requests, None)) is not None:
                    sent_ns[key.fd] = now_ns
                    one.sendall(request)
        seconds = (clock() - began_ns) / 1e9
    finally:
        selector.close()
        for one in sockets:
            one.close()
    return Slice(seconds, tuple(sorted(latencies)))


class _Stream:
    """Requests at a rate over some connections; one that finds none free waits, and the wait counts."""

    def __init__(self, sockets: Sequence[socket.socket], requests: Iterator[bytes], per_s: int, began_ns: int) -> None:
        self._free = deque(sockets)
        self._requests = requests
        self._step_ns = 1_000_000_000 // per_s
        self._due_ns = began_ns
        self._since_ns: dict[int, int] = {}
        self._parts: dict[int, bytes] = {}
        self.latencies: list[int] = []

    @property
    def waiting(self) -> int:
        return len(self._since_ns)

    def send(self, now_ns: int) -> int:
        """Sends what is due; when the next is."""
        while self._due_ns <= now_ns and self._free and (request := next(self._requests, None)) is not None:
            one = self._free.popleft()
            self._since_ns[one.fileno()] = self._due_ns
            self._due_ns += self._step_ns
            one.sendall(request)
        return self._due_ns if self._free else now_ns + 1_000_000

    def receive(self, one: socket.socket) -> None:
        answer = self._parts.pop(one.fileno(), b"") + _received(one)
        if not _complete(answer):
            self._parts[one.fileno()] = answer
            return
        self.latencies.append(time.perf_counter_ns() - self._since_ns.pop(one.fileno()))
        self._free.append(one)


def _open_loop(port: int, mixed: Mixed) -> Slice:
    # As deploy/emqx has it: a pool, one question of a connection at a time, so that no one waits behind a hash.
    sockets = _connect(port, 48)
    selector = selectors.DefaultSelector()
    clock = time.perf_counter_ns
    began_ns = clock()
    end_ns = began_ns + round(mixed.seconds * 1e9)
    cached = _Stream(sockets[:16], itertools.cycle(mixed.cached), mixed.cached_per_s, began_ns)
    fresh = _Stream(sockets[16:], iter(mixed.fresh), mixed.fresh_per_s, began_ns)
    try:
        for number, one in enumerate(sockets):
            selector.register(one, selectors.EVENT_READ, cached if number < 16 else fresh)
        while (now_ns := clock()) < end_ns or cached.waiting or fresh.waiting:
            due_ns = end_ns + 1_000_000_000
            if now_ns < end_ns:
                due_ns = min(cached.send(now_ns), fresh.send(now_ns), end_ns)
            elif now_ns > end_ns + _STALLED_S * 1e9:
                raise ValueError(f"{cached.waiting + fresh.waiting} answers are missing")
            for key, _ in selector.select(max(0, due_ns - clock()) / 1e9):
                assert isinstance(key.fileobj, socket.socket)
                key.data.receive(key.fileobj)
    finally:
        selector.close()
        for one in sockets:
            one.close()
    return Slice((clock() - began_ns) / 1e9, tuple(sorted(cached.latencies)), tuple(sorted(fresh.latencies)))
