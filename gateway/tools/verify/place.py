"""One partition: compares acknowledged offsets with those in Kafka."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from gateway.tools.verify.log import SLACK_MS

if TYPE_CHECKING:
    from bridge.ledger_topic.records import PartitionRecord
    from gateway.tools.verify.lives import Window
    from gateway.tools.verify.log import FoundRecord, PartitionView, TopicView

State = Literal["ok", "surplus", "open", "expired", "compacted", "unjudged", "missing"]

_ABSENT_RANGES = 1000  # most ranges of missing offsets that are kept for the report
_BLURRED = "some offsets were not listed one by one, and part of their range has expired"


@dataclass(slots=True)
class PlaceResult:
    """The result for one partition; all counts are records.

    acknowledged = found + missing + expired + compacted + unjudged. ``surplus`` and ``open`` are this gateway's records
    beyond the acknowledged ones: copies after lost answers, and those of an unwritten interval. ``others`` is None if
    other writers' records cannot be recognised.
    """

    topic: str
    partition: int
    routes: dict[str, int]
    dead_letter: bool
    acknowledged: int = 0
    messages: int = 0
    found: int = 0
    missing: int = 0
    expired: int = 0
    compacted: int = 0
    unjudged: int = 0
    surplus: int = 0
    open: int = 0
    tagged: bool = True
    notes: list[str] = field(default_factory=list)
    absent: list[tuple[int, int]] = field(default_factory=list)

    @property
    def state(self) -> State:
        """The worst state of its records."""
        words: tuple[State, ...] = ("missing", "unjudged", "compacted", "expired", "open", "surplus")
        return next((word for word in words if getattr(self, word)), "ok")


class Place:
    """Collects the acknowledged offsets of a partition, and compares them with its records.

    Offsets are kept as runs of 16 bytes; adjacent runs are joined."""

    def __init__(self, topic: str, partition: int, topic_view: TopicView | None, now_ms: int) -> None:
        self.topic = topic
        self.partition = partition
        self._topic_view = topic_view
        self._view: PartitionView | None = topic_view.partitions.get(partition) if topic_view is not None else None
        self._now_ms = now_ms
        self._runs = {True: array("q"), False: array("q")}  # first, end, …; by whether the records are tagged
        self._blurred: list[tuple[int, int, int, bool]] = []  # lowest and highest offset, records, tagged
        self._unlocated = 0  # records acknowledged without an offset
        self._tagged = True
        self._gone = 0  # removed before their time
        self._merged: list[tuple[int, int, bool]] | None = None  # all runs, disjoint; made at the first need
        self.result = PlaceResult(topic, partition, {}, dead_letter=False)

    def add(self, record: PartitionRecord) -> None:
        result = self.result
        result.acknowledged += record.records
        result.messages += record.messages
        result.routes[record.route] = result.routes.get(record.route, 0) + record.records
        result.dead_letter = result.dead_letter or record.dead_letter
        self._tagged = self._tagged and record.tagged
        if self._view is None:
            return
        self._unlocated += record.unlocated
        if record.runs is None:
            self._add_blurred(record)
        else:
            for first, count in record.runs:
                self._add_run(record, first, first + count)

    @property
    def run_count(self) -> int:
        return sum(len(runs) // 2 for runs in self._runs.values())

    def span(self, *, to_end: bool) -> tuple[int, int] | None:
        """The offsets to read, or None. With ``to_end`` up to the partition's end, if own records can be recognised."""
        if self._view is None:
            return None
        firsts = [first for first, _, _ in self._union()] + [low for low, _, _, _ in self._blurred]
        if not firsts:
            return None
        ends = [end for _, end, _ in self._union()] + [high + 1 for _, high, _, _ in self._blurred]
        tagged = bool(self._runs[True]) or any(tagged for *_, tagged in self._blurred)
        end = self._view.end if to_end and tagged else min(max(ends), self._view.end)
        return (min(firsts), end) if min(firsts) < end else None

    def _add_run(self, record: PartitionRecord, first: int, end: int) -> None:
        """Add acknowledged offsets, to below ``end``. Those before the log's start have expired, or are gone."""
        assert self._view is not None
        below = max(0, min(end, self._view.start) - first)
        if below:
            if self._expires(record):
                self.result.expired += below
            else:
                self._gone += below
                self._note_absent(first, first + below)
            first += below
        if first < end:
            runs = self._runs[record.tagged]
            if runs and runs[-1] == first:
                runs[-1] = end
            else:
                runs.extend((first, end))

    def _add_blurred(self, record: PartitionRecord) -> None:
        """Add records of which only the lowest and the highest offset are known."""
        assert self._view is not None
        count = record.records - record.unlocated
        if record.first_offset is None or record.last_offset is None or not count:
            return
        if record.first_offset < self._view.start:
            self.result.unjudged += count
            self._note(_BLURRED)
        else:
            self._blurred.append((record.first_offset, record.last_offset, count, record.tagged))

    def _expires(self, record: PartitionRecord) -> bool:
        assert self._topic_view is not None
        return self._topic_view.may_have_expired(record.from_ms, self._now_ms, SLACK_MS)

    def _union(self) -> list[tuple[int, int, bool]]:
        """Disjoint runs in ascending order, each with whether its records must be tagged. Call it after the last
        ``add``."""
        if self._merged is None:
            self._merged = list(self._merge())
        return self._merged

    def _merge(self) -> Iterator[tuple[int, int, bool]]:
        """First offset, end and tagged of each run, without the parts that an earlier one has."""
        runs = [(first, end, tagged) for tagged, flat in self._runs.items() for first, end in _pairs(flat)]
        runs.sort()
        reached = -1
        for first, end, tagged in runs:
            if end > reached:
                yield max(first, reached), end, tagged
                reached = end

    def _note_absent(self, first: int, end: int) -> None:
        absent = self.result.absent
        if absent and absent[-1][1] == first:
            absent[-1] = (absent[-1][0], end)
        elif len(absent) < _ABSENT_RANGES:
            absent.append((first, end))

    def _note(self, text: str) -> None:
        if text not in self.result.notes:
            self.result.notes.append(text)

    # --- comparing ---------------------------------------------------------------------------------

    def compare(self, windows: Sequence[Window]) -> Comparison:
        """The comparison, which takes the partition's records in order of their offsets."""
        return Comparison(iter(self._union()), self._blurred, windows)

    def not_read(self) -> PlaceResult:
        """The result if not all records could be read."""
        result = self.result
        result.tagged = self._tagged
        result.expired, result.unjudged = 0, result.acknowledged
        result.absent.clear()
        self._note("it has no leader, so its records cannot be read now")
        return result

    def settle(self, comparison: Comparison, start_now: int) -> PlaceResult:
        """The result after all records of the span. ``start_now``: the first offset now, after possible retention."""
        result = self.result
        result.tagged = self._tagged
        if not self._tagged:
            self._note("without the header gateway.id, records of other writers cannot be told apart")
        if self._view is None:
            result.missing = result.acknowledged
            self._note("there is no such topic or partition any more")
            return result
        located = sum(end - first for flat in self._runs.values() for first, end in _pairs(flat))
        result.missing = self._gone
        if self._gone:
            self._note(
                "removed sooner than retention says: deleted by somebody, or the topic was made anew, or a spool held "
                "them for long (retention counts from their receipt)"
            )
        comparison.finish()
        self._settle_located(comparison, located, start_now)
        result.open = comparison.open
        result.surplus = comparison.surplus
        self._settle_blurred(comparison, start_now)
        self._settle_unlocated()
        self._merged = None
        self._runs = {}
        return result

    def _settle_located(self, comparison: Comparison, located: int, start_now: int) -> None:
        """Judge the records with known offsets. ``located`` is their number, ``start_now`` the log's present start."""
        result = self.result
        assert self._view is not None
        assert self._topic_view is not None
        union = sum(end - first for first, end, _ in self._union())
        result.found = comparison.found
        absent = union - comparison.found - comparison.foreign
        beyond = sum(end - max(first, self._view.end) for first, end, _ in self._union() if end > self._view.end)
        expired = sum(
            self._acknowledged_in(first, min(end, start_now)) for first, end in comparison.absent if first < start_now
        )
        absent -= expired
        result.expired += expired
        for first, end in comparison.absent:
            if end > start_now:
                self._note_absent(max(first, start_now), end)
        if self._topic_view.compacted:
            result.compacted = absent - beyond
            absent = beyond
        twice = located - union
        result.missing += absent + comparison.foreign + twice
        if beyond:
            self._note("Kafka's log ends before offsets it has acknowledged: records were lost, or the topic made anew")
        if twice:
            self._note(f"{twice} offsets were acknowledged twice: a defect of the account, or the topic was made anew")
        if comparison.foreign:
            self._note(f"{comparison.foreign} acknowledged offsets hold records of somebody else")

    def _acknowledged_in(self, first: int, end: int) -> int:
        """Number of acknowledged offsets in a range."""
        union = self._union()
        count, at = 0, bisect_right(union, first, key=lambda run: run[1])
        while at < len(union) and union[at][0] < end:
            count += min(end, union[at][1]) - max(first, union[at][0])
            at += 1
        return count

    def _settle_blurred(self, comparison: Comparison, start_now: int) -> None:
        """Judge the records of which only the lowest and the highest offset are known."""
        result = self.result
        assert self._view is not None
        assert self._topic_view is not None
        count = sum(count for _, _, count, _ in self._blurred)
        found = min(count, comparison.blurred)
        absent = count - found
        result.found += found
        result.surplus += max(0, comparison.blurred_ours - count)
        if self._topic_view.compacted and all(high < self._view.end for _, high, *_ in self._blurred):
            result.compacted += absent
        elif absent and any(low < start_now for low, *_ in self._blurred):
            result.unjudged += absent
            self._note(_BLURRED)
        else:
            result.missing += absent

    def _settle_unlocated(self) -> None:
        """Records acknowledged without an offset can only be among the surplus."""
        result = self.result
        taken = min(self._unlocated, result.surplus)
        result.surplus -= taken
        result.found += taken
        taken_open = min(self._unlocated - taken, result.open)
        result.open -= taken_open
        result.found += taken_open
        result.unjudged += self._unlocated - taken - taken_open


class Comparison:
    """Compares acknowledged runs with records, both in order of offsets."""

    def __init__(
        self,
        runs: Iterator[tuple[int, int, bool]],
        blurred: Sequence[tuple[int, int, int, bool]],
        windows: Sequence[Window],
    ) -> None:
        self._runs = runs
        self._blurred = blurred
        self._windows = windows
        self._first, self._end, self._tagged = next(runs, (_FAR, _FAR, False))
        self._next = self._first  # the next expected offset of the run
        self.found = 0
        self.foreign = 0  # other writers' records at acknowledged offsets
        self.surplus = 0  # ours outside of all runs
        self.open = 0  # the same, in a window
        self.blurred = 0  # within a blurred range
        self.blurred_ours = 0
        self.absent: list[tuple[int, int]] = []  # where acknowledged offsets are missing, and nothing else is
        self._shown = 0  # behind the last record

    def show(self, records: Sequence[FoundRecord]) -> None:
        """Count these records. Offsets ascend, also between calls."""
        for offset, timestamp_ms, ours in records:
            while offset >= self._end:
                self._finish_run()
            if offset > self._next:
                self._miss(self._next, offset)
            self._shown = offset + 1
            if offset < self._first:
                self._beside(offset, timestamp_ms, ours=ours)
                continue
            self._next = offset + 1
            if ours or not self._tagged:
                self.found += 1
            else:
                self.foreign += 1

    def finish(self) -> None:
        """Note the end of the records: offsets that are still expected are absent."""
        while self._end != _FAR:
            self._finish_run()

    def _finish_run(self) -> None:
        if self._next < self._end:
            self._miss(self._next, self._end)
        self._first, self._end, self._tagged = next(self._runs, (_FAR, _FAR, False))
        self._next = self._first

    def _miss(self, first: int, end: int) -> None:
        if self.absent and self.absent[-1][0] >= self._shown:  # what retention took is one range
            self.absent[-1] = (self.absent[-1][0], end)
        elif len(self.absent) < _ABSENT_RANGES:
            self.absent.append((first, end))

    def _beside(self, offset: int, timestamp_ms: int, *, ours: bool) -> None:
        """Count a record outside of all runs."""
        for low, high, _, tagged in self._blurred:
            if low <= offset <= high and (ours or not tagged):
                self.blurred += 1
                self.blurred_ours += ours
                return
        if ours:
            if any(window.holds(timestamp_ms) for window in self._windows):
                self.open += 1
            else:
                self.surplus += 1


_FAR = 1 << 62


def _pairs(flat: array[int]) -> Iterator[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)
