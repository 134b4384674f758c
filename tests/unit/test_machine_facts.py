"""What the operating system says of this process: its sockets by state, descriptors, memory."""

import os
import socket
from pathlib import Path

import pytest

from gateway.base.process import machine_facts
from gateway.base.process.machine_facts import (
    SOCKET_STATES,
    CpuWaits,
    cpu_pressure,
    cpu_waits,
    descriptors,
    memory,
    sockets,
)


def test_sockets_are_counted_by_state_and_stay_open() -> None:
    before = sockets()
    assert tuple(before) == SOCKET_STATES
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0] as theirs,
    ):
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


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("limit", "expected"), [("1000\n", (600, 1000)), ("max\n", (900, 0)), ("9223372036854771712\n", (900, 0))]
)
def test_memory_is_the_container_s_without_what_the_kernel_would_drop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: tuple[int, int]
) -> None:
    monkeypatch.setattr(machine_facts, "_CGROUPS", tmp_path)
    assert memory() == (0, 0), "no cgroups, no word"
    stat = "anon 500\ninactive_file 300\n"
    write(tmp_path, {"memory.current": "900\n", "memory.max": limit, "memory.stat": stat})
    assert memory() == expected


PSI = "some avg10=1.00 avg60=62.50 avg300=3.00 total=4000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"


def test_waits_for_a_cpu_are_those_of_the_own_control_group(tmp_path: Path) -> None:
    """Version 2 of control groups: the quota is set on the group around."""
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "proc/self/schedstat": "5000000000 1500000000 7\n",
            "proc/pressure/cpu": PSI.replace("4000000", "9000000"),
            "sys/fs/cgroup/pod/container/cpu.pressure": PSI,
            "sys/fs/cgroup/pod/container/cpu.stat": "usage_usec 9\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
            "sys/fs/cgroup/pod/cpu.stat": "usage_usec 9\nnr_periods 8\nnr_throttled 4\nthrottled_usec 2500000\n",
        },
    )
    assert cpu_waits(root) == CpuWaits(1.5, 2.5, 4.0)
    assert cpu_pressure(root) == 0.625


def test_waits_for_a_cpu_in_version_1_and_of_a_kernel_that_keeps_no_account(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/pod\n1:memory:/other\n",
            "proc/self/schedstat": "0 0 0\n",
            "proc/pressure/cpu": PSI,
            "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 8\nnr_throttled 4\nthrottled_time 3000000000\n",
        },
    )
    assert cpu_waits(root) == CpuWaits(None, 3.0, 4.0), "the machine's pressure, where the group's is not told"
    assert cpu_waits(tmp_path / "nothing") == CpuWaits(None, 0.0, 0.0)
    assert cpu_pressure(tmp_path / "nothing") is None
