"""One process at a time, and whoever looks does not get in the way."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from config import process_lock


def test_a_lock_is_one_processs_and_says_whose(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert process_lock.holder(path) == "", "nobody's, and not even there"
    lock = process_lock.take(path)
    assert process_lock.holder(path) == str(os.getpid())
    with pytest.raises(process_lock.HeldError) as held:
        process_lock.take(path)
    assert held.value.process == str(os.getpid())
    os.close(lock)
    assert process_lock.holder(path) == ""
    os.close(process_lock.take(path))


def test_a_user_who_may_not_write_sees_who_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    lock = process_lock.take(path)
    opened = os.open

    def as_another(path: Path, flags: int, *more: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", as_another)
    assert process_lock.holder(path) == str(os.getpid())
    os.close(lock)
    assert process_lock.holder(path) == ""


def test_the_end_of_a_process_gives_its_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    program = "import sys, pathlib; from config import process_lock; process_lock.take(pathlib.Path(sys.argv[1]))"
    program += "; print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "held\n"
        assert process_lock.holder(path) == str(child.pid)
        child.kill()
        child.wait()
    os.close(process_lock.take(path))


def test_a_look_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that stood still during one, a start was refused, by the name of an earlier process."""
    path = tmp_path / "lock"
    look = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(look, fcntl.LOCK_SH)
    pauses: list[float] = []

    def sleep(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 400:
            os.close(look)

    monkeypatch.setattr(process_lock, "time", SimpleNamespace(sleep=sleep))
    lock = process_lock.take(path)
    assert len(pauses) == 400
    with pytest.raises(process_lock.HeldError):
        process_lock.take(path)
    assert len(pauses) < 430, "one that has it is not waited for as long"
    os.close(lock)
