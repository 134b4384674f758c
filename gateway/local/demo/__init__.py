"""The demo: the whole path on this machine, with devices, failures, and an account at the end.

_sweeper.py       ends what Spark leaves running when it or the demo is killed
access.py         ``--auth``: the access service of a demo, asked by its MQTT broker, with a secret for each device
account.py        what became of every message, by the devices' own names and sequence numbers
chaos.py          what ``--chaos`` does and when, what it found, and how that is told
children.py       the demo's own Python processes (fleet, witness, plain bridge), spoken to in JSON lines
faults.py         does what the plan of ``--chaos`` says, at its times, to the running demo
latency.py        latency percentiles, over the whole run and over the last seconds, in bounded memory
options.py        what a run of the demo is asked to do
plain.py          keeps the plain bridge's process running, as a process manager would, and kills it when told to
plain_bridge.py   the bridge most of us write first, as a process (``python -m gateway.local.demo.plain_bridge``)
records.py        reads the messages back: from Kafka with a consumer, from Parquet with Arrow
report.py         the page with plots that a demo ends with, made from the tables that its Spark job has written
result.py         what a whole run of the demo comes to
run.py            the demo from its first line to its account: start, flow, stop in an order that loses nothing
scrape.py         asks the gateway's HTTP port what the demo shows: whether it is ready
services.py       the servers of the demo: Kafka, the MQTT broker, the gateway and the Spark job, each started
spark_events.py   turns the Spark job's progress lines into the numbers the demo shows and waits for
state.py          what the demo knows of itself at a moment; the views draw it, the stages write it
sweeper.py        the process that ends what Spark would leave running; see ``_sweeper.py``
view.py           what people see while the demo runs: a table that is redrawn on a terminal
watchdog.py       names the part of the demo that stands still, from the counts of every part
witness.py        a Kafka consumer that watches the messages arrive (``python -m gateway.local.demo.witness``)
"""
