"""docs/auth.md speaks of commands, settings, metrics, log lines and files that exist."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from config.load import load
from config.schema import dotted, walk
from config.settings import Settings
from gateway.auth_service.metrics import AuthMetrics
from gateway.cli import auth, demo, dev

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/auth.md").read_text()
DEPLOY = "deploy/emqx/emqx.conf deploy/emqx/acl.conf deploy/secrets/README.md"
SPOKEN = [*re.findall(r"^ {4,}(gateway (?:auth|demo|dev) .*)$", TEXT, re.MULTILINE)]
SPOKEN += re.findall(r"`(gateway auth (?:user|ban|tenant|acl|init) [a-z]+ [^`…]+)`", TEXT)
COMMANDS = sorted({line.partition(" #")[0].strip() for line in SPOKEN})
WORDS = sorted(set(re.findall(r"`(auth\.[a-z_.]+|mqtt\.[a-z_.]+|gateway_auth_[a-z_]+|auth_[a-z_]+)[`{ ]", TEXT)))
SETTINGS = {dotted(path) for path, _ in walk(Settings)}
BLOCKS = re.findall(r"^( *)```toml\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_page_has_what_is_looked_for() -> None:
    assert len(COMMANDS) > 15
    assert len(WORDS) > 15
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_that_is_taken(command: str) -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for module in (auth, demo, dev):
        module.add_parser(commands)
    parser.parse_args(shlex.split(command)[1:])  # ends with a SystemExit otherwise


@pytest.mark.parametrize("word", WORDS)
def test_a_setting_a_metric_or_a_log_line_exists(word: str) -> None:
    if word.startswith("gateway_auth_"):
        assert word in {one.name for one in AuthMetrics.definitions()}
    elif word.startswith("auth_"):
        sources = [path.read_text() for folder in ("auth", "gateway") for path in (ROOT / folder).rglob("*.py")]
        assert any(f'"{word}"' in source for source in sources)
    else:
        assert word.removesuffix("_file") in SETTINGS or word in SETTINGS


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


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([a-z.-]*)(?:#[a-z-]*)?\)", TEXT)) - {""}))
def test_a_page_that_is_linked_is_there(target: str) -> None:
    assert (ROOT / "docs" / target).is_file()
