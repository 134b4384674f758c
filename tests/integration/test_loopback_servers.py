"""The databases that tests start: nothing of them is left, however the tests end."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.programs import find
from tests.servers.loopback import LoopbackServer
from tests.servers.mariadb import Mariadb
from tests.servers.postgresql import Postgresql
from tests.servers.redis import Redis
from tests.servers.slapd import Slapd
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
KINDS = (Postgresql, Mariadb, Redis, Slapd)
SCRIPT = """
import sys, importlib, time
server = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
server.start()
print(server.pid, server.directory, flush=True)
time.sleep(600)
"""


def family(pid: int) -> list[psutil.Process]:
    one = psutil.Process(pid)
    return [one, *one.children(recursive=True)]


def until_gone(processes: list[psutil.Process], directory: Path) -> None:
    def runs(one: psutil.Process) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
        return False

    wait_until(
        lambda: not any(map(runs, processes)) and not directory.exists(), f"the end of {processes}, and of {directory}"
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.package)
def test_killed_tests_leave_nothing_running(kind: type[LoopbackServer]) -> None:
    kind().stop()  # skips where the server is missing
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    tests = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, kind.__module__, kind.__name__],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert tests.stdout is not None
        pid, directory = tests.stdout.readline().split()
        processes = family(int(pid))
    finally:
        tests.kill()
        tests.communicate()
    until_gone(processes, Path(directory))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.package)
def test_stopped_it_leaves_nothing_even_when_frozen(kind: type[LoopbackServer]) -> None:
    server = kind()
    server.start()
    processes, directory = family(server.pid), server.directory
    server.freeze()
    server.stop()
    server.stop()
    until_gone(processes, directory)


def test_a_missing_server_skips_its_tests_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install postgresql"):
        find("no-such-server", "postgresql")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="in CI that is a failure"):
        find("no-such-server", "postgresql")
