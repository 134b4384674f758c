"""docs/runbook.md has an entry for each alert and each problem, no other, and speaks of what exists."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import re
import shlex

import pytest

from gateway.cli.main import _COMMANDS, main
from tests.monitoring import ROOT, known_series, rules

TEXT = (ROOT / "docs" / "runbook.md").read_text()
ENTRIES: dict[str, str] = {
    part.partition("\n")[0]: part.partition("\n")[2].partition("\n## ")[0] for part in TEXT.split("\n### ")[1:]
}
SOURCES = [
    path for folder in ("bridge", "gateway", "auth", "streaming") for path in sorted((ROOT / folder).rglob("*.py"))
]
# Of brokers and of the system.
FOREIGN_WORDS = {"producer_byte_rate", "request_percentage"}


def problem_ids() -> set[str]:
    """The first argument of every ``Problem(…)`` in the sources."""
    found = set()
    for path in SOURCES:
        text = path.read_text()
        if "Problem(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Problem":
                assert node.args, f"{path.name}:{node.lineno}: a problem's id stands first"
                assert isinstance(node.args[0], ast.Constant), (
                    f"{path.name}:{node.lineno}: a problem's id is written out"
                )
                found.add(str(node.args[0].value))
    return found


def alert_anchors() -> set[str]:
    return {rule["annotations"]["runbook_url"].partition("#")[2] for rule in rules("alert")}


def test_every_alert_and_every_problem_has_an_entry() -> None:
    assert len(problem_ids()) > 20
    assert (problem_ids() | alert_anchors()) - ENTRIES.keys() == set()


def test_every_entry_is_led_to() -> None:
    assert ENTRIES.keys() - (problem_ids() | alert_anchors()) == set()


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_says_what_to_look_at_what_to_do_and_what_not(entry: str) -> None:
    body = ENTRIES[entry]
    assert re.match(r"\n[A-Z`]", body), "what it means comes first"
    for heading in ("- **Causes:** ", "- **Look:** ", "- **Do:** ", "- **Do not** "):
        assert body.count(heading) == 1, f"{entry} has no {heading}"


def test_links_within_the_page_and_to_others_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        page, _, anchor = target.partition("#")
        if page:
            assert (ROOT / "docs" / page).is_file(), target
        else:
            assert anchor in ENTRIES, target


def commands() -> list[str]:
    return sorted(set(re.findall(r"`(gateway [a-z][^`]*)`", TEXT)))


@pytest.mark.parametrize("command", commands())
def test_a_command_that_is_named_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, *words = shlex.split(command)
    options = [word for word in words if word.startswith("--")]
    # The commands stand before all options and names.
    places = list(itertools.takewhile(re.compile("[a-z]+").fullmatch, words))
    if importlib.util.find_spec(f"gateway.cli.{places[0]}") is None and places[0] in _COMMANDS:
        pytest.skip("known, and not there yet")
    with pytest.raises(SystemExit) as ended:
        main([*places, "--help"])
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    for option in options:
        assert option in said.out, f"{command}: no {option}"


def test_metrics_and_log_lines_that_are_named_exist() -> None:
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)", TEXT)) - FOREIGN_WORDS
    metrics = {word for word in words if word.startswith("gateway_")}
    assert metrics - known_series().keys() == set()
    written = {word for path in SOURCES for word in re.findall(r"[a-z]+(?:_[a-z]+)+", path.read_text())}
    assert words - metrics - written == set()
