"""The log lines that the sources write: event, level and fields, read from the calls."""

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("auth", "bridge", "config", "gateway", "streaming")
# Names that are put together: gateway/supervisor/supervisor.py's end of an operation.
MADE = {"{name}_done": ("reload_done", "restart_done"), "{name}_failed": ("reload_failed", "restart_failed")}
_LEVELS = {name: name for name in ("debug", "info", "warning", "error", "critical")} | {"exception": "error"}
_NOT_SHOWN = {"repeat_key"}
_CALL = re.compile(rf"\.(?:{'|'.join(_LEVELS)})\(")


@dataclass
class Event:
    """One event over all the calls that write it. ``more``: fields that only the moment knows."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)
    limited: bool = False
    more: bool = False
    places: set[str] = field(default_factory=set)


def events() -> dict[str, Event]:
    """Every event by its name. The demo is left out: it compares the gateway with somebody else's bridge."""
    found: dict[str, Event] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "demo" not in path.parts:
                _read(path, found)
    return found


def _read(path: Path, found: dict[str, Event]) -> None:
    text = path.read_text()
    if not _CALL.search(text):
        return  # most files have none, and to parse them takes long
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        logger = ast.unparse(node.func.value)
        if node.func.attr not in _LEVELS or not logger.rpartition(".")[2].lstrip("_").startswith("log"):
            continue
        for name in _names(node.args[0]):
            event = found.setdefault(name, Event())
            event.levels.add(_LEVELS[node.func.attr])
            event.places.add(f"{path.relative_to(ROOT)}:{node.lineno}")
            if node.func.attr == "exception":
                event.fields.add("exception")
            for keyword in node.keywords:
                event.more |= keyword.arg is None
                event.limited |= keyword.arg == "repeat_key"
                if keyword.arg is not None and keyword.arg not in _NOT_SHOWN:
                    event.fields.add("exception" if keyword.arg == "exc_info" else keyword.arg)


def _names(first: ast.expr) -> tuple[str, ...]:
    match first:
        case ast.Constant(value=str(name)):
            return (name,)
        case ast.IfExp(body=body, orelse=other):
            return _names(body) + _names(other)
        case ast.JoinedStr():
            text = ast.unparse(first)[2:-1]
            assert text in MADE, f"{text} is put together: say in tests/log_calls.py of what"
            return MADE[text]
        case _:
            raise AssertionError(f"the event {ast.unparse(first)} cannot be read from the source")
