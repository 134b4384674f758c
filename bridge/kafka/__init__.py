"""The Kafka adapter: the one part of the data path that knows aiokafka.

batch.py         batches as Kafka's bytes, and on their way: what one partition's batch is
client.py        aiokafka's client, which one silent broker cannot hold up
connection.py    how aiokafka's clients of ours reach Kafka, and why they could not
contacts.py      when each Kafka broker answered last, over all the connections and producers of a worker
error_codes.py   what each of Kafka's error codes means for a batch: one table
leaders.py       who leads each partition, by the latest leader epoch that any broker has told (KIP-320)
login.py         how every connection to Kafka proves who we are: password, certificate or token
probe.py         one broker asked by itself, each question with a time-out of its own
produce.py       produce requests of version 8, whose answers name the records at fault (KIP-467)
producer.py      the Kafka port on aiokafka
reader.py        reads topics: everything in them, single spans, or what arrives; in no consumer group
session.py       one authenticated connection to a broker
topic_watch.py   holds a topic to the number of partitions it was first seen with
topics.py        the topics that settings name: they exist, or are made, or starting ends with a sentence
"""
