"""Plots as SVG that stands in the page itself: its colours are the page's, its text is text, it refers to nothing.

matplotlib draws with a stand-in colour for each role, which is then replaced by the page's CSS variable; so one plot is
legible in light, dark and on paper. Without pyplot: no display, no state, any thread.
"""

import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from streaming.report.data import LATENESS, MOST_LABELS, Bars, Signal

_ROLES: Final = {"ink": "#0a0b0c", "faint": "#0a0b0d", "alarm": "#0a0b0e", "band": "#0a0b0f"} | {
    f"c{number}": f"#0b0c{number:02x}" for number in range(MOST_LABELS)
}
_WIDTH_IN: Final = 9.2
_HEIGHTS_IN: Final = {"lines": 2.7, "bars": 2.7, "histogram": 0.9 + 0.28 * len(LATENESS), "signal": 2.3}
_MARKERS: Final = {"outlier": "o", "level": "s", "stuck": "D"}
_MARK: Any = {
    "markersize": 4.5,
    "markerfacecolor": "none",
    "markeredgecolor": _ROLES["alarm"],
    "markeredgewidth": 1.2,
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "axes.edgecolor": _ROLES["faint"],
    "axes.labelcolor": _ROLES["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": _ROLES["ink"],
    "text.parse_math": False,  # devices choose the names
    "xtick.color": _ROLES["ink"],
    "ytick.color": _ROLES["ink"],
    "grid.color": _ROLES["faint"],
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "path.simplify": True,
}


def drawn(name: str, plot: Callable[..., None], data: object, **labels: str) -> str:
    """One of the plots below as SVG; nothing without data. ``name``: unique in the page, for the ids inside."""
    if data is None:
        return ""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHTS_IN[plot.__name__]))
        axes = figure.add_subplot()
        axes.set_axisbelow(True)
        plot(axes, data, **labels)
        if labelled := len(axes.get_legend_handles_labels()[1]):
            # Above the plot, where it can hide nothing.
            figure.legend(loc="outside upper left", ncols=min(labelled, 6), handlelength=1.2, columnspacing=1.4)
        return _svg(figure, name)


def lines(axes: Axes, data: Bars, *, unit: str) -> None:
    """Lines over time, from zero up."""
    for number, (label, points) in enumerate(list(data.stacks.items())[:MOST_LABELS]):
        axes.plot(
            _times(points),
            [value for _, value in points],
            color=_ROLES[f"c{number}"],
            linewidth=1.5,
            label=_label(label) if len(data.stacks) > 1 else None,
            marker="o" if len(points) == 1 else None,
        )
    axes.set_ylim(bottom=0)
    _time_axis(axes)
    _value_axis(axes, unit)


def bars(axes: Axes, data: Bars, *, unit: str) -> None:  # stacked, over time
    below: defaultdict[float, float] = defaultdict(float)
    width_days = data.width_s / 86_400 * 0.9
    for number, (label, points) in enumerate(list(data.stacks.items())[:MOST_LABELS]):
        counts, bottom = [count for _, count in points], [below[begin] for begin, _ in points]
        colour = _ROLES[f"c{number}"]
        axes.bar(_times(points), counts, width_days, bottom, align="edge", color=colour, label=_label(label))
        for begin, count in points:
            below[begin] += count
    _time_axis(axes)
    _value_axis(axes, unit, whole=True)


def histogram(axes: Axes, counts: Mapping[str, int], *, unit: str, ranges: str) -> None:
    """A bar for each range, with its count beside it: a range of few is as legible as one of many.

    ``unit`` and ``ranges`` are the labels of the axes."""
    places = range(len(counts))
    placed = axes.barh(places, list(counts.values()), color=_ROLES["c0"], height=0.7)
    axes.bar_label(placed, labels=[f"{count:,}" for count in counts.values()], padding=4)
    axes.set_yticks(list(places), list(counts))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(FuncFormatter(_short))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlim(left=0)
    axes.set_xlabel(unit)
    axes.set_ylabel(ranges)
    axes.tick_params(axis="y", length=0)


def signal(axes: Axes, data: Signal) -> None:
    """A signal over time: its mean, a band from the least to the greatest value, and what does not fit it."""
    times = _times(data.points)
    least, mean, greatest = (_drawable(point[at] for point in data.points) for at in (1, 2, 3))
    axes.fill_between(times, least, greatest, color=_ROLES["band"], linewidth=0)
    axes.plot(times, mean, color=_ROLES["c0"], linewidth=1.2)
    for kind in sorted({mark.kind for mark in data.marks}):
        marks = [mark for mark in data.marks if mark.kind == kind]
        axes.plot(_times(marks), _drawable(mark.value for mark in marks), _MARKERS.get(kind, "o"), label=kind, **_MARK)
    _time_axis(axes)
    axes.set_ylabel(f"{data.name} ({data.unit})" if data.unit else data.name)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y")


def _label(name: str) -> str:
    """A name that a legend shows; matplotlib leaves one out that begins with ``_``."""
    return f"\u200b{name}" if name.startswith("_") else name


def _drawable(values: Iterable[float]) -> list[float]:
    """At most so large that the length of an axis is a number."""
    return [min(max(value, -1e300), 1e300) for value in values]


def _times(points: Sequence[tuple[Any, ...]]) -> list[float]:
    """Where matplotlib puts the moments that points begin with."""
    return [float(date2num(datetime.fromtimestamp(point[0], UTC))) for point in points]  # type: ignore[no-untyped-call]


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


def _short(value: float, _position: int = 0) -> str:  # called by matplotlib
    """12,000 as ``12k``; a fraction as it is."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:g}{letter}"
    return f"{value:,.10g}"


_CLEANED: Final = (
    (r"^.*?(?=<svg)", ""),
    (r"\s*<metadata>.*?</metadata>", ""),
    (r"\s*<!--.*?-->", ""),
    (r'(<svg[^>]*?) width="[^"]*"([^>]*?) height="[^"]*"', r"\1\2"),  # the page says how wide; the view box, the shape
    (r"font: (?:[^'\"; ]+ )*?([\d.]+px) [^;\"]+", r"font-size: \1"),
)
"""What a page cannot have inside: headers, addresses, a size and a font of its own."""


def _svg(figure: Figure, name: str) -> str:
    """The figure as a part of the page, with ids that no other figure has."""
    written = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    for pattern, instead in (*_CLEANED, (r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-")):
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
    for role, colour in _ROLES.items():
        text = text.replace(colour, f"var(--{role})")
    return text.strip()
