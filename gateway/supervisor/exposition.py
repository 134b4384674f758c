"""Merges metrics of workers and supervisor into one text: a label names each sample's worker, each family is described
once.

Both of Prometheus' formats are lines: comments that describe a family, then its samples. So lines are merged here;
no value is parsed or changed.
"""

from collections.abc import Iterable
from typing import Final

from gateway.base.instruments import Family, MetricSet

_EOF: Final = "# EOF"


def text_of(metrics: MetricSet, *, openmetrics: bool) -> str:
    """Counters and gauges as OpenMetrics, or as Prometheus' text. No help or label value may need an escape."""
    lines: list[str] = []
    for family in metrics.families.values():
        assert isinstance(family, Family)
        definition = family.definition
        name = definition.family_name if openmetrics else definition.name
        lines += [f"# HELP {name} {definition.meaning}", f"# TYPE {name} {definition.kind}"]
        for values, value in family.read().items():
            labels = ",".join(f'{label}="{text}"' for label, text in zip(definition.labels, values, strict=True))
            lines.append(f"{definition.name}{f'{{{labels}}}' if labels else ''} {float(value)}")
    return "\n".join(lines)


class _Described:
    __slots__ = ("comments", "samples")

    def __init__(self) -> None:
        self.comments: dict[str, str] = {}  # HELP, TYPE, UNIT, in the order they came
        self.samples: list[str] = []


def merge(texts: Iterable[tuple[str | None, str]]) -> str:
    """One exposition out of several: pairs of a worker's name and its text, all in the same format.

    Every sample gets the label ``worker``, before its own labels; under the name None they stay as they are. A shared
    family appears once, with the first description and all samples together, as both formats demand. OpenMetrics' end
    mark comes last if any text had it.
    """
    families: dict[str, _Described] = {}
    ends = False
    for worker, text in texts:
        label = None if worker is None else f'worker="{worker}"'
        family = families.setdefault("", _Described())  # samples that nothing describes
        for line in text.splitlines():
            if line == _EOF:
                ends = True
            elif line.startswith("# "):
                _, kind, name, *_ = line.split(" ", 3)
                family = families.setdefault(name, _Described())
                family.comments.setdefault(kind, line)
            elif line:
                family.samples.append(line if label is None else _labelled(line, label))
    lines = [line for family in families.values() for line in (*family.comments.values(), *family.samples)]
    if ends:
        lines.append(_EOF)
    return "".join(f"{line}\n" for line in lines)


def _labelled(sample: str, label: str) -> str:
    """``name{labels} value`` or ``name value``, with one label more. A name has neither brace nor blank."""
    name, blank, rest = sample.partition(" ")
    if "{" not in name:
        return f"{name}{{{label}}}{blank}{rest}"
    name, _, rest = sample.partition("{")
    return f"{name}{{{label}{'' if rest.startswith('}') else ','}{rest}"
