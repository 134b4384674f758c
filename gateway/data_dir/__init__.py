"""The data directory: its owner, slots and sessions, and other files that survive a restart.

adoption.py           ``gateway identity show`` and ``adopt``
directory.py          the files of a data directory and their locks, for identity and adoption
durable.py            writes small files atomically and durably
identity.py           claims a slot of the data directory for one worker process
ledger_log.py         the component that writes a worker's ledger topic
lost_sessions.py      MQTT sessions that a broker lost; the problem session-lost
meta_properties.py    ``meta.properties``, which names the owner of the directory
session_registry.py   the MQTT sessions that exist at a broker on a worker's behalf
"""
