"""One worker process: its parts wired together, run and reloaded.

facts.py          facts of a worker beside its metrics: for ``/status``, and for the log at its end
reload.py         changed settings in a running worker
reload_alone.py   reloads of a worker that has no supervisor (``workers = 0``): SIGHUP, the same plan
run.py            the run of one worker from start to end: signals, reloads, and the last lines of its log
worker.py         one worker: MQTT sessions, the data path and a Kafka producer on one event loop, wired together
"""
