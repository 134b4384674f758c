"""The job ``bronze``: every record of Kafka as it came, append-only.

job.py         the job ``bronze``: every record of Kafka as it came, with all its metadata, append-only
returning.py   topics that left ``stream.topics`` and are back: bronze goes on where it left them
tables.py      the tables ``bronze`` and ``bronze_gaps``: columns, and whether the rows are those of a checkpoint
"""
