"""Commands: records of Kafka topics that are published to devices over MQTT, with an account of each.

What must stay true:

- A command is finished when its terminal status is in Kafka (``acks=all``); only then is its offset committed.
- A status is never ahead of the truth, and never goes back. A command has one terminal status; ``timed_out`` alone may
  be followed by the device's late answer.
- What is known of offsets beyond the committed one is in the commit's metadata, so that a crash loses no command and
  sends again only what was sent since the last commit.
- A device has at most ``in_flight`` commands under way; they leave in the order of their offsets.

account.py          the account of commands: what became of those that were taken
command.py          one command, its states, and the queue of its device
dispatcher.py       decides what each event means: what is sent, and which statuses are written. No I/O
model.py            commands, their statuses, answers of devices
offset_map.py       what is known of a partition's offsets beyond the committed one, and its form in the commit
partition.py        a partition that this member owns: its commands, and what may be committed of it
plan.py             the settings as the dispatcher uses them
ports.py            Protocols: the consumer group, the MQTT side, the status topic, dead letters
queues.py           the queues of all devices: which command may leave next, and when the rates allow it
reading.py          reads records: commands, answers, acknowledgements that EMQX reports, births
sink.py             writes the status topic
status_reading.py   reads the status topic
timers.py           commands by the time at which something has to happen to them
tokens.py           the signed text that a device sends back, so that its answer finds the command
"""
