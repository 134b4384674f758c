"""Sentences on a terminal: in lines of its width, without a broken word; and as they are for a pipe."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
from pathlib import Path

import pytest

from config.prose import fitted, lines_of
from gateway.cli.main import main
from tests.command_line import GATEWAY, own_environment
from tests.terminal import Terminal

ROOT = Path(__file__).parents[2]
LONG = "No gateway of instance 'plant' runs with data_dir " + "/var/lib/" + "x" * 70 + ". Check --config and more."


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_pipe_gets_the_text_as_it_is() -> None:
    assert fitted(LONG, io.StringIO()) == LONG


def test_no_word_is_broken_and_a_longer_one_has_a_line_of_its_own() -> None:
    told = fitted(LONG, Terminal())
    assert told.split() == LONG.split()
    assert [line for line in told.splitlines() if len(line) > 80] == []
    assert f"/var/lib/{'x' * 70}." in told.splitlines()


@pytest.mark.parametrize(("line", "begins"), [
    ("  - mqtt.sessions " + "word " * 20, "    word"),
    ("worker 0     " + "word " * 20, " " * 13 + "word"),
    ("  out of order               5  " + "word " * 20, " " * 32 + "word"),
    ("  " + "word " * 20, "    word"),
    ("word " * 20, "word"),
])  # fmt: skip
def test_a_line_goes_on_below_what_it_began_with(line: str, begins: str) -> None:
    first, *others = fitted(line.rstrip(), Terminal()).splitlines()
    assert first.startswith(line[: len(begins)].rstrip())
    assert others
    for other in others:
        assert re.match(" *", other)[0] == re.match(" *", begins)[0]  # type: ignore[index]


def test_a_row_of_a_table_stays_whole() -> None:
    row = "telemetry  telemetry          0            19        19        0        ?     ?     0  ok"
    assert fitted(row, Terminal()) == row


def test_a_command_stays_whole() -> None:
    text = "There is a username already: change its password, which takes a moment, with `gateway auth user passwd`."
    assert "`gateway auth user passwd`." in lines_of(text, 80)


def in_terminal(folder: Path, *arguments: str) -> str:
    """What the command writes to both its outputs on a terminal of 80 columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = own_environment()
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [*GATEWAY, *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment
    )
    os.close(slave)
    told = b""
    try:
        while part := os.read(master, 65536):
            told += part
    except OSError:  # how a terminal without a process ends
        pass
    finally:
        os.close(master)
    process.wait(60)
    return told.decode().replace("\r\n", "\n")


ERRORS = [
    ("run",),
    ("auth", "explain"),
    ("verify",),
    ("retire",),
    ("config", "check"),
    ("auth", "user", "list"),
    ("dlq", "replay"),
    ("trial",),
    ("init", "--filter", "a/#/b"),
    ("topics", "plan", "--bogus"),
    ("dev", "up", "--name", "no/name"),
    ("demo", "--devices", "many"),
]


@pytest.mark.parametrize("arguments", ERRORS, ids=" ".join)
def test_an_error_fits_the_terminal(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them on a real one, the others in this process, which takes a tenth of the time."""
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch:
        patch.chdir(folder)  # pytest's own are deep: a long path has a line of its own
        if arguments == ("verify",):  # gets as far as Kafka
            Path("gateway.toml").write_text('[kafka]\nbootstrap_servers = ["127.0.0.1:1"]\n')
        if arguments in ERRORS[:2]:
            told = in_terminal(Path(folder), *arguments)
        else:
            terminal = Terminal()
            patch.setattr("sys.stdout", terminal)
            patch.setattr("sys.stderr", terminal)
            with contextlib.suppress(SystemExit):
                main([*arguments])
            told = terminal.getvalue()
    assert len(told.split()) > 5, "a sentence at least"
    assert "Traceback" not in told
    assert [line for line in told.splitlines() if len(line) > 80] == []
