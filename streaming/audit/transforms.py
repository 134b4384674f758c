"""What an audit makes of Kafka's records and of the gateways' ledger. Each function returns the DataFrame it is named
for; no session, no I/O.

    records ─┬─▶ seen ────┐
             └─▶ entries ─┴─▶ judged

Offsets are kept as runs, first and count: a minute of a partition is a row or two, however many records it had.
"""

from functools import reduce
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

EXTENTS: Final = columns("topic string, partition integer, earliest long, read_to long, latest long, anew_ms long")
"""A partition as it is: its first offset in Kafka, the next that this job reads, the next that Kafka gives away.
``anew_ms``: when a topic that was deleted, and made anew, was read last; 0 without one."""

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
_SLACK_MS: Final = 3_600_000  # a gateway's clock can be put back between a record and its entry
_MOST: Final = 1 << 31  # records of an entry
_PIECE: Final = 1 << 16  # offsets that runs are cut at, to be compared piece by piece instead of each with each


def slim(records: DataFrame, ledger_topic: str) -> DataFrame:
    """The columns that an audit looks at; ``value`` is null but for the ledger's records."""
    value = F.when(F.col("topic") == ledger_topic, F.col("value")).alias("value")
    names = header(GATEWAY_ID).alias("gateway"), header(DLQ_ROUTE).alias("route")
    return records.select("topic", "partition", "offset", "timestamp", *names, value)


def seen(slim_records: DataFrame, ledger_topic: str) -> DataFrame:
    """The runs of offsets that were read, as :data:`SEEN`, but for ``read_at``. Most of a batch is unbroken: what one
    gateway wrote to a partition in a minute. Least, greatest and number of its offsets say so without a sort. Only the
    rest is sorted."""
    of_one = ("topic", "partition", "gateway", "route", "minute")
    minute = F.date_trunc("minute", "timestamp")
    records = slim_records.where(F.col("topic") != ledger_topic).withColumn("minute", minute)
    offsets = F.min("offset").alias("first"), F.count(F.lit(1)).alias("count")
    unbroken = F.expr("max(offset) - min(offset) + 1 = count(1) AS unbroken")
    groups = records.groupBy(*of_one).agg(*offsets, unbroken)
    broken = F.broadcast(groups.where("NOT unbroken").select(*of_one).alias("broken"))
    same = [F.col(f"record.{name}").eqNullSafe(F.col(f"broken.{name}")) for name in of_one]
    # Within an unbroken run an offset rises as its row's number does.
    number = F.row_number().over(Window.partitionBy(*of_one).orderBy("offset"))
    runs = (
        records.alias("record")
        .join(broken, same, "left_semi")
        .withColumn("run", F.col("offset") - number)
        .groupBy(*of_one, "run")
        .agg(*offsets)
    )
    columns = [name for name in SEEN.names if name != "read_at"]
    return groups.where("unbroken").select(*columns).unionByName(runs.select(*columns))


def entries(slim_records: DataFrame, ledger_topic: str) -> DataFrame:
    """The ledger's ``partition`` records, as :data:`ENTRIES`, but for ``read_at``. Others are left out; so is one
    with impossible numbers, whose sums or pieces would end the job."""
    sane = f"""
        from_ms BETWEEN 0 AND {MAX_TS_MS} AND to_ms BETWEEN 0 AND {MAX_TS_MS}
        AND records BETWEEN 0 AND {_MOST} AND unlocated BETWEEN 0 AND {_MOST}
        AND first_offset BETWEEN 0 AND last_offset AND try_subtract(last_offset, first_offset) < {_MOST}
        AND forall(runs, it -> get(it, 0) BETWEEN 0 AND {1 << 62} AND get(it, 1) BETWEEN 1 AND {_MOST})
    """
    return (
        slim_records.where(F.col("topic") == ledger_topic)
        .select(F.from_json(F.col("value").cast("string"), ledger_schema()).alias("it"))
        .select("it.*")
        .where((F.col("v") <= LEDGER_VERSION) & (F.col("kind") == LEDGER_PARTITION))
        .where(f"coalesce({sane}, true)")
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
    place = "topic", "partition", "gateway", "route", "minute", "first", "read_at"
    pieces = found.selectExpr(*place, "first + count AS end", "least(minute, read_at) AS came")
    # The deleted topic's records are in entries from before the new one. What was read before then is certainly so,
    # whatever the gateway's clock says.
    of_one_topic = (
        "if(unix_millis(read_at) <= anew_ms, least(from_ms, told_ms) <= anew_ms, least(to_ms, told_ms) > anew_ms)"
    )
    pairs = _overlaps(runs, pieces).join(F.broadcast(extents), ["topic", "partition"]).where(of_one_topic)
    size = F.sum(F.expr("high - low")).alias("matched")
    matched = pairs.groupBy(*_ROW).agg(size)
    old = F.sum(_overlap("low", "high", "0", "earliest")).alias("old")
    absent = _absent(runs, pairs.groupBy(*_ENTRY, "begins").agg(size, old), extents)
    accounted = pairs.where("tag IS NOT NULL").groupBy("tag", "topic", "partition", "minute", "at").agg(size)
    parts = matched, absent, _unaccounted(pieces, accounted, runs)
    return _rows(reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts))


def _runs(ledger: DataFrame) -> DataFrame:
    """The entries' runs of offsets, one a row: ``begins``, ``end`` and ``size``. Where there were too many to list, the
    whole range, of which ``size`` are the entry's."""
    each = F.expr("explode(coalesce(runs, array(array(first_offset, last_offset - first_offset + 1)))) AS run")
    return (
        ledger.where("runs IS NOT NULL OR first_offset IS NOT NULL")
        .select("*", each)
        .selectExpr(*_ENTRY, "tagged", "from_ms", "to_ms", "unix_millis(read_at) AS told_ms", "get(run, 0) AS begins",
                    "get(run, 0) + get(run, 1) AS end",
                    "if(runs IS NULL, records - unlocated, get(run, 1)) AS size")
    )  # fmt: skip


def _overlaps(runs: DataFrame, pieces: DataFrame) -> DataFrame:
    """What runs and seen pieces have in common: ``low`` to before ``high``, with the run's columns, and of the piece
    ``tag`` (its gateway), ``minute`` and ``at`` (its first offset). Both are cut at _PIECE offsets to be joined.

    ``tagged``: the run's records have the header ``gateway.id``. ``came``: by then the piece was in Kafka."""
    ours = runs.withColumn("bucket", _buckets("begins", "end"))
    theirs = pieces.select(
        "topic", "partition", F.col("gateway").alias("tag"), "minute", F.col("first").alias("at"), "came", "read_at",
        F.col("end").alias("at_end"), _buckets("first", "end").alias("bucket"),
    )  # fmt: skip
    # What came later than the entry has the offset of another topic, which was deleted and made anew. A broker that
    # stamps records itself may have a clock far ahead: then this job has read it before.
    of_us = f"(tag = gateway OR NOT tagged AND tag IS NULL) AND unix_millis(came) <= to_ms + {_SLACK_MS}"
    return (
        ours.join(theirs, ["topic", "partition", "bucket"])
        .withColumn("low", F.expr(f"greatest(begins, at, bucket * {_PIECE}L)"))
        .withColumn("high", F.expr(f"least(end, at_end, (bucket + 1) * {_PIECE}L)"))
        .where(f"low < high AND {of_us}")
        .drop("bucket", "at_end", "came")
    )


def _absent(runs: DataFrame, by_run: DataFrame, extents: DataFrame) -> DataFrame:
    """Acknowledged offsets without a record, in the minute their interval begins with. ``by_run``: those with one."""
    joined = (
        runs.join(by_run, [*_ENTRY, "begins"], "left")
        .na.fill(0, ["matched", "old"])  # old: matched, and deleted by Kafka since
        .join(F.broadcast(extents), ["topic", "partition"])
    )
    return (
        joined.withColumn("minute", F.date_trunc("minute", F.timestamp_millis("from_ms")))
        .withColumn("absent", F.expr("greatest(size - matched, 0)"))
        .withColumn("below", _overlap("begins", "end", "0", "earliest"))
        .withColumn("expired", F.expr("greatest(least(absent, below - old), 0)"))
        .withColumn("unread", _overlap("begins", "end", "read_to", "latest"))
        .withColumn("open", F.expr("least(absent - expired, unread)"))
        .withColumn("missing", F.expr("absent - expired - open"))
        .groupBy(*_ROW)
        .agg(*(F.sum(name).alias(name) for name in ("missing", "expired", "open")))
    )


def _unaccounted(pieces: DataFrame, accounted: DataFrame, runs: DataFrame) -> DataFrame:
    """Records with a gateway's name that none of its entries names. A record tells its route only if it is a dead
    letter; the others are the route's that alone writes to the partition, by the ledger, or nobody's."""
    only = F.expr("if(min(route) = max(route), min(route), NULL) AS only")
    writers = runs.groupBy("gateway", "topic", "partition").agg(only)
    named = accounted.withColumnsRenamed({"tag": "gateway", "at": "first"})
    return (
        pieces.where("gateway IS NOT NULL")
        .join(named, ["gateway", "topic", "partition", "minute", "first"], "left")
        .join(writers, ["gateway", "topic", "partition"], "left")
        .withColumn("route", F.coalesce("route", "only"))
        .withColumn("left", F.expr("end - first - coalesce(matched, 0)"))  # what no entry names
        .groupBy(*_ROW)
        .agg(F.sum(F.greatest("left", F.lit(0))).alias("unaccounted"))
    )


def _rows(total: DataFrame) -> DataFrame:  # adds up; as AUDIT, but for judged_at
    states = (f"if({name} > 0, '{name}', NULL)" for name in ("missing", "unaccounted", "open", "expired"))
    made = {
        "minute_date": "to_date(minute)",
        "acknowledged": "matched + missing + expired + open",
        "present": "matched + unaccounted",
        "state": f"coalesce({', '.join(states)}, 'balanced')",
    }
    return (
        total.groupBy(*_ROW)
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS))
        .withColumns({name: F.expr(sql) for name, sql in made.items()})
        .where("acknowledged > 0 OR present > 0")
        .select(*(name for name in AUDIT.names if name != "judged_at"))
    )


def _overlap(first: str, end: str, low: str, high: str) -> Column:
    return F.expr(f"greatest(least({end}, {high}) - greatest({first}, {low}), 0)")


def _buckets(first: str, end: str) -> Column:
    return F.expr(f"explode(sequence(floor({first} / {_PIECE}), floor(({end} - 1) / {_PIECE})))")
