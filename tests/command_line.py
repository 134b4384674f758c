"""The command ``gateway``, in a process of its own and in this one."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
GATEWAY = [sys.executable, "-m", "gateway.cli.main"]


def own_environment(**more: str) -> dict[str, str]:
    """This process's environment without settings of a gateway, with the sources of this place, and with ``more``."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    return {**mine, "PYTHONPATH": str(ROOT), **more}


def run_gateway(
    *words: str | Path, cwd: Path = ROOT, stdin: str = "", timeout_s: float = 60.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``gateway`` with these words until it ends."""
    return subprocess.run(
        [*GATEWAY, *words], cwd=cwd, env=own_environment(**environment), input=stdin, capture_output=True, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip


def interrupted(code: str, cwd: Path) -> tuple[int, str, str]:
    """Run this Python code until it prints a line, and interrupt it: its status, that line, what it complained of."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=cwd, env=own_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    return process.returncode, line, complaint


class Said(NamedTuple):
    out: str
    err: str


class Cli:
    """Runs ``gateway`` in this process, as ``main`` does, and checks the status it ends with."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str | Path, status: int = 0) -> Said:
        from gateway.cli.main import main  # this module is imported for every test, the command line for few

        self._capsys.readouterr()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            ended: object = main([str(word) for word in words])
        except SystemExit as exited:
            ended = exited.code
        finally:  # `gateway run` lets signals wait, also in what later tests start
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        said = Said(*self._capsys.readouterr())
        assert ended == status, said
        return said


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)
