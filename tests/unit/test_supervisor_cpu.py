"""The number of workers that nobody chose is that of the CPUs this process really has."""

import os
from pathlib import Path

import pytest

from config.settings import MqttSettings, Settings
from gateway.supervisor import cpu
from gateway.supervisor.cpu import available_cpus, cgroup_cpus, parse_cpu_max, worker_count
from tests.unit.test_machine_facts import write


@pytest.mark.parametrize(("text", "cpus"), [
    ("max 100000\n", []),
    ("200000 100000\n", [2.0]),
    ("50000 100000", [0.5]),
    ("-1\n 100000\n", []),
    ("0 100000", []),
])  # fmt: skip
def test_a_quota(text: str, cpus: list[float]) -> None:
    assert parse_cpu_max(text) == cpus


@pytest.mark.parametrize("text", ["", "many 100000", "1000", "100000 0"])
def test_what_is_no_quota(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_cpu_max(text)


GROUPS = {
    "version 2, inside a container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
    "version 2, a slice above has less": ({"proc/self/cgroup": "0::/system.slice/gateway.service\n",
        "sys/fs/cgroup/system.slice/gateway.service/cpu.max": "400000 100000",
        "sys/fs/cgroup/system.slice/cpu.max": "300000 100000", "sys/fs/cgroup/cpu.max": "max 100000"}, 3.0),
    "version 1": ({"proc/self/cgroup": "5:cpuset:/\n4:cpu,cpuacct:/docker/abc\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000\n",
        "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n"}, 2.5),
    "version 1, the group's path is the host's": ({"proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 1.0),
    "version 2's tree beside version 1's": ({"proc/self/cgroup": "4:memory:/x\n0::/app\n",
        "sys/fs/cgroup/unified/app/cpu.max": "200000 100000"}, 2.0),
    "a path that leads out": ({"proc/self/cgroup": "0::/../other\n", "sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0),
    "no quota": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
    "garbage": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "?"}, None),
    "nothing to read": ({}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", GROUPS)
def test_the_least_quota_on_the_way_up_counts(case: str, tmp_path: Path) -> None:
    files, expected = GROUPS[case]
    assert cgroup_cpus(write(tmp_path, files)) == expected


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (2.9, 2), (0.5, 1), (64.0, 8)])
def test_whole_cpus_and_at_least_one(quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(cpu, "cgroup_cpus", lambda: quota)
    assert available_cpus() == expected


def test_the_setting_decides_and_without_it_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "available_cpus", lambda: 6)
    assert worker_count(Settings()) == 6
    assert worker_count(Settings(workers=3)) == 3
    assert worker_count(Settings(workers=0)) == 0


def test_where_several_cannot_share_the_work_one_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "available_cpus", lambda: 6)
    assert worker_count(Settings(mqtt=MqttSettings(client_id="plant-${session}"))) == 1
    assert worker_count(Settings(mqtt=MqttSettings(distribution="partitioned"))) == 1
