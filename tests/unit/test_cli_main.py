"""The ``gateway`` command itself: what it offers, what it ends with, and that it leaves quietly when nobody listens."""

import argparse
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.errors import ConfigError, ExitStatus, GatewayError
from gateway.cli import main as module
from gateway.cli.arguments import moment
from gateway.cli.main import main
from gateway.cli.parser import Commands, Parser
from gateway.mqtt.errors import ConnectError, MqttRefusedError
from tests.command_line import GATEWAY, Cli, interrupted, own_environment, run_gateway


def test_the_version_is_the_packages(cli: Cli) -> None:
    assert re.fullmatch(r"gateway \d+\.\d+\.\d+\S* \((pure|compiled)\)\n", cli("--version").out)


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run", "--nonsense"], ["run", "extra"]])
def test_wrong_arguments_end_with_status_2(arguments: list[str], cli: Cli) -> None:
    assert "usage: gateway" in cli(*arguments, status=2).err


WRONG = [
    (["status"], "gateway: there is no command 'status'; did you mean doctor?"),
    (["stream", "ingest"], "gateway stream: there is no command 'ingest'; did you mean silver?"),
    (["route"], "gateway: there is no command 'route'; did you mean routes?"),
    (["topics", "lst"], "gateway topics: there is no command 'lst'; did you mean list?"),
    (["tail", "--rout", "x", "--devise", "y"], "gateway tail: there is no option --devise; did you mean --device?"),
    (["--config", "x.toml", "run"], "gateway: --config is no option of gateway itself: options come after the command"),
    (["groups", "describe", "g", "--watch", "36501d"],
     "gateway groups describe: argument --watch: '36501d' is more than 100 years"),
    (["command", "send", "d", "--expires", "0"], "gateway command send: argument --expires: '0' is less than 1 s"),
    (["groups", "describe", "g", "--watch", "0"], "gateway groups describe: argument --watch: '0' is less than 1 s"),
    (["topics", "describe", "a\udcff"], r"gateway topics describe: argument TOPIC: 'a\udcff' is no UTF-8 text"),
    (["trial", "--prefix", "a\udcff"], r"gateway trial: argument --prefix: 'a\udcff' is no UTF-8 text"),
    (["tail", "--topic", "a\udcff"], r"gateway tail: argument --topic: 'a\udcff' is no UTF-8 text"),
    (["spool", "status", "--worker", "-1"],
     "gateway spool status: argument --worker: '-1' is no whole number from 0 to 1,023"),
    (["routes", "lint", "extra"], "gateway routes lint: 'extra' is one argument too many"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "told"), WRONG, ids=lambda value: " ".join(value) if value else "")
def test_a_wrong_word_is_named_by_the_command_that_it_was_for(arguments: list[str], told: str, cli: Cli) -> None:
    err = cli(*arguments, status=ExitStatus.USAGE).err
    command = told.partition(":")[0]
    assert err.startswith(f"usage: {command} ["), "the usage of another command"
    assert f"{told} (" in err.splitlines()[-1], "not only what is wrong"


def test_a_time_before_1970_is_that() -> None:
    """Kafka takes -1 for the end of a partition."""
    assert moment("1969-12-31T23:59:59.999") == moment("0001-01-01") == moment("36500d") == 0


def test_a_group_without_its_command_shows_what_there_is(cli: Cli) -> None:
    told = cli("leaders", status=ExitStatus.USAGE)
    assert "elect" in told.err
    assert not told.out, "a pipe that waits for an answer would take the help for one"


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, Commands):
            for name in list(action.choices or ()):
                yield from _parsers(action.load(name))


def test_every_help_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also examples, which stay lines that can be copied, and usages. No word is broken."""
    monkeypatch.setenv("COLUMNS", "80")
    seen = 0
    for one in _parsers(module.make_parser()):
        seen += 1
        lines = one.format_help().splitlines()
        assert not [line for line in lines if len(line) > 80], one.prog
        words = set(f"{one.description} {one.epilog}".split())
        assert all(word in words for line in lines for word in line.split() if "/" in word and len(word) > 30), one.prog
    assert seen > 80


def test_long_lines_of_a_help_stay_what_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    epilog = (
        "examples:\n"
        "  gateway trial --config gateway.toml --topic scratch        where we may make none; its records stay there\n"
        f"  gateway import emqx rules.json {'x' * 30} --mqtt mqtts://emqx:8883 -o gateway.toml\n"
        f"  gateway init \\\n      --username {'y' * 40} --kafka kafka-1.example.com:9092\n"
        f"  a/file      for whom it may concern, which are {'many ' * 10}\n"
    )
    told = Parser(prog="gateway", epilog=epilog).format_help().partition("examples:\n")[2]
    assert told == (
        "  gateway trial --config gateway.toml --topic scratch\n"
        "      # where we may make none; its records stay there\n"
        f"  gateway import emqx rules.json {'x' * 30} \\\n"
        "      --mqtt mqtts://emqx:8883 -o gateway.toml\n"
        f"  gateway init \\\n      --username {'y' * 40} \\\n          --kafka kafka-1.example.com:9092\n"
        "  a/file      for whom it may concern, which are many many many many many many\n"
        "              many many many many\n"
    )


def test_the_example_in_the_help_of_run_is_one(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = cli("run", "--help").out.partition("gateway.toml needs:\n")[2].partition("\n\n")[0]
    (tmp_path / "gateway.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    cli("config", "check")


@pytest.mark.parametrize("command", ["retire", "restart", "reload"])
def test_nothing_runs_here_is_status_4(command: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gateway.toml").write_text('[[routes]]\nname = "t"\nfilters = ["t/#"]\ntopic = "t"\n')
    monkeypatch.chdir(tmp_path)
    assert "No gateway of instance 'gateway' runs with data_dir" in cli(command, status=4).err


def test_the_help_lists_every_command_and_every_exit_status(cli: Cli) -> None:
    text = cli("--help").out
    for command in ("run", "restart", "retire", "dlq", "auth", "config", "dev", "demo", "stream"):
        assert re.search(rf"^ +{command} ", text, re.MULTILINE), f"{command} is not offered"
    for status in ExitStatus:
        assert re.search(rf"\b{status.value}\b", text), f"{status!r} is not in the help"


ERRORS = [
    (GatewayError("It broke."), 1),
    (ConfigError("routes: none.", "mqtt: bad."), 78),
    (ConnectError("Nobody there.", "unreachable"), 69),
    (MqttRefusedError("No.", "credentials"), 77),
]


@pytest.mark.parametrize(("error", "status"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_of_ours_is_a_sentence_and_a_status(
    error: GatewayError, status: int, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    def fail(_arguments: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr("gateway.cli.service.run._run", fail)
    assert cli("run", status=status).err == f"gateway: {error}\n"


def test_an_error_of_python_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_arguments: argparse.Namespace) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("gateway.cli.service.run._run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["run"])


@pytest.mark.parametrize("arguments", [("config", "reference"), ("config", "show"), ("--version",), ("--help",)])
def test_whose_output_nobody_reads_ends_silently_and_not_as_done(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """As in ``gateway config reference | head``: neither a traceback nor python's complaint while it ends. Status 0 of
    ``gateway dlq replay | head`` would say that all were replayed."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [*GATEWAY, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False, cwd=tmp_path,
            env=own_environment(PYTHONUNBUFFERED=""), text=True,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert ended.stderr == ""
    assert ended.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("words", "status", "out", "err"), [
    ("--version >/dev/full", 69, "", "gateway: The output cannot be written: No space left on device.\n"),
    ("routes list --config none 2>/dev/full", 78, "", ""),
    ("explain a - --offline --json <&- 2>&-", 0, '"route": "a"', ""),
    ("explain a - --offline >&- <&-", 0, "", ""),
    ("config check --config none >&- 2>&- <&-", 78, "", ""),
    ("config check >&-", 0, "", ""),
])  # fmt: skip
def test_a_standard_stream_may_be_closed_or_full(
    words: str, status: int, out: str, err: str, unbuffered: str, tmp_path: Path
) -> None:
    (tmp_path / "gateway.toml").write_text('routes = [{ name = "a", filters = ["a"], topic = "a" }]')
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {words}', "sh", *GATEWAY], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env=own_environment(PYTHONUNBUFFERED=unbuffered), check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (status, err)
    assert out in ended.stdout


def test_a_removed_current_folder_is_named(tmp_path: Path) -> None:
    words = [
        "sh",
        "-c",
        'cd "$1" && rmdir "$1" && shift && exec "$@"',
        "sh",
        tmp_path / "gone",
        *GATEWAY,
        "dev",
        "status",
    ]
    (tmp_path / "gone").mkdir()
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, env=own_environment(), check=False)
    assert ended.returncode == 1
    assert ended.stderr.endswith("gateway: The current folder is not there any more. Change to another one.\n")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "words", ["verify", "verify --commands", "dlq list", "dlq replay", "compare --left a --right b"]
)
def test_a_span_without_any_time_proves_nothing_and_is_refused(words: str, cli: Cli, tmp_path: Path) -> None:
    span = ("--since", "2026-01-02", "--until", "2026-01-01", "--config", tmp_path / "gateway.toml")
    (tmp_path / "gateway.toml").write_text("")
    assert cli(*words.split(), *span, status=2).err == "gateway: --since is not before --until.\n"


@pytest.mark.parametrize(("words", "status"), [
    ("config check", 78), ("reload", 78), ("restart", 78), ("retire", 78), ("identity show", 78),
    ("acknowledge", 1), ("spool status", 1), ("spool export x", 1), ("auth user list", 1), ("auth init", 1),
])  # fmt: skip
def test_a_data_dir_that_this_user_may_not_enter_is_named(words: str, status: int, cli: Cli, tmp_path: Path) -> None:
    """A name that is too long stands for it: root may enter every folder. A gateway that cannot be seen may run."""
    file = tmp_path / "gateway.toml"
    file.write_text(f'data_dir = "{"x" * 300}"\nroutes = [{{ name = "a", filters = ["a"], topic = "a" }}]')
    said = cli(*words.split(), "--config", file, status=status)
    assert "File name too long" in said.err


def test_a_character_that_the_output_cannot_encode_is_escaped() -> None:
    ran = run_gateway("config", "reference", PYTHONIOENCODING="ascii")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\\u" in ran.stdout


def test_an_interrupt_ends_a_command_without_a_traceback(tmp_path: Path) -> None:
    # Many short sleeps: a signal that comes just before a sleep begins is looked at when that sleep is over.
    code = (
        "import sys, time, gateway.cli.service.run as r; from gateway.cli.main import main; "
        "r._run = lambda a: (print('waiting', flush=True), [time.sleep(0.01) for _ in range(6000)]); "
        "sys.exit(main(['run']))"
    )
    assert interrupted(code, tmp_path) == (-signal.SIGINT, "waiting\n", ""), "whoever called it is told what ended it"


def test_an_interrupt_before_the_command_line_is_loaded_ends_without_a_traceback(tmp_path: Path) -> None:
    code = """
import signal, sys
class Slow:
    def find_spec(name, *_):
        if name == "gateway.cli":
            print(flush=True)
            try:
                signal.pause()
            except KeyboardInterrupt:
                print("swallowed")
sys.meta_path.insert(0, Slow)
from gateway.start import main
sys.exit(main())
"""
    assert interrupted(code, tmp_path) == (-signal.SIGINT, "\n", "")


def test_an_interrupt_while_modules_are_loaded_is_no_error_of_theirs(tmp_path: Path) -> None:
    """pydantic raises its SchemaError for a KeyboardInterrupt."""
    code = """
import signal, sys, gateway.cli.parser as parser
def load(*_words):
    try:
        print(flush=True)
        signal.pause()
    except KeyboardInterrupt:
        raise ValueError("swallowed")
parser.Commands.load = load
from gateway.cli.main import main
sys.exit(main(["run"]))
"""
    assert interrupted(code, tmp_path) == (-signal.SIGINT, "\n", "")


@pytest.mark.parametrize(
    ("name", "file"), [("config", "config.py"), ("auth", "auth/__init__.py"), ("bridge", "bridge.py")]
)
def test_another_package_of_the_same_name_is_named(tmp_path: Path, name: str, file: str) -> None:
    """The wheel installs packages named ``config`` and ``auth``."""
    other = tmp_path / file
    other.parent.mkdir(exist_ok=True)
    other.write_text("")
    ran = run_gateway("--version", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"Another Python package named {name} ({other}) hides the gateway's own.")
