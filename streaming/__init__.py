"""Spark jobs: Kafka to Parquet and windowed results.

A job is read → transforms → write: ``source``, ``transforms``, ``tables``, with columns and the fields of the devices'
JSON in ``schemas`` (their names are ``bridge.wire``'s). ``ingest`` and ``windows`` are the queries. ``driver`` is the
process around them: ``session`` starts Spark, ``queries`` runs them to their end, ``listener`` reports.

Without pyspark, for those who start a job or read what it prints: ``options``, ``progress``, ``kafka``, ``reach``,
``errors``. Importing this package loads none of its modules.

    all.py                the job ``all``: several jobs in one process, a query and a checkpoint each, on one Spark
    anomalies.py          the job ``anomalies``: silver's readings against those before, and devices' silences
    audit.py              the job ``audit``: what is in Kafka against what the gateways' ledger says was acknowledged
    audit_transforms.py   what an audit makes of Kafka's records and of the gateways' ledger
    avro_schemas.py       Avro payloads: the fields of a schema, and the decoding of one payload
    backfill.py           silver and gold made up for a stretch of time
    bronze.py             the job ``bronze``: every record of Kafka as it came, with all its metadata, append-only
    bronze_table.py       the tables ``bronze`` and ``bronze_gaps``
    checkpoint.py         where a query keeps how far it is, and what is fixed once it has begun
    checkpoint_log.py     what a checkpoint's files say, read without Spark: which batches are planned
    decode.py             Kafka's records as readings of the schema folder's types: typed, in canonical units
    decode_binary.py      Avro and Protobuf payloads become columns: a Python function over Arrow's arrays
    decode_faults.py      what is wrong with a record that is not plainly good, in words
    decode_shapes.py      what the types of a schema folder ask of a payload, as Spark expressions
    delta_log.py          what a Delta table's log says of the table, read without Spark: rows, files, bytes
    delta_upkeep.py       upkeep of Delta tables: small files put together, old rows deleted
    detector_state.py     a device's detectors together, and as the bytes that Spark keeps of them between batches
    detectors.py          what does not fit: readings of one signal against those before
    device_fields.py      what is known of the devices' payloads once the schema folder is read: fields, signals, types
    device_gateways.py    how far the stream of each gateway is, and whether the gateway is away
    device_presence.py    births and deaths of devices out of Kafka's records, in the forms that are in use
    device_processor.py   a shard of devices as a stateful processor of Spark: its state variables, and rows in and out
    device_records.py     what the device job reads and writes
    device_schemas.py     the schema folder: what each type of devices sends, and in which units silver keeps it
    device_sequence.py    which numbers of a device's sequence are missing
    device_shard.py       a share of the devices with the clocks of all gateways: takes what came in order of time
    device_state.py       what is known of one device, and how a reading, a birth, a death or the time changes it
    device_types.py       one device type, put together from its entry in the index and its schema file
    devices.py            the job ``devices``: what is known of each device now, and what happened to it
    driver.py             a job's process: command line, signals, progress lines, Spark's start and end
    errors.py             what can go wrong in the Spark jobs, as sentences for people
    failures.py           Spark's and Kafka's failures as ours: a sentence that names the cause and what to check
    files.py              folders of this machine, with the face that ``storage.Folder`` has for Spark's file systems
    forget.py             ``gateway stream forget DEVICE``: a device's rows out of every table
    forgotten.py          devices that were forgotten, and when
    gold.py               the job ``gold``: aggregates of silver's signals over windows of event time, per device
    gold_transforms.py    what is made of silver's readings: aggregates over windows of event time
    group.py              how far a query has read, committed to Kafka under a group's name
    held.py               a batch that is read several times and computed once
    ingest.py             the job ``ingest``: Kafka's records into a Parquet table
    job.py                what every job is given, and what it gives back
    job_lock.py           one process for each checkpoint: a lock beside it, held for as long as the process lives
    json_schemas.py       fields of a JSON payload, from a file of JSON Schema
    kafka.py              our Kafka settings as the options of Spark's Kafka source
    kafka_log.py          what Kafka holds of a topic now: first and next offsets, and which topic of that name it is
    kafka_oauth.py        OAUTHBEARER as the Java client inside Spark does it: it fetches or reads its tokens itself
    kafka_topic.py        a topic that a job writes to: it exists, or is made, or starting ends with a sentence
    lake.py               the lake: one table per layer, by folder or by a catalog's name
    lake_tables.py        the lake's tables, a function each
    layers.py             the tables there are and how each is kept: what ``maintain`` and ``forget`` go through
    listener.py           progress lines out of Spark's own reports
    maintain.py           ``gateway stream maintain``: small files of past days put together
    metric_names.py       every metric of a Spark job: name, kind, unit, labels, meaning
    metrics.py            what the running queries tell Prometheus
    offsets.py            which Kafka offsets a micro-batch was planned with
    options.py            the command line of a job
    parquet_days.py       upkeep of the Parquet tables that jobs write batch by batch: days of small files put together
    parquet_rows.py       rows taken out of the Parquet tables that jobs write batch by batch
    progress.py           the lines a Spark job writes to standard output while it runs: one JSON object each
    protobuf_schemas.py   Protobuf payloads: the fields of a message, and the decoding of one payload
    queries.py            runs queries to their end: starts them, waits, and stops them in order
    reach.py              whether somebody listens where a job is told to connect, asked before Spark is started
    registry.py           the device registry: which type each device is of, and where it stands
    replay.py             ``gateway stream replay``: what lies in silver's quarantine is decoded again
    report.py             the tool ``report``: one HTML file about the tables, that needs nothing else to be looked at
    report_data.py        what a report shows, whatever it was read from
    report_facts.py       what all sources of a report have in common: its bounds, the ranges of lateness
    report_files.py       a report from the Parquet tables of the job ``ingest``, read by pyarrow alone
    report_lake.py        a report from the lake's tables
    report_page.py        the report's page: one HTML file that needs nothing else, neither network nor scripts
    report_plots.py       plots as SVG that stands in the page itself: its colours are the page's, its text is text
    report_write.py       puts a report's page where it was asked for
    reset.py              begin a job anew: its checkpoint put aside, not deleted
    schema_index.py       ``schemas.toml``, the index of a schema folder: the types, where their records come from
    schemas.py            schemas of what is read and written: the devices' JSON
    session.py            the Spark session of a job, tuned to have its first batch soon and to leave nothing running
    silver.py             the job ``silver``: Kafka's records as typed readings, each once
    silver_match.py       which rows of silver a batch can meet again: the condition of the MERGE
    silver_rows.py        what silver makes of decoded records
    silver_schema.py      columns of the tables ``silver`` and ``silver_quarantine``
    silver_table.py       the tables ``silver`` and ``silver_quarantine``: made, widened when the device schemas grew
    source.py             Kafka's records as a stream
    status.py             how far each query is and what the tables hold, from the files alone
    storage.py            folders on whatever file system Spark writes to: the local disk, HDFS, an object store
    swap.py               folders on the local disk that change places in one step
    tables.py             the tables: how a batch is written exactly once in effect
    tally.py              what queries count themselves while they write a batch, until it is reported
    time_ranges.py        stretches of time, few enough to be written into a query
    tool.py               the process of a tool, which ``gateway stream NAME`` becomes
    tool_options.py       the command lines of what is done to the lake beside the jobs: ``gateway stream status``
    transforms.py         what is made of Kafka's records
    units.py              units of signals: how a number in one unit becomes one in another
    windows.py            the query ``windows``: aggregates of each device type over windows of event time
"""
