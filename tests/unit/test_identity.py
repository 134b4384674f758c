"""A data directory belongs to one instance, one place and one Kafka cluster, and a slot of it to one process."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import structlog

from bridge.spool.record import SpoolBatch
from bridge.spool.spool import Spool, spool_path
from config.errors import ExitStatus
from config.settings import Settings
from gateway.base import logs
from gateway.cli.main import main
from gateway.cli.service import retire
from gateway.data_dir import meta_properties
from gateway.data_dir.adoption import adopt, describe
from gateway.data_dir.directory import holder, slots
from gateway.data_dir.identity import Ending, Identity
from gateway.data_dir.meta_properties import IdentityError, NewerFormatError, Witness, read_meta
from gateway.data_dir.session_registry import SessionRecord
from gateway.supervisor.place import held_place
from tests.kinds import there

RECORD = SessionRecord("plant-0-0", "0", ("$share/gateway/devices/#",), "5", ("mqtt://127.0.0.1:1883",))


class Life:
    """One life of a worker, as far as its identity goes."""

    def __init__(self, directory: Path, instance: str = "plant", worker: int = 0) -> None:
        self.ending = Ending.CLEAN
        self.identity = Identity(directory, instance, worker, lambda: self.ending)

    async def start(self) -> Identity:
        try:
            await self.identity.start()
        except BaseException:
            self.crash()  # the service stops a component whose start failed
            raise
        return self.identity

    async def stop(self, ending: Ending = Ending.CLEAN) -> None:
        self.ending = ending
        await self.identity.stop(time.monotonic_ns())

    async def __aenter__(self) -> Identity:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def crash(self) -> None:
        """The process is gone: its lock goes, its files stay."""
        lock, self.identity._lock = self.identity._lock, None
        if lock is not None:
            os.close(lock)


async def live(directory: Path, instance: str = "plant", worker: int = 0, ending: Ending = Ending.CLEAN) -> Identity:
    """Start and stop."""
    life = Life(directory, instance, worker)
    identity = await life.start()
    await life.stop(ending)
    return identity


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# --- whose it is ---


async def test_the_id_is_made_once_and_stays(tmp_path: Path) -> None:
    first = await live(tmp_path / "a" / "data")
    again = await live(tmp_path / "a" / "data")
    other = await live(tmp_path / "b")
    assert len(first.instance_id) == 36
    assert first.instance_id == again.instance_id != other.instance_id


async def test_another_instances_directory_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    await live(tmp_path)
    before = files(tmp_path)
    with pytest.raises(
        IdentityError, match=r"belongs to instance 'plant', not 'other'.*gateway identity adopt"
    ) as caught:
        await live(tmp_path, "other", worker=3)
    assert caught.value.exit_status is ExitStatus.CONFIG
    assert files(tmp_path) == before


async def test_a_second_process_is_refused_and_told_which_one_is_there(tmp_path: Path) -> None:
    said = rf"is in use: process {os.getpid()} runs worker 0 of instance 'plant'.*another instance and another data_dir"
    async with Life(tmp_path):
        with pytest.raises(IdentityError, match=said):  # one of the two alone leads into take-overs
            await live(tmp_path)
        assert holder(tmp_path, 0) == os.getpid()
    assert holder(tmp_path, 0) is None
    await live(tmp_path)


async def test_workers_of_one_instance_share_the_directory(tmp_path: Path) -> None:
    async with Life(tmp_path, worker=0) as one, Life(tmp_path, worker=1) as two, Life(tmp_path, worker=2) as three:
        assert one.instance_id == two.instance_id == three.instance_id
        assert slots(tmp_path) == {0, 1, 2}
    assert slots(tmp_path) == {0, 1, 2}, "a stopped worker comes back to its slot"


CLAIM = """
    import asyncio, sys
    from pathlib import Path
    from gateway.data_dir.identity import Ending, Identity

    async def main():
        identity = Identity(Path(sys.argv[1]), "plant", int(sys.argv[2]), lambda: Ending.CLEAN)
        sys.stdin.readline()
        await identity.start()
        print(identity.instance_id)
        await identity.stop(0)

    asyncio.run(main())
"""


def test_workers_that_start_at_once_agree_on_the_id_and_none_is_forgotten(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CLAIM), str(tmp_path)]
    processes = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(6)
    ]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert len(set(said)) == 1
    assert slots(tmp_path) == set(range(6))


def test_a_directory_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IdentityError, match="must be a folder this user may write"):
        slots(tmp_path / "file")
    assert slots(tmp_path / "missing") == set()


# --- copies ---


def copy(command: str, directory: Path, target: Path) -> None:
    subprocess.run([*command.split(), str(directory), str(target)], check=True)


@pytest.mark.parametrize("command", ["cp -r", "cp -a"])
@pytest.mark.parametrize("instance", ["plant", "other"])
async def test_a_copied_directory_is_refused_as_a_copy(command: str, instance: str, tmp_path: Path) -> None:
    await live(tmp_path / "data")
    copy(command, tmp_path / "data", tmp_path / "copy")
    with pytest.raises(IdentityError, match=r"copy.* is a copy of the directory of instance 'plant'.*adopt"):
        await live(tmp_path / "copy", instance)
    await live(tmp_path / "data")


async def test_a_renamed_folder_changed_owners_and_a_new_mount_are_no_copies(tmp_path: Path) -> None:
    """What containers, reboots and tidy people do: names, modes and times change, the files stay."""
    first = await live(tmp_path / "volumes" / "data")
    for name in files(tmp_path / "volumes" / "data"):
        (tmp_path / "volumes" / "data" / name).chmod(0o600)
        os.utime(tmp_path / "volumes" / "data" / name, (1, 1))
    (tmp_path / "volumes").rename(tmp_path / "renamed")
    (tmp_path / "renamed" / "data").rename(tmp_path / "renamed" / "moved")
    again = await live(tmp_path / "renamed" / "moved")
    assert again.instance_id == first.instance_id
    assert again.last_ending is Ending.CLEAN


@pytest.mark.parametrize(("one", "other", "same"), [
    (Witness(7, 100), Witness(7, 100), True),
    (Witness(7, 100), Witness(7, 200), False),  # copied in the same order onto a fresh volume
    (Witness(7, 100), Witness(9, 100), True),  # a file system that makes inode numbers up at each mount
    (Witness(7, None), Witness(7, None), True),
    (Witness(7, None), Witness(9, None), False),
    (Witness(7, None), Witness(7, 100), True),  # a newer kernel tells the birth, the older one did not
])  # fmt: skip
def test_the_birth_decides_where_it_is_known_else_the_inode(one: Witness, other: Witness, same: bool) -> None:
    assert one.is_same(other) is other.is_same(one) is same
    assert Witness.parse(str(one)) == one


def test_the_birth_of_a_file_is_read_where_the_file_system_tells_it(tmp_path: Path) -> None:
    before_ns = time.time_ns()
    (tmp_path / "file").write_text("")
    os.utime(tmp_path / "file", (1, 1))
    born_ns = Witness.of(tmp_path / "file").born_ns
    if born_ns is None:
        pytest.skip("this file system does not tell")
    assert abs(born_ns - before_ns) < 60_000_000_000


async def test_without_births_the_inode_tells_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meta_properties, "_born_ns", lambda _path: None)
    await live(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with pytest.raises(IdentityError, match="is a copy"):
        await live(tmp_path / "copy")


# --- formats ---


async def test_format_1_is_upgraded_with_its_slots(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\ninstance=plant\n")
    (tmp_path / "worker-0.lock").write_text("17\n")
    (tmp_path / "worker-2.lock").write_text("18\n")
    assert slots(tmp_path) == {0, 2}
    assert (tmp_path / "meta.properties").read_text().startswith("version=1"), "looking changes nothing"
    identity = await live(tmp_path)
    assert identity.last_ending is None, "the older gateway left no word of its end"
    meta = there(read_meta(tmp_path))
    assert (meta.version, meta.instance, meta.instance_id) == (2, "plant", identity.instance_id)
    assert meta.workers == {0, 2}
    assert (await live(tmp_path)).instance_id == identity.instance_id


@pytest.mark.parametrize("use", [slots, lambda path: adopt(path, "plant", None)])
async def test_a_newer_format_is_refused_with_a_sentence(use: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=3\nsomething=else\n")
    sentence = r"format version 3; this gateway knows 2 and older\. A newer gateway wrote it"
    with pytest.raises(NewerFormatError, match=sentence):
        use(tmp_path)
    with pytest.raises(NewerFormatError, match=sentence):
        await live(tmp_path)
    assert (tmp_path / "meta.properties").read_text() == "version=3\nsomething=else\n"


@pytest.mark.parametrize(
    "text",
    ["", "version=2\ninstance=plant\n", "version=two\n", "version=2\ninstance=plant\ninstance.id=x\nworkers=a\n"],
)
async def test_a_damaged_file_is_refused_and_can_be_adopted(text: str, tmp_path: Path) -> None:
    await live(tmp_path, worker=1)
    (tmp_path / "meta.properties").write_text(text)
    with pytest.raises(IdentityError, match="cannot be understood"):
        await live(tmp_path)
    (change,) = adopt(tmp_path, "plant", "cluster")
    assert "damaged" in change
    assert slots(tmp_path) == {1}
    assert (await live(tmp_path)).cluster_id == "cluster"


async def test_the_spool_is_adopted_with_a_damaged_file_too(tmp_path: Path) -> None:
    async with Life(tmp_path):
        former = Spool(spool_path(tmp_path, 0), max_bytes=1 << 30, instance="plant")
        await former.open()
        await former.append([SpoolBatch("t", 0, "r", 1, False, 1, (), 1_700_000_000_000, b"x")])
        await former.close()
    (tmp_path / "meta.properties").write_text("version=2\n")
    assert adopt(tmp_path, "second", None)[-1] == "The spool of worker 0 now belongs to 'second'."
    spool = Spool(spool_path(tmp_path, 0), max_bytes=1 << 30, instance="second")
    await spool.open()
    assert spool.batches == 1
    await spool.close()


# --- the Kafka cluster ---


async def test_another_cluster_than_before_is_refused(tmp_path: Path) -> None:
    async with Life(tmp_path) as identity:
        identity.confirm_cluster(None)
        assert identity.cluster_id is None
        identity.confirm_cluster("one")
        identity.confirm_cluster("one")
    other = r"belongs to Kafka cluster one, but kafka\.bootstrap_servers lead to .*two"
    async with Life(tmp_path) as identity:
        assert identity.cluster_id == "one"
        with pytest.raises(IdentityError, match=other):
            identity.confirm_cluster("two")
    assert there(read_meta(tmp_path)).cluster_id == "one"


async def test_workers_that_record_the_cluster_at_the_same_time_agree(tmp_path: Path) -> None:
    async with Life(tmp_path, worker=0) as first, Life(tmp_path, worker=1) as second:
        first.confirm_cluster("one")
        with pytest.raises(IdentityError, match="Kafka cluster one"):
            second.confirm_cluster("two")


# --- how the last life ended ---


async def test_a_crash_is_told_and_a_clean_stop_is_not(tmp_path: Path) -> None:
    life = Life(tmp_path)
    assert (await life.start()).last_ending is None
    life.crash()
    life = Life(tmp_path)
    with structlog.testing.capture_logs() as logs:
        assert (await life.start()).last_ending is Ending.UNCLEAN
    assert [line["event"] for line in logs] == ["unclean_shutdown"]
    await life.stop()
    assert (await live(tmp_path, ending=Ending.UNCLEAN)).last_ending is Ending.CLEAN
    assert (await live(tmp_path)).last_ending is Ending.UNCLEAN


async def test_the_ends_of_two_workers_are_two_things(tmp_path: Path) -> None:
    await live(tmp_path, worker=0)
    await live(tmp_path, worker=1, ending=Ending.UNCLEAN)
    assert (await live(tmp_path, worker=0)).last_ending is Ending.CLEAN
    assert (await live(tmp_path, worker=1)).last_ending is Ending.UNCLEAN


# --- slots that are given up ---


@pytest.mark.parametrize("supervised", [False, True])
@pytest.mark.parametrize(("ending", "status"), [(Ending.RETIRED, ExitStatus.OK), (Ending.CLEAN, ExitStatus.UNDRAINED)])
async def test_a_worker_whose_slot_is_left_has_not_retired(
    ending: Ending, status: ExitStatus, supervised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a spool still holds, or a session at the broker, leaves the slot. Kubernetes asks before a volume goes."""
    life, place = Life(tmp_path / "data"), contextlib.ExitStack()
    await life.start()
    reports = place.enter_context(held_place(tmp_path / "data", "plant")) if supervised else None
    file = tmp_path / "gateway.toml"
    file.write_text(f'instance = "plant"\ndata_dir = "{tmp_path / "data"}"\n')
    signals: list[tuple[int, int]] = []

    def kill(process: int, number: int) -> None:
        signals.append((process, number))
        asyncio.run(life.stop(ending))
        if reports is not None:
            reports.begin("stop")
            reports.finish("stop", None, "All workers have stopped; nothing remained.")
        place.close()

    monkeypatch.setattr(os, "kill", kill)
    assert await asyncio.to_thread(main, ["retire", "--config", str(file)]) == status
    assert signals == [(os.getpid(), signal.SIGUSR1)]


@pytest.mark.parametrize("runs", [False, True])
async def test_slots_that_no_process_has_are_named_when_a_worker_retires(
    runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one worker without a supervisor finds them after two with one: their sessions still get messages."""
    life, other = Life(tmp_path / "data"), Life(tmp_path / "data", worker=1)
    await life.start()
    await other.start()
    if not runs:
        await other.stop()
    file = tmp_path / "gateway.toml"
    file.write_text(f'instance = "plant"\ndata_dir = "{tmp_path / "data"}"\n')
    monkeypatch.setattr(os, "kill", lambda *_: asyncio.run(life.stop(Ending.RETIRED)))
    status = await asyncio.to_thread(main, ["retire", "--config", str(file)])
    assert status == (ExitStatus.OK if runs else ExitStatus.UNDRAINED)
    assert ("Something is left of worker 1, which does not run" in capsys.readouterr().out) is not runs
    if runs:
        await other.stop()


@pytest.mark.parametrize("taken_over", [False, True])
async def test_a_slot_with_a_session_that_another_client_uses_has_not_retired(
    taken_over: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a session is left to its client, and its record stays: the run ends well, and the slot is not given up."""

    async def run_worker(_settings: Settings, *, retiring: bool) -> Any:
        life = Life(tmp_path / "data")
        identity = await life.start()
        identity.registry.record([RECORD] if taken_over else [])
        await life.stop(Ending.RETIRED)
        return Mock(clean=retiring), Mock()

    await live(tmp_path / "data")
    monkeypatch.setattr(retire, "run_worker", run_worker)
    monkeypatch.setattr(logs, "configure", Mock())
    file = tmp_path / "gateway.toml"
    route = '[[routes]]\nname = "r"\nfilters = ["a"]\ntopic = "a"\n'
    file.write_text(f'instance = "plant"\ndata_dir = "{tmp_path / "data"}"\n{route}')
    status = await asyncio.to_thread(main, ["retire", "--config", str(file)])
    assert status == (ExitStatus.UNDRAINED if taken_over else ExitStatus.OK)


async def test_the_process_of_another_user_is_not_retired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill(_process: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    async with Life(tmp_path / "data"):
        file = tmp_path / "gateway.toml"
        file.write_text(f'instance = "plant"\ndata_dir = "{tmp_path / "data"}"\n')
        assert await asyncio.to_thread(main, ["retire", "--config", str(file)]) == ExitStatus.FAILED
    assert f"Process {os.getpid()} is another user's" in capsys.readouterr().err


async def test_a_retired_worker_gives_its_slot_up(tmp_path: Path) -> None:
    await live(tmp_path, worker=0)
    await live(tmp_path, worker=1, ending=Ending.RETIRED)
    assert slots(tmp_path) == {0}
    assert [name for name in files(tmp_path) if name.startswith("worker-1")] == ["worker-1.lock"]
    assert (await live(tmp_path, worker=1)).last_ending is None


async def test_a_slot_whose_sessions_wait_at_a_broker_is_not_given_up(tmp_path: Path) -> None:
    life = Life(tmp_path, worker=1)
    identity = await life.start()
    identity.registry.record([RECORD])
    await life.stop(Ending.RETIRED)
    assert slots(tmp_path) == {1}
    assert (await live(tmp_path, worker=1)).last_ending is Ending.CLEAN


# --- adopting ---


async def test_a_renamed_instance_keeps_its_id_and_its_sessions(tmp_path: Path) -> None:
    async with Life(tmp_path) as identity:
        identity.registry.record([RECORD])
    (change,) = adopt(tmp_path, "renamed", None)
    assert change == "The instance is now 'renamed', formerly 'plant'."
    async with Life(tmp_path, "renamed") as again:
        assert again.instance_id == identity.instance_id
        assert again.registry.records == (RECORD,), "its old sessions are to be drained and ended"


async def test_an_adopted_copy_gets_an_id_and_leaves_the_originals_sessions_alone(tmp_path: Path) -> None:
    async with Life(tmp_path / "data") as identity:
        identity.registry.record([RECORD])
    for name in ("restored", "cloned"):
        shutil.copytree(tmp_path / "data", tmp_path / name)
    (copied,) = adopt(tmp_path / "restored", "plant", None)
    assert "is a copy, or was moved" in copied
    async with Life(tmp_path / "restored") as restored:
        assert restored.instance_id != identity.instance_id
        assert restored.registry.records == (RECORD,)
    changes = adopt(tmp_path / "cloned", "second", None)
    assert len(changes) == 3
    async with Life(tmp_path / "cloned", "second") as cloned:
        assert cloned.registry.records == ()


async def test_another_cluster_is_adopted_only_when_it_is_named(tmp_path: Path) -> None:
    async with Life(tmp_path) as identity:
        identity.confirm_cluster("one")
    before = there(read_meta(tmp_path))
    assert adopt(tmp_path, "plant", None) == [], "it is ours already"
    assert there(read_meta(tmp_path)) == before
    (change,) = adopt(tmp_path, "plant", "two")
    assert "is now two, formerly one" in change
    async with Life(tmp_path) as identity:
        identity.confirm_cluster("two")


async def test_nothing_is_adopted_while_a_worker_runs_or_where_nothing_is(tmp_path: Path) -> None:
    async with Life(tmp_path / "data", worker=2):
        with pytest.raises(IdentityError, match=rf"in use: process {os.getpid()} runs worker 2 there"):
            adopt(tmp_path / "data", "other", None)
    assert there(read_meta(tmp_path / "data")).instance == "plant"
    for nothing in (tmp_path, tmp_path / "missing"):
        with pytest.raises(IdentityError, match="belongs to no instance"):
            adopt(nothing, "plant", None)


# --- crashes between and within writes ---


class _CrashError(BaseException):
    """The process is killed here."""


def crash_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let so many steps on files happen, and none after them."""
    left = steps

    def step(real: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise _CrashError
            left -= 1
            return real(*arguments, **options)

        return stepped

    for name in ("open", "write", "fsync"):
        monkeypatch.setattr(os, name, step(getattr(os, name)))
    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, step(getattr(Path, name)))


@pytest.mark.parametrize("stage", ["first start", "start", "cluster", "record", "stop", "retire"])
async def test_a_crash_at_any_step_leaves_a_directory_that_starts_again(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the step: the id does not change once it was used, and no end is taken for a clean one that was none."""
    for steps in range(200):
        directory = tmp_path / str(steps)
        before = None if stage == "first start" else (await live(directory)).instance_id
        life = Life(directory)
        if stage not in {"first start", "start"}:
            await life.start()
        crashed = False
        with monkeypatch.context() as patched:
            crash_after(patched, steps)
            try:
                match stage:
                    case "first start" | "start":
                        await life.identity.start()
                    case "cluster":
                        life.identity.confirm_cluster("one")
                    case "record":
                        life.identity.registry.record([RECORD])
                    case "stop":
                        await life.stop()
                    case _:
                        await life.stop(Ending.RETIRED)
            except _CrashError:
                crashed = True
        life.crash()
        life = Life(directory)
        again = await life.start()
        assert before is None or again.instance_id == before, steps
        if stage in {"cluster", "record"}:
            assert again.last_ending is Ending.UNCLEAN
            assert again.cluster_id in ({None, "one"} if crashed else ({"one"} if stage == "cluster" else {None}))
            assert again.registry.records in ({(), (RECORD,)} if crashed else {(RECORD,) if stage == "record" else ()})
        elif stage in {"stop", "retire"} and not crashed:
            assert again.last_ending is (Ending.CLEAN if stage == "stop" else None)
        assert slots(directory) == {0}
        life.crash()
        if not crashed:
            assert steps > 3, "the steps were counted"
            return
    pytest.fail("there was no end of steps")


async def test_sessions_in_a_damaged_file_are_unknown_and_not_none(tmp_path: Path) -> None:
    await live(tmp_path)
    (tmp_path / "worker-0.sessions.json").write_text("{")
    assert describe(tmp_path, "plant")[-1].endswith("MQTT sessions at the broker: unknown, as their file is damaged")


async def test_a_damaged_registry_is_put_aside_and_said(tmp_path: Path) -> None:
    await live(tmp_path)
    (tmp_path / "worker-0.sessions.json").write_text('{"version": 1, "sessions": [{"client_id": "x"}]}')
    with structlog.testing.capture_logs() as logs:
        identity = await live(tmp_path)
    assert [line["event"] for line in logs] == ["session_registry_damaged"]
    assert identity.registry.records == ()
    assert (tmp_path / "worker-0.sessions.damaged").exists()


async def test_the_registry_says_what_was_recorded_last(tmp_path: Path) -> None:
    other = replace(RECORD, client_id="plant-0-1", session="1")
    async with Life(tmp_path) as identity:
        identity.registry.record([RECORD, other])
        identity.registry.record([replace(RECORD, filters=("a", "b"))])
        identity.registry.forget("nobody")
    async with Life(tmp_path) as identity:
        assert identity.registry.records == (replace(RECORD, filters=("a", "b")), other)
        identity.registry.forget("plant-0-0")
        identity.registry.forget("plant-0-1")
        assert not (tmp_path / "worker-0.sessions.json").exists()
