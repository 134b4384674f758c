"""The report for people: groups with their checks and remedies, and a summary with the worst first."""

import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final

from config.prose import lines_of
from gateway.tools.doctor.model import GROUPS, Check, Report, Severity

_INDENT: Final = 2
_WORD: Final = 7  # the longest severity
_LEAST: Final = 40


def report_text(report: Report, width: int, mark: Callable[[Severity], str]) -> str:
    """The report in lines of at most ``width``, unless a word is longer. ``mark`` returns a severity's word, perhaps
    coloured."""
    lines: list[str] = []
    for group, checks in groupby(report.checks, lambda check: check.group):
        lines += ["", GROUPS[group]]
        lines += _group_lines(list(checks), width, mark)
    lines += ["", *_summary(report, width, mark)]
    return "\n".join(lines[1:]) + "\n"


def _group_lines(checks: list[Check], width: int, mark: Callable[[Severity], str]) -> Iterator[str]:
    """One group: checks of an address are indented below it; checks of the whole follow."""
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
    """Merges successive checks that were skipped for the same reason into one line."""
    for _, same in groupby(checks, lambda one: (one.about, one.severity, one.text, one.fix)):
        some = list(same)
        if some[0].severity is Severity.SKIPPED:
            yield some[0], [one.name for one in some]
        else:
            for one in some:
                yield one, [one.name]


def _summary(report: Report, width: int, mark: Callable[[Severity], str]) -> Iterator[str]:
    """The end of the report: the number of each result, then what needs attention, the worst first."""
    order = (Severity.FAIL, Severity.WARN, Severity.OK, Severity.SKIPPED)
    said = ", ".join(f"{report.counts[one.value]} {one.value}" for one in order if report.counts[one.value])
    worst = report.worst_first
    if not worst:
        found = "Nothing is wrong" if report.counts[Severity.OK.value] else "Nothing was judged"
        yield f"{found}: {said}, in {report.seconds:.1f} s."
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
    """Lines that begin with ``first``, wrapped by the length of ``later``, because ``first`` may contain colours."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    room = max(width - len(later), _LEAST)
    lines = lines_of(plain, room) or [""]
    return [first + lines[0], *(later + line for line in lines[1:])]
