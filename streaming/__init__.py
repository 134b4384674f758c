"""Spark jobs: Kafka to Parquet and windowed results.

A job is read → transforms → write: ``source``, ``transforms``, ``tables``, with columns and the fields of the devices'
JSON in ``schemas`` (their names are ``bridge.wire``'s). ``ingest`` and ``windows`` are the queries. ``driver`` is the
process around them: ``session`` starts Spark, ``queries`` runs them to their end, ``listener`` reports.

Without pyspark, for those who start a job or read what it prints: ``options``, ``progress``, ``kafka``, ``reach``,
``errors``. Importing this package loads none of its modules.
"""
