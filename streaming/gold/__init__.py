"""The job ``gold``: aggregates of silver's signals over windows of event time.

job.py          the job ``gold``: aggregates of silver's signals over windows of event time, per device, type and site
transforms.py   what is made of silver's readings: aggregates over windows of event time
"""
