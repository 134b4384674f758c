"""Kafka as Spark's jobs see it: options, offsets, topics, and what goes wrong.

admin.py       Kafka asked and changed by the JVM's admin client: what it holds, new topics, a group's offsets
failures.py    Spark's and Kafka's failures as ours: a sentence that names the cause and what to check
group.py       how far a query has read, committed to Kafka under a group's name
offsets.py     which Kafka offsets a micro-batch was planned with, and which nobody can read any more
options.py     our Kafka settings as the options of Spark's Kafka source
source.py      Kafka's records as a stream
topic_ids.py   which topic of a name a query has read
"""
