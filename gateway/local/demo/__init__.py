"""The demo: the whole path on this machine, with devices, failures, and an account at the end.

show/             what people see while it runs, and where its numbers come from
access.py         ``--auth``: the access service of a demo, asked by its MQTT broker, with a secret for each device
account.py        what became of every message, by the devices' own names and sequence numbers
alerts.py         makes commands of the alerts of the Spark job ``anomalies``, and notes what came of them
background.py     tasks beside the demo's own, and threads for what blocks
chaos.py          the faults of ``--chaos``, their times, their result and its text
commander.py      sends commands to the devices through Kafka, and reads back what became of them
faults.py         does what the plan of ``--chaos`` says, at its times, to the running demo
latency.py        latency percentiles, over the whole run and over the last seconds, in bounded memory
options.py        what a run of the demo is asked to do
plain.py          keeps the plain bridge's process running, as a process manager would, and kills it when told to
plain_bridge.py   the bridge most of us write first, as a process (``python -m gateway.local.demo.plain_bridge``)
records.py        makes topics, and reads the messages back: from Kafka with a consumer, from the lake without Spark
result.py         what a whole run of the demo comes to
run.py            the demo from its first line to its account: start, flow, stop without a loss, read back
services.py       the demo's servers: Kafka, the MQTT broker, the gateway and the Spark job; started, watched, stopped
witness.py        a Kafka consumer that watches the messages arrive (``python -m gateway.local.demo.witness``)
"""
