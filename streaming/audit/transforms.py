"""What an audit makes of Kafka's records and of the gateways' ledger. Each function returns the DataFrame it is named
for; no session, no I/O.

    records ─┬─▶ seen ────┐
             └─▶ entries ─┴─▶ judged

Offsets are kept as runs, first and count: a minute of a partition is a row or two, however many records it had.
"""

from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.types import ArrayType, LongType

from bridge.wire import DLQ_ROUTE, GATEWAY_ID, LEDGER_PARTITION, LEDGER_VERSION, ledger_schema
from streaming.decoding.shapes import MAX_TS_MS, header
from streaming.lake.columns import columns

SEEN: Final = columns(
    "topic string, partition integer, gateway string, route string, minute timestamp, first long, count long,"
    " read_at timestamp"
)
"""Unbroken runs of offsets that were read, of one minute of the records' timestamps. ``gateway``: the header
``gateway.id``; ``route``: the header ``dlq.route`` of dead letters; null without."""

ENTRIES: Final = columns(
    "gateway string, worker integer, life string, number long, from_ms long, to_ms long, route string,"
    " topic string, partition integer, dead_letter boolean, tagged boolean, records long, unlocated long,"
    " first_offset long, last_offset long, runs pairs, read_at timestamp",
    pairs=ArrayType(ArrayType(LongType())),
)
"""The ``partition`` records of the ledger topic, as docs/ledger.md describes them."""

EXTENTS: Final = columns("topic string, partition integer, earliest long, read_to long, latest long")
"""A partition as it is: its first offset in Kafka, the next that this job reads, the next that Kafka gives away."""

AUDIT: Final = columns(
    "minute_date date, minute timestamp, gateway string, route string, topic string, partition integer,"
    " acknowledged long, present long, missing long, unaccounted long, expired long, open long, state string,"
    " judged_at timestamp"
)
"""One row per gateway, route, topic, partition and minute, all counts records:
acknowledged = (present - unaccounted) + missing + expired + open."""

AUDIT_PARTITIONS: Final = ("minute_date",)

_ENTRY: Final = ("gateway", "worker", "life", "number", "route", "topic", "partition", "dead_letter")
_ROW: Final = ("gateway", "route", "topic", "partition", "minute")
_COUNTS: Final = ("matched", "missing", "unaccounted", "expired", "open")
_SLACK_MS: Final = 3_600_000
"""A gateway's clock can be put back between a record and its entry."""
_MOST: Final = 1 << 31
"""Records of an entry."""
_PIECE: Final = 1 << 16
"""Offsets that runs are cut at, to be compared piece by piece instead of each with each."""


def slim(records: DataFrame, ledger_topic: str) -> DataFrame:
    """The columns that an audit looks at; ``value`` is null but for the ledger's records."""
    return records.select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        header(GATEWAY_ID).alias("gateway"),
        header(DLQ_ROUTE).alias("route"),
        F.when(F.col("topic") == ledger_topic, F.col("value")).alias("value"),
    )


def seen(slim_records: DataFrame, ledger_topic: str) -> DataFrame:
    """The runs of offsets that were read, as :data:`SEEN`, but for ``read_at``.

    Most of a batch is unbroken: what one gateway wrote to a partition in a minute. Least, greatest and number of its
    offsets say so without a sort. Only the rest is sorted.
    """
    of_one = ("topic", "partition", "gateway", "route", "minute")
    records = slim_records.where(F.col("topic") != ledger_topic).withColumn(
        "minute", F.date_trunc("minute", "timestamp")
    )
    offsets = F.min("offset").alias("first"), F.count(F.lit(1)).alias("count")
    groups = records.groupBy(*of_one).agg(*offsets, F.max("offset").alias("last"))
    unbroken = F.col("last") - F.col("first") + 1 == F.col("count")
    broken = F.broadcast(groups.where(~unbroken).select(*of_one).alias("broken"))
    same = [F.col(f"record.{name}").eqNullSafe(F.col(f"broken.{name}")) for name in of_one]
    # Within an unbroken run an offset rises as its row's number does.
    number = F.row_number().over(Window.partitionBy(*of_one).orderBy("offset"))
    runs = (
        records.alias("record")
        .join(broken, same, "left_semi")
        .withColumn("run", F.col("offset") - number)
        .groupBy(*of_one, "run")
        .agg(*offsets)
        .drop("run")
    )
    columns = [name for name in SEEN.names if name != "read_at"]
    return groups.where(unbroken).select(*columns).unionByName(runs.select(*columns))


def entries(slim_records: DataFrame, ledger_topic: str) -> DataFrame:
    """The ledger's ``partition`` records, as :data:`ENTRIES`, but for ``read_at``. Others are left out; so is one
    with impossible numbers, whose sums or pieces would end the job."""
    first, last = F.col("first_offset"), F.col("last_offset")
    sane = (
        *(F.col(name).between(0, MAX_TS_MS) for name in ("from_ms", "to_ms")),
        *(F.col(name).between(0, _MOST) for name in ("records", "unlocated")),
        first.between(0, last) & (F.try_subtract(last, first) < _MOST),
        F.forall("runs", lambda it: F.get(it, F.lit(0)).between(0, 1 << 62) & F.get(it, F.lit(1)).between(1, _MOST)),
    )
    return (
        slim_records.where(F.col("topic") == ledger_topic)
        .select(F.from_json(F.col("value").cast("string"), ledger_schema()).alias("it"))
        .select("it.*")
        .where((F.col("v") <= LEDGER_VERSION) & (F.col("kind") == LEDGER_PARTITION))
        .where(F.coalesce(reduce(and_, sane), F.lit(True)))
        .select(*(name for name in ENTRIES.names if name != "read_at"))
    )


def judged(found: DataFrame, ledger: DataFrame, extents: DataFrame) -> DataFrame:
    """The rows of the table for what was seen and what the ledger says, but for ``judged_at``.

    An acknowledged offset is matched (a record of that gateway, or of nobody where the route writes no such header),
    expired (below the partition's first offset, and never seen), open (not read yet by this job) or missing. It counts
    in the minute of its record; without one, in that its interval begins with. What the gateway wrote and no entry
    names is unaccounted. Partitions without an extent are not judged.
    """
    known = F.broadcast(extents.select("topic", "partition"))
    ledger, found = (it.join(known, ["topic", "partition"], "left_semi") for it in (ledger, found))
    runs = _runs(ledger.dropDuplicates([*_ENTRY]))
    made = {"end": F.col("first") + F.col("count"), "at": F.col("first"), "came": F.least("minute", "read_at")}
    pieces = found.withColumns(made).drop("count", "read_at")
    pairs = _overlaps(runs, pieces).join(F.broadcast(extents), ["topic", "partition"])
    size = F.col("high") - F.col("low")
    matched = pairs.groupBy(*_ROW).agg(F.sum(size).alias("matched"))
    by_run = pairs.groupBy(*_ENTRY, "begins").agg(
        F.sum(size).alias("matched"), F.sum(_overlap("low", "high", F.lit(0), F.col("earliest"))).alias("old")
    )
    absent = _absent(runs, by_run, extents)
    tagged = pieces.where("gateway IS NOT NULL")
    accounted = pairs.where("tag IS NOT NULL").groupBy(
        F.col("tag").alias("gateway"), "topic", "partition", "minute", F.col("at")
    ).agg(F.sum(size).alias("matched"))  # fmt: skip
    parts = matched, absent, _unaccounted(tagged, accounted, runs)
    return _rows(reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts))


def _runs(ledger: DataFrame) -> DataFrame:
    """The entries' runs of offsets, one a row: ``begins``, ``end`` and ``size``. Where there were too many to list, the
    whole range, of which ``size`` are the entry's."""
    listed = F.col("runs").isNotNull()
    whole = F.array(F.array(F.col("first_offset"), F.col("last_offset") - F.col("first_offset") + 1))
    return (
        ledger.where(listed | F.col("first_offset").isNotNull())
        .withColumn("run", F.explode(F.when(listed, F.col("runs")).otherwise(whole)))
        .withColumns(
            {
                "begins": F.get("run", F.lit(0)),
                "end": F.get("run", F.lit(0)) + F.get("run", F.lit(1)),
                "size": F.when(listed, F.get("run", F.lit(1))).otherwise(F.col("records") - F.col("unlocated")),
            }
        )
        .select(*_ENTRY, "tagged", "from_ms", "to_ms", "begins", "end", "size")
    )


def _overlaps(runs: DataFrame, pieces: DataFrame) -> DataFrame:
    """What runs and seen pieces have in common: ``low`` to before ``high``, with the run's columns, and of the piece
    ``tag`` (its gateway), ``minute`` and ``at`` (its first offset). Both are cut at _PIECE offsets to be joined.

    ``tagged``: the run's records have the header ``gateway.id``. ``came``: by then the piece was in Kafka."""
    ours = runs.withColumn("bucket", _buckets("begins", "end"))
    theirs = pieces.select(
        "topic", "partition", F.col("gateway").alias("tag"), "minute", "at", "came",
        F.col("first").alias("p_first"), F.col("end").alias("p_end"), _buckets("first", "end").alias("bucket"),
    )  # fmt: skip
    of_us = (F.col("tag") == F.col("gateway")) | (~F.col("tagged") & F.col("tag").isNull())
    # What came later than the entry has the offset of another topic, which was deleted and made anew. A broker that
    # stamps records itself may have a clock far ahead: then this job has read it before.
    of_us &= F.unix_millis("came") <= F.col("to_ms") + F.lit(_SLACK_MS)
    begin = F.col("bucket") * F.lit(_PIECE)
    return (
        ours.join(theirs, ["topic", "partition", "bucket"])
        .withColumn("low", F.greatest("begins", "p_first", begin))
        .withColumn("high", F.least("end", "p_end", begin + F.lit(_PIECE)))
        .where((F.col("low") < F.col("high")) & of_us)
        .drop("bucket", "p_first", "p_end", "came")
    )


def _absent(runs: DataFrame, by_run: DataFrame, extents: DataFrame) -> DataFrame:
    """Acknowledged offsets without a record, in the minute their interval begins with. ``by_run``: those with one."""
    joined = (
        runs.join(by_run, [*_ENTRY, "begins"], "left")
        .na.fill(0, ["matched", "old"])  # old: matched, and deleted by Kafka since
        .join(F.broadcast(extents), ["topic", "partition"])
    )
    absent = F.greatest(F.col("size") - F.col("matched"), F.lit(0))
    expired = F.least(absent, _overlap("begins", "end", F.lit(0), F.col("earliest")) - F.col("old"))
    unread = _overlap("begins", "end", F.col("read_to"), F.col("latest"))  # what counts as open
    return (
        joined.withColumn("minute", F.date_trunc("minute", F.timestamp_millis("from_ms")))
        .withColumn("expired", F.greatest(expired, F.lit(0)))
        .withColumn("open", F.least(absent - F.col("expired"), unread))
        .withColumn("missing", absent - F.col("expired") - F.col("open"))
        .groupBy(*_ROW)
        .agg(*(F.sum(name).alias(name) for name in ("missing", "expired", "open")))
    )


def _unaccounted(tagged: DataFrame, accounted: DataFrame, runs: DataFrame) -> DataFrame:
    """Records with a gateway's name that none of its entries names. A record tells its route only if it is a dead
    letter; the others are the route's that alone writes to the partition, by the ledger, or nobody's."""
    writers = runs.groupBy("gateway", "topic", "partition").agg(
        F.when(F.min("route") == F.max("route"), F.min("route")).alias("only")
    )
    return (
        tagged.join(accounted, ["gateway", "topic", "partition", "minute", "at"], "left")
        .join(writers, ["gateway", "topic", "partition"], "left")
        .withColumn("route", F.coalesce("route", "only"))
        .withColumn("left", F.col("end") - F.col("first") - F.coalesce("matched", F.lit(0)))  # what no entry names
        .groupBy(*_ROW)
        .agg(F.sum(F.greatest("left", F.lit(0))).alias("unaccounted"))
    )


def _rows(total: DataFrame) -> DataFrame:  # adds up; as AUDIT, but for judged_at
    counts = total.groupBy(*_ROW).agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS))
    states = (F.when(F.col(name) > 0, F.lit(name)) for name in ("missing", "unaccounted", "open", "expired"))
    acknowledged = F.col("matched") + F.col("missing") + F.col("expired") + F.col("open")
    return (
        counts.withColumns(
            {
                "minute_date": F.to_date("minute"),
                "acknowledged": acknowledged,
                "present": F.col("matched") + F.col("unaccounted"),
                "state": F.coalesce(*states, F.lit("balanced")),
            }
        )
        .where((F.col("acknowledged") > 0) | (F.col("present") > 0))
        .select(*(name for name in AUDIT.names if name != "judged_at"))
    )


def _overlap(first: str, end: str, low: Column, high: Column) -> Column:
    return F.greatest(F.least(F.col(end), high) - F.greatest(F.col(first), low), F.lit(0))


def _buckets(first: str, end: str) -> Column:
    last = F.floor((F.col(end) - 1) / F.lit(_PIECE))
    return F.explode(F.sequence(F.floor(F.col(first) / F.lit(_PIECE)), last))
