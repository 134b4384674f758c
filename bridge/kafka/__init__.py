"""The Kafka adapter: the one part of the data path that knows aiokafka.

batch.py            batches as Kafka's bytes, and the requests that carry them
client.py           aiokafka's client, which one silent broker cannot hold up
connection.py       how aiokafka's clients of ours reach Kafka, and why they could not
contacts.py         when each Kafka broker answered last, over all connections and producers of a worker
error_codes.py      what each of Kafka's error codes means for a batch: one table
feed.py             new records of some topics, and what earlier owners of a partition wrote about it
fetched.py          fetched records of any names of headers
group.py            a member of a consumer group, whose commits carry a text
group_admin.py      what is asked about a consumer group, by its members and by others
group_protocol.py   what members say to their coordinator, and how partitions are shared out
leaders.py          the leader of each partition, by the latest leader epoch that a broker reported (KIP-320)
login.py            the login of every connection to Kafka: password, certificate or token
probe.py            one broker asked by itself, each question with a time-out of its own
produce.py          produce requests of version 8, whose answers name the records at fault (KIP-467)
producer.py         the Kafka port on aiokafka
record_writer.py    writes batches in the compiled wheel; aiokafka's builder does in the pure one
reader.py           reads topics: everything in them, single spans, or what arrives; in no consumer group
session.py          one authenticated connection to a broker
topic_watch.py      pins the number of partitions of each topic, and notices changes in Kafka
topics.py           the topics that settings name: created where they are missing
"""
