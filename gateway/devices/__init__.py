"""Simulated devices, for the demo, ``gateway simulate``, ``gateway trial`` and tests.

device.py          one MQTT connection of a publishing device
fleet.py           the simulated devices: hundreds of MQTT clients on one asyncio loop
fleet_process.py   the fleet as a process of its own (``python -m gateway.devices.fleet_process``)
mischief.py        what real devices do wrong, at given shares: messages twice, out of order, with a wrong clock
outbox.py          what a device has still to send or to see acknowledged, and its own account of it
physics.py         what the demo's devices measure: a small physical model, the same for the same seed
profiles.py        when devices send: evenly, in bursts, or more by day than by night
simulation.py      a run of simulated devices against somebody's MQTT broker
"""
