"""docs/auth.md: its commands can be pasted one after the other, the files it names are there."""

import re
import shlex
from pathlib import Path

import pytest

from config.errors import ExitStatus
from gateway.cli.access import common as auth_common
from gateway.cli.main import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/auth.md").read_text()
DEPLOY = "deploy/emqx/emqx.conf deploy/emqx/acl.conf deploy/secrets/README.md"


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


@pytest.mark.parametrize("name", DEPLOY.split())
def test_a_file_that_is_named_is_there(name: str) -> None:
    assert name in TEXT or Path(name).name in TEXT
    assert (ROOT / name).is_file()
