"""Plots as SVG that stands in the page itself: its colours are the page's, its text is text, it refers to nothing.

matplotlib draws with a stand-in colour for each role, which is then replaced by the page's CSS variable; so one plot is
legible in light, dark and on paper. Without pyplot: no display, no state, any thread.
"""

from __future__ import annotations

__all__ = ["MOST_LABELS", "bars", "histogram", "lines", "signal"]

import io
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from streaming.report_data import Bars, Histogram, Series, Signal

MOST_LABELS: Final = 8
"""Lines or stacks of one plot that have a colour of their own; the others are put together by who fills the data."""

_ROLES: Final = {"ink": "#0a0b0c", "faint": "#0a0b0d", "alarm": "#0a0b0e", "band": "#0a0b0f"} | {
    f"c{number}": f"#0b0c{number:02x}" for number in range(MOST_LABELS)
}
_WIDTH_IN: Final = 9.2
_MARKERS: Final = {"outlier": "o", "level": "s", "stuck": "D"}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.edgecolor": _ROLES["faint"],
    "axes.labelcolor": _ROLES["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _ROLES["ink"],
    "xtick.color": _ROLES["ink"],
    "ytick.color": _ROLES["ink"],
    "grid.color": _ROLES["faint"],
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "path.simplify": True,
}


def lines(name: str, series: Sequence[Series], *, unit: str) -> str:
    """Lines over time, from zero up. ``name``: unique in the page, for the ids inside."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(2.7)
        for number, one in enumerate(series[:MOST_LABELS]):
            times = _times([time for time, _ in one.points])
            marker = "o" if len(times) == 1 else None
            axes.plot(
                times,
                [value for _, value in one.points],
                color=_ROLES[f"c{number}"],
                linewidth=1.5,
                label=one.label,
                marker=marker,
            )
        axes.set_ylim(bottom=0)
        _time_axis(axes)
        _value_axis(axes, unit)
        if len(series) > 1:
            _legend(figure, axes, len(series))
        return _svg(figure, name)


def bars(name: str, data: Bars, *, unit: str) -> str:
    """Stacked counts over time."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(2.7)
        below: dict[float, float] = {}
        width_days = data.width_s / 86_400
        for number, (label, points) in enumerate(list(data.stacks.items())[:MOST_LABELS]):
            begins = [begin for begin, _ in points]
            axes.bar(
                _times(begins),
                [count for _, count in points],
                bottom=[below.get(begin, 0.0) for begin in begins],
                width=width_days * 0.9,
                align="edge",
                color=_ROLES[f"c{number}"],
                label=label,
            )
            for begin, count in points:
                below[begin] = below.get(begin, 0.0) + count
        _time_axis(axes)
        _value_axis(axes, unit, whole=True)
        _legend(figure, axes, len(data.stacks))
        return _svg(figure, name)


def histogram(name: str, data: Histogram, *, unit: str, ranges: str) -> str:
    """A bar for each range, with its count beside it: a range of few is as legible as one of many."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(0.9 + 0.28 * len(data.ranges))
        places = range(len(data.ranges))
        drawn = axes.barh(places, data.counts, color=_ROLES["c0"], height=0.7)
        axes.bar_label(drawn, labels=[f"{count:,}" if count else "0" for count in data.counts], padding=4)
        axes.set_yticks(list(places), list(data.ranges))
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlim(left=0)
        axes.set_xlabel(unit)
        axes.set_ylabel(ranges)
        axes.tick_params(axis="y", length=0)
        return _svg(figure, name)


def signal(name: str, data: Signal) -> str:
    """A signal over time: its mean, a band from the least to the greatest value, and what does not fit it."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(2.3)
        times = _times([point[0] for point in data.points])
        axes.fill_between(
            times,
            [point[1] for point in data.points],
            [point[3] for point in data.points],
            color=_ROLES["band"],
            linewidth=0,
        )
        axes.plot(times, [point[2] for point in data.points], color=_ROLES["c0"], linewidth=1.2)
        for kind in dict.fromkeys(mark.kind for mark in data.marks):
            marks = [mark for mark in data.marks if mark.kind == kind]
            axes.plot(
                _times([mark.time_s for mark in marks]),
                [mark.value for mark in marks],
                linestyle="none",
                marker=_MARKERS.get(kind, "o"),
                markersize=4.5,
                markerfacecolor="none",
                markeredgecolor=_ROLES["alarm"],
                markeredgewidth=1.2,
                label=kind,
            )
        _time_axis(axes)
        axes.set_ylabel(f"{data.name} ({data.unit})" if data.unit else data.name)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="y")
        if data.marks:
            _legend(figure, axes, len({mark.kind for mark in data.marks}))
        return _svg(figure, name)


def _axes(height_in: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH_IN, height_in))
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    return figure, axes


def _times(seconds: Sequence[float]) -> list[float]:
    return [float(date2num(datetime.fromtimestamp(second, UTC))) for second in seconds]  # type: ignore[no-untyped-call]


def _time_axis(axes: Axes) -> None:
    locator = AutoDateLocator(minticks=4, maxticks=9, tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.margins(x=0.01)
    axes.set_xlabel("time (UTC)")


def _value_axis(axes: Axes, unit: str, *, whole: bool = False) -> None:
    axes.set_ylabel(unit)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=whole))
    axes.yaxis.set_major_formatter(FuncFormatter(_short))
    axes.grid(axis="y")


def _legend(figure: Figure, axes: Axes, labels: int) -> None:
    """Above the plot, where it can hide nothing."""
    del axes
    figure.legend(loc="outside upper left", ncols=min(labels, 6), handlelength=1.2, columnspacing=1.4)


def _short(value: float, _position: int = 0) -> str:
    """12,000 as ``12k``; a fraction as it is."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:g}{letter}"
    return f"{value:,.10g}"


_HEAD = re.compile(r".*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_COMMENT = re.compile(r"\s*<!--.*?-->", re.DOTALL)
_ID = re.compile(r'(\bid="|url\(#|href="#)')
_SIZE = re.compile(r'(<svg[^>]*?) width="[^"]*"([^>]*?) height="[^"]*"')
_FONT = re.compile(r"font: (?:[^'\"; ]+ )*?([\d.]+px) [^;\"]+")


def _svg(figure: Figure, name: str) -> str:
    """The figure without what a page cannot have inside: headers, metadata with addresses, ids that others use."""
    written = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    for pattern in (_HEAD, _METADATA, _COMMENT):
        text = pattern.sub("", text, count=1 if pattern is _HEAD else 0)
    text = _ID.sub(rf"\g<1>{name}-", text)
    text = _SIZE.sub(r"\1\2", text)  # the page says how wide; the view box keeps the shape
    text = _FONT.sub(r"font-size: \1", text)
    for role, colour in _ROLES.items():
        text = text.replace(colour, f"var(--{role})")
    return text.strip()
