"""The job ``devices``: what is known of each device now, and what happened to it.

gateways.py    how far the stream of each gateway is, and whether it is away; how long its devices may be silent
job.py         the job ``devices``: Kafka's records and silver in, the tables ``devices`` and ``device_events`` out
packing.py     the job's rows as Arrow's bytes, thousands in one value, into a shard and out
presence.py    births and deaths of devices out of Kafka's records, in the forms that are in use
processor.py   a shard of devices as a stateful processor of Spark: rows in and out
records.py     what the device job reads and writes, and the settings it judges by
sequence.py    which numbers of a device's sequence are missing
shard.py       a share of the devices with the clocks of all gateways: takes what came in order of time
state.py       what is known of one device, and how a reading, a birth, a death or the time changes it
store.py       what Spark keeps of a shard between two batches
"""
