"""The first workers: forked from a process that has loaded everything, and ended by themselves when it ends."""

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from config.errors import ExitStatus
from config.settings import Settings
from gateway.supervisor.prefork import Prepared
from gateway.supervisor.process import Reaper, Spawner
from tests.command_line import run_gateway
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")

ROOT = Path(__file__).parents[2]
FORKING = """
import os, sys
from gateway.supervisor.prefork import fork_workers

def load():
    import gateway.supervisor.member
    if "refused" in sys.argv:
        raise SystemExit(3)

prepared, channel = fork_workers(3, load, lambda: None)
if channel is not None:  # a worker: says who it is, and waits for the end of the channel
    sys.modules["gateway.supervisor.member"].name_process()
    comm = open("/proc/self/comm").read().strip()
    words = f"{os.getpid()} {comm} {os.getsid(0) == os.getpid()} {os.readlink('/proc/self/fd/0')}"
    channel.sendall(words.encode())
    assert channel.recv(1) == b""
    os._exit(7)
said = [one.channel.recv(1000).decode() for one in prepared.values()]
assert said == [f"{one.pid} gateway-worker True /dev/null" for one in prepared.values()], said
assert "gateway.supervisor.member" not in sys.modules
if "die" in sys.argv:
    print(*(one.pid for one in prepared.values()), flush=True)
    os.kill(os.getpid(), 9)
for one in prepared.values():  # one after the other: none has another's end of a channel
    one.channel.close()
    assert os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1]) == 7
print(*prepared, flush=True)
"""


def forking(*arguments: str, program: str = FORKING) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_each_has_its_own_channel_and_session_and_the_name_of_a_worker() -> None:
    ran = forking()
    assert (ran.returncode, ran.stdout) == (0, "0 1 2\n"), ran.stderr


WAITING = """
from gateway.supervisor.prefork import fork_workers

def load():
    import bridge.backoff

prepared, channel = fork_workers(3, load, lambda: None)
if channel is not None:
    from bridge.backoff import KafkaPauses
    channel.sendall(b"%d" % KafkaPauses().resend_ns(5))
    raise SystemExit
print(*(one.channel.recv(1000).decode() for one in prepared.values()))
"""


def test_their_pauses_differ() -> None:
    """Those who lost the same broker must not come back in the same instant."""
    ran = forking(program=WAITING)
    assert len(set(ran.stdout.split())) == 3, ran


def test_without_workers_the_supervisor_goes_on() -> None:
    """It starts programs in their place."""
    ran = forking("refused")
    assert (ran.returncode, ran.stdout) == (0, "\n"), ran.stderr


async def test_they_end_when_their_supervisor_is_killed_before_it_has_said_anything() -> None:
    ran = await asyncio.to_thread(forking, "die")
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    pids = [int(word) for word in ran.stdout.split()]
    assert len(pids) == 3
    await until(lambda: not any(_runs(pid) for pid in pids), "they have ended")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_start_that_fails_closes_their_channels(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f'data_dir = "{file}/x"\nroutes = [{{ name = "a", filters = ["a"], topic = "a" }}]')
    ran = run_gateway("run", "--config", file, "--workers", "2", PYTHONWARNINGS="default::ResourceWarning")
    assert ran.returncode == ExitStatus.CONFIG
    assert ran.stderr.startswith(f"gateway: data_dir {file}/x cannot be used (Not a directory).")
    assert ran.stderr.count("\n") == 1


async def test_one_that_has_ended_before_its_turn_is_replaced_by_a_program() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    child = subprocess.Popen(["true"])  # noqa: ASYNC220 - instead of a worker that the system has killed
    with Reaper() as reaper:
        spawner = Spawner(reaper, {0: Prepared(child.pid, ours)})
        await until(lambda: spawner._lost, "its end is known")
        worker = await spawner.spawn(0, Settings())
        assert worker.pid != child.pid
        worker.kill()
        await worker.ended()
        child.returncode = 0
    assert ours.fileno() == -1
