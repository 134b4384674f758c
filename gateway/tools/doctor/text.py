"""The report for people: groups with their checks, a fix under what needs one, and the worst again at the end."""

from __future__ import annotations

__all__ = ["report_text"]

import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, Final

from config.prose import lines_of
from gateway.tools.doctor.model import GROUPS, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.tools.doctor.model import Check, Report

_INDENT: Final = 2
_WORD: Final = 7  # the longest severity
_LEAST: Final = 40


def report_text(report: Report, width: int, mark: Callable[[Severity], str]) -> str:
    """All of it, in lines of at most ``width`` where words allow it. ``mark`` gives a severity's word, perhaps
    coloured."""
    lines: list[str] = []
    for group, checks in groupby(report.checks, lambda check: check.group):
        lines += ["", GROUPS[group]]
        lines += _group(list(checks), width, mark)
    lines += ["", *_summary(report, width, mark)]
    return "\n".join(lines[1:]) + "\n"


def _group(checks: list[Check], width: int, mark: Callable[[Severity], str]) -> Iterator[str]:
    """What is about one address stands under it, set in; what is about the whole comes after those."""
    longest = max(len(check.name) for check in checks)
    inner = " " * _INDENT if any(check.about for check in checks) else ""
    about = ""
    for check, names in _merged(checks):
        if check.about and check.about != about:
            yield f"{' ' * _INDENT}{check.about}"
        about = check.about
        indent = " " * _INDENT + (inner if about else "")
        start = indent + " " * (_WORD + 2)
        word = indent + _padded(check.severity, mark) + "  "
        if len(names) > 1:
            yield from _wrapped(word, start, f"{', '.join(names)}: {check.text}", width)
            continue
        later = start + " " * (longest + 2)
        yield from _wrapped(f"{word}{check.name.ljust(longest)}  ", later, check.text, width)
        if check.fix:
            yield from _wrapped(f"{start}{'fix:'.rjust(longest)}  ", later, check.fix, width)


def _merged(checks: list[Check]) -> Iterator[tuple[Check, list[str]]]:
    """Checks that were skipped one after the other for the same reason are one line."""
    for _, same in groupby(checks, lambda one: (one.about, one.severity, one.text, one.fix)):
        some = list(same)
        if some[0].severity is Severity.SKIPPED:
            yield some[0], [one.name for one in some]
        else:
            for one in some:
                yield one, [one.name]


def _summary(report: Report, width: int, mark: Callable[[Severity], str]) -> Iterator[str]:
    order = (Severity.FAIL, Severity.WARN, Severity.OK, Severity.SKIPPED)
    said = ", ".join(f"{report.counts[one.value]} {one.value}" for one in order if report.counts[one.value])
    worst = report.worst_first
    if not worst:
        yield f"Nothing is wrong: {said}, in {report.seconds:.1f} s."
        return
    yield from lines_of(f"What needs attention, the worst first ({said}, in {report.seconds:.1f} s):", width)
    for check in worst:
        where = ", ".join(part for part in (GROUPS[check.group], check.about) if part)
        start = " " * (_INDENT + _WORD + 2)
        first = f"{' ' * _INDENT}{_padded(check.severity, mark)}  "
        sentence = textwrap.shorten(check.text, 2 * max(width - len(start), _LEAST), placeholder=" …")
        yield from _wrapped(first, start, f"{where}: {check.name}. {sentence}", width)


def _padded(severity: Severity, mark: Callable[[Severity], str]) -> str:
    return mark(severity) + " " * (_WORD - len(severity.value))


def _wrapped(first: str, later: str, text: str, width: int) -> list[str]:
    """``first`` may hold colours, so it is set in front of lines that were broken with ``later`` in its place."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    room = max(width - len(later), _LEAST)
    lines = lines_of(plain, room) or [""]
    return [first + lines[0], *(later + line for line in lines[1:])]
