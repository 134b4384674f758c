"""docs/auth.md: its commands can be pasted, its settings load, the files it names are there."""

import re
import shlex
from pathlib import Path

import pytest

from config.errors import ExitStatus
from config.loading.load import load
from gateway.cli.access import common as auth_common
from gateway.cli.main import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/auth.md").read_text()
DEPLOY = "deploy/emqx/emqx.conf deploy/emqx/acl.conf deploy/secrets/README.md"
BLOCKS = re.findall(r"^( *)```toml\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_page_has_what_is_looked_for() -> None:
    assert len(BLOCKS) >= 6


def test_commands_that_change_the_database_can_be_pasted_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(auth_common.getpass, "getpass", lambda _prompt: "a long enough password")
    monkeypatch.setattr(auth_common.sys.stdin, "isatty", lambda: True, raising=False)
    assert main(["auth", "init", "--device", "thermostat-18"]) == ExitStatus.OK
    lines = re.findall(r"^ {4}(gateway auth (?:user|acl|tenant|forget|explain) .*?)(?: +# .*)?$", TEXT, re.MULTILINE)
    assert len(lines) > 12
    for line in lines:
        assert main(shlex.split(line)[1:]) == ExitStatus.OK, f"{line}: {capsys.readouterr().err}"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_settings_that_are_shown_can_be_loaded(number: int, tmp_path: Path) -> None:
    indent, text = BLOCKS[number]
    file = tmp_path / "gateway.toml"
    for name in ("gateway", "service"):
        (tmp_path / name).mkdir()
    for path in ("gateway/mqtt_password", "service/shared_secret", "db", "ldap"):
        (tmp_path / path).write_text("of-the-test-of-the-test")
    text = text.replace(f"\n{indent}", "\n").replace("SECRETS", str(tmp_path)).replace("/run/secrets", str(tmp_path))
    file.write_text(text.removeprefix(indent))
    load(file, environ={})


@pytest.mark.parametrize("name", DEPLOY.split())
def test_a_file_that_is_named_is_there(name: str) -> None:
    assert name in TEXT or Path(name).name in TEXT
    assert (ROOT / name).is_file()
