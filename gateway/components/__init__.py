"""The parts that a worker is made of, beside its MQTT sessions.

outward.py         the tokens with which the gateway proves itself, made from settings, kept fresh
session_group.py   a group of MQTT sessions with windows, memory and acknowledgements of its own
spooling.py        a worker's spool: the store and the spooler together, as a component of the service
worker_view.py     what those see of a worker who only look at it: health, /status, and what looks outside for it
"""
