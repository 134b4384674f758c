"""The table of a session's transitions is what the module and docs/README.md draw."""

import re
from pathlib import Path

from gateway.mqtt import session_state
from gateway.mqtt.session_state import TRANSITIONS, SessionState

ROOT = Path(__file__).resolve().parents[2]
ARROW = re.compile(r"^ +(\S+) --> (\S+): (.+)$", re.MULTILINE)


def drawn() -> list[tuple[str, str, str]]:
    return ARROW.findall(session_state.__doc__ or "")


def test_the_drawing_is_the_table() -> None:
    arrows = {(SessionState[start.upper()], SessionState[end.upper()]) for start, end, _ in drawn()}
    last = {SessionState.ENDED, SessionState.STOPPED}
    stops = {(state, SessionState.STOPPED) for state in set(SessionState) - last}
    assert arrows | stops == {(start, end) for start, ends in TRANSITIONS.items() for end in ends}


def test_the_manual_draws_the_same() -> None:
    manual = (ROOT / "docs/README.md").read_text()
    _, _, chapter = manual.partition("## The life of a session")
    assert ARROW.findall(chapter.partition("## ")[0]) == drawn()
