"""From a message to an acknowledged batch: slots, batches, partitions, their sender, and the way through the spool.

accumulator.py      records waiting for Kafka: one open batch per route, QoS and partition
batch.py            batches for one Kafka partition, and the spans that say when messages may be acknowledged
dead_letter.py      writes dead letters: the original bytes and the reason, into the route's topic or the common one
dispatch.py         from an MQTT topic to the slot its records enter; the slow lane of routes with interceptors
holding.py          the messages of stopped routes: held in the order they came, each holding up its span
parking.py          records of a Kafka topic whose partitions are not known yet: kept in order until they are
partitioner.py      which partition a key belongs to: Kafka's murmur2, as the Java client computes it
partitions.py       what waits for each Kafka partition: shared by everything in a worker that writes to Kafka
pipeline.py         builds the data path: sender, accumulators, dead letters, dispatchers, spool
sender.py           moves batches from the accumulator to Kafka: one at a time per partition, retried
spool_episodes.py   the log's lines about topics that go to the disk and come back
spool_replay.py     brings back what the spool holds: in order per partition, at a capped rate
spooler.py          decides when a partition's batches go to the spool, and what is sent next
timestamps.py       the timestamp of a record: what Kafka refuses, and what is written in its place
"""
