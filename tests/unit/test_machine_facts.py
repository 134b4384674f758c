"""What the operating system says of this process: its sockets by state, descriptors, memory."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING

import pytest

from gateway import machine_facts
from gateway.machine_facts import SOCKET_STATES, descriptors, memory, sockets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of one."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0] as theirs,
    ):
        yield ours, theirs


def test_sockets_are_counted_by_state_and_stay_open() -> None:
    before = sockets()
    assert tuple(before) == SOCKET_STATES
    with connection() as (ours, theirs):
        during = sockets()
        assert during["established"] - before["established"] == 2
        assert during["listen"] - before["listen"] == 1
        theirs.shutdown(socket.SHUT_WR)
        assert ours.recv(1) == b""
        hung_up = sockets()
        assert hung_up["close_wait"] - before["close_wait"] == 1
        assert sum(hung_up[state] - before[state] for state in ("fin_wait1", "fin_wait2")) == 1
        ours.sendall(b"x")
        assert theirs.recv(1) == b"x", "looking has not touched them"
    assert sockets() == before


def test_what_is_no_tcp_socket_is_passed_over(tmp_path: Path) -> None:
    before = sockets()
    one, other = socket.socketpair()
    with (tmp_path / "file").open("w"), one, other, socket.socket(type=socket.SOCK_DGRAM):
        assert sockets() == before


def test_descriptors_and_their_limit() -> None:
    opened, most = descriptors()
    extra = os.dup(0)
    try:
        assert descriptors() == (opened + 1, most)
    finally:
        os.close(extra)
    assert most >= opened


def cgroup(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


@pytest.mark.parametrize(
    ("limit", "expected"), [("1000\n", (600, 1000)), ("max\n", (900, 0)), ("9223372036854771712\n", (900, 0))]
)
def test_memory_is_the_container_s_without_what_the_kernel_would_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(machine_facts, "_CGROUPS", tmp_path)
    assert memory() == (0, 0), "no cgroups, no word"
    cgroup(tmp_path, memory_current="900\n", memory_max=limit, memory_stat="anon 500\ninactive_file 300\n")
    assert memory() == expected
