"""Two calls of the benchmark compared by what does not depend on how fast the machine was: ratios within a call, CPU in
reference steps, memory, shares.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["worse", "better", "same", "not judged"]

_SHAPE: Final = ("cpu", "cores", "python")  # where one of them differs, even a ratio is another
_LESS_IS_BETTER: Final = ("rss_mib", "supervisor_mib", "bytes_each")
_MORE_IS_BETTER: Final = ("raw_share", "share_of_echo", "share_of_small", "share_of_bronze")
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a figure. ``times`` is now divided by then, turned round where more is better."""

    what: str
    kind: Kind
    times: float | None = None
    why: str = ""


def verdicts(now: Document, then: Document, bound: float) -> list[Verdict]:
    """Every figure that either call has; ``bound`` is above 1. The documents are those of ``--json``."""
    differs = [f"{key} {then['machine'][key]}" for key in _SHAPE if now["machine"][key] != then["machine"][key]]
    if now["quick"] != then["quick"]:
        differs.append("full-sized rows" if now["quick"] else "quick rows")
    unlike = f"the earlier call had {', '.join(differs)}" if differs else ""
    older, newer = dict(_figures(then)), dict(_figures(now))
    return [_verdict(what, newer.get(what), older.get(what), bound, unlike) for what in dict.fromkeys((*newer, *older))]


def lines(found: Sequence[Verdict]) -> list[str]:
    """The verdicts for people, the worst first."""
    order: Sequence[Kind] = ("worse", "better", "not judged", "same")
    ranked = sorted(found, key=lambda verdict: (order.index(verdict.kind), -(verdict.times or 0)))
    return ["against the earlier call (1: as then, more: worse)"] + [
        "  ".join(
            (f"  {verdict.kind:10}", f"{verdict.times:.2f}" if verdict.times else "    ", verdict.what, verdict.why)
        ).rstrip()
        for verdict in ranked
    ]


def _verdict(
    what: str, now: tuple[float, str] | None, then: tuple[float, str] | None, bound: float, unlike: str
) -> Verdict:
    if now is None or then is None:
        return Verdict(what, "not judged", why=f"only the {'earlier' if now is None else 'later'} call has it")
    times = now[0] / then[0]
    if why := now[1] or then[1] or unlike:
        return Verdict(what, "not judged", times, why)
    return Verdict(what, "worse" if times > bound else "better" if times * bound < 1 else "same", times)


def _figures(call: Document) -> Iterator[tuple[str, tuple[float, str]]]:
    """Name, value (less is better) and why it cannot be judged, if so."""
    for ratio in call["ratios"]:
        yield f"{ratio['ours']} : {ratio['theirs']}", (ratio["ratio"], "the reference step moved" * ratio["moved"])
    for row in call["rows"]:
        name, failed = row["name"], "" if row["verified"] else "a run failed"
        if cpu := row.get("cpu_s_per_million"):
            why = failed or "the reference step moved" * row["moved"]
            yield f"{name} CPU in reference steps", (cpu / statistics.median(row["reference_ns"]), why)
        for figure in (*_LESS_IS_BETTER, *_MORE_IS_BETTER):
            if value := row.get(figure):
                yield f"{name} {figure}", (1 / value if figure in _MORE_IS_BETTER else value, failed)
