"""The report's page: one HTML file that needs nothing else, neither network nor scripts.

:class:`Report` in, text out. Text from tables (names of devices, reasons) is escaped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from config.errors import ConfigError
from streaming.lake.storage import LocalFolder
from streaming.report.plots import Plot

_STYLE: Final = Path(__file__).with_name("page.css")
_SECTIONS: Final = {
    "devices": "Device health",
    "signals": "Signals and anomalies",
    "late": "Late data",
    "lost": "Bad and lost data",
    "throughput": "Throughput",
}
_BAD: Final = ' class="bad"'
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for reading; columns of numbers are right-aligned. ``total``: how many rows there were before it was cut."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: int = 0


class Figure(NamedTuple):
    """A table or a plot, and what to look for in it."""

    title: str
    look_for: str
    shown: Table | Plot


class Finding(NamedTuple):
    """A number for the head of the page; ``bad`` ones are to be looked at."""

    label: str
    value: str
    bad: bool = False


@dataclass(slots=True)
class Report:
    made_at_s: float
    about: str
    """What was read, and where, in words."""
    findings: list[Finding] = field(default_factory=list)
    parts: dict[str, Figure | str] = field(default_factory=dict)
    """What there is, figures and sentences, by names that begin with their section: ``lost.audit``."""
    absent: dict[str, str] = field(default_factory=dict)
    """Why the rest is not there, by such names."""
    bounds: list[str] = field(default_factory=list)
    """What was left out to keep the report small, a sentence each."""


def render(report: Report) -> str:
    """The page. Draws the plots, which takes about a tenth of a second each."""
    body, style = "\n".join(_body(report)), _STYLE.read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Stream report, {moment(report.made_at_s)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def write_page(report: Report, path: Path) -> Path:
    """Writes the page whole, in the place of an older one; its absolute path. Raises ConfigError if that fails."""
    path, text = path.absolute(), render(report)
    try:
        LocalFolder(str(path.parent)).write_text(path.name, text)
    except OSError as error:
        raise ConfigError(
            f"The report cannot be written to {path} ({error.strerror}). Is that a folder you may write, with room?"
        ) from error
    return path


def moment(second: float) -> str:
    """``2026-11-21 08:15``, UTC."""
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M}"


def _body(report: Report) -> Iterator[str]:
    yield f'<h1>Stream report</h1>\n<p class="soft">{escape(report.about)}; made {moment(report.made_at_s)} UTC.</p>'
    if report.findings:
        cells = (
            f"<div{_BAD if bad else ''}><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"
            for label, value, bad in report.findings
        )
        yield f'<dl class="findings">{"".join(cells)}</dl>'
    for section, title in _SECTIONS.items():
        yield f'<section id="{section}">\n<h2>{title}</h2>'
        shown = [_part(name, part) for name, part in report.parts.items() if name.split(".")[0] == section]
        reasons = [why for name, why in report.absent.items() if name.split(".")[0] == section]
        yield from shown
        for why in reasons or ([] if shown else ["Nothing to show."]):
            yield f'<p class="absent">{escape(why)}</p>'
        yield "</section>"
    if report.bounds:
        bounds = "".join(f"<li>{escape(bound)}</li>" for bound in report.bounds)
        yield f"<h2>What is not shown</h2>\n<ul>{bounds}</ul>"


def _part(name: str, part: Figure | str) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    title, look_for, shown = part
    if isinstance(shown, Table):
        html = _table(shown)
        if shown.total > len(shown.rows):
            look_for += f" {len(shown.rows):,} of {shown.total:,} rows."
    else:
        html = shown.svg(name).replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    caption = f"<figcaption><h3>{escape(title)}</h3><p>{escape(look_for)}</p></figcaption>"
    return f"<figure>\n{caption}\n{html}\n</figure>"


def _table(table: Table) -> str:
    kinds = ({type(value) for value in column if value is not None} for column in zip(*table.rows, strict=True))
    marks = [' class="number"' if kind and kind <= {int, float} else "" for kind in kinds]

    def row(tag: str, values: Sequence[Cell]) -> str:
        cells = zip(marks, values, strict=True)
        return "".join(f"<{tag}{mark}>{escape(_value(value))}</{tag}>" for mark, value in cells)

    rows = "\n".join(f"<tr>{row('td', values)}</tr>" for values in table.rows)
    head = f"<thead><tr>{row('th', table.columns)}</tr></thead>"
    return f'<div class="scroll"><table>{head}\n<tbody>{rows}</tbody></table></div>'


def _value(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value
