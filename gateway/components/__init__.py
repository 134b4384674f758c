"""The parts of a worker.

command_letters.py   dead letters of records that can never be commands
command_share.py     the part of the MQTT connection that belongs to one ``[[commands]]``
command_topics.py    whether the Kafka topics of commands can keep what is promised; makes the status topic
command_uplink.py    what devices send back to one ``[[commands]]``, read by every worker
command_view.py      what is said about one ``[[commands]]``: log lines, metrics, problems, and /status
commanding.py        commands in a worker: for each ``[[commands]]`` a group member, a dispatcher, and what is around it
copies.py            which group takes a message that the sessions of two receive, also while a subscription is new
kafka_side.py        the Kafka side of a worker: login, topics, partitions, the sender
mqtt_side.py         the MQTT side of a worker: its groups of sessions, and the sessions of earlier settings
outward.py           the gateway's own tokens: made from settings, renewed, and closed at the end
send_counts.py       counts and log lines of what the sender reports for each batch
session_group.py     a group of MQTT sessions with its own windows, memory and acknowledgements
spooling.py          a worker's spool: the store and the spooler together, as a component of the service
worker_view.py       a worker as its watchers see it: health, /status and the lookouts
"""
