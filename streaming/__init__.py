"""Spark jobs: Kafka to Parquet and windowed results.

    source ─▶ transforms ─▶ tables        what a job is made of; ``ingest`` and ``windows`` are the queries
    schemas                               columns, and the fields of the devices' JSON (named in ``bridge.wire``)
    driver · session · listener           the process: start Spark, report, stop in order
    options · progress · kafka · errors   without pyspark, for who starts a job or reads what it prints

Importing this package loads none of them.
"""
