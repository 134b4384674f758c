"""The job ``devices``: what is known of each device now, and what happened to it.

    gateway stream devices

Reads silver's new rows, the gateways' ledger topic and the topics with births and deaths, keeps a state per device
(``transformWithState`` on RocksDB), and writes the tables ``devices`` and ``device_events``.

*Who is offline is a matter of the stream's progress, not of the clock on the wall*: after Spark or silver was down,
everything is taken in order of time first. Whether a gateway is there at all is what its ledger says: silence of
devices cannot tell a gateway that is down from a quiet night. Only if *nothing* comes is there no progress to go by;
then processing time counts, from when this process began to watch.

A device may come through several gateways (a shared subscription), so state is by device, in shards by a hash of its
name, and each shard is told all gateways' clocks.

Exactly once in effect: a batch that is run again has the same input, state and processing time, so it makes the same
rows; ``device_events`` ignores a batch it has, and ``devices`` is a MERGE that puts the same values again, and never
those of an older batch over those of a newer one. A new checkpoint begins with silver's first row and both tables anew.
"""

from datetime import timedelta
from functools import partial
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (the name all PySpark code uses)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BooleanType, NumericType

from bridge.wire import GATEWAY_DEVICE, GATEWAY_ID, LEDGER_VERSION, LEDGER_WORKER, MQTT_TOPIC, ledger_schema
from config.errors import ConfigError
from config.settings import Settings
from streaming import lake_tables
from streaming.decoding.shapes import MAX_TS_MS, header
from streaming.devices.packing import DEVICES, INPUT, OUTPUT, PACKED, pack_readings, unpack_changes
from streaming.devices.processor import ShardProcessor
from streaming.devices.records import Reading, Rules
from streaming.devices.store import STATE_VERSION
from streaming.job import JobContext
from streaming.kafka.source import read_records
from streaming.kafka.topic_ids import require_same_topics
from streaming.lake.columns import columns
from streaming.lake.forgotten import Forgotten
from streaming.lake.lake import DeltaTable, held
from streaming.lake.ranges import named
from streaming.runtime.checkpoint import Checkpoint, prepare_checkpoint
from streaming.silver.schema import signals_of

QUERY: Final = "devices"
_BATCH: Final = {"maxFilesPerTrigger": "200", "maxBytesPerTrigger": "64m"}
"""What a batch reads of silver, and at least a file: a shard has its part of it in memory. 64 MB are one to three
million readings; after ``maintain`` 200 files are 25 GB."""
_BATCHES_WITHOUT_DATA: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_MOST_NAMES: Final = 10_000  # by which files of ``devices`` are passed over; beyond, nearly all files have one
_BROADCAST: Final = "spark.sql.autoBroadcastJoinThreshold"
_MOST_SENT: Final = 1_000_000
"""Of more devices none are sent to every task. There each takes 70 bytes; Spark goes by the size of silver's files, and
expects much less. A million in one batch took 55 CPU seconds and 3.8 GiB so, and 63 and 2.8 sorted by device."""

DEVICE_EVENTS: Final = columns("at timestamp, event string, device string, gateway string, detail string, batch long")
"""What happened. ``device`` is null where it happened to a gateway."""


def start(spark: SparkSession, settings: Settings, context: JobContext) -> StreamingQuery:
    """Starts the query and returns it. Raises ConfigError if there is no silver, or the checkpoint does not fit."""
    stream = settings.stream
    silver = lake_tables.existing(spark, stream, "silver", job="silver")
    topics = _topics(settings)
    fixed: dict[str, str | int] = {
        "state": STATE_VERSION,
        "stream.devices.shards": stream.devices.shards,
        "stream.shuffle_partitions": stream.shuffle_partitions,
        "Kafka beside silver": "read" if topics else "not read",
    }
    checkpoint = prepare_checkpoint(spark, stream, QUERY, fixed, topics=topics, doubled="device_events")
    devices, events = DeltaTable(spark, stream, "devices"), DeltaTable(spark, stream, "device_events")
    devices.create(DEVICES, delta_enableDeletionVectors="true")
    events.create(DEVICE_EVENTS)
    rules, shards = rules_of(settings), stream.devices.shards
    readings = silver_readings(silver.read_stream(**_BATCH), shards)
    inputs = readings.mapInArrow(pack_readings(rules, shards), INPUT)
    if topics:
        require_same_topics(spark, settings, QUERY, topics, allow_data_loss=context.allow_data_loss)
        # The ledger is read to its end: how far the gateways are is known before silence is judged.
        records = read_records(spark, settings, topics, allow_data_loss=context.allow_data_loss, is_bounded=False)
        ledger = settings.ledger.topic
        inputs = inputs.unionByName(beats(records, ledger, shards)).unionByName(presence(records, ledger, shards))
    packed = inputs.groupBy("shard").transformWithState(ShardProcessor(rules), PACKED, "Update", "ProcessingTime")
    changes = packed.mapInArrow(unpack_changes, OUTPUT)
    forgotten = Forgotten(spark, stream)
    write = partial(_write, devices=devices, events=events, checkpoint=checkpoint, forgotten=forgotten)
    others = str(spark.conf.get(_BATCHES_WITHOUT_DATA))
    # Timers fire in batches without data too; a query that reads what there is and ends would never end with them.
    spark.conf.set(_BATCHES_WITHOUT_DATA, str(not stream.available_now).lower())
    try:
        return checkpoint.start(changes, stream, write, mode="update")
    finally:
        spark.conf.set(_BATCHES_WITHOUT_DATA, others)


def rules_of(settings: Settings) -> Rules:
    """The settings as the state machine takes them."""
    devices = settings.stream.devices
    return Rules(
        offline_after_ms=_ms(devices.offline_after),
        gateway_after_ms=_ms(devices.gateway_after),
        gap_after_ms=_ms(devices.gap_after),
        flap_transitions=devices.flap_transitions,
        flap_window_ms=_ms(devices.flap_window),
        forget_after_ms=_ms(devices.forget_after),
        beat_ms=_ms(settings.ledger.interval),
        tick_ms=max(10_000, _ms(settings.stream.trigger)),
    )


def silver_readings(silver: DataFrame, shards: int) -> DataFrame:
    """Silver's rows as readings of the shards: numbers and booleans (1, 0) of all signals in one map."""
    signals = signals_of(silver.schema, NumericType, BooleanType)
    pairs = [part for name in signals for part in (F.lit(name), F.col(f"`{name}`").cast("double"))]
    measured = F.create_map(*pairs).cast("map<string, double>")  # of no signals, too
    made = {
        "gateway": F.coalesce("gateway", F.lit("")) if "gateway" in silver.columns else F.lit(""),
        "device_ms": F.unix_millis(F.coalesce("device_time", "event_time", "received_at")),
        "event_ms": F.unix_millis(F.coalesce("event_time", "received_at")),
        "received_ms": F.unix_millis("received_at"),
        "values": F.map_filter(measured, lambda _, value: value.isNotNull()),
    }
    heard = silver.where(F.col("device").isNotNull() & F.col("received_at").isNotNull())
    return heard.select(
        _shard(shards).alias("shard"), *(made.get(name, F.col(name)).alias(name) for name in Reading._fields)
    )


def beats(records: DataFrame, ledger: str, shards: int) -> DataFrame:
    """The workers' entries in the ledger topic, one for each shard. Others' records, and entries that lack a field,
    are left out."""
    entry = F.from_json(F.col("value").cast("string"), ledger_schema())
    entries = records.where(F.col("topic") == F.lit(ledger)).select(entry.alias("it")).select("it.*")
    good = entries.where((F.col("v") == LEDGER_VERSION) & (F.col("kind") == LEDGER_WORKER))
    same = ("gateway", "worker", "life", "acknowledged", "from_ms", "state")
    each = good.dropna(subset=["to_ms", *same]).withColumn("shard", F.explode(F.sequence(F.lit(0), F.lit(shards - 1))))
    return _input(each, "shard", *same, kind=F.lit("beat"), ms=F.col("to_ms"))


def presence(records: DataFrame, ledger: str, shards: int) -> DataFrame:
    """Births and deaths, not looked at yet (``parse_presence``). Whose it is says the header ``gateway.device``, else
    the record's key, else EMQX's ``clientid``; a record that does not say is left out."""
    device = F.coalesce(
        header(GATEWAY_DEVICE),
        F.try_validate_utf8(F.col("key").cast("string")),  # other bytes would end the Python process that reads them
        F.get_json_object(F.col("value").cast("string"), "$.clientid"),
    )
    named = records.where(F.col("topic") != F.lit(ledger)).withColumn("device", device)
    return _input(
        named.where((F.length("device") > 0) & (F.unix_millis("timestamp") <= MAX_TS_MS)),
        "device",
        shard=_shard(shards),
        kind=F.lit("presence"),
        ms=F.unix_millis("timestamp"),
        gateway=F.coalesce(header(GATEWAY_ID), F.lit("")),
        mqtt_topic=header(MQTT_TOPIC),
        payload=F.col("value"),
    )


def _input(rows: DataFrame, *same: str, **made: Column) -> DataFrame:
    """``INPUT``'s columns: those that are the ``same`` in the rows, those that are ``made``, null for the others."""
    of = {**{name: F.col(name) for name in same}, **made}
    return rows.select(*(of.get(it.name, F.lit(None)).cast(it.dataType).alias(it.name) for it in INPUT))


def _shard(shards: int) -> Column:  # of a row with a device
    return F.pmod(F.xxhash64("device"), F.lit(shards))


def _write(
    changes: DataFrame, batch: int, *, devices: DeltaTable, events: DeltaTable, checkpoint: Checkpoint,
    forgotten: Forgotten,
) -> None:  # fmt: skip
    """Writes what a batch changed."""
    # A batch adds a file per task to both tables, a MERGE opens all of them, and maintain leaves them to this job.
    changes.sparkSession.conf.set("spark.databricks.delta.autoCompact.enabled", "true")  # the query's own session
    with held(changes) as kept:  # or the state would be computed once for each table
        marked = forgotten.marked(kept)
        changes = kept if marked is None else without_forgotten(marked)
        counts = {row["kind"]: row["count"] for row in changes.groupBy("kind").count().collect()}
        if batch == 0:
            # What another checkpoint wrote is told again by this one.
            events.replace(_events(changes, batch))
            devices.replace(_devices(changes, batch).where("NOT gone").drop("gone"))
            return
        if "event" in counts:
            events.append(_events(changes, batch), query=f"{QUERY}-{checkpoint.id}", batch=batch)
        if "device" in counts:
            _merge(devices, _devices(changes, batch), counts["device"])


def _merge(devices: DeltaTable, rows: DataFrame, count: int) -> None:  # a row that a later batch wrote stays
    clauses = (
        "WHEN MATCHED AND s.gone AND t.batch <= s.batch THEN DELETE",
        "WHEN MATCHED AND t.batch <= s.batch THEN UPDATE SET *",
        "WHEN NOT MATCHED AND NOT s.gone THEN INSERT *",
    )
    few = ""
    if count <= _MOST_NAMES:
        few = f" AND ({named('t.device', [it.device for it in rows.select('device').collect()])})"
    conf = rows.sparkSession.conf  # the query's own
    limit = str(conf.get(_BROADCAST))
    if count > _MOST_SENT:
        conf.set(_BROADCAST, "-1")
    try:
        devices.merge(rows, f"t.device = s.device{few}", *clauses)
    finally:
        conf.set(_BROADCAST, limit)


def without_forgotten(marked: DataFrame) -> DataFrame:
    """What a batch changed, without what the state still says of devices that were forgotten.

    A device that was not heard since is gone: without a snapshot, and without events. Of one that was, no value and no
    event is left that is older. ``marked``: rows of the processor, with ``forgotten_ms``.
    """
    it, forgotten = F.col("snapshot"), F.col("forgotten_ms")
    told = it["reason"].isin("birth", "death") & (it["since"] > forgotten)
    heard = F.coalesce((it["last_seen"] > forgotten) | told, F.lit(False))
    is_silent = (F.col("kind") == "device") & forgotten.isNotNull() & ~heard
    newer = it.withField(
        "values", F.map_filter(it["values"], lambda name, _: F.element_at(it["value_times"], name) > forgotten)
    ).withField("value_times", F.map_filter(it["value_times"], lambda _, at: at > forgotten))
    return (
        marked.withColumn("silent", F.max(is_silent).over(Window.partitionBy("device")))
        .where("kind = 'device' OR NOT silent AND coalesce(at > forgotten_ms, true)")
        .withColumn("snapshot", F.when(F.expr("NOT silent"), F.when(forgotten.isNotNull(), newer).otherwise(it)))
        .drop("silent", "forgotten_ms")
    )


def _events(changes: DataFrame, batch: int) -> DataFrame:  # rows of DEVICE_EVENTS
    return (
        changes.where("kind = 'event'")
        .withColumns({"at": F.timestamp_millis("at"), "batch": F.lit(batch).cast("bigint")})
        .select(*DEVICE_EVENTS.names)
    )


def _devices(changes: DataFrame, batch: int) -> DataFrame:
    """The devices that changed, as the table has them, and ``gone`` for those that are forgotten."""
    it = F.col("snapshot")
    computed: dict[str, Column] = {
        "device": F.col("device"),
        "gateway": F.col("gateway"),
        **{name: F.timestamp_millis(it[name]) for name in ("since", "last_seen", "last_event_time")},
        "value_times": F.transform_values(it["value_times"], lambda _, at: F.timestamp_millis(at)),
        "batch": F.lit(batch).cast("bigint"),
    }
    columns = [(computed[name] if name in computed else it[name]).alias(name) for name in DEVICES.names]
    return changes.where("kind = 'device'").select(*columns, it.isNull().alias("gone"))


def _topics(settings: Settings) -> tuple[str, ...]:
    """The Kafka topics to read beside silver, the ledger first; empty if silver is all."""
    devices, ledger = settings.stream.devices, settings.ledger
    topics = tuple(dict.fromkeys(devices.presence_topics))
    if ledger.topic and ledger.topic in topics:
        raise ConfigError(
            f"stream.devices.presence_topics names {ledger.topic!r}, which is ledger.topic: no device's birth is there."
            " Name the Kafka topic of the route that takes births and deaths."
        )
    if not devices.heartbeats or not ledger.topic:
        return topics
    if devices.gateway_after < 2 * ledger.interval:
        raise ConfigError(
            f"stream.devices.gateway_after is {devices.gateway_after}, but a gateway writes to its ledger every"
            f" {ledger.interval} only (ledger.interval): it would be lost again and again. Give it several intervals."
        )
    return (ledger.topic, *topics)


def _ms(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)
