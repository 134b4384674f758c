"""The data directory: whose it is, which slots and sessions it has, and the files that survive a restart.

adoption.py           looking at a data directory from outside, and taking one over
directory.py          the files of a data directory and the locks on them: what identity and adoption build on
durable.py            small files that a crash leaves either as they were or as they were to become
identity.py           who a worker is: the owner of a slot in a data directory, which nobody else may use meanwhile
ledger_log.py         the ledger topic as a part of a worker: which life this is
lost_sessions.py      MQTT sessions that had to be at the broker, and were not when they were connected again
meta_properties.py    what ``meta.properties`` in a data directory says: whose the directory is
session_registry.py   the MQTT sessions that exist at a broker on a worker's behalf
"""
