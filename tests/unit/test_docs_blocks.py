"""What the README and the docs give to paste: settings load, and every `gateway` command line has options there are."""

import re
import shlex
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from config.loading.load import load
from gateway.cli.config import check_run
from gateway.cli.main import make_parser
from gateway.cli.parser import Parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.*\n|^\n(?= {4}))+", re.MULTILINE)
ROUTE = '[[routes]]\nname = "telemetry"\nfilters = ["devices/+/telemetry"]\ntopic = "telemetry"\n'
TELEMETRY_SCHEMA = '{"type": "object", "required": ["seq"]}'


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0]

    @property
    def is_toml(self) -> bool:
        return self.language == "toml" or re.match(r"\[\[?[a-z]|[a-z_.]+ = ", self.first) is not None


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += [
            Block(page.name, text.count("\n", 0, one.start()) + 1, one[2], textwrap.dedent(one[3]))
            for one in FENCED.finditer(text)
        ]
        rest = FENCED.sub(lambda one: "\n" * one[0].count("\n"), text)
        for one in INDENTED.finditer(rest):
            body = textwrap.dedent(one[0]).strip("\n") + "\n"
            found.append(Block(page.name, rest.count("\n", 0, one.start()) + 1, "", body))
    return found


BLOCKS = blocks()
TOML = [one for one in BLOCKS if one.is_toml]
NO_SETTINGS = ("[types.", "[project.")  # Spark's schemas, a package's pyproject.toml


def completed(text: str) -> str:
    """A part of the settings with what stands around it in a file: the page tells what it is a part of."""
    if re.match(r"use = ", text):
        text = f"[[interceptors]]\n{text}"
    if text.startswith("metadata_headers"):
        return ROUTE + text
    if "[[routes]]" not in text:
        return f'{text}\n{ROUTE}device = "${{topic[1]}}"\n'
    if "filters" not in text:
        return text.replace("[[routes]]\n", ROUTE)
    return text


@pytest.mark.parametrize("block", TOML, ids=lambda block: f"{block.page}:{block.line}")
def test_settings_can_be_pasted(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone, as it stands; only files of secrets and certificates are somewhere else here."""
    tomllib.loads(block.text)
    if block.text.startswith(NO_SETTINGS):
        return
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("a-secret-of-good-length-0123456789")
    (tmp_path / "telemetry.schema.json").write_text(TELEMETRY_SCHEMA)
    text = re.sub(r'"(?:/run|/etc|/var|SECRETS)/[^"]*"', f'"{tmp_path / "secret"}"', completed(block.text))
    (tmp_path / "gateway.toml").write_text(text)
    loaded = load(tmp_path / "gateway.toml", environ={})
    if "my_package" in block.text:
        return  # a plug-in of the reader's own
    problems, _ = check_run(loaded)
    assert not problems


@cache
def parser() -> Parser:
    return make_parser()


def command_lines(block: Block) -> list[list[str]]:
    """The arguments of each call of `gateway` in a block, without comments and what a shell does with the output."""
    found: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if re.match(r"\s*(?:\$ )?(?:\S*/)?gateway [a-z]", line) is None:
            continue
        words: list[str] | None = None
        for word in shlex.split(line, comments=True):
            if word == "&&":
                words = None
            elif re.match(r"[|>&;]|2>", word):
                break
            elif words is not None:
                words.append(word.strip("[]") if word.startswith("[-") or word.endswith("]") else word)
            elif word.rpartition("/")[2] == "gateway":
                found.append(words := [])
    return found


COMMANDS = [
    pytest.param(words, id=f"{block.page}:{block.line} {' '.join(words)[:40]}")
    for block in BLOCKS
    if not block.is_toml and block.language in {"", "sh", "shell"}
    for words in command_lines(block)
]


def test_there_are_settings_and_command_lines() -> None:
    assert len(TOML) > 35
    assert {one.page for one in TOML} >= {"README.md", "tutorial.md", "credentials.md", "auth.md", "interceptors.md"}
    assert len(COMMANDS) > 60


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_line_is_one_that_is_taken(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        parser().parse_args(["1" if word == "N" else word for word in words])
    except SystemExit as end:
        if end.code:
            pytest.fail(capsys.readouterr().err)
