"""Helper processes of the harness: each runs one function with a pipe to the harness, and ends with it."""

import contextlib
import ctypes
import multiprocessing
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Self, TypeVar

_SPAWN: Final = multiprocessing.get_context("spawn")  # a fork would copy the harness's Kafka client threads half-way
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG: Final = 1
_STOP_S: Final = 5.0
_LOOK_S: Final = 0.25

T = TypeVar("T")


class BenchError(Exception):
    """A row that cannot be measured or whose outcome is wrong; the sentence says why."""


def _die_with_parent() -> None:
    """For a child before its work begins: it gets SIGTERM when the harness ends, however that happens. Linux only."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _run(pipe: Connection, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's: it ends its helpers
    try:
        function(pipe, *arguments)
    except EOFError:
        return  # the harness closed the pipe: it wants no more
    except Exception as error:  # noqa: BLE001  (whatever it was, the harness reports it as the row's failure)
        with contextlib.suppress(OSError):  # the harness may be gone
            pipe.send(BenchError(f"{function.__module__.rpartition('.')[2]}: {error or type(error).__name__}"))


class Helper:
    """``function(pipe, *arguments)`` in a process of its own; a context manager that leaves nothing running.

    The function sends its results through the pipe. An exception in it comes out of ``receive`` as a BenchError.
    """

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        self._name = function.__module__.rpartition(".")[2]
        self._pipe, child = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_run, args=(child, function, arguments), daemon=True)
        self._process.start()
        child.close()

    def send(self, message: object) -> None:
        """Hands a picklable object to the helper."""
        try:
            self._pipe.send(message)
        except BrokenPipeError:
            raise BenchError(f"{self._name} has ended; {self._last_words()}") from None

    def receive(self, expected: type[T], timeout_s: float, alive: Callable[[], None] = lambda: None) -> T:
        """The helper's next message of this type. Blocks at most ``timeout_s``; raises BenchError when it fails, ends
        or is late. ``alive`` is called now and then and may raise, so that nobody waits for what has died.
        """
        deadline = time.monotonic() + timeout_s
        while not self._pipe.poll(min(_LOOK_S, timeout_s)):
            alive()
            if time.monotonic() > deadline:
                raise BenchError(f"{self._name} sent no {expected.__name__} within {timeout_s:g} s")
        try:
            message: Any = self._pipe.recv()
        except EOFError:
            raise BenchError(
                f"{self._name} ended with status {self._status()} and sent no {expected.__name__}"
            ) from None
        if isinstance(message, BenchError):
            raise message
        if not isinstance(message, expected):
            raise BenchError(f"{self._name} sent {type(message).__name__} where {expected.__name__} was due")
        return message

    def ready(self) -> bool:
        """Whether ``receive`` would return at once."""
        return self._pipe.poll(0)

    def _last_words(self) -> str:
        try:
            while self._pipe.poll(0):
                message = self._pipe.recv()
                if isinstance(message, BenchError):
                    return str(message)
        except EOFError:
            pass
        return f"exit status {self._status()}"

    def _status(self) -> int | None:
        self._process.join(_STOP_S)
        return self._process.exitcode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._pipe.close()
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float, every_s: float = 0.01) -> None:
    """Returns once the condition holds; blocks at most ``timeout_s`` and then raises BenchError("…: <what>")."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago, for a server that cannot be given port 0."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def spawn(command: list[str], log: Path, directory: Path) -> subprocess.Popen[bytes]:
    """A process whose output is appended to ``log`` and which does not outlive the harness."""
    with log.open("ab") as out:
        return subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (one system call, no lock another thread could hold)
        )


def stop(process: subprocess.Popen[Any], timeout_s: float) -> int:
    """Ends a process with SIGTERM, after ``timeout_s`` with SIGKILL; returns its exit status."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()
