"""Spark jobs: Kafka's records become tables of a lake.

Each job has a folder, whose ``job`` starts its query; the folder's docstring names the other modules.
The folders of the jobs do not know each other, but for silver's columns, which gold, devices and anomalies read.
Without pyspark, for those who start a job or read what it prints: ``options``, ``progress``, ``errors``,
``kafka.options``, ``runtime.reach``, ``upkeep.status``. Importing a package here loads none of its modules.

    bronze/           every record of Kafka as it came, append-only
    silver/           Kafka's records as typed readings, each once, and the quarantine of those that cannot be read
    gold/             aggregates of silver's signals over windows of event time
    devices/          what is known of each device now, and what happened to it
    anomalies/        readings that do not fit those before, and devices' silences
    audit/            what is in Kafka against what the gateways' ledger says was acknowledged
    decoding/         a schema folder, and Kafka's records as readings of its types
    lake/             tables, and the files they are made of, on any file system Spark writes to
    kafka/            Kafka as Spark's jobs see it: options, offsets, topics, and what goes wrong
    runtime/          the process around a job or a tool: Spark's start and end, its queries, its checkpoints
    upkeep/           what is done to the lake beside the jobs: status, maintain, forget, backfill, replay, reset
    report/           the tool ``report``: one HTML page about the tables
    errors.py         what can go wrong in the Spark jobs, as sentences for people, and how they are told
    job.py            what every job is given, and what it gives back
    jvm.py            what is done by the JVM behind a session, past pyspark's public face
    lake_tables.py    the lake's tables, a function each
    metrics.py        what the running queries tell Prometheus: every metric's name, meaning and value
    options.py        the command lines of jobs and tools
    progress.py       the lines a Spark job writes to standard output while it runs: one JSON object each
    run.py            the process of a job or a tool: signals, progress lines, exit status
"""
