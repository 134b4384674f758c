"""A start on a full or failing disk is no matter of settings: its status says that another try makes sense."""

import contextlib
import errno
import os
import resource
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from bridge.errors import SpoolError, SpoolWriteError
from bridge.spool.record import SpoolBatch
from bridge.spool.spool import Spool
from config.errors import ExitStatus, GatewayError
from gateway.data_dir import durable
from gateway.data_dir.directory import explained
from gateway.data_dir.identity import Ending, Identity
from gateway.data_dir.ledger_log import begin_life, end_life
from gateway.data_dir.meta_properties import IdentityError
from gateway.data_dir.session_registry import SessionRecord
from gateway.supervisor.place import held_place
from tests.unit.spool_path import open_files, opened_spool


def refuse(code: int) -> Callable[..., NoReturn]:
    def call(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(code, os.strerror(code), "/data")

    return call


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_the_identity_s_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    identity = Identity(tmp_path / "data", "gw", 0, lambda: Ending.CLEAN)
    monkeypatch.setattr("gateway.data_dir.durable.write", refuse(code))
    with pytest.raises(GatewayError, match=f"cannot be written \\({os.strerror(code)}\\).*delete no spool") as raised:
        await identity.start()
    assert raised.value.exit_status is ExitStatus.UNAVAILABLE
    monkeypatch.undo()
    await identity.stop(0)


async def test_a_full_disk_fails_no_orderly_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that had drained everything ended with status 75, and the producer was not closed."""
    identity = Identity(tmp_path, "gw", 0, lambda: Ending.CLEAN)
    await identity.start()
    author = begin_life(tmp_path, "gw", 0, 1)
    with monkeypatch.context() as full:
        full.setattr("gateway.data_dir.durable.write", refuse(errno.ENOSPC))
        end_life(tmp_path, author)
        await identity.stop(0)
    await identity.start()
    await identity.stop(0)
    assert identity.last_ending is Ending.UNCLEAN
    assert begin_life(tmp_path, "gw", 0, 2).previous_clean is False


@pytest.mark.parametrize("ending", [Ending.RETIRED, Ending.CLEAN])
async def test_a_start_that_failed_leaves_the_slot_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    """A retirement would remove the record of sessions that were not read, and they would wait at the broker."""
    identity = Identity(tmp_path, "gw", 0, lambda: Ending.UNCLEAN)
    await identity.start()
    identity.record_sessions([SessionRecord("gw-0-0", "0", ("a",), "5", ("mqtt://a:1883",))], ())
    await identity.stop(0)
    again = Identity(tmp_path, "gw", 0, lambda: ending)
    with monkeypatch.context() as failing:
        failing.setattr("gateway.data_dir.session_registry.SessionRegistry.load", refuse(errno.EIO))
        with pytest.raises(IdentityError):
            await again.start()
    await again.stop(0)
    await again.start()
    assert (len(again.registry.records), again.last_ending) == (1, Ending.UNCLEAN)
    with monkeypatch.context() as full:
        full.setattr("gateway.data_dir.durable.write", refuse(errno.ENOSPC))
        again.registry.forget("gw-0-0")
        with pytest.raises(IdentityError) if ending is Ending.RETIRED else contextlib.nullcontext():
            await again.stop(0)


def test_a_disk_that_takes_a_part_of_a_file_leaves_the_old_one(tmp_path: Path) -> None:
    """A write that only begins to fit is no error to the system. A file cut short would take the old one's place, and
    the sessions of a registry would wait at the broker for nobody."""
    path = tmp_path / "worker-0.sessions.json"
    durable.write(path, "old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            durable.write(path, "new" * 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path], "no draft takes what is left of the disk"


def test_the_supervisor_s_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("config.process_lock.take", refuse(errno.ENOSPC))
    with pytest.raises(GatewayError) as raised, held_place(tmp_path, "gw"):
        pass
    assert raised.value.exit_status is ExitStatus.UNAVAILABLE


@pytest.mark.parametrize("where", ["lock", "index", "tally", "log", "close"])
async def test_the_spool_s_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """No file stays open, and so no lock held, also where the process goes on."""

    def full(*_arguments: object) -> NoReturn:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    names = {
        "lock": "os.pwrite",
        "index": "bridge.spool.index.Index._prepare",
        "tally": "bridge.spool.tally.Tally.__init__",
        "log": "bridge.spool.recovery.Loading._compare",  # behind the reading of the log
        "close": "bridge.spool.tally.Tally.write",
    }
    code = errno.EIO if where in {"lock", "tally"} else errno.ENOSPC
    spool = await opened_spool(tmp_path / "s")
    if where == "log":
        monkeypatch.setattr("bridge.spool.store.Store.index_appended", lambda _self: None)
    await spool.append([SpoolBatch("t", 0, "r", 1, False, 1, (), 1, b"x")])
    if where != "close":
        await spool.close()
    monkeypatch.setattr(names[where], full if where == "index" else refuse(code))
    if where == "close":
        await spool.close()
    else:
        with pytest.raises(SpoolWriteError, match=r"its disk is full, or fails\. Make room") as raised:
            await opened_spool(tmp_path / "s")
        assert raised.value.exit_status is ExitStatus.UNAVAILABLE
    assert open_files(tmp_path) == []


async def test_missing_rights_stay_a_matter_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GatewayError) as raised, explained(tmp_path):
        refuse(errno.EACCES)()
    assert raised.value.exit_status is ExitStatus.CONFIG
    monkeypatch.setattr("config.process_lock.take", refuse(errno.EACCES))
    with pytest.raises(SpoolError, match="folder this user may write") as refused:
        await Spool(tmp_path / "s", max_bytes=1 << 20, instance="gw").open()
    assert refused.value.exit_status is ExitStatus.CONFIG
