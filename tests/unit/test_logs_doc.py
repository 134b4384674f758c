"""docs/logs.md has every event that the sources write, with its level and the fields for programs, and no other."""

import re

import pytest

from tests.log_calls import ROOT, Event, events

TEXT = (ROOT / "docs" / "logs.md").read_text()
# event → level, fields, meaning
ROWS = {
    name: (level, fields, meaning)
    for name, level, fields, meaning in re.findall(
        r"^- `([a-z_.0-9]+)` \(([a-z, ]+)(?:; (.*?))?\): (.*)$", TEXT.replace("\n  ", " "), re.MULTILINE
    )
}
# gateway/base/logs.py and gateway/base/log_limits.py make them otherwise.
BY_HAND = {"library_message", "lines_left_out"}
# Fields with a sentence for people, which the page names once.
SENTENCES = {"advice", "check", "consequence", "detail", "error", "exception", "problem", "warning"}


@pytest.fixture(scope="module")
def written() -> dict[str, Event]:
    return events()


def test_every_event_is_on_the_page_and_no_other(written: dict[str, Event]) -> None:
    missing = {name: sorted(event.places) for name, event in written.items() if name not in ROWS}
    assert not missing, "docs/logs.md does not have these"
    assert ROWS.keys() - written.keys() == BY_HAND


def test_level_and_fields_are_what_is_written(written: dict[str, Event]) -> None:
    for name, event in written.items():
        level, fields, meaning = ROWS[name]
        assert level == ", ".join(sorted(event.levels)), (name, sorted(event.places))
        names = [f"`{field}`" for field in sorted(event.fields - SENTENCES)] + ["…"] * event.more
        assert fields == ", ".join(names), (name, sorted(event.places))
        assert meaning.endswith((".", ". ¹")), f"{name}: no sentence"
        assert meaning.endswith(" ¹") is event.limited, f"{name}: ¹ is for what repeats once in ten seconds"


def test_the_page_lists_each_event_once() -> None:
    names = re.findall(r"^- `([a-z_.0-9]+)` \(", TEXT, re.MULTILINE)
    assert len(names) == len(set(names))
