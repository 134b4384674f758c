"""The benchmark: the gateway as a black box between a broker that replays or carries messages and a real Kafka.

Nothing here is imported by the gateway, and nothing of the gateway's data path is imported here: what is measured is
a process, its CPU clock, what it wrote to Kafka and what it acknowledged. ``python -m tests.bench --help``;
docs/benchmarks.md explains the rows.
"""
