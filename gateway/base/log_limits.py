"""Limits a flood of log lines and reports how many were omitted.

Two limits, one behind the other, each counting the lines it omits:

- of repeats: the same logger, event and ``repeat_key`` (of a library's message: the same template) come once in ten
  seconds;
- of floods: the same logger and event come at most a hundred times in a minute, whatever their keys.

The next line of the same kind has their number in ``suppressed``. If none follows for a minute, the line
``lines_left_out`` reports the number, once for each event, or at the end of the process. It does not come after each
interval: for events in pairs every 15 s, every second line would be this report.
"""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

import structlog

REPEAT_INTERVAL_NS: Final = 10_000_000_000
FLOOD_INTERVAL_NS: Final = 60_000_000_000
FLOOD_LINES: Final = 100  # in an interval: a start with many sessions is no flood
_EVENT: Final = "lines_left_out"
_log: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(__name__)

Key = tuple[object, ...]


class RepeatLimiter:
    """Admits each key a number of times per interval and counts the rest. Decides only; the caller gives the time.

    Args:
        interval_ns: an interval begins with the first one after the last interval's end.
        lines: how many are admitted in each interval.
        max_keys: how many keys are remembered; beyond it the key with the oldest interval is forgotten.
        told_ns: time from the beginning of an interval until omitted lines are ``untold``; at least the interval.
    """

    __slots__ = ("_forgotten", "_interval_ns", "_lines", "_max_keys", "_seen", "_told_ns", "_uncounted")

    def __init__(
        self, interval_ns: int = REPEAT_INTERVAL_NS, *, lines: int = 1, max_keys: int = 1000, told_ns: int = 0
    ) -> None:
        self._interval_ns = interval_ns
        self._told_ns = max(interval_ns, told_ns)
        self._lines = lines
        self._max_keys = max_keys
        self._seen: OrderedDict[Key, tuple[int, int, int]] = OrderedDict()  # → began at, let through, left out
        self._forgotten: list[tuple[Key, int]] = []
        self._uncounted = 0  # keys with lines left out; at 0 ``untold`` need not search

    def admit(self, key: Key, now_ns: int) -> int | None:
        """None: omit this line. A number: write it; that many were omitted since the last one."""
        began_ns, through, left_out = self._seen.get(key, (None, 0, 0))
        if began_ns is not None and now_ns - began_ns < self._interval_ns:
            if through < self._lines:
                self._seen[key] = (began_ns, through + 1, 0)
                return 0
            self._uncounted += not left_out
            self._seen[key] = (began_ns, through, left_out + 1)
            return None
        self._uncounted -= bool(left_out)
        self._seen[key] = (now_ns, 1, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > self._max_keys:
            oldest, (_, _, lost) = self._seen.popitem(last=False)
            if lost:
                self._forgotten.append((oldest, lost))
                self._uncounted -= 1
        return left_out

    @property
    def pending(self) -> bool:
        """Whether there are omitted lines that no line has reported."""
        return bool(self._uncounted or self._forgotten)

    def untold(self, now_ns: int | None) -> list[tuple[Key, int]]:
        """Omitted lines that no line has reported in time, as key and count; with None all of them."""
        told, self._forgotten = self._forgotten, []
        if self._uncounted:
            for key, (began_ns, through, left_out) in list(self._seen.items()):
                if left_out and (now_ns is None or now_ns - began_ns >= self._told_ns):
                    told.append((key, left_out))
                    self._seen[key] = (began_ns, through, 0)
                    self._uncounted -= 1
        return told


class LogLimits(logging.Filter):
    """Both limits, as a filter of a handler. Any thread may log.

    Args:
        now_ns: the monotonic clock, in nanoseconds.
        later: calls a function once in another thread after a number of seconds; used while lines are untold.
    """

    def __init__(self, now_ns: Callable[[], int], later: Callable[[float, Callable[[], None]], None]) -> None:
        super().__init__()
        self._now_ns = now_ns
        self._later = later  # calls a function after so many seconds
        self._lock = threading.Lock()
        self._repeats = RepeatLimiter(told_ns=FLOOD_INTERVAL_NS)
        self._floods = RepeatLimiter(FLOOD_INTERVAL_NS, lines=FLOOD_LINES)
        self._waiting = False  # whether ``_look_again`` will be called
        self._ended = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the line; adds the number of lines omitted before it."""
        fields = dict(record.msg) if isinstance(record.msg, dict) else None  # a copy: others may hold the same record
        if fields is not None and fields.get("event") == _EVENT:
            return True
        now_ns = self._now_ns()
        with self._lock:
            suppressed = self._admit(record, fields, now_ns)
            told = self._repeats.untold(now_ns) + self._floods.untold(now_ns)
            wake = not (self._waiting or self._ended) and (self._repeats.pending or self._floods.pending)
            self._waiting |= wake
        if wake:
            self._later(FLOOD_INTERVAL_NS / 1e9, self._look_again)
        _tell(told)
        if fields is None:
            record.suppressed = suppressed
        else:
            if suppressed:
                fields["suppressed"] = suppressed
            record.msg = fields
        return suppressed is not None

    def _admit(self, record: logging.LogRecord, fields: dict[str, object] | None, now_ns: int) -> int | None:
        """None: omit the line. A number: write it; that many were omitted before it."""
        # Of a library the template, not the finished text: host names and numbers in it make no new event.
        event = str(record.msg) if fields is None else fields["event"]
        repeated = 0
        if fields is None or "repeat_key" in fields:
            key = None if fields is None else str(fields.pop("repeat_key"))
            admitted = self._repeats.admit((record.levelno, record.name, event, key), now_ns)
            if admitted is None:
                return None
            repeated = admitted
        flooded = self._floods.admit((record.levelno, record.name, event), now_ns)
        return None if flooded is None else repeated + flooded

    def _look_again(self) -> None:
        """Called a minute after an omitted line: report those that no line has reported; come again for the rest."""
        with self._lock:
            if self._ended:
                return
            now_ns = self._now_ns()
            told = self._repeats.untold(now_ns) + self._floods.untold(now_ns)
            wake = self._waiting = self._repeats.pending or self._floods.pending
        if wake:
            self._later(FLOOD_INTERVAL_NS / 1e9, self._look_again)
        _tell(told)

    def finish(self) -> None:
        """Report all omitted lines. Call it last, before the process or the handler ends."""
        with self._lock:
            self._ended = True
            told = self._repeats.untold(None) + self._floods.untold(None)
        _tell(told)


def _tell(told: list[tuple[Key, int]]) -> None:
    """Log how many lines of each event were omitted."""
    counts: Counter[tuple[object, ...]] = Counter()
    for key, count in told:
        counts[key[:3]] += count  # of all its repeat keys together
    for (level, logger, event), count in counts.items():
        assert isinstance(level, int)
        _log.log(level, _EVENT, of=event, of_logger=logger, count=count)
