"""Plots as SVG that stands in the page itself: its colours are the page's, its text is text, it refers to nothing.

matplotlib draws with a stand-in colour for each role, which is then replaced by the page's CSS variable; so one plot is
legible in light, dark and on paper. Without pyplot: no display, no state, any thread. Times are seconds since 1970.
"""

import io
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

MOST_LABELS: Final = 8  # lines or stacks of one plot that have a colour of their own
_ROLES: Final = {"ink": "#0a0b0c", "faint": "#0a0b0d", "alarm": "#0a0b0e", "band": "#0a0b0f"} | {
    f"c{number}": f"#0b0c{number:02x}" for number in range(MOST_LABELS)
}
_WIDTH_IN: Final = 9.2
_MARKERS: Final = {"outlier": "o", "level": "s", "stuck": "D"}
_MARK: Any = {"markersize": 4.5, "markerfacecolor": "none", "markeredgecolor": _ROLES["alarm"], "markeredgewidth": 1.2}
_STYLE: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _ROLES["ink"]),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _ROLES["faint"]),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "text.parse_math": False,  # devices choose the names
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
}
_CLEANED: Final = (
    (r"^.*?(?=<svg)", ""),
    (r"\s*<metadata>.*?</metadata>", ""),
    (r"\s*<!--.*?-->", ""),
    (r'(<svg[^>]*?) width="[^"]*"([^>]*?) height="[^"]*"', r"\1\2"),  # the page says how wide; the view box, the shape
    (r"font: (?:[^'\"; ]+ )*?([\d.]+px) [^;\"]+", r"font-size: \1"),
)
"""What a page cannot have inside: headers, addresses, a size and a font of its own."""

Point = tuple[float, float]


class Plot(ABC):
    """What is drawn on a pair of axes."""

    height_in: ClassVar[float] = 2.7

    @abstractmethod
    def draw(self, axes: Axes) -> None: ...

    def svg(self, name: str) -> str:
        """The plot as a part of the page. ``name``: unique in the page, for the ids inside."""
        written = io.StringIO()
        with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
            figure = Figure(figsize=(_WIDTH_IN, self.height_in), layout="constrained")
            axes = figure.add_subplot()
            self.draw(axes)
            if labelled := len(axes.get_legend_handles_labels()[1]):
                # Above the plot, where it can hide nothing.
                figure.legend(loc="outside upper left", ncols=min(labelled, 6), handlelength=1.2, columnspacing=1.4)
            figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        text = written.getvalue()
        for pattern, instead in (*_CLEANED, (r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-")):
            text = re.sub(pattern, instead, text, flags=re.DOTALL)
        for role, colour in _ROLES.items():
            text = text.replace(colour, f"var(--{role})")
        return text.strip()


@dataclass(frozen=True, slots=True)
class Lines(Plot):
    """Lines over time, from zero up: label -> (time, value)."""

    lines: Mapping[str, Sequence[Point]]
    unit: str

    def draw(self, axes: Axes) -> None:
        for number, (label, points) in enumerate(self.lines.items()):
            axes.plot(
                _times(points),
                [value for _, value in points],
                color=_ROLES[f"c{number}"],
                linewidth=1.5,
                label=_label(label) if len(self.lines) > 1 else None,
                marker="o" if len(points) == 1 else None,
            )
        axes.set_ylim(bottom=0)
        _time_axis(axes)
        _value_axis(axes, self.unit)


@dataclass(frozen=True, slots=True)
class Bars(Plot):
    """Counts over stretches of time, stacked: label -> (begin, count)."""

    width_s: float
    stacks: Mapping[str, Sequence[Point]]
    unit: str

    def draw(self, axes: Axes) -> None:
        below: defaultdict[float, float] = defaultdict(float)
        width_days = self.width_s / 86_400 * 0.9
        for number, (label, points) in enumerate(self.stacks.items()):
            counts, bottom = [count for _, count in points], [below[begin] for begin, _ in points]
            colour = _ROLES[f"c{number}"]
            axes.bar(_times(points), counts, width_days, bottom, align="edge", color=colour, label=_label(label))
            for begin, count in points:
                below[begin] += count
        _time_axis(axes)
        _value_axis(axes, self.unit, whole=True)


@dataclass(frozen=True, slots=True)
class Histogram(Plot):
    """A bar for each range, with its count beside it: a range of few is as legible as one of many."""

    height_in: ClassVar[float] = 3.14
    counts: Mapping[str, int]
    unit: str
    ranges: str
    """What the ranges are of: the label of their axis."""

    def draw(self, axes: Axes) -> None:
        places = range(len(self.counts))
        placed = axes.barh(places, list(self.counts.values()), color=_ROLES["c0"], height=0.7)
        axes.bar_label(placed, labels=[f"{count:,}" for count in self.counts.values()], padding=4)
        axes.set_yticks(list(places), list(self.counts))
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(FuncFormatter(_short))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set(xlim=(0, None), xlabel=self.unit, ylabel=self.ranges)
        axes.tick_params(axis="y", length=0)


@dataclass(frozen=True, slots=True)
class Signal(Plot):
    """A signal over time: its mean, a band from the least to the greatest value, and what does not fit it."""

    height_in: ClassVar[float] = 2.3
    label: str
    points: Sequence[tuple[float, float, float, float]]
    """time, least, mean, greatest"""
    marks: Sequence[tuple[float, float, str]]
    """time, value, kind: readings that are anomalous"""

    def draw(self, axes: Axes) -> None:
        times = _times(self.points)
        least, mean, greatest = (_drawable(point[at] for point in self.points) for at in (1, 2, 3))
        axes.fill_between(times, least, greatest, color=_ROLES["band"], linewidth=0)
        axes.plot(times, mean, color=_ROLES["c0"], linewidth=1.2)
        for kind in sorted({kind for _, _, kind in self.marks}):
            marks = [mark for mark in self.marks if mark[2] == kind]
            values = _drawable(value for _, value, _ in marks)
            axes.plot(_times(marks), values, _MARKERS.get(kind, "o"), label=kind, **_MARK)
        _time_axis(axes)
        axes.set_ylabel(self.label)
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="y")


def _label(name: str) -> str:  # matplotlib leaves a name out of the legend that begins with "_"
    return f"\u200b{name}" if name.startswith("_") else name


def _drawable(values: Iterable[float]) -> list[float]:  # at most so large that the length of an axis is a number
    return [min(max(value, -1e300), 1e300) for value in values]


def _times(points: Sequence[tuple[Any, ...]]) -> list[float]:
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


def _short(value: float, _position: int) -> str:  # 12,000 as 12k; a fraction as it is
    for size, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= size:
            return f"{value / unit:g}{letter}"
    return f"{value:,.10g}"
