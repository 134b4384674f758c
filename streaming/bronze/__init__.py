"""The job ``bronze``: every record of Kafka as it came, append-only.

job.py   the job ``bronze``, its table, and the table ``bronze_gaps`` of what Kafka lost before it was read
"""
