"""The channel, the place in the data directory, settings on their way, and a worker's dealings with its supervisor."""

import asyncio
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from unittest.mock import Mock

import pytest
from pydantic import SecretStr

from config.errors import ConfigError, GatewayError
from config.loading.load import load
from config.loading.transfer import from_json, to_json
from config.settings import Settings
from gateway.base import reports as reports_module
from gateway.base.lifecycle import StopRequest, StopVerb
from gateway.base.reload_plan import Wish
from gateway.base.reports import Operation, Outcome, Reports, ask, read_outcome, take_request
from gateway.data_dir.meta_properties import IdentityError
from gateway.http.answers import Answer
from gateway.supervisor import member
from gateway.supervisor import running as running_module
from gateway.supervisor.channel import open_channel, read_first
from gateway.supervisor.member import Membership
from gateway.supervisor.place import PlaceError, find_supervisor, held_place
from gateway.supervisor.process import Reloaded, WorkerProcess
from gateway.supervisor.running import Running
from tests.unit.test_config_show import RICH
from tests.waiting import until

# --- settings on their way ---


@pytest.mark.usefixtures("elsewhere")
def test_settings_arrive_as_they_were_and_with_their_secrets() -> None:
    Path("pw").write_text("hunter2")
    Path("gateway.toml").write_text(RICH)
    overrides = {"workers": 4, "flow.memory_bytes": "64MiB"}
    settings = load(environ={}, overrides=overrides).settings.model_copy(update={"worker": 3})
    arrived = from_json(to_json(settings))
    assert arrived == settings
    assert arrived.worker == 3
    assert arrived.mqtt.password == SecretStr("hunter2")
    assert arrived.mqtt.keepalive == timedelta(seconds=90)
    assert "\n" not in to_json(settings)


def test_what_nobody_set_is_left_to_the_code_that_receives_it() -> None:
    assert to_json(Settings()) == "{}"


@pytest.mark.parametrize("text", ["[]", '{"unheard_of": 1}', '{"mqtt": {"password": ["hunter2"]}}', "{"])
def test_settings_of_another_version_are_a_sentence_without_values(text: str) -> None:
    with pytest.raises(ConfigError, match="Stop the gateway and start it again") as raised:
        from_json(text)
    assert "hunter2" not in str(raised.value)


# --- channel ---


async def test_messages_arrive_whole_and_in_order_and_the_end_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    heard: list[dict[str, Any]] = []
    gone = asyncio.Event()
    left = await open_channel(ours, lambda message: None, lambda: None)
    await open_channel(theirs, heard.append, gone.set)
    for number in range(50):
        left.send(say="ask", number=number, body="x" * 40_000)
    left.close()
    await asyncio.wait_for(gone.wait(), 60)
    assert [message["number"] for message in heard] == list(range(50))
    left.send(say="too late")


@pytest.mark.parametrize("garbage", [b"\xff\xfe\n", b"[1]\n", b"{\n"])
async def test_what_is_no_message_ends_the_channel(garbage: bytes) -> None:
    ours, theirs = socket.socketpair()
    heard: list[dict[str, Any]] = []
    gone = asyncio.Event()
    await open_channel(theirs, heard.append, gone.set)
    with ours:
        ours.sendall(garbage + b'{"say": "go"}\n')
        await asyncio.wait_for(gone.wait(), 60)
    assert not heard


def test_the_first_line_is_read_before_there_is_a_loop() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b'{"instance": "x"}\n')
        assert read_first(theirs) == '{"instance": "x"}\n'
        ours.close()
        assert read_first(theirs) == ""


# --- place ---


def test_a_place_is_held_by_one(tmp_path: Path) -> None:
    assert find_supervisor(tmp_path) is None
    with held_place(tmp_path, "plant-7"):
        assert find_supervisor(tmp_path) == os.getpid()
        with (
            pytest.raises(PlaceError, match=rf"process {os.getpid()} supervises") as raised,
            held_place(tmp_path, "other"),
        ):
            pass
        assert raised.value.exit_status == 78
        assert "another instance and another data_dir" in str(raised.value)
    assert find_supervisor(tmp_path) is None
    with held_place(tmp_path, "plant-7"):
        pass


def test_a_place_that_cannot_be_had_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="cannot be used"), held_place(tmp_path / "file", "plant-7"):
        pass


def test_what_was_done_can_be_read_by_whoever_asked(tmp_path: Path) -> None:
    def read(operation: Operation) -> Outcome:
        return read_outcome(tmp_path, "supervisor", os.getpid(), operation)

    with held_place(tmp_path, "plant-7") as reports:
        assert read("restart") == Outcome()
        reports.begin("restart")
        assert read("restart") == Outcome(1)
        reports.finish("restart", None, "Done.")
        reports.begin("reload", 42)
        reports.finish("reload", "No such topic.", "Done.", status=1)
        reports.begin("restart")
        assert read("restart") == Outcome(2)
    assert read("reload") == Outcome(1, ok=False, sentence="No such topic.", request=42, details={"status": 1})
    assert read_outcome(tmp_path, "supervisor", os.getpid() + 1, "reload") == Outcome(), "another's report is nobody's"


def test_what_was_done_can_be_read_when_the_next_one_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands, or one and a SIGHUP: the first would else wait for ever for what the second has overwritten."""
    reports = Reports(tmp_path, "supervisor")

    def both(_pid: int, _number: int) -> None:
        for request in (take_request(tmp_path, "supervisor").number, 8, 0):
            reports.begin("reload", request)
            reports.finish("reload", None, f"Request {request}.")

    monkeypatch.setattr(os, "kill", both)
    outcome = Running(tmp_path, "supervisor", os.getpid()).command(signal.SIGHUP, "reload", Wish(7))
    assert (outcome.sentence, outcome.request) == ("Request 7.", 7)


@pytest.mark.parametrize("full", ["before", "meanwhile"])
def test_an_unwritable_report_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """A restart that the disk had no room to report was waited for without end."""
    reports = Reports(tmp_path, "supervisor")
    reports.begin("restart")
    reports.finish("restart", None, "An earlier one.")

    def restart(_pid: int, _number: int) -> None:
        if full == "meanwhile":
            reports.begin("restart")
        monkeypatch.setattr(reports_module, "_write_new", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        reports.begin("restart")
        reports.finish("restart", None, "Done.")

    monkeypatch.setattr(os, "kill", restart)
    monkeypatch.setattr(running_module, "_SILENT_S", 0.0)
    monkeypatch.setattr(Running, "_lives", lambda _self: True)
    with pytest.raises(GatewayError, match="reports nothing in"):
        Running(tmp_path, "supervisor", os.getpid()).command(signal.SIGUSR2, "restart")
    with pytest.raises(GatewayError, match="takes no request: No space left"):
        Running(tmp_path, "supervisor", os.getpid()).command(signal.SIGHUP, "reload", Wish(7))


def test_a_folder_that_became_read_only_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its report says for ever that the operation is under way."""
    reports = Reports(tmp_path, "supervisor")
    monkeypatch.setattr(os, "kill", lambda _pid, _number: reports.begin("restart"))
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    monkeypatch.setattr(running_module, "_SILENT_S", 0.0)
    monkeypatch.setattr(Running, "_lives", Mock(side_effect=[True, True, False]))
    with pytest.raises(GatewayError, match="that disk is full or read-only"):
        Running(tmp_path, "supervisor", os.getpid()).command(signal.SIGUSR2, "restart")


def test_a_wish_goes_with_the_next_signal_and_no_other(tmp_path: Path) -> None:
    wish = Wish(7, partial=True, dry_run=True)
    ask(tmp_path, "supervisor", wish)
    with pytest.raises(GatewayError, match="Another command"):
        ask(tmp_path, "supervisor", Wish(8))
    assert take_request(tmp_path, "supervisor") == wish
    assert take_request(tmp_path, "supervisor") == Wish(), "it is taken once"


def test_a_wish_that_nobody_was_told_of_is_forgotten(tmp_path: Path) -> None:
    """Its command was killed before it could send the signal: the next one's signal must not do it."""
    ask(tmp_path, "supervisor", Wish(7, rolling=True))
    file = tmp_path / "supervisor.request.json"
    old = json.loads(file.read_text())
    file.write_text(json.dumps(old | {"at": old["at"] - 60}))
    os.utime(file, (old["at"] - 60,) * 2)
    assert take_request(tmp_path, "supervisor") == Wish()
    file.write_text(json.dumps(old | {"at": old["at"] - 60}))
    os.utime(file, (old["at"] - 60,) * 2)
    ask(tmp_path, "supervisor", Wish(8))
    assert take_request(tmp_path, "supervisor") == Wish(8)
    file.write_text("half a")
    assert take_request(tmp_path, "supervisor") == Wish()
    assert take_request(tmp_path, "supervisor") == Wish()


# --- children ---


REAPING = """
import asyncio, os, signal, subprocess
from gateway.supervisor.process import Reaper

async def main():
    with Reaper() as reaper:
        ended = asyncio.Queue()
        known = subprocess.Popen(["sh", "-c", "exit 7"])
        reaper.watch(known.pid, ended.put_nowait)
        killed = subprocess.Popen(["sleep", "60"])
        reaper.watch(killed.pid, ended.put_nowait)
        stranger = subprocess.Popen(["true"])
        os.waitid(os.P_PID, stranger.pid, os.WEXITED | os.WNOWAIT)
        killed.kill()
        assert sorted([await ended.get(), await ended.get()]) == [-signal.SIGKILL, 7]
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("none is left")
        for child in (known, killed, stranger):
            child.returncode = 0

asyncio.run(asyncio.wait_for(main(), 50))
"""


def test_children_are_collected_whoever_started_them() -> None:
    """In a process of its own, whose children are nobody else's."""
    ran = subprocess.run([sys.executable, "-c", REAPING], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (0, "none is left\n"), ran.stderr


# --- a worker and its supervisor ---


class Answers:
    async def answer(self, path: str, accept: str) -> Answer:
        return Answer(200, "text/plain", f"{path} {accept}")


@pytest.fixture(autouse=True)
def _collector_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member.memory, "freeze_loaded_objects", lambda: None)


@pytest.fixture(autouse=True)
def _wishes_stay_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """For less than the minute of the tests that let one grow old."""
    monkeypatch.setattr(reports_module, "_FRESH_S", 50.0)


class Talk:
    """A membership and the supervisor's end of its channel."""

    def __init__(self, tmp_path: Path, *, successor: bool = True) -> None:
        ours, theirs = socket.socketpair()
        self.sock = ours
        self.stop = StopRequest()
        self.heard: list[dict[str, Any]] = []
        self.moved = 0
        self.release = asyncio.Event()
        settings = Settings(data_dir=tmp_path, shutdown_timeout=timedelta(seconds=1))
        self.membership = Membership(theirs, settings, retiring=False, successor=successor)

    async def __aenter__(self) -> Self:
        self.gone = asyncio.Event()
        self.channel = await open_channel(self.sock, self.heard.append, self.gone.set)
        await self.membership.open(self.stop, Answers(), self.reload, lambda: self.moved)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.channel.close()

    async def reload(self, step: str, settings: Settings | None) -> list[str]:
        match step:
            case "prepare":
                assert settings is not None
                return [f"for worker {settings.worker}"]
            case "commit":
                raise GatewayError("The broker refuses.")
            case "long":
                await self.release.wait()
                return []
            case _:
                raise ZeroDivisionError

    def said(self) -> list[str]:
        return [message["say"] for message in self.heard]


async def test_a_worker_waits_for_the_word_and_answers_meanwhile(tmp_path: Path) -> None:
    async with Talk(tmp_path) as talk:
        starting = asyncio.create_task(talk.membership.start())
        await until(lambda: talk.said() == ["up", "warm"], "it is warm")
        talk.channel.send(say="ask", number=4, path="/readyz", accept="x")
        await until(lambda: len(talk.heard) == 3, "it answers")
        assert talk.heard[2] == {"say": "answer", "number": 4, "status": 200, "type": "text/plain", "body": "/readyz x"}
        assert not starting.done()
        talk.channel.send(say="go")
        await asyncio.wait_for(starting, 60)
        talk.membership.ready()
        await talk.membership.stop(0)
        await until(lambda: talk.said()[3:] == ["ready", "released"], "it lets go")
        assert not talk.stop.requested


@pytest.mark.parametrize("end", [lambda one: one.stopped(0), lambda one: one.failed(GatewayError("No."))])
async def test_one_that_has_ended_answers_nothing(tmp_path: Path, end: Callable[[Membership], None]) -> None:
    """A thread may keep its process and its loop: it would look alive for ever, and nobody has its slot."""
    async with Talk(tmp_path) as talk:
        talk.stop.request()
        end(talk.membership)
        await asyncio.wait_for(talk.gone.wait(), 10)
        assert talk.said()[1:] in (["stopped"], ["failed"])


async def test_one_that_succeeds_nobody_takes_its_slot_without_a_word(tmp_path: Path) -> None:
    """Nobody has it, and the supervisor may be loading still."""
    async with Talk(tmp_path, successor=False) as talk:
        await asyncio.wait_for(talk.membership.start(), 60)


async def test_a_step_of_a_reload_is_answered_whatever_comes_of_it(tmp_path: Path) -> None:
    async with Talk(tmp_path) as talk:
        talk.channel.send(say="reload", number=1, step="prepare", settings=to_json(Settings(worker=3)))
        talk.channel.send(say="reload", number=2, step="commit", settings=None)
        talk.channel.send(say="reload", number=3, step="finish", settings=None)
        await until(lambda: len(talk.heard) == 4, "all are answered")
        said = {message["number"]: (message["sentence"], message["remarks"]) for message in talk.heard[1:]}
        assert said[1] == (None, ["for worker 3"])
        assert said[2] == ("The broker refuses.", [])
        assert said[3] == ("the step 'finish' failed by a defect (zero division): see its traceback in the log.", [])


async def test_progress_is_told_in_a_start_and_in_a_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "_MOVED_S", 0.001)
    async with Talk(tmp_path) as talk:
        await until(lambda: talk.said() == ["up"], "it is up")
        talk.moved += 1
        await until(lambda: talk.said() == ["up", "up"], "it says that it gets on")
        talk.membership.ready()
        await until(lambda: talk.said()[2:] == ["ready"], "it is ready")
        talk.moved += 1
        talk.channel.send(say="ask", number=1, path="/readyz", accept="")
        await until(lambda: len(talk.heard) == 4, "it answers")
        talk.channel.send(say="reload", number=2, step="long", settings=None)
        talk.channel.send(say="ask", number=3, path="/readyz", accept="")
        await until(lambda: len(talk.heard) == 5, "it is at the step")
        talk.moved += 1
        await until(lambda: len(talk.heard) == 6, "it gets on")
        talk.release.set()
        await until(lambda: len(talk.heard) == 7, "the step is done")
        assert talk.said() == ["up", "up", "ready", "answer", "answer", "up", "reloaded"]


async def test_one_that_loads_lives_while_it_uses_the_cpu() -> None:
    """Before there is an event loop that could answer."""
    command = [sys.executable, "-c", "import sys\nfor line in sys.stdin: sum(range(3_000_000)); print(flush=True)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: ASYNC220
        assert child.stdin is not None
        assert child.stdout is not None
        worker = WorkerProcess(0, Settings())
        worker.pid = child.pid
        assert await worker.responds(0)
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        assert await worker.responds(0)
        os.kill(child.pid, signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, child.pid, os.WSTOPPED)
        await worker.responds(0)
        assert not await worker.responds(0)
        assert worker.progress == worker.progress
        child.kill()


async def test_whoever_stops_waiting_for_a_worker_is_not_taken_for_a_worker_that_ended() -> None:
    """A stop cancels an operation that asks a worker: the operation must end, not go on without an answer."""
    ours, theirs = socket.socketpair()
    worker = WorkerProcess(0, Settings())
    await worker.attach(ours)
    silent = await open_channel(theirs, lambda _message: None, lambda: None)
    silent.send(say="up")
    await until(lambda: "up" in worker.marks, "it is up")
    asking = asyncio.create_task(worker.ask("/readyz"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    asking, reloading = asyncio.create_task(worker.ask("/readyz")), asyncio.create_task(worker.reload("x", None, 60.0))
    await asyncio.sleep(0)
    worker.finish(0)
    assert await asking is None
    assert await reloading == Reloaded()


async def test_a_worker_without_a_supervisor_stops_and_keeps_its_sessions(tmp_path: Path) -> None:
    async with Talk(tmp_path) as talk:
        pass
    await asyncio.wait_for(talk.stop.wait_requested(), 60)
    assert talk.stop.verb is StopVerb.RESTART
    assert talk.stop.error is None


HOLDER = "import fcntl, os, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); f.write(str(os.getpid())); f.flush(); "


NAMED = "from gateway.supervisor.member import name_process; name_process(); "


@pytest.mark.parametrize("how", ["program", "fork", None])
async def test_a_slot_is_waited_for_if_its_holder_is_about_to_leave(
    how: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan drains; a gateway without a supervisor stays, and the identity is to say so at once. A forked worker is
    known by its name, as it has its supervisor's command line."""
    monkeypatch.setattr(member, "_GRACE_S", 60.0)
    supervised = how is not None
    command = [
        sys.executable,
        "-c",
        NAMED * (how == "fork") + HOLDER + "print(flush=True); sys.stdin.read()",
        str(tmp_path / "worker-0.lock"),
    ]
    holder = subprocess.Popen(  # noqa: ASYNC220
        command + ["--channel"] * (how == "program"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        async with Talk(tmp_path) as talk:
            talk.channel.send(say="go")
            starting = asyncio.create_task(talk.membership.start())
            if supervised:
                done, _ = await asyncio.wait({starting}, timeout=0.3)
                assert not done
                holder.stdin.close()
            await asyncio.wait_for(starting, 60)


# --- files through which commands speak with the process ---


def test_a_report_is_for_its_owner_alone_and_a_wish_follows_no_link(tmp_path: Path) -> None:
    """What differs between two configurations is nobody else's; and root, who asks, writes into no file of others."""
    reports = Reports(tmp_path, "supervisor")
    (tmp_path / "supervisor.new").symlink_to(tmp_path / "elsewhere")
    reports.begin("reload", 7)
    reports.finish("reload", None, "done", changes=[])
    assert stat.S_IMODE((tmp_path / "supervisor.json").stat().st_mode) == 0o600
    assert read_outcome(tmp_path, "supervisor", os.getpid(), "reload").sentence == "done"
    (tmp_path / f"supervisor.request.{os.getpid()}").symlink_to(tmp_path / "elsewhere")
    ask(tmp_path, "supervisor", Wish(7))
    assert not (tmp_path / "elsewhere").exists()
    assert take_request(tmp_path, "supervisor") == Wish(7)


def test_a_command_of_another_user_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(GatewayError, match=r"process 1\) is another user's.*or as root"):
        Running(tmp_path, "supervisor", 1).command(signal.SIGHUP, "reload", Wish(1))
