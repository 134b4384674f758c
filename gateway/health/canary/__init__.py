"""A synthetic device whose messages go the whole way, and are looked for at its end.

account.py    what became of each of the canary's messages
canary.py     the canary: publishes as a device would, and reads its messages back from Kafka
problems.py   a failing canary in sentences: at which leg of its way, and what to look at
reader.py     reads the end of one Kafka topic: all its partitions, in no consumer group, leaving no offsets behind
"""
