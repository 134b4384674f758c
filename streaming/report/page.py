"""The report's page: one HTML file that needs nothing else, neither network nor scripts.

:class:`~streaming.report.data.Report` in, text out. Text from tables (names of devices, reasons) is escaped.
"""

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from config.errors import ConfigError
from streaming.lake.storage import LocalFolder
from streaming.report import plots
from streaming.report.data import MOST_MARKS, Cell, Finding, Report, Signal, Table, moment

_STYLE: Final = Path(__file__).with_name("page.css")

_BAD: Final = ' class="bad"'
_NUMBER: Final = ' class="number"'


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
        path.parent.mkdir(parents=True, exist_ok=True)
        LocalFolder(str(path.parent)).write_text(path.name, text)
    except OSError as error:
        raise ConfigError(
            f"The report cannot be written to {path} ({error.strerror}). Is that a folder you may write, with room?"
        ) from error
    return path


def _body(report: Report) -> Iterator[str]:  # HTML
    yield "<h1>Stream report</h1>"
    span = "no readings"
    if report.begin_s is not None and report.end_s is not None:
        length = _length(report.end_s - report.begin_s)
        span = f"Readings received from {moment(report.begin_s)} to {moment(report.end_s)} UTC ({length})"
    made = moment(report.made_at_s)
    whose = "" if report.device is None else f" Only the device {report.device}."
    yield f'<p class="soft">{escape(span)}.{escape(whose)} Read from {escape(report.source)}; made {made} UTC.</p>'
    yield _findings(report.findings)
    yield from _section(report, "devices", "Device health", _devices(report))
    yield from _section(report, "signals", "Signals and anomalies", _signals(report))
    yield from _section(report, "late", "Late data", _late(report))
    yield from _section(report, "lost", "Bad and lost data", _lost(report))
    yield from _section(report, "throughput", "Throughput", _throughput(report))
    if report.bounds:
        yield "<h2>What is not shown</h2>"
        yield "<ul>" + "".join(f"<li>{escape(bound)}</li>" for bound in report.bounds) + "</ul>"


def _section(report: Report, name: str, title: str, parts: Iterator[str]) -> Iterator[str]:
    """A heading, what there is, and why the rest is not there."""
    yield f'<section id="{name}">\n<h2>{escape(title)}</h2>'
    shown = [part for part in parts if part]
    yield from shown
    reasons = [why for about, why in report.absent.items() if about.split(".")[0] == name]
    if not shown and not reasons:
        reasons = ["Nothing to show."]
    for why in reasons:
        yield f'<p class="absent">{escape(why)}</p>'
    yield "</section>"


def _findings(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    cells = "".join(
        f"<div{_BAD if one.bad else ''}><dt>{escape(one.label)}</dt><dd>{escape(one.value)}</dd></div>"
        for one in findings
    )
    return f'<dl class="findings">{cells}</dl>'


def _devices(report: Report) -> Iterator[str]:  # HTML; "" for nothing
    if report.states:
        total = sum(report.states.values())
        told = ", ".join(f"{count:,} {escape(state)}" for state, count in report.states.items())
        yield f"<p>{total:,} devices: {told}.</p>"
    yield _figure(
        "Events of devices over time",
        "Many offline at one moment point to a gateway or a site; the same device again and again to its own link.",
        plots.drawn("events", plots.bars, report.events, unit="events"),
    )
    yield _table("Devices to look at first", "Worst at the top.", report.offenders)


def _signals(report: Report) -> Iterator[str]:  # HTML; "" for nothing
    for number, one in enumerate(report.signals):
        yield _figure(f"{one.device}: {one.name}", _about(one), plots.drawn(f"signal{number}", plots.signal, one))
    yield _table(
        "Alerts by device and signal", "A device with alerts on all of its signals has one fault.", report.anomalies
    )


def _about(one: Signal) -> str:  # a sentence for the reader
    if not one.alerts:
        return "No alerts. The line is the mean; the band reaches from the least to the greatest value."
    times = "once" if one.alerts == 1 else f"{one.alerts:,} times"
    more = f" (the {len(one.marks):,} worst readings are marked)" if len(one.marks) >= MOST_MARKS else ""
    return (
        f"Anomalous {times}{more}. A single mark far from the others is a wrong reading; a row of them is a change of"
        " level."
    )


def _late(report: Report) -> Iterator[str]:
    yield _figure(
        "From the device's clock to the gateway",
        "Long bars below the first minute are devices or sites that were offline and sent later. A clock that is"
        " ahead measures in the future.",
        plots.drawn("lateness", plots.histogram, report.lateness, unit="readings", ranges="received after"),
    )


def _lost(report: Report) -> Iterator[str]:  # HTML; "" for nothing
    yield _figure(
        "Records in quarantine by reason",
        "A new reason at one moment is a change of firmware; a steady few are single devices.",
        plots.drawn("quarantine", plots.bars, report.quarantine, unit="records"),
    )
    yield _table(
        "Records that Kafka no longer had when bronze read on",
        "Retention is shorter than the job was away, or a topic was made anew.",
        report.deleted,
    )
    yield _table(
        "Sequence numbers that never came",
        "Numbers a device has counted past; its own messages, lost before Kafka or still under way.",
        report.lost,
    )
    yield _table("The gateway's ledger against Kafka", "A difference is to be explained, whatever it is.", report.audit)


def _throughput(report: Report) -> Iterator[str]:
    if report.throughput is not None:
        yield _figure(
            "Readings received",
            "A gap in all lines is an outage of everything, a gap in one line of that type's devices or route;"
            f" each point is the mean of {_length(report.throughput.width_s)}.",
            plots.drawn("throughput", plots.lines, report.throughput, unit="readings/s"),
        )


def _figure(title: str, look_for: str, svg: str) -> str:
    if not svg:
        return ""
    return _captioned(title, look_for, svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))


def _captioned(title: str, look_for: str, shown: str) -> str:
    caption = f"<figcaption><h3>{escape(title)}</h3><p>{escape(look_for)}</p></figcaption>"
    return f"<figure>\n{caption}\n{shown}\n</figure>"


def _table(title: str, look_for: str, table: Table | None) -> str:  # "" for None; look_for: its caption
    if table is None:
        return ""
    columns = [[value for value in values if value is not None] for values in zip(*table.rows, strict=True)]
    numeric = [bool(values) and all(isinstance(value, int | float) for value in values) for values in columns]

    def row(tag: str, values: Sequence[Cell]) -> str:
        marks = (_NUMBER if is_number else "" for is_number in numeric)
        return "".join(
            f"<{tag}{mark}>{escape(_value(value))}</{tag}>" for mark, value in zip(marks, values, strict=True)
        )

    rows = "\n".join(f"<tr>{row('td', values)}</tr>" for values in table.rows)
    if table.total is not None and table.total > len(table.rows):
        look_for += f" {len(table.rows):,} of {table.total:,} rows."
    return _captioned(
        title,
        look_for,
        f'<div class="scroll"><table><thead><tr>{row("th", table.columns)}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>",
    )


def _value(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def _length(seconds: float) -> str:
    units = ((86_400, "day"), (3600, "hour"), (60, "minute"))
    size, unit = next((one for one in units if seconds >= 2 * one[0] or seconds == one[0]), (1, "second"))
    amount = f"{seconds / size:.3g}"
    return f"{amount} {unit}" if amount == "1" else f"{amount} {unit}s"
