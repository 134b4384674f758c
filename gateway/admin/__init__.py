"""Kafka as its administrator sees it: brokers, topics, groups, leaders, and the few changes a gateway's operator makes.

``kafka.KafkaAdmin`` is the face; ``model`` holds what it tells. Everything here blocks, and belongs into the command
line or a thread; nothing of it is loaded by a worker that runs.
"""
