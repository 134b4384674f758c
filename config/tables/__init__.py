"""The tables of the settings, a class for each. ``config.settings`` is their root and exports them.

auth.py           settings of the access service
commands.py       settings of commands: from Kafka topics to devices, with a status of each
http.py           settings of the operator's HTTP port
interceptors.py   settings of one interceptor in a chain
kafka.py          settings of the Kafka side
ledger.py         settings of the ledger topic
mqtt.py           settings of the MQTT side
operate.py        settings of operation: EMQX's REST API, Kafka's administration, the canary
routes.py         settings of the way from an MQTT filter to a Kafka topic
service.py        settings of the worker itself: flow control, dead letters, logs
spool.py          settings of the spool: batches on disk while Kafka cannot take them
stream.py         settings of the Spark jobs, which run in a process of their own
stream_jobs.py    settings of each Spark job beside ``[stream]``, a table each; the lake's: retention, compaction
tls.py            the TLS table of every outgoing connection
tokens.py         settings of the gateway's own tokens for EMQX and Kafka
"""
