"""Commands for one machine: brokers, devices, and the demo with all of them.

demo.py        ``gateway demo``: the whole path on this machine, with an account of every message at the end
dev.py         ``gateway dev``: a real Kafka and a real MQTT broker on this machine
simulate.py    ``gateway simulate``: devices that publish to the MQTT broker, and their account
"""
