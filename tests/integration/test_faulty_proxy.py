"""The faulty proxy does what it says: every byte in order, late, or not at all."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.brokers.proxy import FaultyProxy, Weather
from tests.waiting import DEADLINE_S, wait_until


class Echo:
    """A server that sends back what it gets; ``ended`` counts connections that are over."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.ended = threading.Semaphore(0)
        self.threads: list[threading.Thread] = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(connection,))
                self.threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(65536):
                connection.sendall(data)
        self.ended.release()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self.threads:
            thread.join(DEADLINE_S)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


def dial(proxy: FaultyProxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", proxy.port), timeout=DEADLINE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(65536)
        assert chunk, f"the connection ended after {len(data)} of {size} bytes"
        data += chunk
    return bytes(data)


def test_all_bytes_pass_in_order_and_the_end_does_too(echo: Echo) -> None:
    data = bytes(range(256)) * 4000
    with FaultyProxy(echo.port, Weather(loss=0.05)) as proxy:
        with dial(proxy) as connection:
            sender = threading.Thread(target=connection.sendall, args=(data,))
            sender.start()
            assert receive(connection, len(data)) == data, "whatever is lost comes again, in its place"
            sender.join()
        assert echo.ended.acquire(timeout=DEADLINE_S), "the other side hears of the end"


def test_a_round_trip_takes_its_time_and_a_lost_last_segment_200_ms_more(echo: Echo) -> None:
    with FaultyProxy(echo.port, Weather(rtt_s=0.1)) as proxy, dial(proxy) as connection:

        def round_trip() -> float:
            began = time.monotonic()
            connection.sendall(b"x")
            receive(connection, 1)
            return time.monotonic() - began

        assert round_trip() >= 0.1
        proxy.weather.loss = 0.3
        slow = sum(round_trip() >= 0.4 for _ in range(10))
        assert slow >= 2, f"of 10 round trips at 30 % loss each way only {slow} were late"


def test_a_rate_is_kept_in_its_direction(echo: Echo) -> None:
    with FaultyProxy(echo.port, Weather(to_client_rate=200_000)) as proxy, dial(proxy) as connection:
        began = time.monotonic()
        connection.sendall(bytes(100_000))
        receive(connection, 100_000)
        assert time.monotonic() - began >= 0.45


def test_what_is_swallowed_is_gone_and_nobody_is_told(echo: Echo) -> None:
    with FaultyProxy(echo.port) as proxy, dial(proxy) as connection:
        connection.sendall(b"a")
        assert receive(connection, 1) == b"a"
        proxy.swallow()
        connection.sendall(b"b")
        with dial(proxy) as late:
            late.sendall(b"c")
            wait_until(lambda: proxy.connections == 2, "it is accepted")
            proxy.swallow(False)
            for silent in (connection, late):
                silent.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    silent.recv(1)
            with dial(proxy) as fresh:
                fresh.sendall(b"d")
                assert receive(fresh, 1) == b"d", "new connections work"
            proxy.cut()
            connection.settimeout(DEADLINE_S)
            with pytest.raises(ConnectionResetError):
                connection.recv(1)


def test_what_is_held_comes_later(echo: Echo) -> None:
    with FaultyProxy(echo.port) as proxy, dial(proxy) as connection:
        connection.sendall(b"a")
        assert receive(connection, 1) == b"a"
        proxy.hold()
        connection.sendall(b"b")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.hold(False)
        connection.settimeout(DEADLINE_S)
        assert receive(connection, 1) == b"b"


def test_a_held_connection_pushes_back(echo: Echo) -> None:
    with FaultyProxy(echo.port) as proxy, dial(proxy) as connection:
        proxy.hold()
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(bytes(50 << 20))


def test_cut_connections_are_reset_and_refused_ones_too(echo: Echo) -> None:
    with FaultyProxy(echo.port) as proxy:
        with dial(proxy) as connection:
            connection.sendall(b"a")
            receive(connection, 1)
            assert proxy.connections == 1
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
            assert echo.ended.acquire(timeout=DEADLINE_S)
        proxy.refuse()
        with pytest.raises(ConnectionResetError), dial(proxy) as refused:
            refused.recv(1)
        proxy.refuse(False)
        with dial(proxy) as again:
            again.sendall(b"b")
            assert receive(again, 1) == b"b"
        assert proxy.accepted == 3
