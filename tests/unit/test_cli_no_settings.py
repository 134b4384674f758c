"""Every command that reads settings, where there are none: it says so, and where they were looked for."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

import config.loading.load
from config.errors import GatewayError
from gateway.cli.main import make_parser
from gateway.cli.parser import Commands
from tests.command_line import Cli, interrupted

NEEDED = {  # arguments that are more than a word
    "auth acl add": ["--everybody"],
    "auth acl import": ["acl.conf"],
    "auth user import": ["file.csv"],
    "compare": ["--left", "a", "--right", "b"],
    "dlq show": ["0:1"],
    "dlq replay": ["--all"],
    "auth explain": ["--clientid", "x"],
    "auth user passwd": ["--password-file", "/dev/null"],
    "auth tenant set": ["--logins-per-second", "1"],
    "stream backfill": ["--from", "2026-01-01", "--to", "2026-01-02"],
}
OTHERWISE = {
    "config show": "every line says that it is a default",
    "config check": "says with which source the settings can be used; for run, see below",
    "run": "below", "reload": "below", "explain": "below", "trial": "below",
    "doctor": "asks brokers; its check of the routes says it",
    "auth serve": "goes to the log",
}  # fmt: skip


def verbs() -> Iterator[tuple[str, list[str]]]:
    """Each command with ``--config``, and the least arguments it takes."""
    waiting = [make_parser()]
    while waiting:
        one = waiting.pop()
        below = [action for action in one._actions if isinstance(action, Commands)]
        if below:
            waiting += [below[0].load(name) for name in list(below[0].choices or ())]
        elif any("--config" in action.option_strings for action in one._actions):
            name = one.prog.removeprefix("gateway ")
            words = NEEDED.get(name, [])
            if not words or words[0].startswith("-"):
                places = [action for action in one._actions if not action.option_strings]
                words = [
                    str(next(iter(action.choices))) if action.choices else "1"
                    for action in places
                    if action.nargs not in {"?", "*"}
                ] + words
            yield name, [*name.split(), *words]


VERBS = dict(verbs())


class WantedError(GatewayError):
    """The command has come as far as its settings."""


class NoSettings:
    """What ``load`` gives without a file or a variable, up to the settings."""

    all_defaults = missing_file = "There is no settings file: looked in /here."

    @property
    def settings(self) -> NoReturn:
        raise WantedError("stopped here")


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - OTHERWISE.keys()))
def test_missing_settings_are_told(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.csv").write_text("user_id,password,is_superuser\nx,secret,false\n")
    Path("acl.conf").write_text('{allow, all, all, ["a"]}.\n')
    monkeypatch.setattr(config.loading.load, "load", lambda *_, **__: NoSettings())
    monkeypatch.setattr(
        "gateway.local.runtime.java.ensure_java", lambda *_: (_ for _ in ()).throw(WantedError("no Java"))
    )
    assert "gateway: There is no settings file: looked in /here.\n" in cli(*VERBS[verb], status=1).err


@pytest.mark.parametrize("verb", ["run", "reload", "explain", "config check"])
def test_a_command_that_needs_routes_says_where_they_were_looked_for(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    said = " ".join(cli(*VERBS[verb], status=78).err.split())
    assert "There is no settings file: --config and GATEWAY_CONFIG name none, and there is no gateway.toml in " in said
    assert f"{tmp_path}. `gateway init` writes one" in said


def test_one_variable_is_enough_to_be_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"no gateway.toml in {tmp_path}" in " ".join(cli("routes", "list").err.split())
    monkeypatch.setenv("GATEWAY_DATA_DIR", str(tmp_path))
    assert cli("routes", "list").err == ""


def test_a_stream_tool_that_is_interrupted_ends_without_a_traceback(tmp_path: Path) -> None:
    """pyspark sets a handler of its own when Spark starts, which raises in the middle of whatever runs."""
    code = (
        "import signal, sys, time, types, streaming.run as tool\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests' parent ignores\n"
        "def start(*_, **_more):\n"
        "    signal.signal(signal.SIGINT, lambda *_: 1 / 0)\n"
        "    return types.SimpleNamespace(session=None, end=lambda: None)\n"
        "tool.start_spark = start\n"
        "from streaming.upkeep import maintain\n"
        "maintain.run = lambda *_: (print('runs', flush=True), [time.sleep(0.01) for _ in range(6000)])\n"
        "sys.exit(tool.main(['maintain']))\n"
    )
    assert interrupted(code, tmp_path) == (-signal.SIGINT, "runs\n", "")
