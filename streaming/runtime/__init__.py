"""The process around a job or a tool: Spark's start and end, its queries, its checkpoints.

checkpoint.py       where a query keeps how far it is, and what is fixed once it has begun
checkpoint_log.py   what a checkpoint's files say, read without Spark: which batches are planned, which finished
class_data.py       the JVM's class-data archive, also of the embedded Kafka: written by one run, mapped by later ones
job_lock.py         one process for each checkpoint: a lock beside it, held for as long as the process lives
queries.py          runs queries to their end: starts them, tells of their batches, waits, and stops them in order
reach.py            whether somebody listens where a job is told to connect, asked before Spark is started
session.py          the Spark session of a job, tuned to have its first batch soon and to leave nothing running
"""
