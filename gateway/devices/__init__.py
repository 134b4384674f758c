"""Simulated devices, for the demo, ``gateway simulate``, ``gateway trial`` and tests.

account.py         counts of numbered messages that are read back: seen, missing, duplicates
commanded.py       what became of every command, by the records of its topic and the status topic
commands.py        what a device does with a command, and its answer
device.py          one MQTT connection of a publishing device
fleet.py           the simulated devices: hundreds of MQTT clients on one asyncio loop
fleet_process.py   the fleet as a process of its own (``python -m gateway.devices.fleet_process``)
mischief.py        faults of real devices, at given shares: duplicates, wrong order, wrong clocks
outbox.py          a device's unsent and unacknowledged messages, and its counts
physics.py         the demo's measurements: a small physical model, reproducible by its seed
profiles.py        rates of sending: even, in bursts, or by time of day
simulation.py      a run of simulated devices at an MQTT broker
"""
