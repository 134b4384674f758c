"""Windows of aggregates as people write them: ``1m tumbling``, ``15m sliding 5m``. No pyspark."""

import math
import re
from dataclasses import dataclass
from datetime import timedelta

from config.values.grammar import format_duration, parse_duration

WINDOWS_GRAMMAR = 'a window is "LENGTH tumbling" or "LENGTH sliding STEP", such as "1h tumbling" or "15m sliding 5m"'

_TEXT = re.compile(r"(?P<length>\S+)(?:\s+(?:(?P<tumbling>tumbling)|sliding\s+(?P<every>\S+)))?")
_LONGEST = timedelta(days=31)
_COARSEST_STEP = timedelta(hours=1)
_MOST_STEPS = 10_000
_MOST_INSTANCES = 100


@dataclass(frozen=True, slots=True, order=True)
class WindowShape:
    """Windows of one length that begin ``every`` interval, aligned to 1970 UTC. Tumbling if both are equal."""

    length: timedelta
    every: timedelta

    @property
    def label(self) -> str:
        """The name in settings and in the tables' column ``window``."""
        if self.every == self.length:
            return f"{format_duration(self.length)} tumbling"
        return f"{format_duration(self.length)} sliding {format_duration(self.every)}"

    @property
    def instances(self) -> int:
        """Number of windows of this shape that contain one moment."""
        return self.length // self.every


def parse_window(text: str) -> WindowShape:
    """The shape that ``text`` describes. Raises ValueError with a sentence."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError(WINDOWS_GRAMMAR)
    length = parse_duration(found["length"])
    every = length if found["every"] is None else parse_duration(found["every"])
    if not timedelta(seconds=1) <= every <= length <= _LONGEST:
        raise ValueError("a window is at least 1s and at most 31d long, and its step is no longer than itself")
    if length % every:
        raise ValueError(f"the length of a sliding window is a multiple of its step, which {text!r} is not")
    if every % timedelta(milliseconds=1):
        raise ValueError("windows are exact to the millisecond, no finer")
    return WindowShape(length, every)


def step_of(shapes: tuple[WindowShape, ...]) -> WindowShape:
    """The longest tumbling window, at most an hour, that divides all of ``shapes``."""
    unit = timedelta(milliseconds=1)
    sizes = [size // unit for shape in shapes for size in (shape.length, shape.every)]
    step = math.gcd(_COARSEST_STEP // unit, *sizes) * unit
    return WindowShape(step, step)


def check_windows(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The windows by their labels. Raises ValueError with a sentence if they are too many or do not fit together."""
    shapes = tuple(map(parse_window, texts))
    if len(set(shapes)) < len(shapes):
        raise ValueError("a window is named twice")
    step, longest = step_of(shapes).length, max(shape.length for shape in shapes)
    if longest // step > _MOST_STEPS:
        raise ValueError(
            f"all windows are put together from steps of {format_duration(step)}, their greatest common length, and "
            f"{format_duration(longest)} are {longest // step:,} of them, more than {_MOST_STEPS:,}: let the lengths "
            "and steps be multiples of a longer one"
        )
    if (instances := sum(shape.instances for shape in shapes)) > _MOST_INSTANCES:
        raise ValueError(
            f"every reading would be in {instances:,} windows, more than {_MOST_INSTANCES}: slide in longer steps"
        )
    return tuple(shape.label for shape in shapes)
