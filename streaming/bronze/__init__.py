"""The job ``bronze``: every record of Kafka as it came, append-only.

job.py      the job ``bronze``: every record of Kafka as it came, with all its metadata, append-only
tables.py   the tables ``bronze`` and ``bronze_gaps``: columns, and whether the rows are those of a checkpoint
"""
