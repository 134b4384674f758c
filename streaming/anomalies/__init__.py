"""The job ``anomalies``: readings that do not fit those before, and devices' silences.

detectors.py   what does not fit: readings of one signal against those before, a silence against a device's habit
job.py         the job ``anomalies``: silver's readings against those before, and devices' silences
processor.py   the detectors of a device as a stateful processor of Spark, and as the bytes that Spark keeps of them
"""
