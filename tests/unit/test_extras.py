"""A hint what to install is a command that works here: no package index has the gateway."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from config.extras import how_to_install
from tests.command_line import Cli

ROOT = Path(__file__).parents[2]


def test_from_a_checkout_it_names_the_checkout() -> None:
    assert how_to_install("json-schema") == f"{sys.executable} -m pip install --editable '{ROOT}[json-schema]'"
    folder = Path("a folder")
    assert "'.[embedded]' in the folder of the gateway's sources" in how_to_install("embedded", folder)


def test_every_extra_and_image_that_is_named_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    stages = re.findall(r"^FROM \S+ AS (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for extra in ("auth", "streaming"):
        assert extra in extras
        assert re.search(r"--target (\S+)", how_to_install(extra))[1] in stages  # type: ignore[index]
    for package in ("auth", "bridge", "gateway", "streaming"):
        for file in (ROOT / package).rglob("*.py"):
            for named in re.findall(r"how_to_install\([\"']([a-z,-]+)[\"']\)", file.read_text()):
                assert set(named.split(",")) <= set(extras), file


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_no_page_asks_an_index_for_the_gateway(page: Path) -> None:
    assert not re.search(r"pip install [^\n]*mqtt-kafka-gateway", page.read_text())


def test_dev_up_without_its_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr("config.extras.importlib.util.find_spec", lambda name: None if name == "jpype" else object())
    said = cli("dev", "up", status=78).err
    assert "JPype1" in said
    assert shlex.quote(f"{ROOT}[embedded]") in said
