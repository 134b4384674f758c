"""A synthetic device whose messages are read back from Kafka.

account.py    the fate of each of the canary's messages
canary.py     the canary: publishes as a device does, and reads its messages back from Kafka
problems.py   a failing canary in sentences: the leg of its way, and what to check
reader.py     reads the end of one Kafka topic: all partitions, without a consumer group or committed offsets
"""
