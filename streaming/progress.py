"""The lines a Spark job writes to standard output while it runs: one JSON object each, its kind in ``event``. The last
is ``stopped`` or ``failed``.

Whoever starts a job reads them with :func:`parse`. No pyspark here, so that a reader (the demo's view, a wrapper, a
test) stays light. Times are milliseconds since 1970 (UTC), rows are Kafka records.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_args

Offsets = Mapping[str, Mapping[str, int]]
"""Next offset to read, by topic and by partition. Partition numbers are text, as they are JSON keys."""


@dataclass(frozen=True, slots=True)
class StartedEvent:
    event: ClassVar[str] = "started"
    queries: tuple[str, ...]
    master: str
    application: str  # Spark's id of it, to find it on a cluster
    startup_s: float  # from the start of the job's process to here
    metrics: str | None = None  # where Prometheus finds the metrics; None if they are not served


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """One micro-batch of one query, written and committed to the query's checkpoint."""

    event: ClassVar[str] = "batch"
    query: str
    batch: int  # goes on across restarts
    rows: int
    quarantined: int  # of ``rows``, those written to quarantine instead of the table
    late: int  # rows that came too late for their window and are in no aggregate
    rows_per_s: float
    duration_ms: int
    end_offsets: Offsets
    watermark_ms: int | None
    at_ms: int  # when the batch began, by the driver's clock


@dataclass(frozen=True, slots=True)
class GapEvent:
    """Kafka lost records before they were read, and the job, as it was told, went on without them."""

    event: ClassVar[str] = "gap"
    query: str
    batch: int
    topic: str
    partition: int
    first_offset: int
    last_offset: int | None  # None: the partition is not there any more, and how far it went is not known
    reason: str  # deleted, recreated, truncated or gone, as in the table ``bronze_gaps``


@dataclass(frozen=True, slots=True)
class ImbalanceEvent:
    """What one minute of one partition holds is not what the gateway's ledger says was acknowledged."""

    event: ClassVar[str] = "imbalance"
    query: str
    batch: int
    gateway: str
    route: str | None
    topic: str
    partition: int
    minute_ms: int
    acknowledged: int
    present: int
    missing: int  # acknowledged and not in Kafka, although nothing has expired: lost
    unaccounted: int  # in Kafka with the gateway's name, and in none of its accounts: as after a crash


@dataclass(frozen=True, slots=True)
class StoppedEvent:
    event: ClassVar[str] = "stopped"
    reason: str
    batches: Mapping[str, int]  # completed in this run, by query


@dataclass(frozen=True, slots=True)
class FailedEvent:
    event: ClassVar[str] = "failed"
    query: str | None
    error: str


Event = StartedEvent | BatchEvent | GapEvent | ImbalanceEvent | StoppedEvent | FailedEvent

_KINDS: Mapping[str, type[Event]] = {kind.event: kind for kind in get_args(Event)}


def format_line(event: Event) -> str:
    fields = {"event": event.event, **asdict(event)}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def parse(line: str) -> Event | None:
    """The event a line holds; None for a line that holds none (a library's print, an event of a newer version)."""
    try:
        fields: Any = json.loads(line)
        kind = _KINDS[fields.pop("event")]
        if kind is StartedEvent:
            fields["queries"] = tuple(fields["queries"])
        return kind(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
