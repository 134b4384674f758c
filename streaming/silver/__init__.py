"""The job ``silver``: Kafka's records as typed readings, each once, and the quarantine of those that cannot be read.

job.py      the job ``silver``: Kafka's records as typed readings, each once
match.py    which rows of silver a batch can meet again: the condition of the MERGE
reach.py    which readings silver cannot have yet, so that the job appends them without a look
rows.py     judges decoded records as readings, makes their ``record_id``, leaves out copies within a batch
schema.py   columns of the tables ``silver`` and ``silver_quarantine``
tables.py   the tables ``silver`` and ``silver_quarantine``: made, widened, written by MERGE (no copies) or appended
"""
