"""The ledger topic: what Kafka acknowledged, by interval, written beside the data path.

intervals.py   what Kafka acknowledged, counted per route, topic, partition and interval
records.py     records of the ledger topic: JSON as ``bridge.wire`` names it, made from intervals, and read back
writer.py      writes the ledger topic through the same producer, without delaying the data path
"""
