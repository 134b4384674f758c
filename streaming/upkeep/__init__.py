"""What is done to the lake beside the jobs: ``gateway stream status``, ``maintain``, ``forget`` and the like.

backfill.py   silver and gold made up for a stretch of time, read again from bronze or Kafka
forget.py     ``gateway stream forget DEVICE``: a device's rows out of every table
maintain.py   ``gateway stream maintain``: small files of past days put together, old days and files removed
prepare.py    ``gateway stream prepare``: silver once over records of its own, for Spark's class data
replay.py     ``gateway stream replay``: what lies in silver's quarantine is decoded again
reset.py      begin a job anew: its checkpoint put aside, not deleted
status.py     how far each query is and what the tables hold, from the files alone
"""
