"""The README and its translation: they say the same, their links lead somewhere, and what they name exists."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from gateway.cli import main as module

ROOT = Path(__file__).parents[2]
ENGLISH = (ROOT / "README.md").read_text()
CHINESE = (ROOT / "README.zh-CN.md").read_text()
TRANSLATED = [ROOT / "README.md", ROOT / "docs" / "commands.md", ROOT / "docs" / "guarantees.md"]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *DOCS,
]


def anchors(text: str) -> set[str]:
    """What can be linked to in a page, as GitHub names it."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    named = [re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", title).lower()).strip().replace(" ", "-") for title in titles]
    return set(named) | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(found.read_text()), f"{page.name} links to {target}: no such heading"


def test_every_page_is_reached_from_the_readme() -> None:
    index = ROOT / "docs" / "README.md"
    assert "](docs/README.md)" in ENGLISH
    listed = {page.name for page in DOCS if not page.name.endswith(".zh-CN.md")}
    assert listed - {index.name} <= set(re.findall(r"\]\(([a-z-]+\.md)", index.read_text()))


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda page: page.name)
def test_both_languages_have_the_same_parts(page: Path) -> None:
    texts = [one.read_text().replace(".zh-CN.md", ".md") for one in (page, page.with_suffix(".zh-CN.md"))]
    for pattern in (
        r"^##? ",  # headings
        rf"\]\(((?!{page.name})[^)]+)\)",  # links, but those to each other
        r"`gateway [^`]+`",
        r"(?<![\w.])\d[\d,.]*\d(?!\w)",  # figures
    ):
        english, chinese = (Counter(re.findall(pattern, text, re.MULTILINE)) for text in texts)
        assert english == chinese, f"they differ: {english - chinese}, {chinese - english}"


def test_both_languages_have_the_same_settings() -> None:
    [english], [chinese] = (re.findall(r"```toml\n(.*?)```", text, re.DOTALL) for text in (ENGLISH, CHINESE))
    assert tomllib.loads(english) == tomllib.loads(chinese)


def test_the_first_commands_are_the_two() -> None:
    for text in (ENGLISH, CHINESE):
        assert re.findall(r"^    (make \w+)", text, re.MULTILINE)[:2] == ["make demo", "make test"]


def test_every_command_is_on_the_page_of_commands() -> None:
    named = set()
    for words in re.findall(r"`gateway ([a-z|\\]+)", (ROOT / "docs" / "commands.md").read_text()):
        named |= set(words.replace("\\", "").split("|"))
    assert {name.rpartition(".")[2].rstrip("_") for name in module._COMMANDS} <= named
