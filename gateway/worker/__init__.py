"""One worker process: its parts wired together, run and reloaded.

facts.py          what a worker says of itself beside its metrics: on ``/status``, and at its end
reload.py         changed settings in a running worker
reload_alone.py   reloads of a worker that has no supervisor (``workers = 0``): SIGHUP, the same plan
run.py            runs one worker from its start to its end: signals, reloads, and what is said when it stops
worker.py         one worker: MQTT sessions, the data path and a Kafka producer on one event loop, wired together
"""
